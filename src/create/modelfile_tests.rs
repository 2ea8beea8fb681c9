//! Parses Modelfiles as people write them, and wrong ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn recipe(text: &str) -> Recipe {
    Modelfile::parse(text).unwrap().recipe(Path::new("/models")).unwrap().0
}

fn error(text: &str) -> String {
    let parsed = Modelfile::parse(text).and_then(|file| file.recipe(Path::new("/no/such/folder")).map(drop));
    parsed.expect_err(text).to_string()
}

#[test]
fn a_modelfile_becomes_a_recipe() {
    let text = "\u{feff}# Mario\nFROM smollm2:135m\r\nparameter temperature 0.5\nPARAMETER stop \"<|im_end|>\"\nPARAMETER stop   User:\n\
        SYSTEM \"\"\"\nYou are Mario.\nSay \"it's me\".\n\"\"\"\nTEMPLATE \"\"\"{{ .Prompt }}\"\"\"\n\
        MESSAGE user Hi\nMessage assistant \"It's-a me!\"\nLICENSE MIT\n\nLICENSE \"\"\"\nand\n\nmore\"\"\"\n";
    let Recipe { origin, changes, quantize, adapter } = recipe(text);
    assert_eq!((origin, quantize, adapter), (Origin::Model("smollm2:135m".into()), None, None));
    assert_eq!(changes.system.as_deref(), Some("\nYou are Mario.\nSay \"it's me\".\n"));
    assert_eq!(Value::Object(changes.parameters), json!({"temperature": 0.5, "stop": ["<|im_end|>", "User:"]}));
    assert_eq!(changes.template.unwrap().source, "{{ .Prompt }}");
    let messages: Vec<_> = changes.messages.unwrap().into_iter().map(|message| (message.role, message.content)).collect();
    assert_eq!(messages, [(ExampleRole::User, "Hi".to_owned()), (ExampleRole::Assistant, "It's-a me!".to_owned())]);
    assert_eq!(changes.licences.unwrap(), ["MIT", "\nand\n\nmore"]);
}

#[test]
fn notes_say_what_changes_nothing() {
    let (_, notes) = Modelfile::parse("FROM a\nPARAMETER num_keep 4\nPARSER x").unwrap().recipe(Path::new(".")).unwrap();
    assert_eq!(notes.len(), 2);
    assert!(notes[0].starts_with("line 2: the parameter num_keep changes nothing") && notes[1].starts_with("line 3: PARSER"), "{notes:?}");
}

#[test]
fn from_is_a_path_if_it_looks_like_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.gguf"), "x").unwrap();
    let of = |from: &str| Modelfile::parse(&format!("FROM {from}")).unwrap().recipe(dir.path()).map(|(recipe, _)| recipe.origin);
    assert_eq!(of("./m.gguf").unwrap(), Origin::File(dir.path().join("./m.gguf")));
    assert_eq!(of("m.gguf").unwrap(), Origin::File(dir.path().join("m.gguf")));
    assert_eq!(of("hf:a/b/m.gguf").unwrap(), Origin::Model("hf:a/b/m.gguf".into()));
    assert!(of("./gone.gguf").unwrap_err().what.contains("no such file"));
    assert!(of("./").unwrap_err().what.contains("it is a directory"));
    std::fs::write(dir.path().join("model.safetensors"), "x").unwrap();
    assert!(of(".").unwrap_err().what.contains("penstock convert"));
    assert!(of("./model.safetensors").unwrap_err().what.contains("penstock convert"));
}

#[test]
fn wrong_modelfiles_are_refused_with_their_line() {
    for (text, words) in [
        ("", "line 1: the file has no FROM"),
        ("SYSTEM x", "line 1: the file has no FROM"),
        ("FROM a\nFOO bar", "line 2: unknown instruction `FOO`: expected FROM, PARAMETER"),
        ("FROM a\n\n{\"from\": 1}", "line 3: unknown instruction"),
        ("FROM a\nFROM b", "line 2: FROM stands in line 1 already"),
        ("FROM", "line 1: FROM needs an argument"),
        ("FROM a\nPARAMETER temperature", "line 2: PARAMETER needs a name and a value"),
        ("FROM a\nPARAMETER temperature hot", "line 2: PARAMETER: the parameter temperature must be a number"),
        ("FROM a\nPARAMETER tempreature 1", "did you mean temperature?"),
        ("FROM a\nMESSAGE tool x", "line 2: MESSAGE: the role must be system, user or assistant, not `tool`"),
        ("FROM a\nADAPTER ./lora.gguf", "line 2: ADAPTER ./lora.gguf: no such file or folder"),
        ("FROM a\nADAPTER /", "line 2: ADAPTER /: the folder has no `adapter_config.json`"),
        ("FROM a\nADAPTER x.safetensors", "line 2: ADAPTER x.safetensors: name the folder"),
        ("FROM a\nSYSTEM \"\"\"x\ny", "line 2: the text in \"\"\" that begins here does not end"),
        ("FROM a\nSYSTEM \"x", "line 2: the text in \" that begins"),
        ("FROM a\nTEMPLATE \"\"\"x\n{{ .Nope }}\"\"\"", "line 2: TEMPLATE: line 2: the field `.Nope`"),
        ("FROM a\nTEMPLATE {% if %}", "line 2: TEMPLATE: "),
        ("FROM /no/such/model.gguf", "line 1: FROM /no/such/model.gguf: no such file"),
    ] {
        let error = error(text);
        assert!(error.contains(words), "{text:?}: {error}");
    }
}

fn quoted(name: &str, text: &str) -> String {
    format!("{name} \"\"\"{text}\"\"\"\n")
}

proptest! {
    #[test]
    fn a_text_in_triple_quotes_is_kept(text in "[a-z \"\n#]{0,60}[a-z]") {
        prop_assume!(!text.contains("\"\"\""));
        let file = Modelfile::parse(&format!("FROM a\n{}MESSAGE user x\n", quoted("SYSTEM", &text))).unwrap();
        let texts: Vec<&str> = file.instructions.iter().map(|one| one.text.as_str()).collect();
        prop_assert_eq!(texts, ["a", text.as_str(), "x"]);
    }

    #[test]
    fn every_text_is_parsed_or_refused(text in "(FROM|SYSTEM|PARAMETER|MESSAGE|\"|\"\"\"|[a-z ]|\n){0,40}") {
        if let Ok(file) = Modelfile::parse(&text) {
            for one in file.instructions {
                prop_assert!(one.line >= 1 && one.line <= text.lines().count());
            }
        }
    }
}
