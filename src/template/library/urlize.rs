//! Implements the filter `urlize`, which turns addresses in a text into links.

use std::collections::BTreeSet;

use super::call_args::{CallArgs, flag, int, some, text};
use super::markup::{escape, escaped};
use crate::budget::{afford, afford_copies, walk_items};
use crate::failure::{Outcome, value_fault};
use crate::syntax::chars::{is_space, is_word};
use crate::value::{Value, drain};

struct Links {
    /// The attributes of a link, each with a space before it.
    attributes: String,
    limit: Option<usize>,
    schemes: Vec<String>,
}

pub(super) fn urlize(value: &Value, args: CallArgs) -> Outcome<Value> {
    let names = ["trim_url_limit", "nofollow", "target", "rel", "extra_schemes"];
    let [limit, nofollow, target, rel, schemes] = args.bind("urlize", names, 0)?;
    let rel = some(rel).map_or_else(|| Value::text(""), Ok)?;
    let mut words: BTreeSet<&str> = text("urlize", &rel)?.split(is_space).filter(|word| !word.is_empty()).collect();
    words.insert("noopener");
    if flag(nofollow.as_ref()) {
        words.insert("nofollow");
    }
    let words: Vec<&str> = words.into_iter().collect();
    let mut attributes = format!(" rel=\"{}\"", escape(&words.join(" "))?);
    if let Some(target) = some(target).filter(Value::truth) {
        attributes.push_str(&format!(" target=\"{}\"", escaped(&target)?));
    }
    let limit = some(limit).map(|limit| int("urlize", &limit)).transpose()?.map(|limit| usize::try_from(limit).unwrap_or(0));
    let mut extra = Vec::new();
    for scheme in some(schemes).map_or(Ok(Vec::new()), |schemes| drain(&schemes))? {
        let scheme = text("urlize", &scheme)?.to_owned();
        let name = scheme.trim_end_matches('/').strip_suffix(':').filter(|_| scheme.len() - scheme.trim_end_matches('/').len() <= 2);
        if !name.is_some_and(|name| name.chars().count() >= 2 && name.chars().all(|c| is_word(c) || ".+-".contains(c))) {
            return Err(value_fault(format!("`{scheme}` is not the scheme of an address")));
        }
        extra.push(scheme);
    }
    let links = Links { attributes, limit, schemes: extra };
    let whole = escaped(value)?;
    afford_copies(whole.matches(['.', ':', '@']).count(), links.attributes.len() + 32, whole.len().saturating_mul(3))?;
    let mut out = String::new();
    let mut rest = &*whole;
    while !rest.is_empty() {
        let end = rest.find(is_space).unwrap_or(rest.len());
        // Each word is compared with each scheme.
        walk_items(links.schemes.len())?;
        out.push_str(&links.word(&rest[..end]));
        let gap = rest[end..].find(|c| !is_space(c)).map_or(rest.len(), |at| end + at);
        out.push_str(&rest[end..gap]);
        afford(Some(out.len() as u64))?;
        rest = &rest[gap..];
    }
    Value::text(out)
}

/// The length of the longest start of `text` that consists of these parts.
fn lead(text: &str, parts: &[&str]) -> usize {
    let mut at = 0;
    while let Some(part) = parts.iter().find(|part| text[at..].starts_with(**part)) {
        at += part.len();
    }
    at
}

/// The start of the longest end of `text` that consists of these parts.
fn trail(text: &str, parts: &[&str]) -> usize {
    let mut end = text.len();
    while let Some(part) = parts.iter().find(|part| text[..end].ends_with(**part)) {
        end -= part.len();
    }
    end
}

