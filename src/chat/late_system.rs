//! Moves system messages in the middle of a conversation into the user's turns, for templates that do not show them in place. Such
//! templates refuse them, or move them to the head, where they would change the whole prompt.

use std::borrow::Cow;

use super::conversation::{Message, Part, Role};

/// Turns each system message after the first turn into a part of the user's turn at the same place. A system message between a call and
/// its result moves to after the result.
pub(super) fn as_users(messages: &[Message]) -> Cow<'_, [Message]> {
    let head = messages.iter().take_while(|message| message.role == Role::System).count();
    if !messages[head..].iter().any(|message| message.role == Role::System) {
        return Cow::Borrowed(messages);
    }
    let mut out: Vec<Message> = messages[..head].to_vec();
    let mut late: Vec<Part> = Vec::new();
    // Whether the last message holds a system message. If so, the user's next words are added to that message.
    let mut joins = false;
    for message in &messages[head..] {
        match message.role {
            Role::System => late.push(Part::Text(format!("<system>\n{}\n</system>", message.text()))),
            Role::Tool => out.push(message.clone()),
            Role::User | Role::Assistant => {
                joins |= !late.is_empty();
                say(std::mem::take(&mut late), &mut out);
                match out.last_mut().filter(|last| joins && message.is_users() && last.is_users()) {
                    Some(last) => last.parts.extend(message.parts.iter().cloned()),
                    None => out.push(message.clone()),
                }
                joins &= message.is_users();
            }
        }
    }
    say(late, &mut out);
    Cow::Owned(out)
}

/// Appends `parts`, if there are any, to the user's turn.
fn say(parts: Vec<Part>, out: &mut Vec<Message>) {
    match out.last_mut().filter(|last| last.is_users()) {
        _ if parts.is_empty() => {}
        Some(last) => last.parts.extend(parts),
        None => out.push(Message { parts, ..Message::new(Role::User) }),
    }
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
