//! Compares small templates with Jinja in Python (`tests/golden/make_jinja.py`).

use serde_json::{Map, Value};

use super::*;

fn input(context: &Value) -> RenderInput {
    RenderInput {
        messages: context["messages"].clone(),
        tools: context.get("tools").cloned(),
        add_generation_prompt: context["add_generation_prompt"].as_bool().unwrap(),
        kwargs: Map::new(),
    }
}

/// The difference of a case from Jinja's result, if there is one.
fn difference(case: &Value, input: &RenderInput, clock: Clock) -> Option<String> {
    let source = case["template"].as_str().unwrap();
    let got = ChatTemplate::with_clock(source, "<s>", "</s>", clock).and_then(|template| template.render(input));
    let want = case.get("text").and_then(Value::as_str);
    match (&got, want) {
        (Ok(text), Some(want)) if text == want => None,
        (Err(_), None) => None,
        _ => Some(format!("{source:?}\n  got  {got:?}\n  want {want:?} {}", case.get("raises").unwrap_or(&Value::Null))),
    }
}

#[test]
fn small_templates_render_as_in_python_or_fail_where_it_raises() {
    let file: Value = serde_json::from_str(&fixtures::golden_text("jinja.json")).unwrap();
    let (input, clock) = (input(&file["context"]), Clock::from_date(file["date"].as_str().unwrap()).unwrap());
    let cases = file["cases"].as_array().unwrap();
    let bad: Vec<String> = cases.iter().filter_map(|case| difference(case, &input, clock)).collect();
    assert!(cases.len() > 1000, "{} cases", cases.len());
    assert!(bad.is_empty(), "{} of {} differ:\n{}", bad.len(), cases.len(), bad.join("\n"));
}
