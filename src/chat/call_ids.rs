//! Shortens ids of calls for templates that refuse ids other than nine letters and digits.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use super::conversation::Message;

const LEN: usize = 9;
const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A short id for each id of a call or a result. Different ids get different short ids, and an id that is already short is kept. Unless
/// two ids collide, a short id depends on its id alone, so the beginning of a conversation stays the same when the conversation goes on.
pub fn short_ids(messages: &[Message]) -> HashMap<&str, String> {
    let calls = messages.iter().flat_map(|message| &message.calls).map(|call| call.id.as_str());
    let results = messages.iter().filter_map(|message| message.call_id.as_deref());
    let ids: Vec<&str> = calls.chain(results).collect();
    let mut taken: HashSet<String> = ids.iter().filter(|id| is_short(id)).map(|id| (*id).to_owned()).collect();
    let mut out = HashMap::new();
    for id in ids {
        if out.contains_key(id) {
            continue;
        }
        let short = match is_short(id) {
            true => id.to_owned(),
            false => (0..).map(|attempt| digest(id, attempt)).find(|short| !taken.contains(short)).unwrap_or_default(),
        };
        taken.insert(short.clone());
        out.insert(id, short);
    }
    out
}

fn is_short(id: &str) -> bool {
    id.len() == LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn digest(id: &str, attempt: u32) -> String {
    let mut hasher = DefaultHasher::new();
    (id, attempt).hash(&mut hasher);
    let mut hash = hasher.finish();
    let mut next = || {
        let digit = DIGITS[(hash % 62) as usize];
        hash /= 62;
        char::from(digit)
    };
    (0..LEN).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Call, Role};

    #[test]
    fn ids_become_short_and_stay_distinct() {
        let call = |id: &str| Call { id: id.into(), name: "f".into(), arguments: "{}".into() };
        let kept = digest("call_0", 0);
        let ids: Vec<String> = (0..1000).map(|i| format!("call_{i}")).chain([kept.clone(), "a-b".into(), String::new()]).collect();
        let calling = Message { calls: ids.iter().map(|id| call(id)).collect(), ..Message::new(Role::Assistant) };
        let result = Message { call_id: Some("call_7".into()), ..Message::new(Role::Tool) };
        let messages = [calling.clone(), result];
        let short = short_ids(&messages);
        assert_eq!(short.len(), ids.len());
        assert!(short.values().all(|id| is_short(id)));
        assert_eq!(short.values().collect::<HashSet<_>>().len(), ids.len());
        assert_eq!(short[kept.as_str()], kept);
        assert_eq!(short["call_7"], short_ids(&messages[1..])["call_7"], "the beginning of a conversation does not matter");
    }
}
