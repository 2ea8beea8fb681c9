//! Checks which numbers schemas with large numbers permit, through masks over a real vocabulary.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{Compiler, Source};
use logits::Allowed;
use tokenizer::Tokenizer;

type Grammars = LazyLock<(Compiler, Arc<Tokenizer>)>;

/// Over a vocabulary with a token per digit.
static DIGITS: Grammars = LazyLock::new(|| crate::testing::compiler(fixtures::vocabulary("smollm2").path()));
/// Over a vocabulary with tokens of up to three digits, of which each is a way through a range that a mask must try.
static THOUSANDS: Grammars = LazyLock::new(|| crate::testing::compiler(fixtures::vocabulary("llama-bpe").path()));

/// Whether a schema permits the whole text.
fn permits(schema: &Value, text: &str) -> Result<bool, Box<dyn std::error::Error>> {
    permits_over(&DIGITS, schema, text)
}

fn permits_over(
    (compiler, tokenizer): &(Compiler, Arc<Tokenizer>),
    schema: &Value,
    text: &str,
) -> Result<bool, Box<dyn std::error::Error>> {
    let source = Source::new("start: @answer").with_schema("answer", schema)?;
    let mut position = compiler.compile(&source)?.start();
    for id in tokenizer.encode(text, false) {
        match position.allowed()? {
            Allowed::Mask(words) if words[id as usize / 32] >> (id % 32) & 1 == 1 => position.accept(id)?,
            _ => return Ok(false),
        }
    }
    Ok(match position.allowed() {
        Ok(Allowed::End) => true,
        Ok(Allowed::Mask(words)) => tokenizer.end_ids().iter().any(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1),
        Ok(Allowed::All) | Err(_) => false,
    })
}

