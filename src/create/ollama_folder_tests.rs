//! Imports models from a folder in the form of Ollama's.

use std::collections::BTreeMap;

use catalogue::Store;
use config::{Config, ConfigSources, Overrides};
use gguf::GgufBuilder;
use serde_json::json;

use super::*;

struct Scene {
    dir: tempfile::TempDir,
    config: Config,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = vec![("PENSTOCK__SERVER__MODELS_DIR".to_owned(), dir.path().join("store").display().to_string())];
        let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        std::fs::create_dir_all(dir.path().join("ollama/blobs")).unwrap();
        Self { store: Store::new(&config.server.models_dir), config, dir }
    }

    /// Writes a blob and returns its layer.
    fn layer(&self, kind: &str, bytes: &[u8]) -> Value {
        let path = self.dir.path().join("ollama/blobs/new");
        std::fs::write(&path, bytes).unwrap();
        let digest = sha256_of(&path).unwrap();
        std::fs::rename(&path, self.dir.path().join(format!("ollama/blobs/sha256-{digest}"))).unwrap();
        json!({"mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": format!("sha256:{digest}"), "size": bytes.len()})
    }

    fn manifest(&self, name: &str, layers: &[Value]) {
        let path = self.dir.path().join("ollama/manifests").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, json!({"schemaVersion": 2, "layers": layers}).to_string()).unwrap();
    }

    fn folder(&self) -> OllamaFolder {
        OllamaFolder::open(&self.dir.path().join("ollama")).unwrap()
    }

    /// Imports all models. Returns the results and the notes.
    fn import(&self) -> (BTreeMap<String, String>, Vec<String>) {
        let (folder, notes) = (self.folder(), std::cell::RefCell::new(Vec::new()));
        let maker = Maker { config: &self.config, store: &self.store };
        let tell = |note: &str| notes.borrow_mut().push(note.to_owned());
        let one = |model: &FolderModel| {
            let result = maker.import(&folder, model, &tell);
            (model.name.clone(), result.map_or_else(|error| error.to_string(), |manifest| manifest.id))
        };
        let results = folder.list().iter().map(one).collect();
        (results, notes.into_inner())
    }
}

fn weights(template: Option<&str>) -> Vec<u8> {
    let builder = GgufBuilder::new().kv("general.architecture", "llama").tensor_f32("a", &[32], &[0.5; 32]);
    template.into_iter().fold(builder, |builder, text| builder.kv("tokenizer.chat_template", text)).build()
}

