//! Checks that translated grammars allow the same texts as a naive matcher of GBNF, character by character.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::expr::{Expr, Grammar};
use super::{is_gbnf, parse};
use crate::{Compiler, GrammarError, Source};
use logits::Allowed;
use tokenizer::Tokenizer;

fn to_lark(text: &str) -> Result<String, String> {
    super::to_lark(text, 1 << 20)
}

static COMPILER: LazyLock<(Compiler, Arc<Tokenizer>)> = LazyLock::new(|| crate::testing::compiler(fixtures::vocabulary("smollm2").path()));

const ARITHMETIC: &str = r#"
root ::= (sum "=" gap atom "\n")+
sum  ::= atom ([-+*/] atom)*
atom ::= name | digits | "(" gap sum ")" gap
name ::= [a-z] [a-z0-9_]* gap
digits ::= [0-9]+ gap
gap  ::= [ \t\n]*
"#;

const JSON: &str = r#"
root   ::= table
any    ::= table | list | text | count | ("true" | "false" | "null") gap
table  ::= "{" gap (
        text ":" gap any
        ("," gap text ":" gap any)*   # at least one
    )? "}" gap
list   ::= "[" gap (any ("," gap any)*)? "]" gap
text   ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" gap
count  ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? gap
gap    ::= "" | " " | "\n" [ \t]{0,20}
"#;

/// Whether the engine lets a text through, one character per token, and lets it end there. `None` if following it exceeds the budget, as
/// happens with very ambiguous grammars.
fn follows(grammar: &Arc<dyn logits::Grammar>, text: &str) -> Option<bool> {
    let tokenizer = &COMPILER.1;
    let mut position = grammar.start();
    let allows = |allowed: &Allowed, id: u32| match allowed {
        Allowed::Mask(words) => words[id as usize / 32] >> (id % 32) & 1 == 1,
        Allowed::All => true,
        Allowed::End => tokenizer.end_ids().contains(&id),
    };
    for c in text.chars() {
        for id in tokenizer.encode(&c.to_string(), false) {
            let allowed = position.allowed().ok()?;
            if !allows(&allowed, id) {
                return Some(false);
            }
            position.accept(id).ok()?;
        }
    }
    let allowed = position.allowed().ok()?;
    Some(tokenizer.end_ids().iter().any(|id| allows(&allowed, *id)))
}

fn compiled(lark: &str) -> Result<Arc<dyn logits::Grammar>, GrammarError> {
    COMPILER.0.compile(&Source::new(lark))
}

/// A naive matcher: finds the places at which a match of `expr` from `start` can end.
struct Naive {
    text: Vec<char>,
    /// For each rule and start, the ends known so far.
    ends: Vec<Vec<BTreeSet<usize>>>,
}

impl Naive {
    fn matches(grammar: &Grammar, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let ends = vec![vec![BTreeSet::new(); text.len() + 1]; grammar.bodies.len()];
        let mut naive = Self { text, ends };
        loop {
            let before = naive.ends.clone();
            for rule in 0..grammar.bodies.len() {
                for start in 0..=naive.text.len() {
                    let found = naive.of(&grammar.bodies[rule], start);
                    naive.ends[rule][start].extend(found);
                }
            }
            if before == naive.ends {
                return naive.ends[0][0].contains(&naive.text.len());
            }
        }
    }

    fn of(&self, expr: &Expr, start: usize) -> BTreeSet<usize> {
        match expr {
            Expr::Chars(chars) => self.text.get(start).filter(|c| chars.holds(**c)).map(|_| start + 1).into_iter().collect(),
            Expr::Rule(rule) => self.ends[*rule][start].clone(),
            Expr::Alt(members) => members.iter().flat_map(|member| self.of(member, start)).collect(),
            Expr::Seq(items) => items.iter().fold(BTreeSet::from([start]), |ends, item| self.behind(item, &ends)),
            Expr::Repeat { inner, min, max } => {
                let mut ends = (0..*min).fold(BTreeSet::from([start]), |ends, _| self.behind(inner, &ends));
                for _ in *min..max.unwrap_or(min + self.text.len() as u32 + 1) {
                    let more = self.behind(inner, &ends);
                    ends.extend(more);
                }
                ends
            }
        }
    }

    fn behind(&self, expr: &Expr, starts: &BTreeSet<usize>) -> BTreeSet<usize> {
        starts.iter().flat_map(|start| self.of(expr, *start)).collect()
    }
}

