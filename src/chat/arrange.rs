//! Arranges turns as a chat template takes them: joins neighbours of one role, moves the system text to where the template shows it, and
//! fills in a turn where one is missing.

use super::conversation::Role;
use super::dialect::{Alternation, CallText, SystemPlace, TurnOrder};
use super::turn::Turn;

/// Joins the system messages that begin a conversation if the template shows only one.
pub(super) fn join_heads(turns: &mut Vec<Turn>, place: SystemPlace) {
    let count = num_heads(turns);
    if place != SystemPlace::Messages && count > 1 {
        let mut heads = turns.drain(..count);
        if let Some(mut first) = heads.next() {
            heads.by_ref().for_each(|next| first.join(next));
            drop(heads);
            turns.insert(0, first);
        }
    }
}

/// Arranges turns whose leading system messages [`join_heads`] has joined. Takes time in proportion to the number of turns.
pub(super) fn arranged(mut turns: Vec<Turn>, form: &TurnOrder) -> Vec<Turn> {
    place_system(&mut turns, form.system);
    if form.alternation != Alternation::Free {
        turns = joined(turns);
    }
    let heads = num_heads(&turns);
    if form.needs_user && turns.get(heads).is_none_or(|first| first.role != Role::User) {
        turns.insert(heads, Turn::new(Role::User, String::new()));
    }
    if form.call_text == CallText::Message {
        turns = turns.into_iter().flat_map(without_text).collect();
    }
    if form.alternation == Alternation::Strict {
        turns = alternated(turns);
    }
    turns
}

/// The number of system messages that begin a conversation.
fn num_heads(turns: &[Turn]) -> usize {
    turns.iter().take_while(|turn| turn.role == Role::System).count()
}

/// Moves the leading system message into a turn of the user, before the user's words.
fn place_system(turns: &mut Vec<Turn>, place: SystemPlace) {
    let is_user = |turn: &Turn| turn.role == Role::User;
    // A message that holds the tools stays a message.
    let moves = turns.first().is_some_and(|first| first.role == Role::System && first.tools.is_none());
    if !moves || matches!(place, SystemPlace::Messages | SystemPlace::OneMessage) {
        return;
    }
    let head = turns.remove(0).content;
    let at = match place {
        SystemPlace::LastUser => turns.iter().rposition(is_user),
        _ => turns.first().is_some_and(is_user).then_some(0),
    };
    match at {
        Some(at) => {
            let user = &mut turns[at].content;
            let space = if head.is_empty() || user.is_empty() { "" } else { "\n\n" };
            *user = [&head, space, user].concat();
        }
        None => turns.insert(0, Turn::new(Role::User, head)),
    }
}

/// Joins neighbours of one role into one turn. A turn after a call keeps its place after it.
fn joined(turns: Vec<Turn>) -> Vec<Turn> {
    let mut out: Vec<Turn> = Vec::with_capacity(turns.len());
    for turn in turns {
        let is_same = |last: &Turn| last.role == turn.role && last.custom_role == turn.custom_role;
        let joins = |last: &&mut Turn| is_same(last) && (last.is_said() || last.role == Role::System);
        match out.last_mut().filter(joins) {
            Some(last) => last.join(turn),
            None => out.push(turn),
        }
    }
    out
}

/// Splits a turn that has text and calls into a turn with the text and a turn with the calls.
fn without_text(mut turn: Turn) -> impl Iterator<Item = Turn> {
    let is_mixed = !turn.calls.is_empty() && !turn.content.is_empty();
    let text = is_mixed.then(|| Turn::new(turn.role, std::mem::take(&mut turn.content)));
    text.into_iter().chain([turn])
}

