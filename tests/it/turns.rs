//! Sends conversations as clients do, to each endpoint that takes messages, through the template of each family, and checks that nothing is
//! lost.

use std::collections::VecDeque;

use api::untrusted::request;
use chat::{Conversation, Dialect, render};
use config::{Config, ConfigSources, Limits, Overrides};
use gguf::GgufFile;
use serde_json::{Value, json};
use template::ChatTemplate;
use tokenizer::Tokenizer;

/// Conversations, with one letter per message: `s` a system message, `u` the user's, `a` the assistant's, `c` a call, `d` two calls, `t` a
/// call with a text, `r` a result, `n` a result without text, `p` a result with a picture.
const CONVERSATIONS: [(&str, &str); 16] = [
    ("plain turns", "suauau"),
    ("two users in a row", "uuau"),
    ("the first request of a coding agent", "ssuu"),
    ("a late system message", "suasu"),
    ("a system message between the turns", "usauss"),
    ("system messages alone", "ss"),
    ("the assistant begins", "sau"),
    ("the assistant twice", "suaau"),
    ("the assistant has the last word", "sua"),
    ("a user behind a result", "sucruau"),
    ("a call that was denied", "sucuau"),
    ("calls at once", "sudrrudrrau"),
    ("calls with texts", "sutrtrau"),
    ("results without text", "ucnau"),
    ("a system message behind a result", "sucrsu"),
    ("a result with a picture", "uacpau"),
];

const ENDPOINTS: [&str; 5] = ["/v1/chat/completions", "/apply-template", "/v1/responses", "/v1/messages", "/api/chat"];
const PICTURE: &str = "[an image was left out: this model takes none]";

/// A message, independent of any dialect.
struct Said {
    letter: char,
    text: String,
    /// Ids and the words that the arguments contain.
    calls: Vec<(String, String)>,
    answers: Option<String>,
}

fn conversation(letters: &str) -> Vec<Said> {
    let (mut waiting, mut num_calls) = (VecDeque::new(), 0);
    let said = |(i, letter): (usize, char)| {
        let text = if "cdn".contains(letter) { String::new() } else { format!("word-{i:02}-{letter}") };
        let num = "ctd".find(letter).map_or(0, |at| [1, 1, 2][at]);
        let calls: Vec<(String, String)> =
            (num_calls..num_calls + num).map(|n| (format!("call_{n}"), format!("argument-{n:02}"))).collect();
        num_calls += num;
        waiting.extend(calls.iter().map(|(id, _)| id.clone()));
        let answers = if "rnp".contains(letter) { waiting.pop_front() } else { None };
        Said { letter, text, calls, answers }
    };
    letters.chars().enumerate().map(said).collect()
}

/// The words that the prompt must contain, and how often.
fn words(conversation: &[Said]) -> Vec<(&str, usize)> {
    let texts = conversation.iter().map(|said| said.text.as_str()).filter(|text| !text.is_empty());
    let arguments = conversation.iter().flat_map(|said| &said.calls).map(|(_, word)| word.as_str());
    let pictures = conversation.iter().filter(|said| said.letter == 'p').count();
    texts.chain(arguments).map(|word| (word, 1)).chain((pictures > 0).then_some((PICTURE, pictures))).collect()
}

fn role(said: &Said) -> &'static str {
    match said.letter {
        's' => "system",
        'u' => "user",
        'r' | 'n' | 'p' => "tool",
        _ => "assistant",
    }
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"query": {"type": "string", "description": "What"}}, "required": ["query"]}"#;

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

fn openai(conversation: &[Said]) -> Value {
    let message = |said: &Said| {
        let call = |(id, word): &(String, String)| {
            let function = json!({"name": "look_up", "arguments": json!({"query": word}).to_string()});
            json!({"id": id, "type": "function", "function": function})
        };
        // Newer clients send instructions as the developer.
        let role = if said.letter == 's' && said.text.ends_with("1-s") { "developer" } else { role(said) };
        let mut message = json!({"role": role, "content": said.text});
        if said.letter == 'p' {
            let picture = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}});
            message["content"] = json!([{"type": "text", "text": said.text}, picture]);
        }
        if !said.calls.is_empty() {
            message["tool_calls"] = said.calls.iter().map(call).collect();
        }
        if let Some(id) = &said.answers {
            message["tool_call_id"] = id.as_str().into();
        }
        message
    };
    let tool = json!({"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": schema()}});
    json!({"messages": conversation.iter().map(message).collect::<Value>(), "tools": [tool]})
}

