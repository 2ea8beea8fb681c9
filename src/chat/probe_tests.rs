//! The dialects of real templates.

use std::sync::LazyLock;

use super::*;
use crate::render::Layout;
use gguf::GgufFile;

fn dialect_of(name: &str) -> Dialect {
    dialect_from(&fixtures::golden_text(&format!("templates/{name}.jinja")))
}

fn dialect_from(source: &str) -> Dialect {
    static SMOLLM2: LazyLock<Tokenizer> =
        LazyLock::new(|| Tokenizer::from_gguf(&GgufFile::open(fixtures::vocabulary("smollm2").path()).unwrap()).unwrap());
    Dialect::of(&ChatTemplate::new(source, "<s>", "</s>").unwrap(), &SMOLLM2)
}

#[test]
fn the_dialects_of_real_templates_are_recognized() {
    use CallForm::{Objects, Text};
    use ToolPlacement::{Variable, Words};
    for (name, syntax, placement, calls, thinking) in [
        ("Qwen-Qwen2.5-7B-Instruct", "tagged", Variable, Objects, None),
        ("Qwen-Qwen3-0.6B", "tagged", Variable, Objects, Some("<think>")),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "tagged", Variable, Objects, None),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3", Variable, Objects, None),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama3", Variable, Objects, None),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", Variable, Objects, None),
        ("Mistral-Small-3.2-24B-Instruct-2506", "mistral-3", Variable, Objects, None),
        // This template shows calls, but takes no tools.
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", Words, Objects, Some("<think>")),
        ("openai-gpt-oss-120b", "gpt-oss", Variable, Objects, Some("<|channel|>analysis<|message|>")),
        ("moonshotai-Kimi-K2", "kimi", Variable, Objects, None),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite-3", Variable, Text, Some("<think>")),
        ("ibm-granite-granite-4.1", "tagged", Variable, Objects, None),
        ("meetkai-functionary-medium-v3.1", "functionary", Variable, Objects, None),
        ("unsloth-Apriel-1.5", "tool-calls-list", Variable, Objects, Some("Here are my reasoning steps:")),
        ("MiniMax-M1", "tool-calls-lines", Variable, Objects, None),
        ("GigaChat3.1-10B-A1.8B", "gigachat", Variable, Objects, None),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", Variable, Objects, Some("<|START_THINKING|>")),
        // Arguments written one by one.
        ("GLM-4.7-Flash", "key-tags", Variable, Objects, Some("<think>")),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "function-tags", Variable, Objects, Some("<think>")),
        ("StepFun3.5-Flash", "function-tags", Variable, Objects, Some("<think>")),
        ("deepseek-ai-DeepSeek-V3.2", "dsml-functions", Variable, Objects, Some("<think>")),
        ("deepseek-ai-DeepSeek-V4", "dsml-tools", Variable, Objects, Some("<think>")),
        ("LFM2.5-8B-A1B", "python", Variable, Objects, Some("<think>")),
        ("LFM2.5-Instruct", "python-plain-lists", Variable, Text, Some("<think>")),
        ("google-gemma-4-31B-it-interleaved", "gemma-4", Variable, Objects, Some("<|channel>thought\n")),
        ("MiniMax-M3", "minimax-3", Variable, Objects, Some("<mm:think>")),
        ("Kimi-K3", "kimi-3", Variable, Objects, Some("<|open|>think<|sep|>")),
        ("muse-glimmer", "atem", Variable, Objects, Some(" to=self<|message|>")),
        ("Apriel-1.6-15b-Thinker-fixed", "tool-calls-list", Variable, Objects, Some("Here are my reasoning steps:")),
        ("inclusionai-ling-3.0-flash", "key-tags-ling", Variable, Objects, Some("<think>")),
        ("Cohere2MoE", "cohere", Variable, Objects, Some("<|START_THINKING|>")),
        // This template does not tell the model about tools, and the model writes Hermes' tags.
        ("HuggingFaceTB-SmolLM3-3B", "generic", Words, Text, Some("<think>")),
        // No support for tools: these models are told to write Hermes' tags.
        ("microsoft-Phi-3.5-mini-instruct", "generic", Words, Text, None),
        ("google-gemma-2-2b-it", "generic", Words, Text, None),
        ("smollm2", "generic", Words, Text, None),
    ] {
        let dialect = dialect_of(name);
        let got = (dialect.syntax.name, dialect.placement, dialect.calls, dialect.thinking.map(|thinking| thinking.open));
        assert_eq!(got, (syntax, placement, calls, thinking), "{name}");
    }
}

/// Phi-4's template takes tools in a key of the system message and does not show calls.
#[test]
fn a_template_may_take_tools_in_a_key_of_the_system_message() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
        {% if m.role == 'system' and m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}{% endfor %}";
    let dialect = dialect_from(source);
    assert_eq!((dialect.syntax.name, dialect.placement, dialect.calls), ("phi", ToolPlacement::SystemKey, CallForm::Text));
}

