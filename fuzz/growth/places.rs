//! The places where a client's text becomes something larger, each with inputs chosen by numbers.

use chat::{Format, InputGrammar};
use serde_json::{Map, Value, json};

use crate::input::{Input, tool};

pub struct Place {
    pub name: &'static str,
    /// Builds the input that the numbers choose.
    pub build: fn(&[u32]) -> Input,
    /// Numbers from which the search starts.
    pub first: &'static [u32],
    /// Longest input [bytes].
    pub most: usize,
}

const MOST: usize = 256 << 10;
/// Most repetitions that one number can request.
const REPEATS: usize = 100_000;

pub static ALL: [Place; 10] = [
    Place { name: "gbnf", build: gbnf, first: &[1000, 4, 0, 200], most: MOST },
    Place { name: "gbnf-classes", build: gbnf_classes, first: &[40, 100, 1], most: MOST },
    Place { name: "regex", build: regex, first: &[0, 1000], most: MOST },
    Place { name: "lark", build: lark, first: &[0, 100, 1, 100], most: MOST },
    Place { name: "quoted-regex", build: quoted_regex, first: &[0, 1000], most: MOST },
    Place { name: "quoted-lark", build: quoted_lark, first: &[0, 100, 1, 100], most: MOST },
    Place { name: "choice", build: choice, first: &[100, 10, 0], most: MOST },
    Place { name: "schema", build: schema, first: &[0, 50, 10], most: MOST },
    Place { name: "tagged-tools", build: tagged, first: &[1, 50, 10, 2], most: MOST },
    Place { name: "notated-tools", build: notated, first: &[1, 20, 10, 2], most: MOST },
];

fn at(numbers: &[u32], i: usize) -> usize {
    numbers.get(i).copied().unwrap_or(0) as usize
}

/// Repeats pieces of text. The numbers are pairs of a piece and a count.
fn pieces(numbers: &[u32], of: &[&str], most: usize) -> String {
    let mut text = String::new();
    for pair in numbers.chunks(2) {
        let (piece, count) = (of[pair[0] as usize % of.len()], (at(pair, 1)).min(REPEATS));
        let room = most.saturating_sub(text.len()) / piece.len();
        text += &piece.repeat(count.min(room));
    }
    text
}

/// A class of `count` characters, none of which are adjacent.
fn class(count: usize, from: u32) -> String {
    let chars = (0..count.min(30_000) as u32).filter_map(|i| char::from_u32(from + 2 * i));
    format!("[{}]", chars.map(String::from).collect::<String>())
}

/// A rule of pieces over a class of as many ranges as the first number says.
fn gbnf(numbers: &[u32]) -> Input {
    const OF: [&str; 12] =
        ["a ", "a? ", "a* ", "(a | \"x\") ", "| a ", "\"x\" ", "a{9} ", "a{0,99} ", "(a a)* ", "b ", "(\"(\" root \")\")? ", "\"\"{9999} "];
    let [ranges, rest @ ..] = numbers else { return Input::Format(Format::Gbnf(String::new())) };
    let body = pieces(rest, &OF, MOST);
    Input::Format(Format::Gbnf(format!("root ::= {body}\na ::= {}\nb ::= a a", class(*ranges as usize, 0x4e00))))
}

/// Terminals that cannot be joined, with a separate class each or one class for all.
fn gbnf_classes(numbers: &[u32]) -> Input {
    let (count, ranges, own) = (at(numbers, 0).clamp(1, 3000), at(numbers, 1), at(numbers, 2) % 2);
    let body: Vec<String> = (0..count).map(|i| format!("t{i} root t{}", (i + 1) % count)).collect();
    let rules: Vec<String> =
        (0..count).map(|i| format!("t{i} ::= {} \"x\" | \"y{i}\"", class(ranges, 0x4e00 + (own * i * 7) as u32))).collect();
    Input::Format(Format::Gbnf(format!("root ::= \"z\" | {}\n{}", body.join(" | "), rules.join("\n"))))
}

const REGEX: [&str; 14] =
    [".", r"\w", r"\W", "(?i:k)", r"\p{L}", "[^a]", "(a|b)", "x{9}", "(?:.{9}){9}", "|", r"\d", "ſ", "[a-zé]?", r"(\w{3})*"];

fn regex(numbers: &[u32]) -> Input {
    Input::Format(Format::Regex(pieces(numbers, &REGEX, MOST)))
}

