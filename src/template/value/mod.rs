//! [`Value`]: Python's values as templates see them. They are immutable, except for objects of the interpreter.
//!
//! Constructors charge the budget. Containers know their size and depth, so a walk is bounded before it begins.

mod dict;
mod floats;
mod hash;
mod integers;
mod iteration;
mod object;
mod representation;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;
use num_bigint::BigInt;

pub(crate) use floats::float_repr;
pub(crate) use hash::{contains, equal, hashable, same};
pub(crate) use integers::{MAX_BITS, MAX_DIGITS, Number, bounded, parse_float, parse_integer};
pub(crate) use iteration::{drain, iterate};
pub(crate) use representation::{ascii, is_printable, key_order, repr, repr_sorted, text_of};

use crate::budget::{ITEM_BYTES, afford, charge};
use crate::failure::{Fault, Outcome, limit, type_fault};
use crate::input::Input;

/// The deepest nesting of a value. Walks recurse.
const MAX_DEPTH: u16 = 200;

#[derive(Clone)]
pub(crate) enum Value {
    Undefined(Rc<Undefined>),
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside of `i64`.
    Big(Rc<BigInt>),
    Float(f64),
    Text(Text),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    Dict(Rc<Dict>),
    Range(Rc<Range>),
    /// The keys, values or items of a dict.
    View(Rc<View>),
    /// An iterator, which can be read once.
    Generator(Rc<Generator>),
    /// A function or class of the environment, by its name.
    Function(&'static str),
    Method(Rc<Method>),
    Object(Rc<dyn Object>),
}

/// A string. `safe`: the string is a `Markup`, which is not escaped again.
#[derive(Clone)]
pub(crate) struct Text {
    pub text: Arc<str>,
    pub safe: bool,
}

/// The items of a list or a tuple.
pub(crate) struct Items {
    pub items: Vec<Value>,
    pub measure: Measure,
    /// Whether this is a result of `groupby`: a tuple with `grouper` and `list`.
    pub is_group: bool,
}

pub(crate) struct Dict {
    pairs: IndexMap<Value, Value>,
    pub measure: Measure,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ViewKind {
    Keys,
    Values,
    Items,
}

pub(crate) struct View {
    pub kind: ViewKind,
    pub dict: Rc<Dict>,
}

pub(crate) struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
    length: usize,
}

/// An iterator whose items can be read once each. The items are computed when the iterator is made. If one fails, the error is raised when
/// that item would be read.
pub(crate) struct Generator {
    /// The name of the function that made the generator, for its text.
    name: &'static str,
    items: RefCell<VecDeque<Value>>,
    fault: RefCell<Option<Fault>>,
    pub measure: Measure,
}

/// Why a value is undefined. Most operations on it fail with that reason.
pub(crate) enum Undefined {
    /// No variable has the name.
    Name(Arc<str>),
    /// The type of a value, and the attribute or item that it lacks.
    Member(&'static str, Value),
    /// Anything else, in words.
    Because(String),
}

/// A method of a value, before it is called.
pub(crate) struct Method {
    pub receiver: Value,
    pub name: &'static str,
}

/// An object of the interpreter: a macro, a loop, a namespace and the like.
pub(crate) trait Object: Any {
    fn type_name(&self) -> &'static str;

    /// The object's text.
    fn shown(&self) -> Outcome<String>;

    /// An attribute that needs no evaluation.
    fn attribute(&self, name: &str) -> Option<Value>;

    /// The names of the object's methods.
    fn methods(&self) -> &'static [&'static str] {
        &[]
    }

    /// Calls a method of the object.
    fn call_method(&self, name: &str, _arguments: Vec<Value>) -> Outcome<Value> {
        Err(type_fault(format!("a value of type {} has no method `{name}`", self.type_name())))
    }

    /// The nesting depth of the object's values.
    fn depth(&self) -> u16 {
        0
    }

    fn length(&self) -> Option<usize> {
        None
    }

    fn is_callable(&self) -> bool {
        false
    }

    /// Drops the values that the object received after it was made, because they may hold the object in turn.
    fn release(&self) {}
}

/// The depth of a value, and its size with shared parts counted as often as they occur [bytes].
#[derive(Clone, Copy, Default)]
pub(crate) struct Measure {
    pub bytes: u64,
    pub depth: u16,
}

impl Measure {
    /// The measure of a container with these items. Fails if it is nested too deeply.
    pub fn of<'a>(items: impl Iterator<Item = &'a Value>) -> Outcome<Self> {
        let mut measure = Self { bytes: ITEM_BYTES, depth: 0 };
        for item in items {
            let inner = item.measure();
            measure.bytes = measure.bytes.saturating_add(inner.bytes);
            measure.depth = measure.depth.max(inner.depth + 1);
        }
        if measure.depth > MAX_DEPTH { Err(limit("a value is nested too deeply")) } else { Ok(measure) }
    }
}

impl Value {
    pub fn text(text: impl Into<Arc<str>>) -> Outcome<Self> {
        Self::marked(text, false)
    }

    /// A string, marked as safe or not.
    pub fn marked(text: impl Into<Arc<str>>, safe: bool) -> Outcome<Self> {
        let text = text.into();
        charge(text.len() as u64)?;
        Ok(Self::Text(Text { text, safe }))
    }

