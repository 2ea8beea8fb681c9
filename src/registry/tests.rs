//! The registry: names it serves, errors for other names, and models that come and go.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use config::{Config, ConfigSources, Overrides};
use model::ARCHS;
use model::testing::TinyModel;

fn config(dir: &Path) -> Config {
    let env = vec![("PENSTOCK__SERVER__MODELS_DIR".into(), dir.join("store").display().to_string())];
    Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap()
}

/// A registry whose loads all fail with an error that contains the path.
fn registry(dir: &Path, serve: &[&str]) -> anyhow::Result<Arc<Registry>> {
    let serve: Vec<String> = serve.iter().map(|name| name.to_string()).collect();
    Registry::with_loader(&config(dir), &serve, Box::new(|_, _, path, _| anyhow::bail!("no engine for {}", path.display())))
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

/// A registry of tiny models that really run. `settings`: lines of `[server]`.
fn running(dir: &Path, names: &[&str], entries: &str, settings: &str) -> Arc<Registry> {
    let models: String = names.iter().map(|name| entry(dir, name)).collect();
    Registry::new(&configured(dir, &format!("{models}{entries}\n[server]\n{settings}")), &[names[0].to_owned()]).unwrap()
}

fn entry(dir: &Path, name: &str) -> String {
    let path = dir.join(format!("{name}.gguf"));
    // Overwriting a file would end the engine that has mapped it.
    if !path.exists() {
        TinyModel { tokenizer: true, ..TinyModel::new(&ARCHS[0]) }.build().write(&path).unwrap();
    }
    format!("[[models]]\nid = \"{name}\"\nsource = {{ type = \"file\", path = \"{}\" }}\n", path.display())
}

fn configured(dir: &Path, text: &str) -> Config {
    let file = dir.join("config.toml");
    std::fs::write(&file, text).unwrap();
    let env = vec![
        ("PENSTOCK__SERVER__MODELS_DIR".into(), dir.join("store").display().to_string()),
        ("PENSTOCK__ENGINE__THREADS".into(), "1".into()),
        ("PENSTOCK__ENGINE__BACKEND".into(), "cpu".into()),
    ];
    Config::load_from(&ConfigSources { file: Some(file), env, ..Default::default() }, &Overrides::default()).unwrap()
}

fn loaded(registry: &Registry) -> Vec<String> {
    registry.list().into_iter().filter(|info| info.loaded).map(|info| info.id).collect()
}

#[test]
fn the_least_recently_used_model_makes_room_and_one_in_use_stays() {
    let dir = tempfile::tempdir().unwrap();
    let registry = running(dir.path(), &["a", "b", "c"], "", "max_loaded_models = 2\nmodel_wait_seconds = 1");
    let a = registry.get("a").unwrap();
    drop(registry.get("b").unwrap());
    drop(registry.get("c").unwrap());
    assert_eq!(loaded(&registry), ["a", "c"], "a was used before b, but it is in use");
    let c = registry.get("c").unwrap();
    assert!(matches!(registry.get("b"), Err(RegistryError::NoRoom(_))), "both are in use");
    assert!(a.base.handle.is_alive() && c.base.handle.is_alive());
    drop(a);
    std::thread::sleep(Duration::from_millis(600));
    assert!(registry.get("b").is_ok());
    assert_eq!(loaded(&registry), ["b", "c"]);
    assert!(!c.base.handle.is_lost() && c.base.handle.is_alive());
    registry.stop();
}

#[test]
fn a_request_waits_for_room_until_another_ends() {
    let dir = tempfile::tempdir().unwrap();
    let registry = running(dir.path(), &["a", "b"], "", "max_loaded_models = 1\nmodel_wait_seconds = 30");
    let a = registry.get("a").unwrap();
    let waiting = {
        let registry = registry.clone();
        std::thread::spawn(move || registry.get("b").is_ok())
    };
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished() && loaded(&registry) == ["a"]);
    drop(a);
    assert!(waiting.join().unwrap());
    assert_eq!(loaded(&registry), ["b"]);
    registry.stop();
}

#[test]
fn variants_stand_on_one_load_and_bring_their_own_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let variants = "[[models]]\nid = \"a:cold\"\nof = \"a\"\nmax_tokens = 5\nsampling = { temperature = 0.0 }\n\
                    [[models]]\nid = \"a:short\"\nof = \"a\"\ncontext = 16\n";
    let registry = running(dir.path(), &["a"], variants, "");
    let (plain, cold) = (registry.get("a").unwrap(), registry.get("a:cold").unwrap());
    assert!(Arc::ptr_eq(&plain.base, &cold.base) && loaded(&registry) == ["a", "a:cold"]);
    assert_eq!((cold.defaults.max_tokens, cold.sampling.temperature, plain.sampling.temperature), (Some(5), Some(0.0), None));
    let short = registry.get("a:short").unwrap();
    assert!(!Arc::ptr_eq(&plain.base, &short.base) && short.base.context == 16);
    let info = registry.info("a:cold").unwrap();
    assert_eq!((info.root.as_str(), info.parent.as_deref()), ("a", Some("a")));
    assert_eq!(registry.num_loaded(), 2);
    registry.stop();
}

