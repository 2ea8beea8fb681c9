//! Makes models from models, files and uploads.

use std::path::PathBuf;

use config::{ConfigSources, Overrides, Source};
use gguf::GgufBuilder;
use serde_json::json;

use super::*;
use crate::recipe::Changes;

struct Scene {
    dir: tempfile::TempDir,
    config: Config,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = vec![("PENSTOCK__SERVER__MODELS_DIR".to_owned(), dir.path().join("store").display().to_string())];
        let own = format!(
            "[[models]]\nid = 'own'\nsystem = 'Own.'\nsampling = {{ top_k = 5 }}\nmax_tokens = 9\n\
             source = {{ type = 'file', path = '{}' }}",
            dir.path().join("own.gguf").display()
        );
        std::fs::write(dir.path().join("x.toml"), own).unwrap();
        let config = Config::load_from(&ConfigSources { dir: dir.path().into(), file: None, env }, &Overrides::default()).unwrap();
        let scene = Self { store: Store::new(&config.server.models_dir), config, dir };
        scene.gguf("own.gguf", &[("general.type", "model")]);
        scene
    }

    fn gguf(&self, name: &str, texts: &[(&str, &str)]) -> PathBuf {
        let builder = GgufBuilder::new().kv("general.architecture", "llama").tensor_f32("a.weight", &[32, 8], &[0.5; 256]);
        let path = self.dir.path().join(name);
        std::fs::write(&path, texts.iter().fold(builder, |builder, (key, value)| builder.kv(key, *value)).build()).unwrap();
        path
    }

    fn make(&self, name: &str, origin: Origin, changes: Changes, quantize: Option<&str>) -> Outcome<ModelEntry> {
        let maker = Maker { config: &self.config, store: &self.store };
        let recipe = Recipe { origin, adapter: None, changes, quantize: quantize.map(str::to_owned) };
        maker.make(name, recipe, &|_| {}).map(|manifest| self.store.entry(&manifest))
    }

    fn fails(&self, name: &str, origin: Origin, words: &str) {
        let error = self.make(name, origin, Changes::default(), None).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
        assert!(self.store.list().is_empty());
    }
}

fn model(name: &str) -> Origin {
    Origin::Model(name.into())
}

#[test]
fn a_model_begins_with_the_settings_of_its_origin() {
    let scene = Scene::new();
    let plain = scene.make("a:latest", model("own"), Changes::default(), None).unwrap();
    assert_eq!((plain.id.as_str(), plain.system.as_deref(), plain.max_tokens, plain.source), ("a", Some("Own."), Some(9), Source::Stored));
    assert_eq!(plain.made.unwrap().recommended.top_k, Some(5));
    let mut changes = Changes { system: Some("Two.".into()), ..Changes::default() };
    changes.set_parameter("temperature", &json!(0.5)).unwrap();
    changes.template = Some(TemplateText::new("{{ .Prompt }}").unwrap());
    let second = scene.make("b", model("a:latest"), changes, None).unwrap();
    assert_eq!((second.system.as_deref(), second.max_tokens, second.sampling.temperature), (Some("Two."), Some(9), Some(0.5)));
    let third = scene.make("c", model("b"), Changes { system: Some(String::new()), ..Changes::default() }, None).unwrap();
    assert_eq!((third.system.as_deref(), third.sampling.temperature, third.parent()), (None, Some(0.5), Some("b")));
    assert_eq!(third.made.unwrap().template.as_ref().unwrap().source, "{{ .Prompt }}");
    assert!(third.chat_template.unwrap().is_file());
}

#[test]
fn circles_end_since_a_model_is_a_copy_of_its_origin_s_settings() {
    let scene = Scene::new();
    scene.make("a", model("own"), Changes::default(), None).unwrap();
    scene.make("b", model("a"), Changes::default(), None).unwrap();
    scene.make("a", model("b"), Changes::default(), None).unwrap();
    scene.make("a", model("a"), Changes { system: Some("New.".into()), ..Changes::default() }, None).unwrap();
    let systems: Vec<_> = scene.store.made().into_iter().map(|entry| (entry.id, entry.system.unwrap())).collect();
    assert_eq!(systems, [("a".to_owned(), "New.".to_owned()), ("b".to_owned(), "Own.".to_owned())]);
}

#[test]
fn wrong_recipes_leave_nothing() {
    let scene = Scene::new();
    scene.fails("a", model("a"), "`a` would be made from itself");
    scene.fails("a", model("nope"), "model 'nope' not found");
    scene.fails("a", model("smollm2"), "`penstock pull smollm2:135m` fetches it");
    scene.fails("own", model("own"), "the configuration has a model with the name `own`");
    scene.fails("../a", model("own"), "the name \"../a\" must begin");
    scene.fails("a", Origin::File(scene.gguf("lora.gguf", &[("general.type", "adapter")])), "adapter");
    scene.fails("a", Origin::File(scene.gguf("mm.gguf", &[("general.type", "mmproj")])), "a picture encoder (mmproj)");
    let text = scene.dir.path().join("text.gguf");
    std::fs::write(&text, "no model").unwrap();
    scene.fails("a", Origin::File(text), "the GGUF file is not usable");
    let error = scene.make("a", model("own"), Changes::default(), Some("Q9")).unwrap_err().to_string();
    assert!(error.contains("`Q9` is no file type: expected one of"), "{error}");
}

