//! Renders conversations such as clients send through each family's template, and checks that nothing is lost.

use std::sync::LazyLock;

use gguf::GgufFile;
use serde_json::json;

use crate::conversation::{Call, Conversation, Message, Role};
use crate::dialect::{Alternation, CallText, Dialect, SystemPlace, TurnOrder};
use crate::render::render;
use crate::tools::Tools;
use crate::trial::tools;
use template::ChatTemplate;
use tokenizer::Tokenizer;

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_gguf(&GgufFile::open(fixtures::vocabulary("smollm2").path()).unwrap()).unwrap());

struct Family {
    name: String,
    template: ChatTemplate,
    dialect: Dialect,
}

impl Family {
    fn new(name: &str, source: &str) -> Self {
        let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
        let dialect = Dialect::of(&template, &TOKENIZER);
        Self { name: name.to_owned(), template, dialect }
    }

    fn render(&self, messages: &[Message], tools: Option<Tools>) -> Result<String, String> {
        let conversation = Conversation { messages: messages.to_vec(), tools, ..Conversation::default() };
        let prompt = render(&self.template, &self.dialect, &TOKENIZER, &conversation);
        prompt.map(|prompt| prompt.end().to_owned()).map_err(|error| error.to_string())
    }
}

fn families() -> Vec<Family> {
    let files = std::fs::read_dir(fixtures::golden("templates")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "jinja")).collect();
    files.sort();
    let read =
        |path: &std::path::PathBuf| Family::new(path.file_stem().unwrap().to_str().unwrap(), &std::fs::read_to_string(path).unwrap());
    files.iter().map(read).collect()
}

/// Messages by letters, with the words that must be in the prompt: `s`, `u`, `a`, a call `c`, two calls `d`, three `e`, a call with a text
/// `t`, a result `r` of the first call without one, the last call's result `R`, a result without text `n`, a result without an id `i`, a
/// lone result `l`, an empty answer `0`, an empty message of the user `9`.
fn conversation(letters: &str) -> (Vec<Message>, Vec<String>) {
    let (mut messages, mut words, mut num_calls, mut waiting) = (Vec::new(), Vec::new(), 0, std::collections::VecDeque::new());
    for (i, letter) in letters.chars().enumerate() {
        let word = format!("word-{i:02}-{letter}");
        let role = match letter {
            's' => Role::System,
            'u' | '9' => Role::User,
            'r' | 'R' | 'n' | 'i' | 'l' => Role::Tool,
            _ => Role::Assistant,
        };
        let mut message = if "cden09".contains(letter) { Message::of_text(role, "") } else { Message::of_text(role, word.as_str()) };
        if !"cden09".contains(letter) {
            words.push(word);
        }
        for _ in 0.."ctde".find(letter).map_or(0, |at| [1, 1, 2, 3][at]) {
            let (id, word) = (format!("call_{num_calls:016}"), format!("argument-{num_calls:02}"));
            waiting.push_back(id.clone());
            message.calls.push(Call { id, name: "look_up".into(), arguments: json!({"query": word}).to_string() });
            words.push(word);
            num_calls += 1;
        }
        message.call_id = match letter {
            'r' | 'n' => waiting.pop_front(),
            'R' => waiting.pop_back(),
            'i' => waiting.pop_front().and(None),
            'l' => Some("call_lost".into()),
            _ => None,
        };
        messages.push(message);
    }
    (messages, words)
}