/// Inserts an empty turn of the other role between two turns of one role that only calls and results separate. The user begins.
fn alternated(turns: Vec<Turn>) -> Vec<Turn> {
    let (mut out, mut last) = (Vec::with_capacity(turns.len()), Role::Assistant);
    for turn in turns {
        if turn.is_said() {
            if turn.role == last {
                let other = if last == Role::User { Role::Assistant } else { Role::User };
                out.push(Turn::new(other, String::new()));
            }
            last = turn.role;
        }
        out.push(turn);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Turns by letters: `s`, `u`, `a`, `r` (a result), `c` (a call) and `t` (a call with a text). A turn's content is its letter's index.
    fn turns(letters: &str) -> Vec<Turn> {
        let turn = |(at, letter): (usize, char)| {
            let role = match letter {
                's' => Role::System,
                'u' => Role::User,
                'r' => Role::Tool,
                _ => Role::Assistant,
            };
            let content = if letter == 'c' { String::new() } else { at.to_string() };
            let calls = if matches!(letter, 'c' | 't') { vec![json!(at)] } else { Vec::new() };
            Turn { calls, ..Turn::new(role, content) }
        };
        letters.chars().enumerate().map(turn).collect()
    }

    fn shown(letters: &str, form: TurnOrder) -> Vec<String> {
        let mut turns = turns(letters);
        join_heads(&mut turns, form.system);
        let one = |turn: Turn| {
            let calls: String = turn.calls.iter().map(|call| format!("+{call}")).collect();
            format!("{}:{}{calls}", &turn.role.name()[..1], turn.content)
        };
        arranged(turns, &form).into_iter().map(one).collect()
    }

    #[test]
    fn a_template_that_takes_all_orders_gets_the_turns_as_they_are() {
        assert_eq!(shown("ssuuatruas", TurnOrder::ALL), ["s:0", "s:1", "u:2", "u:3", "a:4", "a:5+5", "t:6", "u:7", "a:8", "s:9"]);
    }

    #[test]
    fn the_system_text_goes_where_the_template_takes_it() {
        let of = |letters, system| shown(letters, TurnOrder { system, ..TurnOrder::ALL });
        assert_eq!(of("ssua", SystemPlace::OneMessage), ["s:0\n1", "u:2", "a:3"]);
        assert_eq!(of("ssuau", SystemPlace::FirstUser), ["u:0\n1\n\n2", "a:3", "u:4"]);
        assert_eq!(of("ssuau", SystemPlace::LastUser), ["u:2", "a:3", "u:0\n1\n\n4"]);
        assert_eq!(of("sau", SystemPlace::FirstUser), ["u:0", "a:1", "u:2"]);
        assert_eq!(of("s", SystemPlace::LastUser), ["u:0"]);
    }

    #[test]
    fn neighbours_of_one_role_are_joined_but_for_what_follows_a_call() {
        let of = |letters| shown(letters, TurnOrder { alternation: Alternation::Joined, ..TurnOrder::ALL });
        assert_eq!(of("uuaacar"), ["u:0\n1", "a:2\n3+4", "a:5", "t:6"]);
    }

    #[test]
    fn strict_turns_alternate_whatever_stands_between_them() {
        let of = |letters| shown(letters, TurnOrder { alternation: Alternation::Strict, ..TurnOrder::ALL });
        assert_eq!(of("sau"), ["s:0", "u:", "a:1", "u:2"]);
        assert_eq!(of("ucruacrrua"), ["u:0", "a:+1", "t:2", "a:", "u:3", "a:4+5", "t:6", "t:7", "a:", "u:8", "a:9"]);
        assert_eq!(of("ucu"), ["u:0", "a:+1", "a:", "u:2"]);
    }

    #[test]
    fn a_conversation_without_a_user_gets_one() {
        let of = |letters| shown(letters, TurnOrder { needs_user: true, ..TurnOrder::ALL });
        assert_eq!(of("s"), ["s:0", "u:"]);
        assert_eq!(of("scru"), ["s:0", "u:", "a:+1", "t:2", "u:3"]);
        assert_eq!(of("su"), ["s:0", "u:1"]);
    }

    #[test]
    fn the_text_of_a_call_may_go_before_it() {
        let of = |letters| shown(letters, TurnOrder { call_text: CallText::Message, ..TurnOrder::ALL });
        assert_eq!(of("utrc"), ["u:0", "a:1", "a:+1", "t:2", "a:+3"]);
    }
}
