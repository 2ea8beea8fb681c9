//! Rules for calls in Python's syntax: `NAME(KEY=VALUE, KEY=VALUE)`.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::parameters::{Parameter, Parameters};
use grammar::{GrammarError, Source};

/// The most arguments whose names the schema does not list.
const MAX_FURTHER: usize = 32;

/// Adds the values that are written as JSON, as the named grammars to which [`rules`] refers. JSON's strings, numbers and lists are also
/// Python's.
pub fn with_values(parameters: &[Parameters], mut source: Source) -> Result<Source, GrammarError> {
    for (i, of_tool) in parameters.iter().enumerate() {
        for (j, parameter) in of_tool.listed.iter().enumerate() {
            source = source.with_schema(&format!("json_{i}_{j}"), &parameter.schema)?;
        }
    }
    if parameters.iter().any(|parameters| parameters.open) {
        source = source.with_schema("further_value", &json!({}))?;
    }
    Ok(source)
}

/// A parameter's values: as in JSON, and as Python writes them if that differs.
fn values(literal: &dyn Fn(&str) -> String, parameter: &Parameter, at: &str) -> String {
    let mut forms = vec![format!("@json_{at}")];
    let constants = [(json!(true), "True"), (json!(false), "False"), (json!(null), "None")];
    let taken = constants.iter().filter(|(value, _)| parameter.takes(value));
    forms.extend(taken.map(|(_, word)| literal(word)));
    for schema in &parameter.strings {
        match schema.get("enum").and_then(Value::as_array) {
            Some(texts) => forms.extend(
                texts
                    .iter()
                    .filter_map(Value::as_str)
                    .filter(|text| !text.contains(['\'', '\\']))
                    .map(|text| literal(&format!("'{text}'"))),
            ),
            None if ["pattern", "minLength", "maxLength", "format"].iter().any(|key| schema.get(key).is_some()) => {}
            None => forms.push("QUOTED".into()),
        }
    }
    forms.join(" | ")
}

/// The rule `arguments_I` of each tool, and the rules to which it refers. `first_I_J` are the arguments with index J and above if none
/// came before, and `next_I_J` if some did.
pub fn rules(literal: &dyn Fn(&str) -> String, parameters: &[Parameters]) -> String {
    let mut lark = String::from("QUOTED: /'([^'\\\\]|\\\\.)*'/\n");
    for (i, of_tool) in parameters.iter().enumerate() {
        let _ = writeln!(lark, "arguments_{i}: first_{i}_0");
        for (j, parameter) in of_tool.listed.iter().enumerate() {
            let (after, argument) = (j + 1, format!("{} value_{i}_{j}", literal(&format!("{}=", parameter.name))));
            let _ = writeln!(lark, "value_{i}_{j}: {}", values(literal, parameter, &format!("{i}_{j}")));
            let skipped = |kind: &str| if parameter.required { String::new() } else { format!(" | {kind}_{i}_{after}") };
            let _ = writeln!(lark, "first_{i}_{j}: {argument} next_{i}_{after}{}", skipped("first"));
            let _ = writeln!(lark, "next_{i}_{j}: \", \" {argument} next_{i}_{after}{}", skipped("next"));
        }
        let (end, more) = (of_tool.listed.len(), MAX_FURTHER);
        let _ = match of_tool.open {
            true => {
                writeln!(lark, "first_{i}_{end}: (further (\", \" further){{0,{more}}})?\nnext_{i}_{end}: (\", \" further){{0,{more}}}")
            }
            false => writeln!(lark, "first_{i}_{end}: \"\"\nnext_{i}_{end}: \"\""),
        };
    }
    if parameters.iter().any(|parameters| parameters.open) {
        lark += "further: /[A-Za-z_][A-Za-z0-9_]{0,63}/ \"=\" @further_value\n";
    }
    lark
}