#[test]
fn a_text_follows_the_grammar_or_not() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            ARITHMETIC,
            &["1+2=3\n", "1+2=3\n\n", "(a1 +b ) *2 =c\nx=1\n", "a =\n 1 \n\n \n"],
            &["1+=3\n", "1=2", "((1=2\n", "", "1=2\nx", "1+ 2=3\n"],
        ),
        (
            JSON,
            &["{}", "{\"a\": [1, -2.5e3, \"x\\\"y\", null]}", "{\n    \"a\":{\"b\":true }}", "{} "],
            &["[1]", "{\"a\":01}", "{\"a\"}", "{,}", "{  }"],
        ),
        ("root ::= \"a\" root \"b\" | \"\"", &["", "ab", "aabb"], &["a", "abb", "ba"]),
        ("root ::= x\nx ::= x \",\" [0-9] | [0-9]", &["1", "1,2,3"], &["1,", ",", "12"]),
        ("root ::= \"- \" item+\nitem ::= [^\\n]+ \"\\n\"", &["- a\n", "- é😀 \nb\n"], &["- ", "- \n", "a\n"]),
        ("root ::= [^a] . \"\\u00e9\" \"\\\\\"", &["xaé\\", "é\né\\"], &["aaé\\", "xaé"]),
        (
            "root ::= \"a\"{2} \"b\"{1,} \"c\"{,2} | (\"x\"\n | \"y\")\n  | \"z\"",
            &["aab", "aabbcc", "x", "y", "z"],
            &["ab", "aa", "aabccc"],
        ),
        ("root ::= \"if \" id | id \"if\"\nid ::= [a-z]+", &["if x", "xif", "ifif"], &["if ", "if"]),
    ];
    for (gbnf, good, bad) in cases {
        assert!(is_gbnf(gbnf));
        let (grammar, naive) = (compiled(&to_lark(gbnf).unwrap()).unwrap(), parse::parse(gbnf).unwrap());
        for text in *good {
            assert!(Naive::matches(&naive, text), "{gbnf}: the matcher refuses {text:?}");
            assert_eq!(follows(&grammar, text), Some(true), "{gbnf}: {text:?} should follow\n{}", to_lark(gbnf).unwrap());
        }
        for text in *bad {
            assert!(!Naive::matches(&naive, text), "{gbnf}: the matcher takes {text:?}");
            assert_eq!(follows(&grammar, text), Some(false), "{gbnf}: {text:?} should not follow\n{}", to_lark(gbnf).unwrap());
        }
    }
}

#[test]
fn what_follows_terminals_that_match_the_same_text_is_at_one_place() {
    // After `a`, which matches both x and y, the rest of y must not take what begins another x.
    let gbnf = "root ::= x*\nx ::= \"a\" | root | y | \" \"*\ny ::= ([ab] \"aab\")*";
    let grammar = compiled(&to_lark(gbnf).unwrap()).unwrap();
    let naive = parse::parse(gbnf).unwrap();
    for text in ["aaa a", "aaab", "baab", "aa", "aaaaab a", "baa", "ab"] {
        assert_eq!(follows(&grammar, text), Some(Naive::matches(&naive, text)), "{text}");
    }
}

#[test]
fn strings_of_json_stay_whole_terminals() {
    let lark = to_lark(JSON).unwrap();
    assert!(lark.lines().filter(|line| line.starts_with('T')).count() <= 10, "{lark}");
    let regular = to_lark("root ::= digit+ (\".\" digit+)?\ndigit ::= [0-9]").unwrap();
    assert_eq!(regular.lines().filter(|line| line.starts_with('T')).count(), 1, "{regular}");
}

