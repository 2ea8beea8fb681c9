//! Reorders messages for templates that refuse or lose some orders: puts each result after its call, one call in each message, and system
//! messages into the user's turns.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use super::conversation::{Message, Role};
use super::dialect::TurnOrder;
use super::late_system::as_users;

/// Puts the messages into an order that the template takes. Borrowed if they already are in one. Takes time in proportion to their number.
pub(super) fn ordered<'a>(messages: &'a [Message], turns: &TurnOrder) -> Cow<'a, [Message]> {
    let mut out = with_ids(messages);
    let one_by_one = !turns.several_calls && out.iter().any(|message| message.calls.len() > 1);
    if one_by_one || !(turns.late_results || follow_calls(&out)) {
        out = Cow::Owned(behind_calls(&out, one_by_one));
    }
    match turns.late_system {
        true => out,
        false => match as_users(&out) {
            Cow::Borrowed(_) => out,
            Cow::Owned(moved) => Cow::Owned(moved),
        },
    }
}

/// Gives a result without an id the id of the first call of the last message with calls to which no result belongs, not even a later one.
fn with_ids(messages: &[Message]) -> Cow<'_, [Message]> {
    let lacks_id = |message: &Message| message.role == Role::Tool && message.call_id.is_none();
    if !messages.iter().any(lacks_id) {
        return Cow::Borrowed(messages);
    }
    let mut unanswered = unanswered(messages).into_iter();
    let mut waiting = VecDeque::new();
    let mut out = messages.to_vec();
    for message in &mut out {
        if !message.calls.is_empty() {
            waiting = unanswered.next().unwrap_or_default();
        }
        if lacks_id(message) {
            message.call_id = waiting.pop_front().map(str::to_owned);
        }
    }
    Cow::Owned(out)
}

/// For each message with calls, the ids of its calls that no result names. A result belongs to the last call of its id before it.
fn unanswered(messages: &[Message]) -> Vec<VecDeque<&str>> {
    let mut answered: HashSet<&str> = HashSet::new();
    let mut out = Vec::new();
    for message in messages.iter().rev() {
        answered.extend(message.call_id.as_deref().filter(|_| message.role == Role::Tool));
        if !message.calls.is_empty() {
            let ids = message.calls.iter().map(|call| call.id.as_str());
            out.push(ids.clone().filter(|id| !answered.contains(id)).collect());
            for id in ids {
                answered.remove(id);
            }
        }
    }
    out.reverse();
    out
}

/// Whether only other results separate each result from the message with its call.
fn follow_calls(messages: &[Message]) -> bool {
    let (mut called, mut last): (HashSet<&str>, HashSet<&str>) = (HashSet::new(), HashSet::new());
    messages.iter().all(|message| {
        if message.role == Role::Tool {
            return message.call_id.as_deref().is_none_or(|id| last.contains(id) || !called.contains(id));
        }
        last = message.calls.iter().map(|call| call.id.as_str()).collect();
        called.extend(&last);
        true
    })
}