/// SmolLM3's own template takes tools in a variable of its own and does not show calls.
#[test]
fn a_template_may_take_tools_in_a_variable_of_another_name() {
    let source = "{% if xml_tools %}{% for t in xml_tools %}{{ t | tojson }}{% endfor %}<tool_call>{% endif %}\
        {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
    let dialect = dialect_from(source);
    let got = (dialect.syntax.name, dialect.placement, dialect.calls, dialect.results);
    assert_eq!(got, ("tagged", ToolPlacement::Named("xml_tools"), CallForm::Text, ResultForm::Messages));
}

/// Forms of families whose whole templates are not among the fixtures.
#[test]
fn the_forms_of_further_families_are_recognized() {
    let turns = |call: &str| {
        format!(
            "{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}{{% for c in m.tool_calls %}}{{% set f = c.function %}}\
             {call}{{% endfor %}}{{% endfor %}}"
        )
    };
    let keys =
        "{% for k, v in f.arguments.items() %}{{ k }}={{ \"'\" ~ v ~ \"'\" if v is string else v }}{{ ', ' if not loop.last }}{% endfor %}";
    let lines = format!("<function_calls>\n{{{{ f.name }}}}({keys})\n</function_calls>{{# <functions> #}}");
    let args = "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n\
        {% endfor %}</tool_call>";
    for (call, syntax) in [
        ("<|tool_call|>{{ f | tojson }}<|/tool_call|>{# <|tool|> <|/tool|> #}", "phi-objects"),
        (
            "<|action_start|><|plugin|>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}<|action_end|>",
            "internlm-arguments",
        ),
        ("{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}{# ipython #}", "llama3"),
        ("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", "mistral-args"),
        ("<|tools_prefix|>[{\"{{ f.name }}\": {{ f.arguments | tojson }}}]<|tools_suffix|>", "apertus"),
        ("<TOOLCALL>[{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}]</TOOLCALL>", "nemotron-2"),
        ("<|tool_calls|><|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>{{ f.arguments | tojson }}", "solar"),
        (&lines, "python-lines"),
        (args, "key-tags-lines"),
    ] {
        let dialect = dialect_from(&turns(call));
        assert_eq!((dialect.syntax.name, dialect.calls), (syntax, CallForm::Objects), "{call}");
    }
}

/// Templates need null in place of an empty text, results inside the message with the calls, or a particular key for reasoning.
#[test]
fn a_template_is_given_messages_in_the_form_that_it_takes() {
    for (name, null_content, results, reasoning_key) in [
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", true, ResultForm::Messages, "reasoning_content"),
        ("google-gemma-4-31B-it-interleaved", false, ResultForm::OfCalls, "reasoning_content"),
        ("openai-gpt-oss-120b", false, ResultForm::Messages, "thinking"),
        ("LFM2.5-8B-A1B", false, ResultForm::Messages, "thinking"),
        ("smollm2", false, ResultForm::Text, "reasoning_content"),
        ("Qwen-Qwen3-0.6B", false, ResultForm::Messages, "reasoning_content"),
    ] {
        let dialect = dialect_of(name);
        assert_eq!((dialect.null_content, dialect.results, dialect.reasoning_key), (null_content, results, reasoning_key), "{name}");
    }
}

/// A conversation with a client's own call id renders, regardless of the ids that the template accepts.
#[test]
fn a_call_of_any_id_renders() {
    let mut short = Vec::new();
    for name in fixtures_of_templates() {
        let template = ChatTemplate::new(&fixtures::golden_text(&format!("templates/{name}.jinja")), "<s>", "</s>").unwrap();
        let dialect = dialect_of(&name);
        let call = |id: &str| Call { id: id.into(), name: NAME.into(), arguments: arguments().to_string() };
        let result = |id: &str| Message { call_id: Some(id.into()), name: Some(NAME.into()), ..Message::of_text(Role::Tool, "b") };
        let calling = Message { calls: vec![call("call_client-1"), call(LONG_ID)], ..Message::new(Role::Assistant) };
        let messages = vec![Message::of_text(Role::User, "a"), calling, result("call_client-1"), result(LONG_ID)];
        let conversation = Conversation { messages, ..Conversation::default() };
        let text = Layout::new(&dialect, &str::to_owned, &conversation).render(&template);
        assert!(text.is_ok(), "{name}: {text:?}");
        if dialect.short_ids {
            let seen = super::super::call_ids::short_ids(&conversation.messages);
            for id in ["call_client-1", LONG_ID] {
                assert_eq!(text.as_ref().unwrap().matches(&seen[id]).count(), 2, "{name}: the call and its result: {text:?}");
            }
            short.push(name);
        }
    }
    assert_eq!(short, ["Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Mistral-Nemo-Instruct-2407"]);
}

fn fixtures_of_templates() -> Vec<String> {
    let files = std::fs::read_dir(fixtures::golden("templates")).unwrap();
    let mut names: Vec<String> =
        files.filter_map(|file| file.unwrap().file_name().to_str().unwrap().strip_suffix(".jinja").map(str::to_owned)).collect();
    names.sort();
    names
}
