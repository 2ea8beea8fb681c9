//! Styles of real templates.

use std::path::Path;

use super::style::{History, Style, Telling};
use crate::gguf::GgufFile;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

fn shared() -> Option<std::path::PathBuf> {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/templates"));
    if !dir.exists() {
        println!("skipped: there are no templates");
    }
    dir.exists().then(|| dir.to_owned())
}

fn style_of(dir: &Path, name: &str) -> Option<Style> {
    style_from(&std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap())
}

fn style_from(source: &str) -> Option<Style> {
    let models = std::env::var_os("PENSTOCK_TEST_MODELS")?;
    let file = GgufFile::open(&Path::new(&models).join("smollm2-135m-instruct-q4_1.gguf")).ok()?;
    Some(Style::of(&ChatTemplate::new(source, "<s>", "</s>").unwrap(), &Tokenizer::from_gguf(&file).unwrap()))
}

#[test]
fn real_templates_are_understood() {
    let Some(dir) = shared() else { return };
    use History::{Objects, Written};
    use Telling::{Variable, Words};
    for (name, syntax, telling, history, thinking) in [
        ("Qwen-Qwen2.5-7B-Instruct", "tagged", Variable, Objects, None),
        ("Qwen-Qwen3-0.6B", "tagged", Variable, Objects, Some("<think>")),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "tagged", Variable, Objects, None),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3", Variable, Objects, None),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama3", Variable, Objects, None),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", Variable, Objects, None),
        ("Mistral-Small-3.2-24B-Instruct-2506", "mistral-3", Variable, Objects, None),
        // It shows calls, but is not told of tools.
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", Words, Objects, Some("<think>")),
        ("openai-gpt-oss-120b", "gpt-oss", Variable, Objects, Some("<|channel|>analysis<|message|>")),
        ("moonshotai-Kimi-K2", "kimi", Variable, Objects, None),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite-3", Variable, Written, Some("<think>")),
        ("ibm-granite-granite-4.1", "tagged", Variable, Objects, None),
        ("meetkai-functionary-medium-v3.1", "functionary", Variable, Objects, None),
        ("unsloth-Apriel-1.5", "tool-calls-list", Variable, Objects, None),
        ("MiniMax-M1", "tool-calls-lines", Variable, Objects, None),
        ("GigaChat3.1-10B-A1.8B", "gigachat", Variable, Objects, None),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", Variable, Objects, Some("<|START_THINKING|>")),
        // Arguments as XML, in Python, or no tools at all: they are told of Hermes' tags.
        ("GLM-4.7-Flash", "generic", Words, Written, Some("<think>")),
        ("LFM2.5-8B-A1B", "generic", Words, Written, Some("<think>")),
        ("microsoft-Phi-3.5-mini-instruct", "generic", Words, Written, None),
        ("google-gemma-2-2b-it", "generic", Words, Written, None),
        ("smollm2", "generic", Words, Written, None),
    ] {
        let Some(style) = style_of(&dir, name) else { return };
        let got = (style.syntax.name, style.telling, style.history, style.thinking.map(|thinking| thinking.open));
        assert_eq!(got, (syntax, telling, history, thinking), "{name}");
        assert_eq!(style.system, name != "google-gemma-2-2b-it", "{name}");
    }
}

/// Phi-4's template takes tools as a key of the system message and shows no calls.
#[test]
fn tools_may_be_a_key_of_the_system_message() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'system' and m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}{% endfor %}";
    let Some(style) = style_from(source) else { return };
    assert_eq!((style.syntax.name, style.telling, style.history), ("phi", Telling::SystemMessage, History::Written));
}