impl Links {
    fn word(&self, word: &str) -> String {
        let (head, middle) = word.split_at(lead(word, &["(", "<", "&lt;"]));
        let (middle, tail) = middle.split_at(trail(middle, &[")", ">", ".", ",", "\n", "&gt;"]));
        let (mut middle, mut tail) = (middle.to_owned(), tail);
        // A bracket that opens inside an address closes inside it.
        for (open, close) in [("(", ")"), ("<", ">"), ("&lt;", "&gt;")] {
            let opened = middle.matches(open).count();
            if opened <= middle.matches(close).count() {
                continue;
            }
            let end = tail.match_indices(close).take(opened).last().map_or(0, |(at, _)| at + close.len());
            middle.push_str(&tail[..end]);
            tail = &tail[end..];
        }
        format!("{head}{}{tail}", self.link(middle))
    }

    fn link(&self, address: String) -> String {
        let attributes = &self.attributes;
        if is_http(&address) {
            let scheme = if address.starts_with("https://") || address.starts_with("http://") { "" } else { "https://" };
            let shown = match self.limit.and_then(|limit| address.char_indices().nth(limit)) {
                Some((at, _)) => format!("{}...", &address[..at]),
                None => address.clone(),
            };
            return format!("<a href=\"{scheme}{address}\"{attributes}>{shown}</a>");
        }
        if let Some(mail) = address.strip_prefix("mailto:").filter(|mail| is_mail(mail)) {
            return format!("<a href=\"{address}\">{mail}</a>");
        }
        if address.contains('@') && !address.starts_with("www.") && !address.starts_with('@') && !address.contains(':') && is_mail(&address)
        {
            return format!("<a href=\"mailto:{address}\">{address}</a>");
        }
        match self.schemes.iter().find(|scheme| address != **scheme && address.starts_with(&***scheme)) {
            Some(_) => format!("<a href=\"{address}\"{attributes}>{address}</a>"),
            None => address,
        }
    }
}

fn is_mail(text: &str) -> bool {
    let Some((name, host)) = text.rsplit_once('@') else { return false };
    let Some((first, last)) = host.rsplit_once('.') else { return false };
    let is_host = first.chars().next().is_some_and(is_word) && first.chars().all(|c| is_word(c) || matches!(c, '.' | '-'));
    !name.is_empty() && !name.contains(is_space) && is_host && !last.is_empty() && last.chars().all(is_word)
}

fn is_http(address: &str) -> bool {
    const DOMAINS: [&str; 8] = ["com", "net", "int", "edu", "gov", "org", "info", "mil"];
    let lower = address.to_lowercase();
    let scheme = ["https://", "http://"].into_iter().find(|scheme| lower.starts_with(scheme));
    let rest = scheme.map_or(&*lower, |scheme| &lower[scheme.len()..]);
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let is_label = |label: &str| !label.is_empty() && label.chars().all(|c| is_word(c) || matches!(c, '%' | '-'));
    let is_top = |label: &str| {
        let plain = (2..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_lowercase());
        let international = label.strip_prefix("xn--").is_some_and(|rest| (2..=59).contains(&rest.chars().count()) && is_label(rest));
        plain || international
    };
    let named = |host: &str| {
        let (first, top) = host.rsplit_once('.').map_or((None, host), |(first, top)| (Some(first), top));
        is_top(top) && first.is_none_or(|first| first.split('.').all(is_label))
    };
    if scheme.is_some() || host.starts_with("www.") {
        let host = if scheme.is_some() { host } else { &host[4..] };
        return named(host) || (scheme.is_some() && is_number(host));
    }
    let Some((first, top)) = host.rsplit_once('.') else { return false };
    DOMAINS.contains(&top) && first.split('.').all(|label| is_label(label) && (2..=63).contains(&label.chars().count()))
}

/// Whether a host is a numeric address.
fn is_number(host: &str) -> bool {
    let parts: Vec<&str> = host.split('.').collect();
    let is_v4 =
        parts.len() == 4 && parts.iter().all(|part| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit()));
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|inner| inner.matches(':').count() >= 2 && inner.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':'));
    is_v4 || is_v6
}
