//! Parses requests' bodies and renders conversations' prompts.

use std::sync::LazyLock;

use api::untrusted::{self, ENDPOINTS};
use chat::{Dialect, render};
use config::Limits;
use template::ChatTemplate;

use crate::config_files::DEFAULTS;
use crate::vocabulary::TOKENIZER;

/// Most tokens of a prompt.
const CONTEXT: usize = 4096;

pub static LIMITS: LazyLock<Limits> = LazyLock::new(|| DEFAULTS.limits.clone());

/// Templates of families that handle tools and calls in different ways.
static TEMPLATES: LazyLock<Vec<(ChatTemplate, Dialect)>> = LazyLock::new(|| {
    let sources = [
        include_str!("../../tests/golden/templates/smollm2.jinja"),
        include_str!("../../tests/golden/templates/Qwen-Qwen3-0.6B.jinja"),
        include_str!("../../tests/golden/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja"),
    ];
    let compiled = sources.iter().map(|source| ChatTemplate::new(source, "<s>", "</s>").expect("a template"));
    compiled.map(|template| (Dialect::of(&template, &TOKENIZER), template)).map(|(dialect, template)| (template, dialect)).collect()
});

/// The input: the endpoint and the template, then the body.
pub fn body(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else { return };
    let kind = usize::from(*kind);
    let Ok(Some(conversation)) = untrusted::request(ENDPOINTS[kind % ENDPOINTS.len()], body, &LIMITS) else { return };
    let (template, dialect) = &TEMPLATES[kind / ENDPOINTS.len() % TEMPLATES.len()];
    if let Ok(prompt) = render(template, dialect, &TOKENIZER, &conversation) {
        std::hint::black_box(TOKENIZER.encode_rendered(&prompt.with_markers(""), CONTEXT));
    }
}
