//! [`Reader`]: computes the numbers that a schema permits.

use serde_json::{Map, Number, Value};

use super::decimal::{Bound, Decimal, is_large};
use super::set::{Numbers, Range};
use super::step::Step;

/// Keywords that concern only numbers.
pub const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Keywords whose schemas apply to the same value.
pub const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// The deepest nesting of schemas that apply to the same value.
const MAX_DEPTH: usize = 64;
/// The most schemas that are visited for one schema.
const MAX_STEPS: usize = 200_000;

/// Reads a schema and its references. Counts the visited schemas, which bounds circular and shared references.
pub struct Reader<'a> {
    pub root: &'a Value,
    steps: usize,
}

impl<'a> Reader<'a> {
    pub fn new(root: &'a Value) -> Self {
        Self { root, steps: 0 }
    }

    /// Counts a visited schema.
    pub fn step(&mut self, depth: usize) -> Result<(), String> {
        self.steps += 1;
        match depth > MAX_DEPTH || self.steps > MAX_STEPS {
            true => Err("large numbers are nested in too many references or alternatives".into()),
            false => Ok(()),
        }
    }

    /// The target of a local reference.
    pub fn target(&self, map: &Map<String, Value>) -> Option<&'a Value> {
        self.root.pointer(map.get("$ref")?.as_str()?.strip_prefix('#')?)
    }

    /// The schemas that apply to the same value as a schema: those of its keywords, then the target of its reference.
    fn in_place<'b>(&self, map: &'b Map<String, Value>) -> impl Iterator<Item = &'b Value> + use<'a, 'b>
    where
        'a: 'b,
    {
        let branches = IN_PLACE.into_iter().filter_map(move |key| map.get(key)?.as_array()).flatten();
        branches.chain(self.target(map))
    }

    /// Whether the numbers that a schema permits depend on a large one, or on several `multipleOf` or one that llguidance cannot follow.
    pub fn depends(&mut self, schema: &Value, depth: usize) -> Result<bool, String> {
        let mut steps = 0;
        Ok(self.has_large(schema, depth, &mut steps)? || steps > 1)
    }

    fn has_large(&mut self, schema: &Value, depth: usize, steps: &mut usize) -> Result<bool, String> {
        let Value::Object(map) = schema else { return Ok(false) };
        self.step(depth)?;
        let step = map.get("multipleOf").and_then(Value::as_number);
        *steps += usize::from(step.is_some());
        if step.is_some_and(|step| Step::of(step).is_none()) {
            return Ok(true);
        }
        let bounds = OF_NUMBERS.iter().filter_map(|key| map.get(*key)?.as_number());
        if bounds.chain(constants(map).filter_map(Value::as_number)).any(is_large) {
            return Ok(true);
        }
        let inner: Vec<&Value> = self.in_place(map).collect();
        for schema in inner {
            // A circular reference that has not led to a number at this depth never does.
            if depth < MAX_DEPTH && self.has_large(schema, depth + 1, steps)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The numbers that a schema permits.
    ///
    /// # Errors
    /// A keyword is not supported together with large numbers.
    pub fn numbers(&mut self, schema: &Value, depth: usize) -> Result<Numbers, String> {
        self.step(depth)?;
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(false) => return Ok(Numbers::default()),
            _ => return Ok(Numbers::of_range(Range::default())),
        };
        let Some(whole) = whole(map) else { return Ok(Numbers::default()) };
        let mut range = bounds(map)?;
        range.whole = whole;
        let mut all = Numbers::of_range(range).intersect(&Numbers::of_range(Range::default()))?;
        if map.contains_key("const") || map.contains_key("enum") {
            all = Numbers::of_values(constants(map).filter_map(Value::as_number)).intersect(&all)?;
        }
        for key in IN_PLACE {
            let Some(branches) = map.get(key).and_then(Value::as_array) else { continue };
            let branches: Vec<Numbers> = branches.iter().map(|branch| self.numbers(branch, depth + 1)).collect::<Result<_, _>>()?;
            if key == "oneOf" {
                check_disjoint(&branches)?;
            }
            all = match key {
                "allOf" => branches.iter().try_fold(all, Numbers::intersect)?,
                _ => branches.into_iter().try_fold(Numbers::default(), Numbers::union)?.intersect(&all)?,
            };
        }
        match (map.get("$ref"), self.target(map)) {
            (Some(_), Some(target)) => all.intersect(&self.numbers(target, depth + 1)?),
            (Some(reference), None) => {
                Err(format!("the reference {reference} cannot be followed beside large numbers: expected #/$defs/NAME"))
            }
            (None, _) => Ok(all),
        }
    }
}

/// The values of `const`, or else of `enum`.
pub fn constants(map: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let listed = map.get("enum").and_then(Value::as_array).filter(|_| !map.contains_key("const"));
    map.get("const").into_iter().chain(listed.into_iter().flatten())
}

/// Whether the schema's types permit only whole numbers. `None` if they permit no number.
fn whole(map: &Map<String, Value>) -> Option<bool> {
    let Some(kind) = map.get("type") else { return Some(false) };
    let has = |name: &str| kind == name || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == name));
    if has("number") { Some(false) } else { has("integer").then_some(true) }
}

fn bounds(map: &Map<String, Value>) -> Result<Range, String> {
    let number = |key: &str| match map.get(key) {
        None | Some(Value::Bool(_)) => Ok(None),
        Some(Value::Number(number)) => Ok(Some(number)),
        Some(other) => Err(format!("\"{key}\" is {}, expected a number", other.to_string().chars().take(100).collect::<String>())),
    };
    let bound = |number: &Number, open| Bound { at: Decimal::of(number), open };
    let mut range = Range::default();
    for (closed, open, is_least) in [("minimum", "exclusiveMinimum", true), ("maximum", "exclusiveMaximum", false)] {
        // In draft 4, a boolean says whether the other bound is exclusive.
        let flag = map.get(open).and_then(Value::as_bool).unwrap_or(false);
        for bound in [number(closed)?.map(|at| bound(at, flag)), number(open)?.map(|at| bound(at, true))].into_iter().flatten() {
            let one = match is_least {
                true => Range { least: Some(bound), ..Range::default() },
                false => Range { most: Some(bound), ..Range::default() },
            };
            range = range.intersect(&one);
        }
    }
    if let Some(step) = number("multipleOf")? {
        let too_long = || format!("\"multipleOf\" is {step}, expected a number above 0 of at most 8 digits");
        range.steps.push(Step::of(step).ok_or_else(too_long)?);
    }
    Ok(range)
}

fn check_disjoint(branches: &[Numbers]) -> Result<(), String> {
    let mut before = Numbers::default();
    for branch in branches {
        if !branch.clone().intersect(&before)?.0.is_empty() {
            return Err("\"oneOf\" has alternatives that may share large numbers: use \"anyOf\"".into());
        }
        before = before.union(branch.clone())?;
    }
    Ok(())
}