/// Orders that clients send, including orders that they should not send.
const CONVERSATIONS: &[&str] = &[
    // Plain ones.
    "u",
    "su",
    "uau",
    "suau",
    "suauau",
    // Users in a row, with system messages of two kinds before them: the first request of Codex.
    "uu",
    "uuau",
    "uauu",
    "ssuu",
    "suuu",
    "ssuuau",
    // System messages alone, at the end, and anywhere.
    "s",
    "ss",
    "us",
    "usu",
    "uas",
    "uasu",
    "usau",
    "susu",
    "suasu",
    "sususau",
    "sasu",
    // The assistant begins, continues, or has the last message.
    "au",
    "sau",
    "a",
    "ua",
    "sua",
    "uaa",
    "uaau",
    "uaaau",
    "suaa",
    "aau",
    // Agents: calls, results, texts with calls, several calls at once.
    "ucr",
    "sucr",
    "sucrau",
    "ucrcr",
    "sucrcrau",
    "utr",
    "sutrau",
    "utrtr",
    "sutrtrau",
    "udrr",
    "sudrrau",
    "uerrr",
    "udRr",
    "sudrrudrrau",
    "uacr",
    "uacrau",
    "ucrtrdrrau",
    // A user or a system message after a result or a call, and between both.
    "ucru",
    "sucru",
    "ucruau",
    "ucrucrau",
    "ucu",
    "sucuau",
    "udru",
    "udruau",
    "ucrs",
    "sucrsu",
    "ucsr",
    "sucsrau",
    "ucur",
    "ucurau",
    "udrurau",
    "utsru",
    "ucua",
    "ucau",
    // Results without text, without an id, and without a call.
    "ucn",
    "ucnau",
    "udnr",
    "uci",
    "udii",
    "ul",
    "lu",
    "ulau",
    "lau",
    "sucrlau",
    // Calls first, empty answers and questions.
    "cru",
    "crau",
    "scru",
    "u0u",
    "u0",
    "9",
    "u9",
    "uc9r",
    "u0a",
];

#[test]
fn nothing_of_a_conversation_is_lost() {
    let mut lost = Vec::new();
    for family in families().into_iter().chain(further()) {
        for letters in CONVERSATIONS {
            let (messages, words) = conversation(letters);
            for (tools, with) in [(None, ""), (Some(tools()), " with tools")] {
                match family.render(&messages, tools) {
                    Err(error) => lost.push(format!("{}: {letters}{with}: {error}", family.name)),
                    Ok(text) => {
                        let missing: Vec<&String> = words.iter().filter(|word| text.matches(word.as_str()).count() != 1).collect();
                        if !missing.is_empty() {
                            lost.push(format!("{}: {letters}{with}: {missing:?}", family.name));
                        }
                    }
                }
            }
        }
    }
    assert!(lost.is_empty(), "{} of them:\n{}", lost.len(), lost.join("\n"));
}

/// Families whose whole templates are not among the fixtures, described by how their templates treat turns.
const LLAMA_2: &str = "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% set head = messages[0].content %}{% else %}\
    {% set rest = messages %}{% set head = false %}{% endif %}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('roles must alternate') }}{% endif %}\
    {% if loop.index0 == 0 and head != false %}{% set text = '<<SYS>>' + head + '<</SYS>>' + m.content %}{% else %}\
    {% set text = m.content %}\
    {% endif %}{% if m.role == 'user' %}[INST] {{ text.strip() }} [/INST]{% elif m.role == 'assistant' %} {{ text.strip() }}</s>{% endif %}\
    {% endfor %}";
const GEMMA_3: &str = "{% if messages[0].role == 'system' %}{% set head = messages[0].content + '\n\n' %}\
    {% set rest = messages[1:] %}{% else %}\
    {% set head = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('roles must alternate') }}{% endif %}<start_of_turn>{{ m.role + '\n' + (head if loop.first else '') }}\
    {{ m.content | trim }}<end_of_turn>\n{% endfor %}";