#[track_caller]
fn check(schema: Value, permitted: &[&str], refused: &[&str]) {
    for (texts, due) in [(permitted, true), (refused, false)] {
        for text in texts {
            assert_eq!(permits(&schema, text).unwrap_or_else(|error| panic!("{schema}: {error}")), due, "{schema}: {text}");
        }
    }
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn constants_keep_all_of_their_digits() {
    for number in [
        "9007199254740993",
        "1234567890123456789",
        "9223372036854775807",
        "-9223372036854775808",
        "-9007199254740993",
        "18446744073709551615",
        "1000000000000000000000000000000",
    ] {
        let (one, next) = number.split_at(number.len() - 1);
        let others = (0..10).map(|digit| format!("{one}{digit}")).filter(|other| other != number);
        let others: Vec<String> = others.chain([format!("{number}0"), format!("{one}{next}.0"), one.to_owned(), "\"x\"".into()]).collect();
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        for schema in ["{\"const\": N}", "{\"enum\": [N]}", "{\"type\": \"integer\", \"minimum\": N, \"maximum\": N}"] {
            check(read(&schema.replace('N', number)), &[number], &others);
        }
    }
    check(
        read("{\"enum\": [9007199254740993, 9007199254740995, 7, \"a\", null]}"),
        &["9007199254740993", "9007199254740995", "7", "\"a\"", "null"],
        &["9007199254740992", "9007199254740994", "8", "\"b\""],
    );
    let nested = read("{\"const\": {\"id\": 9007199254740993, \"list\": [9007199254740995, 1.5, \"x\"]}}");
    check(
        nested,
        &["{\"id\":9007199254740993,\"list\":[9007199254740995,1.5,\"x\"]}"],
        &["{\"id\":9007199254740992,\"list\":[9007199254740995,1.5,\"x\"]}", "{}"],
    );
}

#[test]
fn ranges_are_exact_beyond_the_whole_numbers_that_doubles_hold() {
    let bounds = |text: &str| read(&format!("{{\"type\": \"integer\", {text}}}"));
    check(
        bounds("\"exclusiveMinimum\": 9007199254740992, \"maximum\": 9007199254740993"),
        &["9007199254740993"],
        &["9007199254740992", "9007199254740994"],
    );
    check(bounds("\"minimum\": 9007199254740993, \"exclusiveMinimum\": true"), &["9007199254740994"], &["9007199254740993"]);
    check(bounds("\"minimum\": 9223372036854775807"), &["9223372036854775807", "99999999999999999999999"], &["9223372036854775806", "1"]);
    check(
        bounds("\"maximum\": -9223372036854775808"),
        &["-9223372036854775808", "-9223372036854775809"],
        &["-9223372036854775807", "0", "9223372036854775808"],
    );
    check(
        bounds("\"minimum\": 0, \"maximum\": 18446744073709551615"),
        &["0", "18446744073709551615"],
        &["18446744073709551616", "-1", "-0", "00", "1.0"],
    );
    check(
        bounds("\"minimum\": -1.5, \"maximum\": 1e30"),
        &["-1", "0", "1000000000000000000000000000000"],
        &["-2", "1000000000000000000000000000001"],
    );
    check(
        bounds("\"minimum\": 9007199254740993, \"maximum\": 9007199254741003, \"multipleOf\": 10"),
        &["9007199254741000"],
        &["9007199254740993", "9007199254740990", "9007199254741010"],
    );
    check(
        read("{\"type\": \"number\", \"minimum\": 0.25, \"maximum\": 9007199254740993}"),
        &["0.25", "1.5", "9007199254740993", "9007199254740993.0", "9007199254740992.9"],
        &["0.2", "0", "9007199254740993.1", "9007199254740994"],
    );
    check(read("{\"minimum\": 9007199254740993}"), &["9007199254740993", "\"a\"", "[1]", "{\"a\":1}", "null"], &["9007199254740992", "5"]);
    check(
        read("{\"type\": [\"integer\", \"null\"], \"maximum\": -9007199254740993}"),
        &["null", "-9007199254740993"],
        &["-9007199254740992", "\"a\""],
    );
}

#[test]
fn multiples_in_a_range_of_many_digits_are_followed() {
    let range = |step: u32| json!({"type": "integer", "minimum": -10i64.pow(16), "maximum": -2_251_799_813_685_247i64, "multipleOf": step});
    for step in [250u32, 999, 2048, 4095, 4096] {
        for grammars in [&DIGITS, &THOUSANDS] {
            let multiple = -9_876_543_210_987_654 / i64::from(step) * i64::from(step);
            for (number, due) in [(multiple, true), (multiple - 1, false), (-multiple, false)] {
                assert_eq!(permits_over(grammars, &range(step), &number.to_string()).unwrap(), due, "{number} of {step}");
            }
        }
    }
}

#[test]
fn large_numbers_stand_anywhere_in_a_schema() {
    let large = || read("{\"type\": \"integer\", \"minimum\": 9007199254740993, \"maximum\": 9007199254740995}");
    let members = json!({"id": large(), "n": {"type": "integer"}});
    let object = json!({"type": "object", "properties": members, "required": ["id"], "additionalProperties": false});
    check(object, &["{\"id\":9007199254740993}", "{\"id\": 9007199254740995, \"n\": 3}"], &["{\"id\":9007199254740992}", "{\"n\":3}"]);
    check(json!({"type": "array", "items": large()}), &["[]", "[9007199254740994, 9007199254740993]"], &["[9007199254740996]"]);
    check(
        json!({"anyOf": [large(), {"type": "string"}, {"type": "integer", "maximum": 5}]}),
        &["9007199254740993", "\"a\"", "5"],
        &["6", "9007199254740996"],
    );
    check(json!({"oneOf": [large(), {"type": "string"}, {"const": 7}]}), &["9007199254740993", "\"a\"", "7"], &["6", "9007199254740996"]);
    check(
        json!({"allOf": [large(), {"exclusiveMinimum": 9007199254740993u64}]}),
        &["9007199254740994"],
        &["9007199254740993", "9007199254740996"],
    );
    check(
        json!({"type": "integer", "anyOf": [{"minimum": 9007199254740993u64}, {"const": 5}, {"type": "string"}]}),
        &["5", "9007199254740993"],
        &["6", "\"a\"", "9007199254740992"],
    );
    let members = json!({"a": {"$ref": "#/$defs/id"}, "b": {"$ref": "#/$defs/id", "type": "integer", "maximum": 9007199254740994u64}});
    let referred = json!({
        "$defs": {"id": large()},
        "type": "object",
        "properties": members,
        "required": ["a", "b"],
        "additionalProperties": false,
    });
    check(referred, &["{\"a\":9007199254740995,\"b\":9007199254740994}"], &["{\"a\":9007199254740995,\"b\":9007199254740995}"]);
    let tree = json!({"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [large(), {"type": "array", "items": {"$ref": "#/$defs/t"}}]}}});
    check(tree, &["9007199254740993", "[9007199254740994,[9007199254740995,[]]]"], &["1", "[1]"]);
    let base = json!({"type": "object", "properties": {"id": large()}, "required": ["id"]});
    let inherited = json!({"allOf": [base, {"properties": {"n": {"const": 1}}, "required": ["n"]}]});
    check(inherited, &["{\"id\":9007199254740993,\"n\":1}"], &["{\"id\":9007199254740992,\"n\":1}", "{\"id\":9007199254740993,\"n\":2}"]);
    let steps = json!({"type": "integer", "allOf": [{"multipleOf": 6}, {"multipleOf": 0.25}, {"multipleOf": 10000}]});
    check(steps, &["30000", "0", "-90000"], &["6", "10000", "20000", "1"]);
}

#[test]
fn what_cannot_be_exact_is_refused_with_its_place_and_its_reason() {
    let large = || json!({"minimum": 9007199254740993u64});
    let cases = [
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 9007199254740993u64}}}),
            "#/properties/a cannot be used: \"multipleOf\" is 9007199254740993",
        ),
        (json!({"type": "integer", "multipleOf": 1_000_000_007}), "# cannot be used: \"multipleOf\" is 1000000007, expected"),
        (json!({"type": "integer", "allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}), "the least common multiple"),
        (
            json!({"oneOf": [large(), {"type": "integer", "minimum": 9007199254740999u64}]}),
            "# cannot be used: \"oneOf\" has alternatives that may share",
        ),
        (json!({"allOf": [{"properties": {"a": large()}}, {"properties": {"a": {"type": "integer"}}}]}), "same member or item"),
        (json!({"properties": {"a": large()}, "patternProperties": {"^a": {"type": "integer"}}}), "patternProperties"),
        (json!({"allOf": [large(), {"$ref": "http://x/y"}]}), "http://x/y"),
        (json!({"anyOf": [large()], "properties": {"a": {"$ref": "#/anyOf/0"}}}), "#/properties/a/$ref leads into \"anyOf\""),
        (json!({"type": "integer", "minimum": 9007199254740995u64, "maximum": 9007199254740993u64}), "#"),
        (json!({"type": "integer", "minimum": 9007199254740993u64, "not": {"const": 9007199254740994u64}}), "not"),
        (json!({"type": "integer", "minimum": 9007199254740993u64, "maximum": 9007199254740995u64, "multipleOf": 1000}), "#"),
    ];
    for (schema, due) in cases {
        let error = permits(&schema, "1").err().unwrap_or_else(|| panic!("{schema} was accepted")).to_string();
        assert!(error.contains(due), "{schema}: {error}");
    }
    let mut circle = json!({"$defs": {"a": {"allOf": [large(), {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"});
    assert!(permits(&circle, "1").unwrap_err().to_string().contains("too many references"));
    circle["$defs"]["a"] = json!({"$ref": "#/$defs/a"});
    circle["maximum"] = json!(9007199254740993u64);
    assert!(permits(&circle, "1").is_err());
}

/// A whole number near a power of 2 or of 10, or any other.
fn number() -> impl Strategy<Value = i128> {
    let powers = (0..64u32, -3..=3i128, any::<bool>())
        .prop_map(|(shift, by, ten)| if ten { 10i128.pow(shift % 19) + by } else { (1i128 << shift) + by });
    let sizes = prop_oneof![powers, (any::<i64>(), 0..63u32).prop_map(|(number, shift)| i128::from(number >> shift))];
    (sizes, any::<bool>())
        .prop_map(|(number, negate)| if negate { -number } else { number })
        .prop_filter("64 bits", |number| (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(number))
}

/// A number in 64 bits as JSON.
fn value(number: i128) -> Value {
    u64::try_from(number).map(Value::from).or_else(|_| i64::try_from(number).map(Value::from)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_mask_permits_exactly_the_whole_numbers_of_a_range(
        a in number(),
        b in number(),
        open in any::<[bool; 2]>(),
        near in prop::collection::vec(-12..12i128, 8),
        others in prop::collection::vec(number(), 4),
        (step, float, thousands) in (prop::sample::select(vec![1u32, 2, 7, 250, 999, 1000]), any::<bool>(), any::<bool>()),
    ) {
        let (least, most) = (a.min(b), a.max(b));
        prop_assume!(least.unsigned_abs().max(most.unsigned_abs()) >= 1 << 53);
        let keys = [["minimum", "exclusiveMinimum"][usize::from(open[0])], ["maximum", "exclusiveMaximum"][usize::from(open[1])]];
        let mut schema = json!({"type": if float { "number" } else { "integer" }, keys[0]: value(least), keys[1]: value(most)});
        if step > 1 {
            schema["multipleOf"] = step.into();
        }
        let is_in = |number: i128| {
            let above = if open[0] { number > least } else { number >= least };
            above && if open[1] { number < most } else { number <= most } && number % i128::from(step) == 0
        };
        let tried = near.iter().flat_map(|by| [least + by, most + by]).chain(others);
        for number in tried {
            let grammars = if thousands { &THOUSANDS } else { &DIGITS };
            match permits_over(grammars, &schema, &number.to_string()) {
                Ok(permitted) => prop_assert_eq!(permitted, is_in(number), "{}: {}", schema, number),
                // The range may be empty: an error, not a mask.
                Err(error) => {
                    prop_assert!(!is_in(number), "{}: {}: {}", schema, number, error);
                }
            }
        }
    }

    #[test]
    fn the_mask_permits_exactly_the_decimals_of_a_range(
        whole in 9_007_199_254_740_992..1u64 << 60,
        tenths in -500..500i64,
        tried in prop::collection::vec((-501..501i64, 0..100i64, any::<bool>()), 12),
        open in any::<bool>(),
    ) {
        let key = if open { "exclusiveMinimum" } else { "minimum" };
        let schema = json!({"type": "number", key: tenths as f64 / 10.0, "maximum": whole});
        for (number, hundredths, at_end) in tried {
            // In hundredths: above the least, and around the largest.
            let (text, is_in) = if at_end {
                let above = number % 2 == 0;
                (format!("{}.{hundredths:02}", if above { whole } else { whole - 1 }), !above || hundredths == 0)
            } else {
                let size = number.abs() * 100 + hundredths;
                let signed = if number < 0 { -size } else { size };
                let is_in = if open { signed > 10 * tenths } else { signed >= 10 * tenths };
                let sign = if signed < 0 { "-" } else { "" };
                (format!("{sign}{}.{hundredths:02}", number.abs()), is_in)
            };
            prop_assert_eq!(permits(&schema, &text).unwrap(), is_in, "{}: {}", schema, text);
        }
    }
}
