//! Sets up llguidance's compiler with our limits, and adds the place in a schema to its errors.

use llguidance::ParserFactory;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};

use crate::locate::locate;
use crate::source::Source;

/// The most positions in the grammar (Earley items) per position in a text.
const MAX_ITEMS: usize = 8000;
/// The most states of the lexer's automaton. They are created while a text is followed, and take about 400 bytes each, per text.
const MAX_LEXER_STATES: usize = 50_000;

/// llguidance's compiler over a vocabulary. `slices`: patterns of JSON strings whose tokens are precomputed, which makes masks cheap.
pub fn factory(vocabulary: &TokEnv, slices: &[String]) -> Result<ParserFactory, String> {
    let factory = ParserFactory::new(vocabulary, InferenceCapabilities::default(), slices);
    let mut factory = factory.map_err(|error| format!("the model's vocabulary does not support grammars: {error}"))?;
    let limits = factory.quiet().limits_mut();
    limits.verbose_errors = false;
    // Each optional member of an object adds a few items, so these limits must permit an object with the most members allowed.
    limits.max_items_in_row = MAX_ITEMS;
    limits.step_max_items = 25 * MAX_ITEMS;
    limits.max_lexer_states = MAX_LEXER_STATES;
    Ok(factory)
}

/// llguidance's error text in one line. Drops the lines between the first one and the one with `error:`, which quote the pattern and
/// internal state.
pub fn reason(error: &str) -> String {
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('<'));
    let first = lines.next().unwrap_or_default().trim_end_matches(':');
    let last = lines.find_map(|line| line.strip_prefix("error: "));
    let text = match (first, last) {
        ("" | "NoExtensionBias", _) => "nothing satisfies it".into(),
        (first, None) => first.to_owned(),
        (first, Some(last)) => format!("{first}: {last}"),
    };
    text.chars().take(300).collect()
}

/// Finds the named grammar that caused a refusal, if it is known, and completes the message. If the grammar is a schema, the message names
/// the place in it.
pub fn explain(factory: &ParserFactory, source: &Source, refusal: String) -> (Option<String>, String) {
    let why = |alone: &Source| alone.parser(factory).err().map(|error| reason(&error.to_string()));
    let of_schema = |schema: &serde_json::Value| why(&Source::new("start: @schema").with_schema("schema", schema).ok()?);
    for (name, schema) in source.names() {
        let is_cause = match schema {
            Some(schema) => of_schema(schema).as_ref() == Some(&refusal),
            None => why(&source.alone(name)).as_ref() == Some(&refusal),
        };
        if is_cause {
            let place = schema.map(|schema| locate(schema, &refusal, of_schema));
            return (Some(name.to_owned()), place.map_or(refusal.clone(), |place| format!("{place} cannot be used: {refusal}")));
        }
    }
    (None, refusal)
}