const LARK: [&str; 9] =
    ["/./ ", r"/\w/ ", "\"a\"i ", "| \"b\" ", "\"a\"..\"z\" ", "(\"a\")? ", "/[^b]+/ ", "\"x\"~1..9 ", "(\"(\" start \")\")? "];

fn lark(numbers: &[u32]) -> Input {
    Input::Format(Format::Lark(format!("start: {}", pieces(numbers, &LARK, MOST))))
}

fn of_text(input: InputGrammar) -> Input {
    Input::Tools(vec![tool(0, None, Some(input))], "Qwen-Qwen2.5-7B-Instruct")
}

fn quoted_regex(numbers: &[u32]) -> Input {
    of_text(InputGrammar::Regex(pieces(numbers, &REGEX, MOST)))
}

fn quoted_lark(numbers: &[u32]) -> Input {
    of_text(InputGrammar::Lark(format!("start: {}", pieces(numbers, &LARK, MOST))))
}

fn choice(numbers: &[u32]) -> Input {
    let (count, length) = (at(numbers, 0).clamp(1, 20_000), at(numbers, 1).min(2000));
    let piece = ["a", "\u{1}", "é", "\"", "\\"][at(numbers, 2) % 5];
    Input::Format(Format::Choice((0..count).map(|i| format!("{i}{}", piece.repeat(length))).collect()))
}

/// A schema of a kind, `wide` wide and `deep` deep.
fn of_kind(kind: usize, wide: usize, deep: usize) -> Value {
    let (wide, deep) = (wide.clamp(1, 2000), deep.min(100));
    match kind % 8 {
        0 => {
            let named: Map<String, Value> = (0..wide).map(|i| (format!("p{i}"), json!({"$ref": "#/$defs/s"}))).collect();
            let values: Vec<String> = (0..20 * deep).map(|i| format!("v{i}")).collect();
            json!({"type": "object", "properties": named, "$defs": {"s": {"enum": values}}})
        }
        1 => {
            let both = |i: usize| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/d{i}")}); 2 + wide % 9]});
            let mut defs: Map<String, Value> = (0..deep).map(|i| (format!("d{i}"), both(i + 1))).collect();
            defs.insert(format!("d{deep}"), json!({"enum": ["x"]}));
            json!({"type": "object", "properties": {"a": both(0)}, "$defs": defs})
        }
        2 => {
            (0..deep).fold(json!({"enum": (0..wide).collect::<Vec<_>>()}), |inner, _| json!({"type": "object", "properties": {"a": inner}}))
        }
        3 => json!({"type": "object", "properties": {"a": {"type": "string", "pattern": format!("{}{{{}}}", ".".repeat(wide), deep + 1)}}}),
        4 => json!({"type": "object", "properties": {"a": {"allOf": (0..deep).map(|i| {
            json!({"anyOf": (0..2 + wide % 5).map(|k| json!({"properties": {format!("p{i}"): {"const": k}}})).collect::<Vec<_>>()})
        }).collect::<Vec<_>>()}}}),
        5 => json!({"type": "object", "properties": {"a": {"type": (0..wide).map(|_| "array").collect::<Vec<_>>(), "maxItems": deep}}}),
        6 => {
            let nested = (0..deep.min(50)).fold(json!({"enum": ["x".repeat(wide)]}), |inner, _| json!({"properties": {"a": inner}}));
            let refs: Map<String, Value> =
                (0..deep.min(50)).map(|i| (format!("r{i}"), json!({"$ref": format!("#/$defs/n{}", "/properties/a".repeat(i))}))).collect();
            json!({"type": "object", "properties": refs, "$defs": {"n": nested}})
        }
        _ => {
            json!({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": wide + 1, "minimum": -(1_i64 << deep.min(50))}}})
        }
    }
}

fn schema(numbers: &[u32]) -> Input {
    Input::Format(Format::JsonSchema(of_kind(at(numbers, 0), at(numbers, 1), at(numbers, 2))))
}

fn tools(numbers: &[u32], family: &'static str) -> Input {
    let [kind, wide, deep, count] = [0, 1, 2, 3].map(|i| at(numbers, i));
    let schema = of_kind(kind, wide, deep);
    Input::Tools((0..count.clamp(1, 64)).map(|i| tool(i, Some(schema.clone()), None)).collect(), family)
}

fn tagged(numbers: &[u32]) -> Input {
    tools(numbers, "GLM-4.7-Flash")
}

fn notated(numbers: &[u32]) -> Input {
    tools(numbers, "google-gemma-4-31B-it-interleaved")
}
