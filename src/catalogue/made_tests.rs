//! Puts models into a store, replaces, copies and removes them.

use super::*;
use config::{Config, ConfigSources, Overrides};

struct Scene {
    dir: tempfile::TempDir,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: Store::new(&dir.path().join("store")), dir }
    }

    fn weights(&self, bytes: &[u8]) -> Vec<NewFile> {
        let path = self.dir.path().join("own.gguf");
        std::fs::write(&path, bytes).unwrap();
        Store::files_at(&path).unwrap()
    }

    fn put(&self, id: &str, made: StoredVariant) -> Result<Manifest, PullError> {
        self.store.put(id, &self.weights(b"weights"), made, None)
    }

    /// The names in the store's folder, without the locks.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("store")).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name != ".locks").collect();
        names.sort();
        names
    }
}

fn with_system(text: &str) -> StoredVariant {
    StoredVariant { system: Some(text.into()), ..StoredVariant::default() }
}

#[test]
fn a_made_model_is_an_entry_with_its_settings_over_a_link() {
    let scene = Scene::new();
    let template = Some(("{% if x %}{% endif %}", "go".to_owned()));
    scene.store.put("mario:v1", &scene.weights(b"weights"), with_system("Be Mario."), template).unwrap();
    let entry = scene.store.made().remove(0);
    assert_eq!((entry.id.as_str(), entry.system.as_deref(), entry.size), ("mario:v1", Some("Be Mario."), Some(7)));
    let path = scene.store.path(&entry).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"weights");
    assert_eq!(std::fs::read_to_string(entry.chat_template.unwrap()).unwrap(), "{% if x %}{% endif %}");
    assert_eq!(entry.made.unwrap().template.as_ref().unwrap().source, "go");
    std::fs::remove_file(scene.dir.path().join("own.gguf")).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"weights", "the link outlives the name that it was made from");
    assert_eq!(scene.names(), ["mario+v1"]);
}

#[test]
fn a_second_model_takes_the_place_of_the_first() {
    let scene = Scene::new();
    scene.put("m", with_system("one")).unwrap();
    scene.put("m", with_system("two")).unwrap();
    assert_eq!(scene.store.made().iter().map(|entry| entry.system.clone().unwrap()).collect::<Vec<_>>(), ["two"]);
    assert_eq!(scene.names(), ["m"]);
    assert_eq!(scene.store.remove("m").unwrap(), Some(0), "its own file has another name outside");
    assert!(scene.store.made().is_empty() && scene.names().is_empty());
}

#[test]
fn a_model_that_is_replaced_is_never_gone() {
    let scene = Scene::new();
    let files = scene.weights(b"weights");
    let put = |text: &str| drop(scene.store.put("m", &files, with_system(text), None).unwrap());
    put("0");
    let done = std::sync::atomic::AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let look = || {
            let mut looks = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                assert_eq!(scene.store.made().len(), 1, "after {looks} looks");
                looks += 1;
            }
            looks
        };
        let looks = scope.spawn(look);
        for text in 1..200 {
            put(&text.to_string());
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        looks.join().unwrap()
    });
    assert!(looks > 0);
    assert_eq!(scene.names(), ["m"]);
}

#[test]
fn nothing_is_left_of_a_model_that_cannot_be_made() {
    let scene = Scene::new();
    let mut files = scene.weights(b"weights");
    files[0].path = scene.dir.path().join("gone.gguf");
    assert!(scene.store.put("m", &files, StoredVariant::default(), None).is_err());
    assert!(scene.put("m", with_system(&"x".repeat(config::MAX_TEXT + 1))).unwrap_err().to_string().contains("the system message has"));
    for name in ["../m", "m.gguf", "hf:a/b", "a:b:c", "a@b", "", "-m", "m:", "a//b", ".new-m"] {
        assert!(scene.put(name, StoredVariant::default()).is_err(), "{name}");
    }
    assert!(scene.names().is_empty());
    scene.put("m", with_system("one")).unwrap();
    assert!(scene.store.put("m", &files, StoredVariant::default(), None).is_err());
    assert_eq!(scene.store.made()[0].system.as_deref(), Some("one"), "the model that was there stays");
    assert_eq!(scene.names(), ["m"]);
}