#[test]
fn a_grammar_is_translated_in_time_and_space_that_do_not_follow_its_copies() {
    let class = |from: u32, count: u32| {
        let chars = (0..count).filter_map(|i| char::from_u32(from + 2 * i));
        format!("[{}]", chars.map(String::from).collect::<String>())
    };
    let wide = class(0x4e00, 10_000);
    let own: Vec<String> = (0..1500).map(|i| format!("t{i} ::= {} \"x\" | \"y\"", class(0x4e00 + 3 * i, 40))).collect();
    let between: Vec<String> = (0..1500).map(|i| format!("t{i} root t{}", (i + 1) % 1500)).collect();
    let doubled: Vec<String> = (0..20).map(|i| format!("a{i} ::= {}", format!("a{} ", i + 1).repeat(9))).collect();
    let cases = [
        ("one class at many places", format!("root ::= {}\na ::= {wide}", "a ".repeat(14_000)), ""),
        ("many places in one terminal", format!("root ::= {}\na ::= {wide}", "a ".repeat(900)), "more than 1048576 bytes"),
        ("classes that meet", format!("root ::= \"z\" | {}\n{}", between.join(" | "), own.join("\n")), ""),
        ("copies of rules", format!("root ::= a0\n{}\na20 ::= \"x\"", doubled.join("\n")), ""),
        ("repetitions of nothing", format!("root ::= \"\"{} \"x\"", "{10000}".repeat(60)), ""),
        ("alternatives that repeat", format!("root ::= ({}{wide})* \"x\"", "\"ab\" | ".repeat(300)), ""),
    ];
    for (name, gbnf, due) in cases {
        let start = std::time::Instant::now();
        let lark = to_lark(&gbnf);
        println!("{name}: {} bytes, {} ms", lark.as_ref().map_or(0, String::len), start.elapsed().as_millis());
        assert!(due.is_empty() || lark.as_ref().is_err_and(|error| error.contains(due)), "{name}");
        assert!(lark.map_or(0, |lark| lark.len()) <= 1 << 20, "{name}");
        assert!(start.elapsed().as_secs() < 10, "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn an_error_says_what_is_wrong_and_where() {
    let cases = [
        ("root ::= x", "line 1 of the grammar: there is no rule `x`"),
        ("a ::= \"x\"", "the grammar has no rule `root`"),
        ("root ::= \"x\"\nroot ::= \"y\"", "line 2 of the grammar: the rule `root` is defined a second time"),
        ("root ::= \"x", "line 1 of the grammar: this text is not closed"),
        ("root ::= [a", "this bracket is not closed"),
        ("root ::= []", "these brackets match no character"),
        ("root ::= [b-a]", "the ends of a range are in the wrong order"),
        ("root ::= (\"a\"", "this parenthesis is not closed"),
        ("root ::= \"a\"{3,2}", "the lower bound of a repetition is above the upper one"),
        ("root ::= \"a\"{99999}", "a repetition has two bounds from 0 to 10000"),
        ("root ::= \"\\q\"", "`\\q` is not an escape"),
        ("root ::= \"\\ud800\"", "`\\u` needs 4 hexadecimal digits that name a character"),
        ("root ::= <think>", "tokens (`<…>`) are not supported"),
        ("root ::= \"a\" ] \n", "`]` does not begin an item"),
        ("\n\nroot = \"a\"\nx ::= \"a\"", "line 3 of the grammar: expected `::=` after `root`"),
        ("root ::= \"a\" root", "the rule `root` never ends"),
    ];
    for (gbnf, error) in cases {
        let found = to_lark(gbnf).expect_err(gbnf);
        assert!(found.contains(error), "{gbnf}: {found}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    assert!(to_lark(&deep).unwrap_err().contains("nested deeper"));
    let many = format!("root ::= {}", "\"a\"+".repeat(5000));
    assert!(to_lark(&many).is_ok());
    assert!(to_lark(&format!("root ::= \"a\"{}", "*".repeat(5000))).unwrap_err().contains("too many repetitions"));
}

/// Bodies of rules over few characters, so that terminals overlap.
fn body(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        4 => prop::sample::select(vec!["\"a\"", "\"b\"", "\" \"", "[ab]", "[ a]", "\"ab\"", "\"aab\"", "\"\"", "[^a]"])
            .prop_map(str::to_owned),
        2 => prop::sample::select(vec!["root", "x", "y", "ws"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(depth, 12, 3, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 1..4).prop_map(|items| items.join(" ")),
            2 => prop::collection::vec(inner.clone(), 2..4).prop_map(|members| format!("({})", members.join(" | "))),
            2 => (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}"])).prop_map(|(item, count)| format!("({item}){count}")),
        ]
    })
    .boxed()
}

/// All texts of at most five characters over an alphabet of three.
fn texts() -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = 0;
    for _ in 0..5 {
        let end = all.len();
        for at in last..end {
            all.extend(["a", "b", " "].map(|c| format!("{}{c}", all[at])));
        }
        last = end;
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_grammar_allows_what_the_naive_matcher_allows(root in body(3), x in body(3), y in body(2), seed in 0..9_usize) {
        let gbnf = format!("root ::= {root}\nx ::= {x}\ny ::= {y}\nws ::= [ ]*\n");
        let Ok(lark) = to_lark(&gbnf) else { return Ok(()) };
        let grammar = match compiled(&lark) {
            Err(GrammarError::Invalid(error)) if error.contains("Too many items") => return Err(TestCaseError::reject("too ambiguous")),
            result => result.unwrap(),
        };
        let naive = parse::parse(&gbnf).unwrap();
        for text in texts().into_iter().skip(seed).step_by(9) {
            let Some(followed) = follows(&grammar, &text) else { return Err(TestCaseError::reject("too ambiguous")) };
            prop_assert_eq!(followed, Naive::matches(&naive, &text), "{:?}\n{}\n{}", text, gbnf, lark);
        }
    }

    #[test]
    fn wild_text_is_refused_or_translated(text in "[ab\"\\[\\](){}|*+?:=. \n^\\\\-]{0,60}") {
        let _ = to_lark(&format!("root ::= {text}"));
        let _ = to_lark(&text);
    }
}