fn responses(conversation: &[Said]) -> Value {
    let mut input = Vec::new();
    for said in conversation {
        let text = json!({"type": "input_text", "text": said.text});
        if let Some(id) = &said.answers {
            let picture = json!({"type": "input_image", "image_url": "data:image/png;base64,aGk="});
            let output = if said.letter == 'p' { json!([text, picture]) } else { said.text.as_str().into() };
            input.push(json!({"type": "function_call_output", "call_id": id, "output": output}));
        } else if !said.text.is_empty() {
            let role = if said.letter == 's' { "developer" } else { role(said) };
            input.push(json!({"type": "message", "role": role, "content": said.text}));
        }
        for (id, word) in &said.calls {
            let arguments = json!({"query": word}).to_string();
            input.push(json!({"type": "function_call", "call_id": id, "name": "look_up", "arguments": arguments}));
        }
    }
    json!({"input": input, "tools": [{"type": "function", "name": "look_up", "description": "Looks up.", "parameters": schema()}]})
}

/// Joins the results of calls and the user's text after them into one message.
fn messages(conversation: &[Said]) -> Value {
    let mut messages: Vec<Value> = Vec::new();
    for said in conversation {
        let text = json!({"type": "text", "text": said.text});
        let mut blocks = if said.text.is_empty() { Vec::new() } else { vec![text.clone()] };
        if let Some(id) = &said.answers {
            let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}});
            let mut result = json!({"type": "tool_result", "tool_use_id": id});
            if !said.text.is_empty() {
                result["content"] = if said.letter == 'p' { json!([text, picture]) } else { json!([text]) };
            }
            blocks = vec![result];
        }
        blocks
            .extend(said.calls.iter().map(|(id, word)| json!({"type": "tool_use", "id": id, "name": "look_up", "input": {"query": word}})));
        let role = role(said).replace("tool", "user");
        match messages.last_mut().filter(|last| role == "user" && last["role"] == "user" && last["content"][0]["type"] == "tool_result") {
            Some(last) => last["content"].as_array_mut().unwrap().extend(blocks),
            None => messages.push(json!({"role": role, "content": blocks})),
        }
    }
    json!({"messages": messages, "max_tokens": 9, "tools": [{"name": "look_up", "description": "Looks up.", "input_schema": schema()}]})
}

fn ollama(conversation: &[Said]) -> Value {
    let message = |said: &Said| {
        let mut message = json!({"role": role(said), "content": said.text});
        let call = |(_, word): &(String, String)| json!({"function": {"name": "look_up", "arguments": {"query": word}}});
        if !said.calls.is_empty() {
            message["tool_calls"] = said.calls.iter().map(call).collect();
        }
        if said.answers.is_some() {
            message["tool_name"] = "look_up".into();
        }
        if said.letter == 'p' {
            message["images"] = json!(["aGk="]);
        }
        message
    };
    let mut body = openai(&[]);
    body["messages"] = conversation.iter().map(message).collect();
    body
}

fn body(endpoint: &str, conversation: &[Said], with_tools: bool) -> Vec<u8> {
    let mut body = match endpoint {
        "/v1/responses" => responses(conversation),
        "/v1/messages" => messages(conversation),
        "/api/chat" => ollama(conversation),
        _ => openai(conversation),
    };
    body["model"] = "m".into();
    if !with_tools {
        body.as_object_mut().unwrap().remove("tools");
    }
    body.to_string().into_bytes()
}

fn limits() -> Limits {
    let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
    Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap().limits
}

/// The names and sources of the golden templates.
fn sources() -> Vec<(String, String)> {
    let files = std::fs::read_dir(fixtures::golden("templates")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "jinja")).collect();
    files.sort();
    let read = |path: &std::path::PathBuf| (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap());
    files.iter().map(read).collect()
}

#[test]
fn no_endpoint_loses_anything_of_a_conversation_with_any_template() {
    let tokenizer = Tokenizer::from_gguf(&GgufFile::open(fixtures::vocabulary("smollm2").path()).unwrap()).unwrap();
    let (limits, sources) = (limits(), sources());
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, source) in &sources {
        let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
        let dialect = Dialect::of(&template, &tokenizer);
        for (what, letters) in CONVERSATIONS {
            let said = conversation(letters);
            let with_tools = said.iter().any(|said| !said.calls.is_empty());
            for endpoint in ENDPOINTS {
                let asked = request(endpoint, &body(endpoint, &said, with_tools), &limits);
                let conversation = asked.unwrap_or_else(|error| panic!("{endpoint}: {what}: {error}")).expect("a conversation");
                let messages = conversation.messages.iter().cloned().map(|message| message.without_pictures().unwrap()).collect();
                match render(&template, &dialect, &tokenizer, &Conversation { messages, ..conversation }) {
                    Err(error) => faults.push(format!("{name}, {endpoint}: {what}: {error}")),
                    Ok(prompt) => {
                        let text = prompt.end();
                        let lost = words(&said).into_iter().filter(|(word, count)| text.matches(word).count() != *count);
                        faults.extend(lost.map(|(word, _)| format!("{name}, {endpoint}: {what}: {word} is not there once")));
                    }
                }
                count += 1;
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(count, 51 * 16 * 5);
}