    /// A string that shares existing text, such as a literal of the template.
    pub fn shared(text: &Arc<str>) -> Self {
        Self::Text(Text { text: Arc::clone(text), safe: false })
    }

    pub fn list(items: Vec<Value>) -> Outcome<Self> {
        Ok(Self::List(Rc::new(Items::new(items)?)))
    }

    pub fn tuple(items: Vec<Value>) -> Outcome<Self> {
        Ok(Self::Tuple(Rc::new(Items::new(items)?)))
    }

    /// A pair as `groupby` returns it.
    pub fn group(grouper: Value, items: Vec<Value>) -> Outcome<Self> {
        let pair = Items::new(vec![grouper, Self::list(items)?])?;
        Ok(Self::Tuple(Rc::new(Items { is_group: true, ..pair })))
    }

    pub fn dict(pairs: impl IntoIterator<Item = (Value, Value)>) -> Outcome<Self> {
        Ok(Self::Dict(Rc::new(Dict::new(pairs)?)))
    }

    pub fn of_input(input: &Input) -> Outcome<Self> {
        match input {
            Input::None => Ok(Self::None),
            Input::Bool(on) => Ok(Self::Bool(*on)),
            Input::Int(number) => Ok(Self::Int(*number)),
            Input::Big(number) => Ok(Self::big(number.clone())),
            Input::Float(number) => Ok(Self::Float(*number)),
            Input::Text(text) => Ok(Self::shared(text)),
            Input::List(items) => Self::list(items.iter().map(Self::of_input).collect::<Outcome<_>>()?),
            Input::Dict(pairs) => {
                let pairs = pairs.iter().map(|(key, item)| Ok((Self::shared(key), Self::of_input(item)?)));
                Self::dict(pairs.collect::<Outcome<Vec<_>>>()?)
            }
        }
    }

    pub fn measure(&self) -> Measure {
        let flat = |bytes: u64| Measure { bytes, depth: 0 };
        match self {
            Self::Text(text) => flat(ITEM_BYTES + text.text.len() as u64),
            Self::Big(number) => flat(ITEM_BYTES + number.bits() / 8),
            Self::List(items) | Self::Tuple(items) => items.measure,
            Self::Dict(dict) => dict.measure,
            Self::View(view) => view.dict.measure,
            Self::Generator(generator) => generator.measure,
            Self::Method(method) => method.receiver.measure(),
            Self::Object(object) => Measure { bytes: ITEM_BYTES, depth: object.depth() },
            _ => flat(ITEM_BYTES),
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(&text.text),
            _ => None,
        }
    }

    pub fn is_safe(&self) -> bool {
        matches!(self, Self::Text(Text { safe: true, .. }))
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// The name of the type in Python.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Big(_) => "int",
            Self::Float(_) => "float",
            Self::Text(text) => {
                if text.safe {
                    "Markup"
                } else {
                    "str"
                }
            }
            Self::List(_) => "list",
            Self::Tuple(items) => {
                if items.is_group {
                    "_GroupTuple"
                } else {
                    "tuple"
                }
            }
            Self::Dict(_) => "dict",
            Self::Range(_) => "range",
            Self::View(view) => view.kind.type_name(),
            Self::Generator(generator) => generator.type_name(),
            Self::Function("range" | "raise_exception" | "strftime_now") => "function",
            Self::Function(_) => "type",
            Self::Method(_) => "builtin_function_or_method",
            Self::Object(object) => object.type_name(),
        }
    }

    /// Whether the value counts as true.
    pub fn truth(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(on) => *on,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.text.is_empty(),
            Self::List(items) | Self::Tuple(items) => !items.items.is_empty(),
            Self::Dict(dict) => !dict.is_empty(),
            Self::Range(range) => range.len() != 0,
            Self::View(view) => !view.dict.is_empty(),
            _ => true,
        }
    }

    /// The value's length. Fails if it has none.
    pub fn length(&self) -> Outcome<usize> {
        match self {
            Self::Undefined(_) => Ok(0),
            Self::Text(text) => {
                crate::budget::walk_over(text.text.len() as u64)?;
                Ok(if text.text.is_ascii() { text.text.len() } else { text.text.chars().count() })
            }
            Self::List(items) | Self::Tuple(items) => Ok(items.items.len()),
            Self::Dict(dict) => Ok(dict.len()),
            Self::Range(range) => Ok(range.len()),
            Self::View(view) => Ok(view.dict.len()),
            Self::Object(object) if object.length().is_some() => Ok(object.length().unwrap_or_default()),
            _ => Err(type_fault(format!("a value of type {} has no length", self.type_name()))),
        }
    }

    pub fn is_callable(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::Function(_) | Self::Method(_) => true,
            Self::Object(object) => object.is_callable(),
            _ => false,
        }
    }
}

impl Items {
    pub fn new(items: Vec<Value>) -> Outcome<Self> {
        charge(ITEM_BYTES.saturating_mul(items.len() as u64 + 1))?;
        let measure = Measure::of(items.iter())?;
        Ok(Self { items, measure, is_group: false })
    }
}

/// Fails unless the budget can afford a list of `count` items.
pub(crate) fn afford_items(count: usize) -> Outcome<()> {
    afford((count as u64).checked_mul(ITEM_BYTES))
}

impl From<bool> for Value {
    fn from(on: bool) -> Self {
        Self::Bool(on)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}