#[test]
fn weights_are_converted_by_the_quantiser() {
    let scene = Scene::new();
    let made = scene.make("q", model("own"), Changes::default(), Some("q8_0")).unwrap();
    let file = GgufFile::open(&scene.store.path(&made).unwrap()).unwrap();
    assert_eq!(file.tensors()[0].type_name(), "Q8_0");
    let names: Vec<_> = std::fs::read_dir(scene.dir.path().join("store")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 2, "the model and the locks: {names:?}");
}

#[test]
fn uploads_become_a_model() {
    let scene = Scene::new();
    let bytes = std::fs::read(scene.dir.path().join("own.gguf")).unwrap();
    let digest = catalogue::sha256_of(&scene.dir.path().join("own.gguf")).unwrap();
    let blobs = |name: &str| Origin::Blobs(vec![(name.to_owned(), digest.clone())]);
    scene.fails("a", blobs("own.gguf"), "does not exist: upload it");
    let mut blob = scene.store.new_blob(&digest, None).unwrap();
    blob.write(&bytes).and_then(|()| blob.finish()).unwrap();
    scene.fails("a", blobs("../own.gguf"), "leads out of the model");
    scene.fails("a", blobs("own.safetensors"), "is not a GGUF file");
    scene.fails("a", blobs("own-00001-of-00002.gguf"), "all parts of one");
    scene.fails("a", Origin::Blobs(Vec::new()), "no file of weights is named");
    let made = scene.make("a", blobs("own.gguf"), Changes::default(), None).unwrap();
    assert_eq!(std::fs::read(scene.store.path(&made).unwrap()).unwrap(), bytes);
    scene.store.remove("a").unwrap();
    assert!(scene.store.blob(&digest).is_none(), "the upload goes with the last model that it became");
}

#[test]
fn an_uploaded_mmproj_belongs_to_the_model_and_is_not_quantised() {
    let scene = Scene::new();
    let clip = scene.dir.path().join("clip.gguf");
    std::fs::write(&clip, GgufBuilder::new().kv("general.architecture", "clip").build()).unwrap();
    let upload = |path: &Path| {
        let digest = catalogue::sha256_of(path).unwrap();
        let mut blob = scene.store.new_blob(&digest, None).unwrap();
        blob.write(&std::fs::read(path).unwrap()).and_then(|()| blob.finish()).unwrap();
        digest
    };
    let [own, clip_digest] = [upload(&scene.dir.path().join("own.gguf")), upload(&clip)];
    let blobs =
        |names: &[(&str, &String)]| Origin::Blobs(names.iter().map(|(name, digest)| ((*name).to_owned(), (*digest).clone())).collect());
    scene.fails("a", blobs(&[("mmproj.gguf", &clip_digest)]), "no file of weights is named");
    scene.fails(
        "a",
        blobs(&[("own.gguf", &own), ("b.gguf", &clip_digest), ("c.gguf", &clip_digest)]),
        "two of the files are picture encoders",
    );
    let origin = blobs(&[("mmproj.gguf", &clip_digest), ("own.gguf", &own)]);
    let made = scene.make("a", origin, Changes::default(), Some("q8_0")).unwrap();
    assert_eq!(GgufFile::open(&scene.store.path(&made).unwrap()).unwrap().tensors()[0].type_name(), "Q8_0");
    assert_eq!(std::fs::read(scene.store.mmproj(&made).unwrap()).unwrap(), std::fs::read(&clip).unwrap());
}

#[test]
fn a_model_may_have_an_adapter_which_its_copies_keep() {
    let scene = Scene::new();
    let maker = Maker { config: &scene.config, store: &scene.store };
    let make = |name: &str, from: &str, adapter: AdapterOrigin| {
        let recipe = Recipe { adapter: Some(adapter), ..Recipe::copy_of(from) };
        maker.make(name, recipe, &|_| {}).map(|manifest| scene.store.entry(&manifest))
    };
    let lora = scene.gguf("lora.gguf", &[("general.type", "adapter")]);
    let file = AdapterOrigin::Path(lora.clone());
    let made = make("pirate", "own", file.clone()).unwrap();
    let adapter = made.adapter.clone().unwrap();
    assert_eq!((std::fs::read(&adapter.path).unwrap(), adapter.scale), (std::fs::read(&lora).unwrap(), 1.0));
    maker.copy("pirate", "copy").unwrap();
    let copy = scene.store.made().into_iter().find(|entry| entry.id == "copy").unwrap();
    assert!(copy.adapter.is_some_and(|adapter| adapter.path.is_file() && adapter.path != made.adapter.unwrap().path));
    assert!(make("more", "pirate", file).unwrap_err().to_string().contains("has an adapter already"));
    let folder = scene.dir.path().join("peft");
    std::fs::create_dir(&folder).unwrap();
    catalogue::PEFT_FILES.iter().for_each(|name| std::fs::write(folder.join(name), name).unwrap());
    let adapter = make("peft", "own", AdapterOrigin::Path(folder)).unwrap().adapter.unwrap();
    assert!(catalogue::PEFT_FILES.iter().all(|name| adapter.path.join(name).is_file()));
    for (origin, words) in [
        (AdapterOrigin::Path(scene.gguf("plain.gguf", &[])), "holds no adapter"),
        (AdapterOrigin::Blobs(vec![("a.gguf".into(), "0".repeat(64))]), "upload it to /api/blobs first"),
    ] {
        assert!(make("bad", "own", origin).unwrap_err().to_string().contains(words), "{words}");
    }
}
