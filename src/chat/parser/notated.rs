//! Parses arguments in a family's own notation: finds the end of each while the model writes it, and converts it to JSON.

use serde_json::{Map, Value};

use crate::dialect::Notation;
use crate::parameters::{Parameter, Parameters};
use template::{json_text, parse_json};

/// The deepest nesting of a value that is parsed. Deeper values stay text.
const MAX_DEPTH: usize = 64;

/// The progress of the search for a member's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberScan {
    seen: usize,
    depth: u32,
    in_string: bool,
}

pub(super) enum NextMember {
    /// The member is not complete yet.
    Open,
    /// A member of this length is complete.
    Member(usize),
    /// There are no further members.
    End,
}

impl MemberScan {
    /// Searches for the end of the member with which `text` begins.
    pub(super) fn next(&mut self, notation: &Notation, text: &str) -> NextMember {
        if notation.is_tags() { self.next_tags(notation, text) } else { self.next_brackets(notation, text) }
    }

    fn next_brackets(&mut self, notation: &Notation, text: &str) -> NextMember {
        let bytes = text.as_bytes();
        while self.seen < bytes.len() {
            let rest = &text[self.seen..];
            if rest.starts_with(notation.mark) {
                self.in_string = !self.in_string;
                self.seen += notation.mark.len();
                continue;
            }
            if notation.mark.starts_with(rest) {
                return NextMember::Open;
            }
            match (self.in_string, bytes[self.seen]) {
                (false, b'{' | b'[') => self.depth += 1,
                (false, b'}' | b']') if self.depth > 0 => self.depth -= 1,
                (false, b'}') => return if text[..self.seen].trim().is_empty() { NextMember::End } else { NextMember::Member(self.seen) },
                (false, b',') if self.depth == 0 => return NextMember::Member(self.seen + 1),
                _ => {}
            }
            self.seen += rest.chars().next().map_or(1, char::len_utf8);
        }
        NextMember::Open
    }

    fn next_tags(&mut self, notation: &Notation, text: &str) -> NextMember {
        while let Some(at) = text[self.seen..].find(notation.mark).map(|at| at + self.seen) {
            // An incomplete tag does not count.
            let Some(end) = text[at..].find('>').and_then(|_| text[at + notation.mark.len()..].find('>')) else { return NextMember::Open };
            let end = at + notation.mark.len() + end + 1;
            let closes = text[at + notation.mark.len()..].starts_with("</");
            match (closes, self.depth) {
                (true, 0) => return NextMember::End,
                (true, 1) => return NextMember::Member(end),
                (true, _) => self.depth -= 1,
                (false, _) => self.depth += 1,
            }
            self.seen = end;
        }
        // A mark may begin at the end of the text.
        let mut from = text.len().saturating_sub(notation.mark.len()).max(self.seen);
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        self.seen = from;
        NextMember::Open
    }
}

/// The key of a complete member, and its value as JSON. `None`: the text is no member.
pub(super) fn member(notation: &Notation, text: &str, parameters: &Parameters) -> Option<(String, String)> {
    if !notation.is_tags() {
        let (key, value) = text.trim().trim_end_matches(',').split_once(notation.key[1])?;
        let value = NotatedReader { notation, rest: value }.value(MAX_DEPTH)?;
        return Some((key.trim().replace(notation.mark, ""), json_text(&value)));
    }
    let (key, inner, _) = element(notation, text)?;
    let parameter = parameters.listed.iter().find(|parameter| parameter.name == key);
    if inner.contains(notation.mark) {
        let schema = parameter.map(|parameter| &parameter.schema);
        return Some((key.to_owned(), json_text(&nested(notation, inner, schema, MAX_DEPTH))));
    }
    Some((key.to_owned(), scalar(parameters, key, inner)))
}

/// The text of an element without nested elements, as JSON.
fn scalar(parameters: &Parameters, key: &str, text: &str) -> String {
    let parameter = parameters.listed.iter().find(|parameter| parameter.name == key);
    match parameter.filter(|parameter| text.is_empty() && parameter.strings.is_empty()) {
        Some(parameter) if parameter.takes(&Value::Array(Vec::new())) => "[]".to_owned(),
        Some(parameter) if parameter.takes(&Value::Object(Map::new())) => "{}".to_owned(),
        _ => parameters.value(key, text, None),
    }
}