/// Moves each result to after the message with its call. `one_by_one`: each call gets a message of its own.
fn behind_calls(messages: &[Message], one_by_one: bool) -> Vec<Message> {
    let mut calls: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut results: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
    let mut is_moved = vec![false; messages.len()];
    for (i, message) in messages.iter().enumerate() {
        calls.extend(message.calls.iter().enumerate().map(|(k, call)| (call.id.as_str(), (i, k))));
        let id = message.call_id.as_deref().filter(|_| message.role == Role::Tool);
        if let Some(at) = id.and_then(|id| calls.get(id)) {
            results.entry(*at).or_default().push(i);
            is_moved[i] = true;
        }
    }
    let mut out = Vec::with_capacity(messages.len());
    for (i, message) in messages.iter().enumerate().filter(|(i, _)| !is_moved[*i]) {
        let splits = one_by_one && message.calls.len() > 1;
        if !splits {
            out.push(message.clone());
        }
        for (k, call) in message.calls.iter().enumerate() {
            if splits {
                let said = if k == 0 { Message { calls: Vec::new(), ..message.clone() } } else { Message::new(message.role) };
                out.push(Message { calls: vec![call.clone()], ..said });
            }
            out.extend(results.get(&(i, k)).into_iter().flatten().map(|at| messages[*at].clone()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Call;

    fn calling(ids: &[&str]) -> Message {
        let call = |id: &&str| Call { id: (*id).into(), name: "f".into(), arguments: "{}".into() };
        Message { calls: ids.iter().map(call).collect(), ..Message::of_text(Role::Assistant, "t") }
    }

    fn result(id: &str) -> Message {
        Message { call_id: Some(id.into()), ..Message::of_text(Role::Tool, id) }
    }

    fn user(text: &str) -> Message {
        Message::of_text(Role::User, text)
    }

    /// Roles with the ids of calls or with the text.
    fn shown(messages: &[Message]) -> Vec<String> {
        let ids = |message: &Message| message.calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>().join("+");
        let one = |message: &Message| format!("{}:{}:{}", message.role.name(), message.text(), ids(message));
        messages.iter().map(one).collect()
    }

    #[test]
    fn a_template_that_takes_an_order_gets_the_messages_as_they_are() {
        let messages = [user("u"), calling(&["a", "b"]), user("v"), result("b"), Message::of_text(Role::System, "s"), result("a")];
        assert!(matches!(ordered(&messages, &TurnOrder::ALL), Cow::Borrowed(_)));
        let orderly = [user("u"), calling(&["a", "b"]), result("b"), result("a"), user("v")];
        let strict = TurnOrder { late_results: false, late_system: false, ..TurnOrder::ALL };
        assert!(matches!(ordered(&orderly, &strict), Cow::Borrowed(_)));
    }

    #[test]
    fn results_move_behind_their_calls_and_keep_what_belongs_to_no_call() {
        let messages = [user("u"), calling(&["a", "b"]), user("v"), result("b"), result("x"), user("w"), result("a")];
        let turns = TurnOrder { late_results: false, ..TurnOrder::ALL };
        let due = ["user:u:", "assistant:t:a+b", "tool:a:", "tool:b:", "user:v:", "tool:x:", "user:w:"];
        assert_eq!(shown(&ordered(&messages, &turns)), due);
    }

    #[test]
    fn calls_go_one_by_one_each_with_its_result() {
        let messages = [user("u"), calling(&["a", "b", "c"]), result("c"), result("a"), calling(&["a"]), result("a")];
        let turns = TurnOrder { several_calls: false, ..TurnOrder::ALL };
        let due = ["user:u:", "assistant:t:a", "tool:a:", "assistant::b", "assistant::c", "tool:c:", "assistant:t:a", "tool:a:"];
        assert_eq!(shown(&ordered(&messages, &turns)), due);
    }

    #[test]
    fn a_result_without_an_id_belongs_to_the_first_call_that_waits() {
        let nameless = Message::of_text(Role::Tool, "r");
        let messages = [
            nameless.clone(),
            calling(&["a", "b", "c"]),
            nameless.clone(),
            result("a"),
            nameless.clone(),
            nameless,
            calling(&["b"]),
            result("b"),
        ];
        let ids: Vec<Option<String>> = with_ids(&messages).iter().map(|message| message.call_id.clone()).collect();
        assert_eq!(ids, [None, None, Some("b"), Some("a"), Some("c"), None, None, Some("b")].map(|id| id.map(str::to_owned)));
    }

    #[test]
    fn a_system_message_never_stands_between_a_call_and_its_result_if_it_becomes_the_users() {
        let system = Message::of_text(Role::System, "s");
        let messages = [user("u"), calling(&["a", "b"]), system.clone(), result("a"), system, result("b"), user("v")];
        let turns = TurnOrder { late_system: false, ..TurnOrder::ALL };
        let late = "<system>\ns\n</system>";
        let due = ["user:u:".into(), "assistant:t:a+b".into(), "tool:a:".into(), "tool:b:".into(), format!("user:{late}\n{late}\nv:")];
        assert_eq!(shown(&ordered(&messages, &turns)), due);
    }
}