#[test]
fn a_fetched_model_keeps_its_name() {
    let scene = Scene::new();
    let dir = scene.dir.path().join("store/tiny");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("model.gguf.partial"), "x").unwrap();
    assert!(scene.put("tiny", StoredVariant::default()).unwrap_err().to_string().contains("belongs to a model that is fetched"));
    assert!(dir.join("model.gguf.partial").is_file());
}

#[test]
fn a_made_model_comes_before_the_catalogue_and_after_the_configuration() {
    let scene = Scene::new();
    for id in ["smollm2", "qwen3:8b", "own"] {
        scene.put(id, with_system(id)).unwrap();
    }
    let own = format!("[[models]]\nid = 'own'\nsource = {{ type = 'file', path = '{}' }}", scene.dir.path().join("own.gguf").display());
    std::fs::write(scene.dir.path().join("x.toml"), own).unwrap();
    let env = vec![("PENSTOCK__SERVER__MODELS_DIR".to_owned(), scene.dir.path().join("store").display().to_string())];
    let config = Config::load_from(&ConfigSources { dir: scene.dir.path().into(), file: None, env }, &Overrides::default()).unwrap();
    let models = crate::models(&config, &scene.store);
    let with = |name: &str| models.iter().filter(|entry| entry.names().any(|(_, known)| known == name)).collect::<Vec<_>>();
    for (name, is_made) in [("smollm2", true), ("smollm2:135m", false), ("qwen3:8b", true), ("own", false)] {
        let found = with(name);
        assert_eq!((found.len(), found[0].made.is_some()), (1, is_made), "{name}");
    }
    let resolved = |name: &str| crate::resolve(&config, name).unwrap().id;
    assert_eq!([resolved("smollm2:latest"), resolved("smollm2"), resolved("own:latest")], ["smollm2", "smollm2", "own"]);
}

#[test]
fn a_model_on_another_file_system_gets_a_symbolic_link() {
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = other.path().join("own.gguf");
    std::fs::write(&path, "weights").unwrap();
    let scene = Scene::new();
    scene.store.put("m", &Store::files_at(&path).unwrap(), StoredVariant::default(), None).unwrap();
    let entry = scene.store.made().remove(0);
    assert_eq!(std::fs::read(scene.store.path(&entry).unwrap()).unwrap(), b"weights");
    scene.store.remove("m").unwrap();
    assert!(path.is_file(), "the file behind the link stays");
}

/// A GGUF file without tensors.
fn gguf(architecture: &str) -> Vec<u8> {
    gguf::GgufBuilder::new().kv("general.architecture", architecture).build()
}

#[test]
fn a_made_model_has_links_to_the_mmproj_of_its_origin() {
    let scene = Scene::new();
    let folder = scene.dir.path();
    std::fs::write(folder.join("own.gguf"), gguf("llama")).unwrap();
    std::fs::write(folder.join("mmproj-a.gguf"), gguf("llama")).unwrap();
    assert_eq!(Store::files_at(&folder.join("own.gguf")).unwrap().len(), 1, "it is no encoder");
    std::fs::write(folder.join("mmproj-b.gguf"), gguf("clip")).unwrap();
    let files = Store::files_at(&folder.join("own.gguf")).unwrap();
    let manifest = scene.store.put("one", &files, StoredVariant::default(), None).unwrap();
    assert_eq!((manifest.size, manifest.parts.len()), (gguf("llama").len() as u64, 0));
    let one = scene.store.made().remove(0);
    let path = scene.store.mmproj(&one).unwrap();
    assert_eq!((path.file_name().unwrap().to_str(), std::fs::read(&path).unwrap()), (Some("mmproj-model.gguf"), gguf("clip")));
    scene.store.put("two", &scene.store.files_of(&one).unwrap(), StoredVariant::default(), None).unwrap();
    scene.store.remove("one").unwrap();
    let two = scene.store.made().remove(0);
    assert!(scene.store.mmproj(&two).is_some_and(|path| path.exists()), "it outlives the model that it came from");
    let named = |mmproj: &str| {
        let Ok(mmproj) = mmproj.parse();
        ModelEntry { mmproj: Some(mmproj), ..ModelEntry::new("n", Source::File { path: folder.join("own.gguf") }) }
    };
    assert_eq!(scene.store.files_of(&named("none")).unwrap().len(), 1);
    let other = folder.join("mmproj-a.gguf");
    assert_eq!(scene.store.files_of(&named(other.to_str().unwrap())).unwrap()[1].path, other);
}
