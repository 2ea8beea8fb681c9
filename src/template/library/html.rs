//! Text out of HTML.

use crate::syntax::chars::is_space;

/// References by name that texts have. Others stay as they are.
const NAMED: [(&str, &str); 32] = [
    ("amp", "&"),
    ("lt", "<"),
    ("gt", ">"),
    ("quot", "\""),
    ("apos", "'"),
    ("nbsp", "\u{a0}"),
    ("copy", "©"),
    ("reg", "®"),
    ("trade", "™"),
    ("hellip", "…"),
    ("mdash", "—"),
    ("ndash", "–"),
    ("lsquo", "‘"),
    ("rsquo", "’"),
    ("ldquo", "“"),
    ("rdquo", "”"),
    ("laquo", "«"),
    ("raquo", "»"),
    ("bull", "•"),
    ("middot", "·"),
    ("deg", "°"),
    ("euro", "€"),
    ("pound", "£"),
    ("yen", "¥"),
    ("cent", "¢"),
    ("sect", "§"),
    ("para", "¶"),
    ("times", "×"),
    ("divide", "÷"),
    ("plusmn", "±"),
    ("larr", "←"),
    ("rarr", "→"),
];

/// `text` without tags and comments, with white space collapsed and references resolved.
pub(super) fn strip_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let tag = &rest[start..];
        let end = if tag.starts_with("<!--") { tag[4..].find("-->").map(|at| at + 7) } else { tag.find('>').map(|at| at + 1) };
        let Some(end) = end else { break };
        out.push_str(&rest[..start]);
        rest = &tag[end..];
    }
    out.push_str(rest);
    let words: Vec<&str> = out.split(is_space).filter(|word| !word.is_empty()).collect();
    unescape(&words.join(" "))
}

/// `text` with the characters that its references name.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let reference =
            rest[1..].split_once(';').filter(|(name, _)| name.len() <= 32).and_then(|(name, behind)| Some((named(name)?, behind)));
        match reference {
            Some((found, behind)) => {
                out.push_str(&found);
                rest = behind;
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn named(name: &str) -> Option<String> {
    let Some(code) = name.strip_prefix('#') else {
        return NAMED.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    };
    let code = match code.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => code.parse(),
    };
    char::from_u32(code.ok()?).map(String::from)
}
