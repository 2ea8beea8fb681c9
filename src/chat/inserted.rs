//! Inserts texts that a chat template does not show into the prompt, before the calls of the same message.

use serde_json::Value;

use super::turn::Turn;

/// Noncharacters around a text's number. Together they mark the place of the text before the name of the first call.
const OPEN: char = '\u{fdd5}';
const CLOSE: char = '\u{fdd6}';

/// Takes the texts out of turns with calls, marks their places, and returns them.
pub(super) fn taken_out(turns: &mut [Turn]) -> Vec<String> {
    let mut texts = Vec::new();
    for turn in turns.iter_mut().filter(|turn| !turn.content.is_empty()) {
        if let Some(Value::String(name)) = turn.calls.first_mut().map(|call| &mut call["function"]["name"]) {
            name.insert_str(0, &mark(texts.len()));
            texts.push(std::mem::take(&mut turn.content));
        }
    }
    texts
}

fn mark(number: usize) -> String {
    format!("{OPEN}{number}{CLOSE}")
}

/// Puts each text before the calls that hold its mark, and removes the marks. `trigger` is the text with which calls begin, and `space`
/// separates a text from the calls. If there is no trigger before a mark, the text replaces the mark.
pub(super) fn put_back(prompt: String, texts: &[String], trigger: &str, space: &str) -> String {
    if texts.is_empty() {
        return prompt;
    }
    let length = prompt.len() + texts.iter().map(|text| text.len() + space.len()).sum::<usize>();
    let (mut out, mut rest) = (String::with_capacity(length), prompt.as_str());
    for (number, text) in texts.iter().enumerate() {
        let mark = mark(number);
        let Some((before, after)) = rest.split_once(&mark) else { continue };
        let at = before.rfind(trigger).unwrap_or(before.len());
        out.extend([&before[..at], text, space, &before[at..]]);
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::Role;

    #[test]
    fn a_text_stands_before_its_calls() {
        let call = |name: &str| json!({"function": {"name": name}});
        let said = |text: &str, calls: Vec<Value>| Turn { calls, ..Turn::new(Role::Assistant, text.into()) };
        let mut turns =
            [said("a", vec![call("f"), call("g")]), said("b", Vec::new()), said("", vec![call("h")]), said("c", vec![call("f")])];
        let texts = taken_out(&mut turns);
        let shown = |turn: &Turn| match turn.calls.as_slice() {
            [] => turn.content.clone(),
            calls => {
                format!("{}<{}>", turn.content, calls.iter().map(|call| call["function"]["name"].as_str().unwrap()).collect::<String>())
            }
        };
        let prompt: String = turns.iter().map(shown).collect();
        assert_eq!(put_back(prompt, &texts, "<", " "), "a <fg>b<h>c <f>");
        assert_eq!(texts, ["a", "c"]);
    }

    #[test]
    fn no_text_is_lost_if_calls_begin_in_another_way() {
        assert_eq!(put_back(format!("x{}f", mark(0)), &["a".into()], "<call>", "\n"), "xa\nf");
    }
}
