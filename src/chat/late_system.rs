//! System messages in the middle of a conversation, for templates that do not show them there. Such templates refuse them, or move them to
//! the head, where they would change the whole prompt.

use std::borrow::Cow;

use super::conversation::{Message, Part, Role};

/// The messages with each system message behind the first turn as a part of the user's turn in its place.
pub(super) fn as_users(messages: &[Message]) -> Cow<'_, [Message]> {
    let head = messages.iter().take_while(|message| message.role == Role::System).count();
    if !messages[head..].iter().any(|message| message.role == Role::System) {
        return Cow::Borrowed(messages);
    }
    let mut out: Vec<Message> = messages[..head].to_vec();
    // Whether the last message holds a system message, so that the user's next words belong to it.
    let mut joins = false;
    for message in &messages[head..] {
        let is_system = message.role == Role::System;
        let parts = match is_system {
            true => vec![Part::Text(format!("<system>\n{}\n</system>", message.text()))],
            false => message.parts.clone(),
        };
        let is_turn = is_system || (joins && message.role == Role::User);
        match out.last_mut().filter(|last| is_turn && last.role == Role::User) {
            Some(last) => last.parts.extend(parts),
            None if is_system => out.push(Message { parts, ..Message::new(Role::User) }),
            None => out.push(message.clone()),
        }
        joins = is_system || (joins && message.role == Role::User);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_system_message_becomes_a_part_of_the_users_turn() {
        let of = |roles: &[(Role, &str)]| {
            let messages: Vec<Message> = roles.iter().map(|(role, text)| Message::of_text(*role, *text)).collect();
            as_users(&messages).iter().map(|message| (message.role, message.text())).collect::<Vec<_>>()
        };
        let due = |texts: &[(Role, &str)]| texts.iter().map(|(role, text)| (*role, (*text).to_owned())).collect::<Vec<_>>();
        use Role::{Assistant, System, Tool, User};
        let plain = [(System, "s"), (User, "a"), (Assistant, "b"), (User, "c")];
        assert_eq!(of(&plain), due(&plain));
        assert_eq!(
            of(&[(System, "s"), (User, "a"), (System, "x"), (User, "c"), (Assistant, "d")]),
            due(&[(System, "s"), (User, "a\n<system>\nx\n</system>\nc"), (Assistant, "d")])
        );
        assert_eq!(
            of(&[(User, "a"), (Assistant, "b"), (Tool, "r"), (System, "x"), (User, "c"), (User, "d")]),
            due(&[(User, "a"), (Assistant, "b"), (Tool, "r"), (User, "<system>\nx\n</system>\nc\nd")])
        );
        assert_eq!(of(&[(User, "a"), (System, "x")]), due(&[(User, "a\n<system>\nx\n</system>")]));
    }
}