/// Reads values between brackets.
struct NotatedReader<'a> {
    notation: &'a Notation,
    rest: &'a str,
}

impl NotatedReader<'_> {
    fn takes(&mut self, text: &str) -> bool {
        let rest = self.rest.trim_start();
        let found = rest.starts_with(text);
        if found {
            self.rest = &rest[text.len()..];
        }
        found
    }

    fn string(&mut self) -> Option<String> {
        let (text, rest) = self.rest.split_once(self.notation.mark)?;
        self.rest = rest;
        Some(text.to_owned())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        if self.takes(self.notation.mark) {
            return self.string().map(Value::from);
        }
        if self.takes("[") {
            let mut items = Vec::new();
            while !self.takes("]") {
                items.push(self.value(depth)?);
                self.takes(",");
            }
            return Some(Value::Array(items));
        }
        if self.takes("{") {
            let mut map = Map::new();
            while !self.takes("}") {
                let key = match self.takes(self.notation.mark) {
                    true => self.string()?,
                    false => {
                        let at = self.rest.find(':')?;
                        let (key, rest) = self.rest.split_at(at);
                        self.rest = rest;
                        key.trim().to_owned()
                    }
                };
                self.takes(":").then_some(())?;
                map.insert(key, self.value(depth)?);
                self.takes(",");
            }
            return Some(Value::Object(map));
        }
        let end = self.rest.find([',', ']', '}']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.trim();
        Some(match text {
            "" => return None,
            "None" => Value::Null,
            "True" => true.into(),
            "False" => false.into(),
            text => parse_json(text).unwrap_or_else(|_| text.into()),
        })
    }
}

/// The element with which a text begins: its name, its content, and the text after it.
fn element<'a>(notation: &Notation, text: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
    let open = notation.key[0];
    let text = &text[text.find(open)? + open.len()..];
    let (name, body) = text.split_once('>')?;
    let (mut at, mut depth) = (0, 0);
    while let Some(found) = body[at..].find(notation.mark).map(|found| found + at) {
        let tag = &body[found + notation.mark.len()..];
        let end = found + notation.mark.len() + tag.find('>')? + 1;
        match (tag.starts_with("</"), depth) {
            (true, 0) => return Some((name, &body[..found], &body[end..])),
            (true, _) => depth -= 1,
            (false, _) => depth += 1,
        }
        at = end;
    }
    None
}

/// The value of an element's nested elements.
fn nested(notation: &Notation, inner: &str, schema: Option<&Value>, depth: usize) -> Value {
    let Some(depth) = depth.checked_sub(1) else { return inner.into() };
    let mut children = Vec::new();
    let mut rest = inner;
    while let Some((name, inner, after)) = element(notation, rest) {
        children.push((name, inner));
        rest = after;
    }
    let value = |inner: &str, schema: Option<Value>| {
        if inner.contains(notation.mark) {
            return nested(notation, inner, schema.as_ref(), depth);
        }
        let parameter = schema.and_then(|schema| Parameter::of(&schema).ok());
        let parameters = Parameters { listed: parameter.into_iter().collect(), open: true };
        let text = scalar(&parameters, "", inner);
        parse_json(&text).unwrap_or(Value::String(text))
    };
    let is_object = schema.is_some_and(|schema| Parameter::part(schema, |schema| schema.get("properties").cloned()).is_some());
    if children.iter().all(|(name, _)| *name == "item") && !is_object {
        let items = schema.and_then(|schema| Parameter::part(schema, |schema| schema.get("items").cloned()));
        return children.into_iter().map(|(_, inner)| value(inner, items.clone())).collect();
    }
    let member = |(name, inner): (&str, &str)| {
        let of_name = |schema: &Value| schema.get("properties").and_then(|all| all.get(name)).cloned();
        let of_further = |schema: &Value| schema.get("additionalProperties").filter(|further| further.is_object()).cloned();
        let part = schema.and_then(|schema| Parameter::part(schema, of_name).or_else(|| Parameter::part(schema, of_further)));
        (name.to_owned(), value(inner, part))
    };
    children.into_iter().map(member).collect()
}
