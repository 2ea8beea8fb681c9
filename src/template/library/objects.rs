//! Jinja's objects `namespace`, `cycler` and `joiner`, the only values that change while a template renders.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;

use super::call_args::CallArgs;
use crate::failure::{Outcome, other, type_fault, value_fault};
use crate::value::{Measure, Object, Value, drain, repr};

/// The nesting depth of an object that holds these items.
fn depth_of(items: &[Value]) -> Outcome<u16> {
    Measure::of(items.iter()).map(|measure| measure.depth)
}

#[derive(Default)]
pub(crate) struct Namespace {
    members: RefCell<IndexMap<Arc<str>, Value>>,
    /// Whether the namespace's text is being written. Writing may lead back to the namespace.
    is_shown: Cell<bool>,
}

impl Namespace {
    pub fn set(&self, name: &Arc<str>, value: Value) -> Outcome<()> {
        crate::budget::charge(crate::budget::ITEM_BYTES)?;
        // The old value is dropped only after the borrow of the members has ended.
        let old = self.members.borrow_mut().insert(Arc::clone(name), value);
        drop(old);
        Ok(())
    }
}

impl Object for Namespace {
    fn type_name(&self) -> &'static str {
        "Namespace"
    }

    fn shown(&self) -> Outcome<String> {
        if self.is_shown.replace(true) {
            return Ok("<Namespace {...}>".into());
        }
        let pairs: Outcome<Vec<(Value, Value)>> =
            self.members.borrow().iter().map(|(name, value)| Ok((Value::shared(name), value.clone()))).collect();
        let text = pairs.and_then(Value::dict).and_then(|dict| repr(&dict));
        self.is_shown.set(false);
        Ok(format!("<Namespace {}>", text?))
    }

    fn attribute(&self, name: &str) -> Option<Value> {
        self.members.borrow().get(name).cloned()
    }

    fn release(&self) {
        drop(self.members.take());
    }
}

/// `namespace(pairs, **members)`.
pub(super) fn namespace(args: CallArgs) -> Outcome<Value> {
    let namespace = Namespace::default();
    for (key, value) in dict_pairs("namespace", args)? {
        let name: Arc<str> = key.as_text().ok_or_else(|| type_fault("the members of a namespace have strings as names"))?.into();
        namespace.set(&name, value)?;
    }
    Ok(Value::Object(Rc::new(namespace)))
}

/// The arguments of `dict`: another dict or pairs, and keywords.
pub(super) fn dict_pairs(what: &str, args: CallArgs) -> Outcome<Vec<(Value, Value)>> {
    if args.positional.len() > 1 {
        return Err(type_fault(format!("`{what}` got {} arguments, expected at most 1", args.positional.len())));
    }
    let mut pairs = Vec::new();
    match args.positional.first() {
        None => {}
        Some(Value::Dict(dict)) => pairs.extend(dict.iter().map(|(key, value)| (key.clone(), value.clone()))),
        Some(items) => {
            for item in drain(items)? {
                let mut pair = drain(&item)?.into_iter();
                match (pair.next(), pair.next(), pair.next()) {
                    (Some(key), Some(value), None) => pairs.push((key, value)),
                    _ => return Err(value_fault(format!("`{what}` needs pairs"))),
                }
            }
        }
    }
    pairs.extend(args.named.into_iter().map(|(name, value)| (Value::shared(&name), value)));
    Ok(pairs)
}

/// Returns its items in turn.
pub(crate) struct Cycler {
    items: Vec<Value>,
    at: Cell<usize>,
    depth: u16,
}

pub(super) fn cycler(args: CallArgs) -> Outcome<Value> {
    if let Some((name, _)) = args.named.first() {
        return Err(type_fault(format!("`cycler` has no argument `{name}`")));
    }
    if args.positional.is_empty() {
        return Err(other("`cycler` needs at least one item"));
    }
    let depth = depth_of(&args.positional)?;
    Ok(Value::Object(Rc::new(Cycler { items: args.positional, at: Cell::new(0), depth })))
}

impl Object for Cycler {
    fn type_name(&self) -> &'static str {
        "Cycler"
    }

    fn shown(&self) -> Outcome<String> {
        Ok(format!("<jinja2.utils.Cycler object at 0x{:x}>", std::ptr::from_ref(self).addr()))
    }

    fn attribute(&self, name: &str) -> Option<Value> {
        match name {
            "current" => self.items.get(self.at.get()).cloned(),
            "items" => Value::tuple(self.items.clone()).ok(),
            "pos" => Some(self.at.get().into()),
            _ => None,
        }
    }

    fn methods(&self) -> &'static [&'static str] {
        &["next", "reset"]
    }

    fn call_method(&self, name: &str, arguments: Vec<Value>) -> Outcome<Value> {
        CallArgs::of(arguments).none(name)?;
        if name == "reset" {
            self.at.set(0);
            return Ok(Value::None);
        }
        let at = self.at.get();
        self.at.set((at + 1) % self.items.len());
        Ok(self.items[at].clone())
    }

    fn depth(&self) -> u16 {
        self.depth
    }
}

/// Returns nothing on the first call, and a separator on later ones.
pub(crate) struct Joiner {
    separator: Value,
    used: Cell<bool>,
    depth: u16,
}

pub(super) fn joiner(args: CallArgs) -> Outcome<Value> {
    let [separator] = args.bind("joiner", ["sep"], 0)?;
    let separator = separator.map_or_else(|| Value::text(", "), Ok)?;
    let depth = depth_of(std::slice::from_ref(&separator))?;
    Ok(Value::Object(Rc::new(Joiner { separator, used: Cell::new(false), depth })))
}

impl Joiner {
    pub fn call(&self) -> Outcome<Value> {
        if self.used.replace(true) { Ok(self.separator.clone()) } else { Value::text("") }
    }
}

impl Object for Joiner {
    fn type_name(&self) -> &'static str {
        "Joiner"
    }

    fn shown(&self) -> Outcome<String> {
        Ok(format!("<jinja2.utils.Joiner object at 0x{:x}>", std::ptr::from_ref(self).addr()))
    }

    fn attribute(&self, name: &str) -> Option<Value> {
        match name {
            "sep" => Some(self.separator.clone()),
            "used" => Some(Value::Bool(self.used.get())),
            _ => None,
        }
    }

    fn is_callable(&self) -> bool {
        true
    }

    fn depth(&self) -> u16 {
        self.depth
    }
}