#[test]
fn a_new_configuration_takes_over_what_is_the_same_and_drops_the_rest_once_idle() {
    let dir = tempfile::tempdir().unwrap();
    let registry = running(dir.path(), &["a", "b"], "", "");
    let (a, b) = (registry.get("a").unwrap(), registry.get("b").unwrap());
    let next = configured(dir.path(), &(entry(dir.path(), "a") + &entry(dir.path(), "c")));
    registry.reload(&next, &["a".to_owned()]).unwrap();
    assert!(matches!(registry.get("b"), Err(RegistryError::NotFound { .. })));
    assert!(Arc::ptr_eq(&registry.get("a").unwrap().base, &a.base), "it is not loaded again");
    registry.unload_idle();
    assert!(registry.num_loaded() == 2 && b.base.handle.is_alive(), "its request goes on");
    drop(b);
    registry.unload_idle();
    assert_eq!(registry.num_loaded(), 1);
    assert!(registry.get("c").is_ok());
    let error = registry.reload(&next, &["nonsense".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("nonsense") && registry.get("c").is_ok(), "a wrong name changes nothing");
    registry.stop();
}

#[test]
fn operators_unload_and_see_who_uses_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let registry = running(dir.path(), &["a"], "", "");
    let state = || registry.statuses()[0].state;
    assert_eq!(state(), ModelState::Unloaded);
    assert!(matches!(registry.unload("a", false), Err(RegistryError::NotLoaded(_))));
    let a = registry.get("a").unwrap();
    let status = &registry.statuses()[0];
    assert_eq!((status.state, status.num_requests, status.backend), (ModelState::Loaded, 1, Some("cpu")));
    assert!(status.bytes.is_some_and(|bytes| bytes.weights > 0 && bytes.cache > 0));
    assert!(matches!(registry.unload("a", false), Err(RegistryError::InUse { num_requests: 1, .. })));
    registry.unload("a", true).unwrap();
    assert!(!a.base.handle.is_alive() && state() == ModelState::Unloaded);
    assert!(registry.get("a").is_ok(), "the next request loads it again");
    registry.stop();
}

#[test]
fn paths_cannot_be_pulled() {
    let dir = tempfile::tempdir().unwrap();
    let registry = running(dir.path(), &["a"], "", "");
    for name in ["/etc/passwd", "./x.gguf", "../x", "~/x", "a", "nonsense"] {
        assert!(matches!(registry.pull(name), Err(RegistryError::PullFailed { .. })), "{name}");
    }
}

#[test]
fn a_request_says_how_long_its_model_stays() {
    let dir = tempfile::tempdir().unwrap();
    let registry = running(dir.path(), &["a", "b"], "", "");
    drop((registry.get("a:latest").unwrap(), registry.get("b").unwrap()));
    let loaded = || registry.list().into_iter().filter(|info| info.loaded).map(|info| info.id).collect::<Vec<_>>();
    let after_house = || {
        registry.unload_idle();
        loaded()
    };
    assert_eq!((after_house(), registry.expires("a")), (vec!["a".to_owned(), "b".to_owned()], None));
    registry.keep("a", KeepAlive::For(Duration::from_secs(3600)));
    registry.keep("b", KeepAlive::Forever);
    assert!(registry.expires("a:latest").is_some() && registry.expires("b").is_none());
    assert_eq!(after_house().len(), 2);
    let b = registry.get("b").unwrap();
    registry.release("b").unwrap();
    assert_eq!(after_house().len(), 2, "a request uses it");
    drop(b);
    assert_eq!(after_house(), ["a"]);
    registry.release("a").unwrap();
    assert!(loaded().is_empty() && registry.release("a").is_ok());
    drop(registry.get("a").unwrap());
    assert_eq!((after_house().len(), registry.expires("a")), (1, None), "a later load is not bound by it");
    assert!(matches!(registry.release("c"), Err(RegistryError::NotFound { .. })));
    registry.stop();
}

#[test]
fn what_is_known_of_models_does_not_need_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let variant = "[[models]]\nid = \"v\"\nof = \"a\"\nsystem = \"Be brief.\"\nsampling = { temperature = 0.25 }\n";
    let registry = running(dir.path(), &["a"], variant, "");
    let all = registry.on_disk(|id| id != "hidden");
    assert_eq!(all.iter().map(|facts| (facts.id.as_str(), facts.parent.as_deref())).collect::<Vec<_>>(), [("a", None), ("v", Some("a"))]);
    assert!(Arc::ptr_eq(&all[0].file, &all[1].file), "a file is read once");
    let facts = registry.facts("v:latest").unwrap();
    assert_eq!((facts.system.as_deref(), facts.sampling.temperature), (Some("Be brief."), Some(0.25)));
    let abilities = facts.file.abilities().unwrap();
    assert!(abilities.completion && !abilities.tools && !abilities.thinking && !abilities.embedding);
    assert_eq!(registry.num_loaded(), 0);
    assert!(matches!(registry.facts("w"), Err(RegistryError::NotFound { .. })));
    std::fs::write(dir.path().join("a.gguf"), b"GGUF").unwrap();
    assert!(registry.on_disk(|_| true).is_empty());
    assert!(matches!(registry.facts("a"), Err(RegistryError::LoadFailed { .. })), "the file is another one");
    registry.stop();
}

#[test]
fn only_models_of_the_store_that_nobody_named_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let variant = "[[models]]\nid = \"v\"\nof = \"b\"\n";
    let registry = running(dir.path(), &["a", "b"], variant, "");
    for (name, cause) in [("a", "a local file"), ("b", "a local file"), ("v", "a variant")] {
        let error = registry.delete(name).unwrap_err();
        assert!(matches!(error, RegistryError::NotDeleted { .. }) && error.to_string().contains(cause), "{error}");
    }
    assert!(matches!(registry.delete("c"), Err(RegistryError::NotFound { .. })));
    assert!(dir.path().join("a.gguf").exists() && dir.path().join("b.gguf").exists());
    registry.stop();
}