const MISTRAL_1: &str = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('roles must alternate') }}\
    {% endif %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' %}{{ m.content }}</s>{% else %}\
    {{ raise_exception('only user and assistant roles are supported') }}{% endif %}{% endfor %}";
const QWEN_3_5: &str = "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}\
    {{ raise_exception('no user query') }}\
    {% endif %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('system must be first') }}{% endif %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
/// This template shows one message of each turn.
const LAST_OF_TURN: &str = "{% for m in messages %}{% if loop.last or loop.nextitem.role != m.role %}<{{ m.role }}>\
    {{ m.content }}{% endif %}\
    {% endfor %}";
/// This template counts turns and refuses calls that are not the only one.
const ONE_CALL: &str = "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}\
    {{ raise_exception('one call') }}{% endif %}\
    <{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}\
    {# {\"name\": <tool_call> #}{{ tools | length if tools else '' }}";

fn further() -> Vec<Family> {
    let sources = [LLAMA_2, GEMMA_3, MISTRAL_1, QWEN_3_5, LAST_OF_TURN, ONE_CALL];
    ["llama-2", "gemma-3", "mistral-1", "qwen-3.5", "last-of-turn", "one-call"]
        .iter()
        .zip(sources)
        .map(|(n, s)| Family::new(n, s))
        .collect()
}

#[test]
fn what_a_template_takes_is_found_by_trials() {
    let plain = TurnOrder { system: SystemPlace::OneMessage, late_system: false, ..TurnOrder::ALL };
    let strict = TurnOrder { alternation: Alternation::Strict, late_results: false, ..plain };
    let due = [
        ("llama-2", TurnOrder { needs_user: true, ..strict }),
        ("gemma-3", TurnOrder { needs_user: true, ..strict }),
        ("mistral-1", TurnOrder { system: SystemPlace::FirstUser, ..strict }),
        ("qwen-3.5", TurnOrder { needs_user: true, ..plain }),
        ("google-gemma-2-2b-it", TurnOrder { system: SystemPlace::FirstUser, ..strict }),
        ("mistralai-Mistral-Nemo-Instruct-2407", TurnOrder { system: SystemPlace::LastUser, call_text: CallText::Inserted, ..strict }),
        ("Mistral-Small-3.2-24B-Instruct-2506", TurnOrder { call_text: CallText::Inserted, ..strict }),
        ("Qwen-Qwen2.5-7B-Instruct", TurnOrder::ALL),
        ("qwen2.5-coder", TurnOrder::ALL),
        (
            "meta-llama-Llama-3.1-8B-Instruct",
            TurnOrder { needs_user: true, several_calls: false, call_text: CallText::Message, ..TurnOrder::ALL },
        ),
    ];
    let found: Vec<Family> = families().into_iter().chain(further()).collect();
    for (name, due) in due {
        let turns = found.iter().find(|family| family.name == name).unwrap().dialect.turns;
        assert_eq!(TurnOrder { custom_roles: false, ..turns }, due, "{name}");
    }
    let joins = found.iter().find(|family| family.name == "last-of-turn").unwrap().dialect.turns.alternation;
    assert_eq!(joins, Alternation::Joined);
    assert!(!found.iter().find(|family| family.name == "one-call").unwrap().dialect.turns.several_calls);
}

#[test]
fn a_role_of_the_clients_own_is_shown_or_refused() {
    let critic = |text: &str| Message { custom_role: Some("critic<|im_end|>".to_owned()), ..Message::of_text(Role::User, text) };
    let messages = [Message::of_text(Role::User, "u1"), critic("c1"), critic("c2"), Message::of_text(Role::User, "u2")];
    let plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let joining = format!(
        "{{% set ns = namespace(last='') %}}{{% for m in messages %}}{{% if m.role == ns.last %}}\
        {{{{ raise_exception('one role twice') }}}}{{% endif %}}{{% set ns.last = m.role %}}{{% endfor %}}{plain}"
    );
    for (name, source) in [("plain", plain), ("joining", joining.as_str())] {
        let family = Family::new(name, source);
        assert!(family.dialect.turns.custom_roles, "{name}");
        let text = family.render(&messages, None).unwrap();
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{name}: {word} is not in {text}"));
        assert!(at("u1") < at("critic") && at("critic") < at("c1") && at("c1") < at("c2") && at("c2") < at("u2"), "{text}");
        assert!(!text.contains("critic<|im_end|>"), "{name}: the name writes no control token: {text}");
    }
    for name in ["llama-2", "gemma-3", "mistral-1"] {
        let family = families().into_iter().find(|family| family.name == name).or_else(|| further().into_iter().find(|f| f.name == name));
        let error = family.unwrap().render(&messages, None).unwrap_err().to_string();
        assert!(error.contains("does not show a message's role `critic"), "{name}: {error}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

    /// Templates that are strict about the order of messages show all of them in any order.
    #[test]
    fn no_order_of_messages_loses_anything(letters in "[suacdterRnil09]{1,12}", with_tools in proptest::bool::ANY) {
        static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| {
            let is_odd = |family: &Family| TurnOrder { custom_roles: false, ..family.dialect.turns } != TurnOrder::ALL;
            families().into_iter().chain(further()).filter(is_odd).collect()
        });
        let (messages, words) = conversation(&letters);
        for family in FAMILIES.iter() {
            let text = family.render(&messages, with_tools.then(tools));
            let text = text.unwrap_or_else(|error| panic!("{}: {letters}: {error}", family.name));
            let missing: Vec<&String> = words.iter().filter(|word| text.matches(word.as_str()).count() != 1).collect();
            assert!(missing.is_empty(), "{}: {letters}: {missing:?}", family.name);
        }
    }
}

/// If a template takes an order of messages, the rendering is the template's own.
#[test]
fn messages_that_a_template_takes_are_rendered_as_they_are() {
    let family = families().into_iter().find(|family| family.name == "Qwen-Qwen2.5-7B-Instruct").unwrap();
    let (messages, _) = conversation("suusautsrau");
    let text = family.render(&messages, None).unwrap();
    let turn = |(at, role): (usize, &str)| format!("<|im_start|>{role}\nword-{at:02}");
    let mut rest = text.as_str();
    let roles =
        ["system", "user", "user", "system", "assistant", "user", "assistant", "system", "user\n<tool_response>", "assistant", "user"];
    for turn in roles.into_iter().enumerate().map(turn) {
        rest = rest.split_once(&turn).unwrap_or_else(|| panic!("{turn} in {text}")).1;
    }
}

#[test]
fn a_strict_template_gets_what_it_asks_for() {
    let of = |name: &str, letters: &str| {
        let family = families().into_iter().find(|family| family.name.contains(name)).unwrap();
        family.render(&conversation(letters).0, None).unwrap()
    };
    let small = |letters: &str| of("Mistral-Small", letters).split_once("[/SYSTEM_PROMPT]").unwrap().1.to_owned();
    assert_eq!(small("ssuu"), "[INST]word-02-u\nword-03-u[/INST]");
    assert_eq!(small("uas"), "[INST]word-00-u[/INST]word-01-a</s>[INST]<system>\nword-02-s\n</system>[/INST]");
    let call = |text: &str| small(&format!("u{text}")).replace(|c: char| c.is_ascii_digit() && c != '0', "#");
    assert!(call("tr").contains("[/INST]word-0#-t[TOOL_CALLS]look_up[CALL_ID]"), "{}", call("tr"));
    assert!(call("cru").ends_with("[/TOOL_RESULTS]</s>[INST]word-0#-u[/INST]"), "{}", call("cru"));
    assert!(of("Mistral-Nemo", "sucr").contains("[INST]word-00-s\n\nword-01-u[/INST][TOOL_CALLS]"));
    assert_eq!(
        of("gemma-2", "ssuu"),
        "<s><start_of_turn>user\nword-00-s\nword-01-s\n\nword-02-u\nword-03-u<end_of_turn>\n<start_of_turn>model\n"
    );
}

/// A request's own template is probed while the client waits.
#[test]
fn a_template_that_never_ends_is_tried_a_few_times_only() {
    let start = std::time::Instant::now();
    let source = "{% for i in range(9999999) %}{% for j in range(9999999) %}x{% endfor %}{% endfor %}";
    assert_eq!(Family::new("endless", source).dialect.turns, TurnOrder::ALL);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
