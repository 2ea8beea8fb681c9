use std::path::PathBuf;

use super::*;

const DATE: &str = "2024-07-26";

fn template(source: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::with_clock(source, "<s>", "</s>", Clock::from_date(DATE).unwrap())
}

fn shared(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data")).join(path);
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
        return None;
    }
    Some(path)
}

fn read(path: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn case_input(case: &Value) -> RenderInput {
    RenderInput {
        messages: case["messages"].clone(),
        tools: case.get("tools").cloned(),
        add_generation_prompt: case.get("add_generation_prompt").is_none_or(|v| v.as_bool().unwrap()),
        kwargs: Map::new(),
    }
}

/// What goes wrong in a template's cases.
fn failures(dir: &std::path::Path, name: &str) -> (usize, Vec<String>) {
    let cases = read(&dir.join("cases.json"));
    let expected = read(&dir.join(format!("{name}.json")));
    let source = std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap();
    let template = match template(&source) {
        Ok(template) => template,
        Err(e) => return (expected.as_object().unwrap().len(), vec![format!("{name}: {e}")]),
    };
    let mut bad = Vec::new();
    for (case_name, want) in expected.as_object().unwrap() {
        let case = cases.as_array().unwrap().iter().find(|c| c["name"] == *case_name).unwrap();
        let got = template.render(&case_input(case));
        let same = match (&got, want.get("text"), want.get("raises")) {
            (Ok(text), Some(want), _) => text == want.as_str().unwrap(),
            (Err(TemplateError::Raised(text)), _, Some(want)) => text == want.as_str().unwrap(),
            _ => false,
        };
        if !same {
            bad.push(format!("{name} {case_name}:\n  got  {got:?}\n  want {want}"));
        }
    }
    (expected.as_object().unwrap().len(), bad)
}

#[test]
fn real_templates_render_as_transformers_does() {
    let Some(dir) = shared("templates") else { return };
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str().and_then(|n| n.strip_suffix(".jinja")).map(String::from))
        .collect();
    names.sort();
    let (mut total, mut bad) = (0, Vec::new());
    for name in &names {
        let (cases, failed) = failures(&dir, name);
        total += cases;
        bad.extend(failed);
    }
    eprintln!("{} of {total} cases of {} templates", total - bad.len(), names.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
