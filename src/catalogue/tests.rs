//! Pulls from a server that acts like the hub: files chosen by their type, split models, repositories without a model.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::store::PulledModel;
use super::test_server::{Heads, hub};
use super::*;
use config::{Mmproj, MmprojFile, ModelEntry, Source};

fn bytes(seed: u8) -> Arc<Vec<u8>> {
    Arc::new((0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed).collect())
}

struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    tools: Tools,
    heads: Heads,
}

impl Scene {
    fn new(files: &[&'static str]) -> Self {
        let (url, heads) = hub((0u8..).zip(files).map(|(seed, path)| (*path, bytes(seed))).collect());
        let dir = tempfile::tempdir().unwrap();
        let tools = Tools { python: String::new(), hf_endpoint: url, hf_token: None, backoff: Duration::from_millis(1) };
        Self { store: Store::new(dir.path()), dir, tools, heads }
    }

    fn pull(&self, entry: &ModelEntry) -> Result<PulledModel, PullError> {
        self.store.pull(entry, &self.tools, &Progress::silent())
    }

    fn asked(&self, what: &str) -> usize {
        self.heads.lock().unwrap().iter().filter(|head| head.contains(what)).count()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("m").join(name)
    }
}

fn entry(file: Option<&str>, quant: Option<&str>) -> ModelEntry {
    let [file, quant] = [file, quant].map(|text| text.map(str::to_owned));
    let source = Source::Hf { repo: "o/r".into(), file, quant, revision: "main".into() };
    ModelEntry::new("m", source)
}

const REPO: [&str; 8] = [
    "README.md",
    "m-BF16-00001-of-00002.gguf",
    "m-BF16-00002-of-00002.gguf",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "mmproj-m-F16.gguf",
    "old/m-Q4_K_M.gguf",
    "m-lora-Q8_0.gguf",
];

#[test]
fn a_type_selects_its_file() {
    let scene = Scene::new(&REPO);
    for quant in [Some("Q4_K_M"), Some("q4_k_m"), None] {
        let entry = entry(None, quant);
        let pulled = scene.pull(&entry).unwrap();
        assert_eq!(std::fs::read(&pulled.path).unwrap(), *bytes(3), "{quant:?}");
        assert_eq!(scene.store.path(&entry), Some(pulled.path));
        assert!(!scene.pull(&entry).unwrap().fetched, "the second pull only verifies");
        scene.store.remove("m").unwrap();
    }
    assert_eq!(scene.asked("get /o/r/resolve/main/m-q4_k_m.gguf"), 3);
    assert_eq!(std::fs::read(scene.pull(&entry(None, Some("Q4_K_S"))).unwrap().path).unwrap(), *bytes(4));
}

#[test]
fn a_split_model_is_pulled_whole() {
    let scene = Scene::new(&REPO);
    for entry in [entry(None, Some("BF16")), entry(Some("m-BF16-00002-of-00002.gguf"), None)] {
        let pulled = scene.pull(&entry).unwrap();
        assert_eq!((pulled.path.clone(), pulled.size), (scene.file("model-00001-of-00002.gguf"), 150_000), "with the mmproj");
        assert_eq!(std::fs::read(&pulled.path).unwrap(), *bytes(1));
        assert_eq!(std::fs::read(scene.file("model-00002-of-00002.gguf")).unwrap(), *bytes(2));
        assert_eq!(scene.store.list()[0].parts.len(), 2);
        // a missing or damaged file is fetched again, the other one is kept
        let before = scene.asked("resolve/main/m-bf16-00001");
        std::fs::write(scene.file("model-00002-of-00002.gguf"), vec![0; 50_000]).unwrap();
        assert!(scene.pull(&entry).unwrap().fetched && !scene.pull(&entry).unwrap().fetched);
        std::fs::remove_file(scene.file("model-00002-of-00002.gguf")).unwrap();
        assert!(scene.store.path(&entry).is_none());
        assert_eq!(scene.store.presence(&entry), Presence::Partial(100_000));
        assert!(scene.pull(&entry).unwrap().fetched);
        assert_eq!(scene.asked("resolve/main/m-bf16-00001"), before);
        assert_eq!(scene.store.remove("m").unwrap(), Some(150_000));
    }
    let mut fixed = entry(None, Some("BF16"));
    fixed.size = Some(1);
    assert!(scene.pull(&fixed).unwrap_err().to_string().contains("split into several files"));
}

#[test]
fn an_error_lists_the_files_to_choose_from() {
    let refusal = |files: &[&'static str], file: Option<&str>, quant: Option<&str>| {
        Scene::new(files).pull(&entry(file, quant)).unwrap_err().to_string()
    };
    let missing = refusal(&REPO, None, Some("Q6_K"));
    assert!(missing.contains("no file is of type Q6_K; there are m-BF16-00001-of-00002.gguf, m-Q4_K_M.gguf"), "{missing}");
    assert!(!missing.contains("mmproj") && !missing.contains("lora"), "{missing}");
    let several = refusal(&["a-Q8_0.gguf", "b-Q8_0.gguf"], None, Some("Q8_0"));
    assert!(several.contains("several files are of type Q8_0, name one of them: a-Q8_0.gguf, b-Q8_0.gguf"), "{several}");
    assert!(refusal(&["a-Q8_0.gguf", "b-Q6_K.gguf"], None, None).contains("no file is of type Q4_K_M"));
    let safetensors = refusal(&["config.json", "model.safetensors"], None, Some("Q4_K_M"));
    assert!(safetensors.contains("hf o/r: it holds safetensors") && safetensors.contains("look for a conversion"), "{safetensors}");
    assert!(refusal(&["README.md"], None, None).contains("no GGUF file"));
    assert!(refusal(&["mmproj-F16.gguf"], None, None).contains("not models"));
    assert!(
        refusal(&["m-00001-of-00002.gguf"], Some("m-00001-of-00002.gguf"), None).contains("m-00002-of-00002.gguf is not in the repository")
    );
    let scene = Scene::new(&REPO);
    let other =
        ModelEntry { source: Source::Hf { repo: "o/gone".into(), file: None, quant: None, revision: "main".into() }, ..entry(None, None) };
    let gone = scene.pull(&other).unwrap_err();
    assert!(matches!(&gone, PullError::Refused(text) if text.contains("404")), "{gone}");
}

#[test]
fn a_repository_with_one_model_needs_no_type() {
    let scene = Scene::new(&["model.gguf", "mmproj.gguf"]);
    assert_eq!(std::fs::read(scene.pull(&entry(None, None)).unwrap().path).unwrap(), *bytes(0));
}

fn with_mmproj(text: &str, sha256: Option<String>, entry: ModelEntry) -> ModelEntry {
    let Ok(mmproj) = text.parse();
    let mmproj = match mmproj {
        Mmproj::File(file) => Mmproj::File(MmprojFile { sha256, ..file }),
        none => none,
    };
    ModelEntry { mmproj: Some(mmproj), ..entry }
}

#[test]
fn the_mmproj_of_a_repository_comes_and_goes_with_the_model() {
    for file in [None, Some("m-Q4_K_M.gguf")] {
        let scene = Scene::new(&REPO);
        let (entry, meter) = (entry(file, None), Arc::new(Meter::default()));
        let pulled = scene.store.pull(&entry, &scene.tools, &Progress::metered(meter.clone())).unwrap();
        assert_eq!((pulled.size, meter.done(), meter.total()), (100_000, 100_000, Some(100_000)), "both files count");
        let path = scene.store.mmproj(&entry).unwrap();
        assert_eq!((path.clone(), std::fs::read(&path).unwrap()), (scene.file("mmproj-model.gguf"), bytes(5).to_vec()));
        assert_eq!(scene.store.list()[0].size, 50_000, "the weights alone");
        assert!(!scene.pull(&entry).unwrap().fetched);
        std::fs::write(&path, vec![0; 50_000]).unwrap();
        assert!(scene.pull(&entry).unwrap().fetched && std::fs::read(&path).unwrap() == *bytes(5), "a damaged one is fetched again");
        std::fs::remove_file(&path).unwrap();
        assert!(scene.store.path(&entry).is_some() && scene.store.mmproj(&entry).is_none(), "the model works without it");
        assert!(scene.pull(&entry).unwrap().fetched && path.exists());
        assert_eq!(scene.asked("resolve/main/m-q4_k_m.gguf"), 1, "the weights are kept");
        assert_eq!(scene.store.remove("m").unwrap(), Some(100_000));
        assert!(!path.exists());
    }
}

#[test]
fn an_entry_names_its_mmproj_or_none() {
    let scene = Scene::new(&REPO);
    let none = with_mmproj("none", None, entry(None, None));
    assert_eq!(scene.pull(&none).unwrap().size, 50_000);
    assert!(scene.store.mmproj(&none).is_none() && !scene.store.lacks_mmproj(&none));
    let lora = with_mmproj("hf:o/r/m-lora-Q8_0.gguf", None, entry(None, None));
    assert!(scene.store.lacks_mmproj(&lora));
    assert!(scene.pull(&lora).unwrap().fetched && !scene.store.lacks_mmproj(&lora), "a model on disk gets the one that it lacks");
    assert_eq!(std::fs::read(scene.store.mmproj(&lora).unwrap()).unwrap(), *bytes(7));
    let url = format!("{}/o/r/resolve/main/mmproj-m-F16.gguf", scene.tools.hf_endpoint);
    let other = with_mmproj(&url, None, entry(None, None));
    assert!(scene.store.mmproj(&other).is_none(), "it is another file's");
    let wrong = with_mmproj(&url, Some("0".repeat(64)), entry(None, None));
    assert!(matches!(scene.pull(&wrong), Err(PullError::Digest { .. })));
    assert!(scene.pull(&other).unwrap().fetched);
    assert_eq!(std::fs::read(scene.store.mmproj(&other).unwrap()).unwrap(), *bytes(5));
}

#[test]
fn a_repository_without_a_mmproj_and_a_mirror_without_listings_are_as_before() {
    let scene = Scene::new(&["m-Q4_K_M.gguf", "README.md"]);
    let plain = entry(Some("m-Q4_K_M.gguf"), None);
    assert_eq!(scene.pull(&plain).unwrap().size, 50_000);
    assert!(scene.store.mmproj(&plain).is_none());
    let revision = ModelEntry {
        source: Source::Hf { repo: "o/r".into(), file: Some("m-Q4_K_M.gguf".into()), quant: None, revision: "unlisted".into() },
        ..plain
    };
    let error = scene.pull(&revision).unwrap_err().to_string();
    assert!(error.contains("/o/r/resolve/unlisted/m-Q4_K_M.gguf answers 404"), "the listing is no reason to fail: {error}");
}
