//! The names that a registry serves, and the errors for other names.

use super::*;
use config::{Overrides, Surroundings};

fn config(dir: &Path) -> Config {
    let env = vec![("PENSTOCK__SERVER__MODELS_DIR".into(), dir.join("store").display().to_string())];
    Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap()
}

/// A registry whose loads all fail with an error that contains the path.
fn registry(dir: &Path, serve: &[&str]) -> anyhow::Result<Arc<Registry>> {
    let serve: Vec<String> = serve.iter().map(|name| name.to_string()).collect();
    Registry::with_loader(&config(dir), &serve, Box::new(|_, _, path| anyhow::bail!("no engine for {}", path.display())))
}

fn error(dir: &Path, serve: &[&str]) -> String {
    registry(dir, serve).err().expect("should be refused").to_string()
}

#[test]
fn a_registry_lists_each_model_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.gguf");
    std::fs::write(&file, b"GGUF").unwrap();
    let path = file.display().to_string();
    let registry = registry(dir.path(), &["smollm2", &path, "smollm2:135m", "qwen3:8b"]).unwrap();
    let ids: Vec<_> = registry.list().into_iter().map(|info| info.id).collect();
    assert_eq!(ids, ["smollm2:135m", "mine", "qwen3:8b"], "a model named twice is listed once");
    assert!(registry.list().iter().all(|info| !info.loaded && info.created > 1_600_000_000));
    assert!(registry.get_loaded("smollm2").is_none() && !registry.is_ready());
    assert_eq!(registry.info("smollm2").unwrap().id, "smollm2:135m", "an alias, loaded or not");
    assert!(registry.info("gemma3").is_none(), "a model of the catalogue that is not served");
}

#[test]
fn other_names_are_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path(), &["smollm2"]).unwrap();
    for name in ["gemma3:270m", "../x", "a\0b", "", &"x".repeat(10_240)] {
        assert!(matches!(registry.get(name), Err(RegistryError::NotFound { id, near: None }) if id == name));
        assert!(registry.get_loaded(name).is_none());
    }
}

#[test]
fn load_errors_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.gguf");
    std::fs::write(&file, b"GGUF").unwrap();
    let registry = registry(dir.path(), &[&file.display().to_string(), "smollm2"]).unwrap();
    let text = |name: &str| registry.get(name).err().unwrap().to_string();
    assert!(text("mine").contains(&format!("no engine for {}", file.display())));
    assert!(text("smollm2").contains("the model `smollm2:135m` could not be loaded: it is not on disk: `penstock pull"));
    registry.stop();
    assert!(text("mine").contains("shutting down"));
}

#[test]
fn unknown_and_ambiguous_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(error(dir.path(), &[]).contains("no model is named"));
    assert!(error(dir.path(), &["nonsense"]).contains("no model `nonsense`"));
    assert!(error(dir.path(), &["/no/such.gguf"]).contains("no such file"));
    let paths = ["a", "b"].map(|sub| {
        std::fs::create_dir(dir.path().join(sub)).unwrap();
        let path = dir.path().join(sub).join("same.gguf");
        std::fs::write(&path, b"GGUF").unwrap();
        path.display().to_string()
    });
    assert!(error(dir.path(), &[&paths[0], &paths[1]]).contains("have the same name"));
}

#[test]
fn a_served_model_with_a_like_name_is_offered() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry(dir.path(), &["smollm2"]).unwrap();
    let near = |name: &str| match registry.not_found(name) {
        RegistryError::NotFound { near, .. } => near,
        other => panic!("{other}"),
    };
    assert_eq!(near("smollm2:135").as_deref(), Some("smollm2:135m"));
    assert_eq!(near("qwen3:8"), None, "a model of the catalogue that is not served");
}
