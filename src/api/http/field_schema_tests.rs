use std::collections::BTreeSet;

use proptest::prelude::*;
use serde::Serialize;
use serde_json::json;

use super::*;

#[derive(Serialize, ToSchema)]
#[schema(as = KnownOuter)]
#[allow(dead_code, reason = "only its schema is read")]
struct Outer {
    temperature: Option<f64>,
    repetition_penalty: Option<f64>,
    grammar: Option<String>,
    inner: Option<Inner>,
    many: Option<Vec<Inner>>,
    kept: Option<Vec<Inner>>,
    #[schema(value_type = Option<Object>)]
    free: Option<Value>,
    #[serde(flatten)]
    more: More,
}

#[derive(Serialize, ToSchema)]
#[schema(as = KnownMore)]
struct More {
    seed: Option<i64>,
    n: Option<u8>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = KnownInner)]
struct Inner {
    include_usage: bool,
    id: String,
}

const SILENT: &[SilentFields] = &[(&["KnownInner"], &["cache_control"], "nothing")];

fn schema() -> FieldSchema {
    let schema = FieldSchema::of::<Outer>(SILENT).refusing(&[&[("audio", Neutral::False)]], "is not supported yet");
    schema.passing("many", &["web_"]).keeping("kept")
}

/// Admits a body. Returns the remaining body and the list of the fields left out, or the field and the message of the error.
fn admitted(body: &Value, unknown: UnknownFields) -> Result<(Value, String), (String, String)> {
    let mut left = body.clone();
    match schema().admit(&mut left, unknown) {
        Ok(ignored) => Ok((left, ignored.list().unwrap_or_default())),
        Err(error) => Err((error.param.unwrap_or_default(), error.message)),
    }
}

#[test]
fn a_mistake_is_refused_with_the_nearest_name_however_strict_the_server_is() {
    for (body, param, near) in [
        (json!({"tempreature": 1}), "tempreature", "`temperature`"),
        (json!({"temprature": 1}), "temprature", "`temperature`"),
        (json!({"Temperature": 1}), "Temperature", "`temperature`"),
        (json!({"repeat_penalty": 1.1}), "repeat_penalty", "`repetition_penalty`"),
        (json!({"repetitionPenalty": 1}), "repetitionPenalty", "`repetition_penalty`"),
        (json!({"ebnf": "x"}), "ebnf", "`grammar`"),
        (json!({"SEED": 1}), "SEED", "`seed`"),
        (json!({"sede": 1}), "sede", "`seed`"),
        (json!({"audios": 2}), "audios", "`audio`"),
        (json!({"mirostat": 2}), "mirostat", "`temperature`"),
        (json!({"inner": {"include_usages": true}}), "inner.include_usages", "`include_usage`"),
        (json!({"many": [{}, {"includeusage": 1}]}), "many[1].includeusage", "`include_usage`"),
    ] {
        for unknown in [UnknownFields::Name, UnknownFields::Refuse] {
            let (at, message) = admitted(&body, unknown).unwrap_err();
            assert!(at == param && message.contains(near), "{body}: {at}: {message}");
        }
        let (left, names) = admitted(&body, UnknownFields::Ignore).unwrap();
        assert!(!names.is_empty() && left != body, "{body}: {names}");
    }
}

#[test]
fn every_other_field_is_taken_out_and_named_unless_the_server_is_strict() {
    for (body, names) in [
        (json!({"seed": 1, "chat_id": "c"}), "chat_id"),
        (json!({"seed": 1, "ids": 2, "user_id": "u", "phase": "p", "top": 3}), "ids, phase, top, user_id"),
        (json!({"seed": 1, "a\n\u{1b}[31m": {"x": 1}, "é, ü": 1, "": 2}), "_, a___31m, ____"),
        (json!({"seed": 1, "k": 5.0, "many": [{"x": 1}, {"x": 2, "y": 3}]}), ""),
    ] {
        let Ok((left, found)) = admitted(&body, UnknownFields::Name) else {
            assert_eq!(admitted(&body, UnknownFields::Name).unwrap_err().0, "k", "{body}");
            continue;
        };
        let due: BTreeSet<&str> = names.split(", ").collect();
        assert_eq!((found.split(", ").collect::<BTreeSet<_>>(), left), (due, json!({"seed": 1})), "{body}");
        assert!(admitted(&body, UnknownFields::Refuse).is_err(), "{body}");
    }
    let nested = json!({"many": [{"x": 1}, {"x": 2, "y": 3, "id": "a"}], "inner": {"x": 1}});
    let due = json!({"many": [{}, {"id": "a"}], "inner": {}});
    assert_eq!(admitted(&nested, UnknownFields::Name), Ok((due, "inner.x, many.x, many.y".into())));
}