#[test]
fn models_are_imported_with_their_settings_and_by_links() {
    let scene = Scene::new();
    let model = scene.layer("model", &weights(None));
    let layers = [
        model.clone(),
        scene.layer("template", b"[INST] {{ .Prompt }} [/INST]"),
        scene.layer("system", b"You are Mario."),
        scene.layer("params", br#"{"stop": ["[INST]"], "temperature": 0.7, "num_ctx": 4096, "odd": 1}"#),
        scene.layer("license", b"MIT"),
        scene.layer("messages", br#"[{"role": "user", "content": "hi"}]"#),
    ];
    scene.manifest("registry.ollama.ai/library/mario/latest", &layers);
    scene.manifest("registry.ollama.ai/library/mario/7b", std::slice::from_ref(&model));
    scene.manifest("registry.ollama.ai/someone/mario/7b", std::slice::from_ref(&model));
    scene.manifest("hf.co/owner/repo/Q4_K_M", &[model]);
    let (results, notes) = scene.import();
    let names: Vec<&str> = results.keys().map(String::as_str).collect();
    assert_eq!(names, ["hf.co/owner/repo:Q4_K_M", "mario", "mario:7b", "someone/mario:7b"]);
    assert!(results.iter().all(|(name, id)| name == id), "{results:?}");
    assert_eq!(notes, ["a parameter is left out: unknown parameter 'odd'"]);
    let entry = scene.store.made().into_iter().find(|entry| entry.id == "mario").unwrap();
    assert_eq!((entry.system.as_deref(), entry.sampling.temperature), (Some("You are Mario."), Some(0.7)));
    assert!(std::fs::read_to_string(entry.chat_template.as_ref().unwrap()).unwrap().contains("[INST] "));
    let made = entry.made.as_ref().unwrap();
    assert_eq!((made.stop(), made.licences.len(), made.messages.len()), (vec!["[INST]".to_owned()], 1, 1));
    let link = std::fs::metadata(scene.store.path(&entry).unwrap()).unwrap();
    assert!(std::os::unix::fs::MetadataExt::nlink(&link) >= 5, "all names link to the blob");
}

#[test]
fn a_template_of_the_file_comes_first_and_an_odd_one_is_told() {
    let scene = Scene::new();
    let odd = scene.layer("template", b"{{ toTypeScriptType .Prompt }}");
    scene.manifest("registry.ollama.ai/library/own/latest", &[scene.layer("model", &weights(Some("{% if x %}{% endif %}"))), odd.clone()]);
    scene.manifest("registry.ollama.ai/library/odd/latest", &[scene.layer("model", &weights(None)), odd]);
    let (results, notes) = scene.import();
    assert!(results.iter().all(|(name, id)| name == id), "{results:?}");
    assert!(scene.store.made().iter().all(|entry| entry.chat_template.is_none()));
    assert!(notes.len() == 1 && notes[0].contains("`toTypeScriptType` is not supported"), "{notes:?}");
}

#[test]
fn broken_models_are_named_and_leave_nothing() {
    let scene = Scene::new();
    let model = scene.layer("model", &weights(None));
    let missing = json!({"mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{}", "0".repeat(64)), "size": 1});
    let path = json!({"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../etc/passwd", "size": 1});
    let short = scene.layer("model", b"GGUF");
    let damaged = scene.layer("model", b"GGUG");
    let digest = damaged["digest"].as_str().unwrap().replace(':', "-");
    std::fs::write(scene.dir.path().join("ollama/blobs").join(digest), b"GGUX").unwrap();
    for (name, layers) in [
        ("missing", vec![missing]),
        ("path", vec![path]),
        ("short", vec![short]),
        ("damaged", vec![damaged]),
        ("adapter", vec![model.clone(), scene.layer("adapter", b"x")]),
        ("cloud", vec![]),
        ("twice", vec![model.clone(), model]),
    ] {
        scene.manifest(&format!("registry.ollama.ai/library/{name}/latest"), &layers);
    }
    std::fs::write(scene.dir.path().join("ollama/manifests/registry.ollama.ai/library/cloud/odd"), "no json").unwrap();
    let (results, _) = scene.import();
    for (name, words) in [
        ("missing", "is missing: `ollama pull` fetches it again"),
        ("path", "invalid digest format"),
        ("short", "at byte 4"),
        ("damaged", "is damaged"),
        ("adapter", "the GGUF file is not usable"),
        ("cloud", "no file of weights"),
        ("cloud:odd", "its manifest cannot be read"),
        ("twice", "more than one file"),
    ] {
        assert!(results[name].contains(words), "{name}: {}", results[name]);
    }
    assert!(scene.store.list().is_empty());
    assert!(OllamaFolder::open(scene.dir.path()).is_err());
}

#[test]
fn a_projector_becomes_the_mmproj_of_its_model() {
    let scene = Scene::new();
    let clip = GgufBuilder::new().kv("general.architecture", "clip").build();
    let layers = [scene.layer("model", &weights(None)), scene.layer("projector", &clip)];
    scene.manifest("registry.ollama.ai/library/eyes/latest", &layers);
    let (results, notes) = scene.import();
    assert_eq!((results["eyes"].as_str(), notes.len()), ("eyes", 0));
    let entry = scene.store.made().remove(0);
    assert_eq!(std::fs::read(scene.store.mmproj(&entry).unwrap()).unwrap(), clip);
}

#[test]
fn an_adapter_comes_along() {
    let scene = Scene::new();
    let lora = GgufBuilder::new().kv("general.architecture", "llama").kv("general.type", "adapter").build();
    let layers = [scene.layer("model", &weights(None)), scene.layer("adapter", &lora)];
    scene.manifest("registry.ollama.ai/library/pirate/latest", &layers);
    let (results, notes) = scene.import();
    assert_eq!((results["pirate"].as_str(), notes.len()), ("pirate", 0));
    let adapter = scene.store.made().remove(0).adapter.unwrap();
    assert_eq!((std::fs::read(adapter.path).unwrap(), adapter.scale), (lora, 1.0));
}
