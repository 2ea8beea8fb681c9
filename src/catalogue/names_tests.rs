//! Tests names of models that are not in the catalogue.

use super::*;
use config::{ConfigSources, Overrides};

fn config(dir: &Path) -> Config {
    let env = vec![("PENSTOCK__SERVER__MODELS_DIR".into(), dir.join("store").display().to_string())];
    Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap()
}

#[test]
fn models_on_the_hub_can_be_named_directly() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let entry = resolve(&config, "hf:owner/repo/sub/m.gguf@v1").unwrap();
    assert_eq!(entry.source, Source::Hf { repo: "owner/repo".into(), file: Some("sub/m.gguf".into()), quant: None, revision: "v1".into() });
    assert_eq!(describe(&entry.source), "hf owner/repo/sub/m.gguf");
    for (name, quant) in [("hf:owner/repo", None), ("hf:owner/repo:Q4_K_M", Some("Q4_K_M")), ("owner/repo:q8_0", Some("q8_0"))] {
        let entry = resolve(&config, name).unwrap();
        let (quant, revision) = (quant.map(String::from), "main".into());
        assert_eq!((entry.id, entry.source), (name.into(), Source::Hf { repo: "owner/repo".into(), file: None, quant, revision }));
    }
    for bad in [
        "hf:owner",
        "hf:owner/repo:",
        "hf:owner/repo:a/b",
        "hf:owner/repo/m.safetensors",
        "hf:owner/repo/../../x.gguf",
        "hf:o/r/x.gguf@../y",
        "hf:o/r/x.gguf@",
        "hf:/r/x.gguf",
        "hf:o/r/ x.gguf",
    ] {
        assert!(resolve(&config, bad).unwrap_err().to_string().contains(bad), "{bad}");
    }
}

#[test]
fn other_formats_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let file = dir.path().join("model.safetensors");
    std::fs::write(&file, b"x").unwrap();
    for name in [file.to_str().unwrap(), dir.path().to_str().unwrap(), "hf:o/r/model.safetensors"] {
        let error = resolve(&config, name).unwrap_err().to_string();
        assert!(error.contains("safetensors") && error.contains("look for a conversion"), "{error}");
    }
}

#[test]
fn a_directory_is_refused_with_the_models_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let error = |path: &std::path::Path| resolve(&config, path.to_str().unwrap()).unwrap_err().to_string();
    assert!(error(dir.path()).ends_with("is a directory, and no GGUF file is in it: name a file"), "{}", error(dir.path()));
    for name in ["b.GGUF", "a.gguf", "notes.txt", "mmproj-F16.gguf"] {
        std::fs::write(dir.path().join(name), b"x").unwrap();
    }
    assert!(error(dir.path()).ends_with("is a directory: name a file in it (a.gguf, b.GGUF)"), "{}", error(dir.path()));
    for name in ["c.gguf", "d.gguf", "e.gguf"] {
        std::fs::write(dir.path().join(name), b"x").unwrap();
    }
    assert!(error(dir.path()).ends_with("(a.gguf, b.GGUF, c.gguf, d.gguf and 1 more)"), "{}", error(dir.path()));
}

#[test]
fn a_similar_name_is_suggested() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str| resolve(&config(dir.path()), name).unwrap_err().to_string();
    assert!(error("smollm2:136m").contains("no model `smollm2:136m` (did you mean smollm2:135m?): "), "{}", error("smollm2:136m"));
    assert!(!error("xyz").contains("did you mean"), "{}", error("xyz"));
}
