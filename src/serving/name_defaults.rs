//! Defaults of a model's name for requests that do not choose.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::options::Budget;
use chat::{Conversation, Message, Role, is_reserved};

/// A name's parameters. They replace those that a request leaves out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NameDefaults {
    /// The longest context of the name, within that of the base model [tokens].
    pub context: Option<usize>,
    /// The most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// The system message for conversations that begin without one.
    pub system: Option<String>,
    pub effort: Option<String>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    /// Messages that begin every conversation, after its system messages.
    pub messages: Vec<Message>,
    /// Texts that end the answer, for requests that have none.
    pub stop: Vec<String>,
}

impl NameDefaults {
    /// # Errors
    /// A variable has a name that only the server may set.
    pub fn check(&self) -> Result<(), String> {
        match self.variables.keys().find(|name| is_reserved(name)) {
            Some(name) => Err(format!("chat_template_kwargs: the server itself sets `{name}`")),
            None => Ok(()),
        }
    }

    /// The budget for a request that asks for `budget`.
    pub fn budget(&self, budget: Budget) -> Budget {
        match (self.max_tokens, budget) {
            (Some(most), Budget::Rest | Budget::Default(_)) => Budget::Default(most),
            (_, budget) => budget,
        }
    }

    /// The texts that end an answer, for a request that asks for `asked`.
    pub fn stop(&self, asked: &[String]) -> Vec<String> {
        if asked.is_empty() { self.stop.clone() } else { asked.to_vec() }
    }

    /// Fills in what a conversation leaves open.
    pub fn fill<'a>(&self, conversation: &'a Conversation) -> Cow<'a, Conversation> {
        let begins_alone = conversation.messages.first().is_none_or(|first| first.role != Role::System);
        let system = self.system.as_ref().filter(|_| begins_alone);
        let effort = self.effort.as_ref().filter(|_| conversation.effort.is_none());
        let sets_some = self.variables.keys().any(|name| !conversation.variables.contains_key(name));
        if system.is_none() && effort.is_none() && !sets_some && self.messages.is_empty() {
            return Cow::Borrowed(conversation);
        }
        let mut filled = conversation.clone();
        if let Some(text) = system {
            filled.messages.insert(0, Message::of_text(Role::System, text));
        }
        let head = filled.messages.iter().take_while(|message| message.role == Role::System).count();
        filled.messages.splice(head..head, self.messages.iter().cloned());
        filled.effort = filled.effort.or_else(|| effort.cloned());
        for (name, value) in &self.variables {
            filled.variables.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Cow::Owned(filled)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaults() -> NameDefaults {
        let variables = json!({"enable_thinking": false, "other": 1});
        NameDefaults {
            max_tokens: Some(7),
            system: Some("Be brief.".into()),
            effort: Some("low".into()),
            variables: variables.as_object().unwrap().clone(),
            ..NameDefaults::default()
        }
    }

    #[test]
    fn a_request_goes_before_the_name() {
        let own = Conversation {
            messages: vec![Message::of_text(Role::System, "Own."), Message::of_text(Role::User, "q")],
            effort: Some("high".into()),
            variables: json!({"enable_thinking": true}).as_object().unwrap().clone(),
            ..Conversation::default()
        };
        let filled = defaults().fill(&own).into_owned();
        assert_eq!((&filled.messages, &filled.effort), (&own.messages, &own.effort));
        assert_eq!(Value::Object(filled.variables), json!({"enable_thinking": true, "other": 1}));
        let open = Conversation { messages: vec![Message::of_text(Role::User, "q")], ..Conversation::default() };
        let filled = defaults().fill(&open).into_owned();
        assert_eq!(filled.messages[0], Message::of_text(Role::System, "Be brief."));
        assert_eq!((filled.messages.len(), filled.effort.as_deref(), filled.variables.len()), (2, Some("low"), 2));
        assert!(matches!(NameDefaults::default().fill(&open), Cow::Borrowed(_)), "nothing is copied for a plain name");
    }

    #[test]
    fn examples_stand_between_the_system_message_and_the_request() {
        let messages = vec![Message::of_text(Role::User, "1+1?"), Message::of_text(Role::Assistant, "2")];
        let stop = vec!["\n".to_owned()];
        let name = NameDefaults { messages, stop: stop.clone(), ..defaults() };
        let texts = |messages: &[Message]| {
            let own = Conversation { messages: messages.to_vec(), ..Conversation::default() };
            name.fill(&own).messages.iter().map(Message::text).collect::<Vec<_>>()
        };
        let user = Message::of_text(Role::User, "q");
        assert_eq!(texts(std::slice::from_ref(&user)), ["Be brief.", "1+1?", "2", "q"]);
        assert_eq!(texts(&[Message::of_text(Role::System, "Own."), user]), ["Own.", "1+1?", "2", "q"]);
        assert_eq!((name.stop(&[]), name.stop(&["x".to_owned()])), (stop, vec!["x".to_owned()]));
    }

    #[test]
    fn only_open_budgets_are_set() {
        let set = |budget| defaults().budget(budget);
        assert_eq!([set(Budget::Rest), set(Budget::Default(16))], [Budget::Default(7); 2]);
        assert_eq!([set(Budget::Explicit(9)), set(Budget::Strict(9))], [Budget::Explicit(9), Budget::Strict(9)]);
        assert_eq!(NameDefaults::default().budget(Budget::Rest), Budget::Rest);
    }

    #[test]
    fn variables_of_the_server_are_refused() {
        let variables = json!({"messages": []}).as_object().unwrap().clone();
        assert!(NameDefaults { variables, ..NameDefaults::default() }.check().unwrap_err().contains("`messages`"));
        assert_eq!(defaults().check(), Ok(()));
    }
}