#[test]
fn what_is_given_back_keeps_its_fields_and_what_is_foreign_is_not_looked_at() {
    let body = json!({"kept": [{"x": {"y": 1}}], "many": [{"type": "web_search", "includeusage": 1, "y": 2}]});
    assert_eq!(admitted(&body, UnknownFields::Name), Ok((body, "kept.x".into())));
}

#[test]
fn what_is_known_or_asks_for_nothing_passes() {
    for body in [
        json!({"temperature": 1, "free": {"any": {"thing": 1}}, "inner": {"include_usage": true, "cache_control": {"x": 1}}}),
        json!({"audio": false, "seed": 5, "inner": null}),
        json!({"inner": "of another type", "many": 5}),
        json!([1]),
    ] {
        for unknown in [UnknownFields::Name, UnknownFields::Refuse] {
            assert_eq!(admitted(&body, unknown), Ok((body.clone(), String::new())), "{body}");
        }
    }
    let off = json!({"tempreature": null, "nobody": {}, "none": [], "mirostat": 0, "xtc_probability": 0.0, "dry_base": 1.75});
    assert_eq!(admitted(&off, UnknownFields::Name), Ok((json!({}), String::new())));
    let (param, message) = admitted(&json!({"audio": true}), UnknownFields::Ignore).unwrap_err();
    assert_eq!((param.as_str(), message.as_str()), ("audio", "`audio` is not supported yet"));
}

#[test]
fn a_long_or_strange_name_stays_a_short_message() {
    let (param, message) = admitted(&json!({"x\n".repeat(1000): 1}), UnknownFields::Refuse).unwrap_err();
    assert!(message.len() < 600 && !message.contains('\n') && param.len() < 600, "{message}");
}

#[test]
fn more_unknown_fields_than_any_client_sends_are_refused() {
    let of = |count: usize| Value::Object((0..count).map(|i| (format!("unknown_{i:05}"), json!(1))).collect());
    assert!(admitted(&of(ignored::MOST), UnknownFields::Name).is_ok());
    let (_, message) = admitted(&of(100_000), UnknownFields::Name).unwrap_err();
    assert!(message.contains("more than 256 unknown fields"), "{message}");
    let again = json!({"many": vec![json!({"x": 1}); 100_000]});
    assert_eq!(admitted(&again, UnknownFields::Name).unwrap().1, "many.x");
}

proptest! {
    /// Any single edit of a long name is refused.
    #[test]
    fn an_edit_of_a_known_name_is_refused(at in 0..11_usize, letter in "[a-z_]", kind in 0..4) {
        let mut name: Vec<char> = "temperature".chars().collect();
        match kind {
            0 => drop(name.remove(at)),
            1 => name.insert(at, letter.chars().next().unwrap()),
            2 => name[at] = letter.chars().next().unwrap(),
            _ => name.swap(at, (at + 1) % 11),
        }
        let name: String = name.into_iter().collect();
        prop_assume!(name != "temperature" && !(kind == 3 && at == 10));
        let (param, message) = admitted(&json!({name.as_str(): 1}), UnknownFields::Name).unwrap_err();
        prop_assert!(param == name && message.contains("did you mean `temperature`?"), "{message}");
    }

    /// Whatever its fields are called, a body is refused with a short message or left without unknown fields.
    #[test]
    fn wild_bodies_are_admitted_or_refused(names in prop::collection::vec(".{0,90}", 0..20)) {
        let object = Value::Object(names.iter().map(|name| (name.clone(), json!({"id": 1}))).collect());
        let body = json!({"many": [object], "inner": object});
        match admitted(&body, UnknownFields::Name) {
            Ok((left, _)) => {
                let is_known = |name: &String| ["include_usage", "id", "cache_control"].contains(&name.as_str());
                prop_assert!(left["inner"].as_object().unwrap().keys().all(is_known), "{left}");
            }
            Err((_, message)) => prop_assert!(message.len() < 700, "{message}"),
        }
    }
}
