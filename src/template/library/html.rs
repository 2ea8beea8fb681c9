//! Extracts text from HTML.

use super::entities::unescape;
use crate::syntax::chars::is_space;

/// Removes tags and comments from `text`, collapses white space and resolves references.
pub(super) fn strip_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let tag = &rest[start..];
        let end = match tag.strip_prefix("<!--") {
            Some(comment) => comment.find("-->").map(|at| at + 7),
            None => tag.find('>').map(|at| at + 1),
        };
        let Some(end) = end else { break };
        out.push_str(&rest[..start]);
        rest = &tag[end..];
    }
    out.push_str(rest);
    let words: Vec<&str> = out.split(is_space).filter(|word| !word.is_empty()).collect();
    unescape(&words.join(" "))
}
