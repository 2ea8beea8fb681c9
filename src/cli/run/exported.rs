//! Reads an export of the chat page: one conversation, along the branch that the page showed.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::settings::Settings;
use crate::chat::{Message, Role};

#[derive(Deserialize)]
pub struct Exported {
    conversations: Vec<Tree>,
}

#[derive(Deserialize)]
struct Tree {
    model: Option<String>,
    /// The last message of the branch that was shown.
    head: Option<String>,
    /// The page's fields, as typed.
    #[serde(default)]
    settings: BTreeMap<String, String>,
    messages: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    parent: Option<String>,
    role: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    attachments: Vec<Value>,
    #[serde(default)]
    calls: Vec<Value>,
}

/// The part of an export that the terminal continues.
pub struct Branch {
    pub model: String,
    pub settings: Settings,
    pub messages: Vec<Message>,
}

impl Exported {
    /// Extracts the branch of the only conversation.
    ///
    /// # Errors
    /// There is not exactly one conversation, or the terminal does not support its messages or settings.
    pub fn branch(mut self) -> anyhow::Result<Branch> {
        let count = self.conversations.len();
        let Some(tree) = self.conversations.pop().filter(|_| count == 1) else {
            bail!("it holds {count} conversations, expected one: export it with the menu next to its title")
        };
        let settings = settings(&tree.settings)?;
        Ok(Branch { messages: tree.branch()?, settings, model: tree.model.unwrap_or_default() })
    }
}

impl Tree {
    fn branch(&self) -> anyhow::Result<Vec<Message>> {
        let by_id: HashMap<&str, &Node> = self.messages.iter().map(|node| (node.id.as_str(), node)).collect();
        let (mut path, mut seen) = (Vec::new(), HashSet::new());
        let mut next = self.head.as_deref();
        // a cycle of parents ends the walk
        while let Some(node) = next.and_then(|id| by_id.get(id)).filter(|node| seen.insert(node.id.as_str())) {
            path.push(*node);
            next = node.parent.as_deref();
        }
        path.reverse();
        let mut messages: Vec<Message> = Vec::new();
        for node in path {
            ensure!(node.attachments.is_empty(), "a message has attachments, which the terminal does not support");
            ensure!(node.calls.is_empty() && node.role != "tool", "it has calls of tools, which the terminal does not support");
            match node.role.as_str() {
                // a question without an answer is left out
                "user" => {
                    messages.pop_if(|last| last.role == Role::User);
                    messages.push(Message::of_text(Role::User, node.content.as_str()));
                }
                "assistant" if node.content.is_empty() => {}
                "assistant" => messages.push(Message::of_text(Role::Assistant, node.content.as_str())),
                role => bail!("a message has the role `{role}`, expected user or assistant"),
            }
        }
        messages.pop_if(|last| last.role == Role::User);
        Ok(messages)
    }
}

fn settings(given: &BTreeMap<String, String>) -> anyhow::Result<Settings> {
    let mut settings = Settings::default();
    for (name, value) in given {
        match name.as_str() {
            "system" => settings.system = Some(value.clone()),
            "stop" => settings.stop = value.lines().filter(|line| !line.is_empty()).map(|line| line.replace("\\n", "\n")).collect(),
            "max_completion_tokens" => drop(settings.set(&format!("max_tokens {value}")).map_err(anyhow::Error::msg)?),
            // the terminal makes no calls, so tools have no effect
            "tools" | "tool_choice" => {}
            name => drop(settings.set(&format!("{name} {value}")).map_err(anyhow::Error::msg)?),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn branch(conversations: Value) -> anyhow::Result<Branch> {
        serde_json::from_value::<Exported>(json!({"format": "penstock-chat", "version": 1, "conversations": conversations}))?.branch()
    }

    fn node(id: &str, parent: Option<&str>, role: &str, content: &str) -> Value {
        json!({"id": id, "parent": parent, "role": role, "content": content, "created": 1, "state": "done"})
    }

    #[test]
    fn the_branch_that_was_shown_goes_on() {
        let answers = [node("b", Some("a"), "assistant", "one"), node("c", Some("a"), "assistant", "two")];
        let messages = [&[node("a", None, "user", "first")][..], &answers, &[node("d", Some("c"), "user", "unanswered")]].concat();
        let settings = json!({"system": "Be\nbrief.", "temperature": "0.5", "max_completion_tokens": "9", "stop": "a\\nb\nc"});
        let read = branch(json!([{"model": "m", "head": "d", "settings": settings, "messages": messages}])).unwrap();
        let said: Vec<_> = read.messages.iter().map(Message::text).collect();
        assert_eq!((said, read.model.as_str()), (vec!["first".to_owned(), "two".to_owned()], "m"));
        assert_eq!((read.settings.system.as_deref(), read.settings.max_tokens), (Some("Be\nbrief."), Some(9)));
        assert_eq!((read.settings.sampling.temperature, read.settings.stop), (Some(0.5), vec!["a\nb".to_owned(), "c".to_owned()]));
    }

    #[test]
    fn what_the_terminal_cannot_hold_is_refused() {
        let circle = [node("a", Some("b"), "user", "A"), node("b", Some("a"), "assistant", "B")];
        assert_eq!(branch(json!([{"head": "b", "messages": circle}])).unwrap().messages.len(), 2);
        let of = |conversations| branch(conversations).err().unwrap().to_string();
        assert!(of(json!([])).contains("0 conversations, expected one"));
        assert!(of(json!([{"head": "a", "messages": [node("a", None, "tool", "")]}])).contains("calls of tools"));
        assert!(of(json!([{"head": "a", "messages": [node("a", None, "boss", "")]}])).contains("role `boss`"));
        assert!(of(json!([{"messages": [], "settings": {"top_p": "7"}}])).contains("top_p is a number"));
    }
}
