//! Runs loops, and evaluates the variable `loop` in their bodies.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::Interpreter;
use super::scope::Scope;
use super::statements::Flow;
use crate::budget::step;
use crate::failure::{Outcome, type_fault};
use crate::syntax::ast::Loop;
use crate::value::{Generator, Measure, Object, Value, drain, equal};

/// The source of a loop's items.
enum Source {
    Items(std::vec::IntoIter<Value>),
    Generator(Rc<Generator>),
}

/// The state of a running loop.
pub(super) struct LoopState {
    node: Arc<Loop>,
    /// The scope around the loop.
    scope: Rc<Scope>,
    source: RefCell<Source>,
    /// Whether the source's items have already passed the loop's test.
    is_tested: Cell<bool>,
    index0: Cell<i64>,
    depth0: usize,
    /// The nesting depth of the items.
    nesting: u16,
    /// The number of items, if known before the loop ends.
    length: Cell<Option<usize>>,
    previous: RefCell<Option<Value>>,
    current: RefCell<Option<Value>>,
    /// The item after the current one, if it has been asked for. `Some(None)` if there is none.
    ahead: RefCell<Option<Option<Value>>>,
    /// The arguments of the last call of `changed`.
    seen: RefCell<Option<Vec<Value>>>,
}

impl LoopState {
    fn index(&self) -> usize {
        usize::try_from(self.index0.get() + 1).unwrap_or_default()
    }

    fn enter(&self, item: Value) {
        self.index0.set(self.index0.get() + 1);
        let before = self.current.replace(Some(item));
        self.previous.replace(before);
    }

    /// The next item, regardless of the loop's test.
    fn raw(&self) -> Outcome<Option<Value>> {
        match &mut *self.source.borrow_mut() {
            Source::Items(items) => Ok(items.next()),
            Source::Generator(generator) => generator.next(),
        }
    }

    fn changed(&self, values: Vec<Value>) -> Outcome<bool> {
        if let Some(seen) = &*self.seen.borrow()
            && seen.len() == values.len()
        {
            let mut same = true;
            for (a, b) in seen.iter().zip(&values) {
                same &= equal(a, b)?;
            }
            if same {
                return Ok(false);
            }
        }
        self.seen.replace(Some(values));
        Ok(true)
    }
}

impl Object for LoopState {
    fn type_name(&self) -> &'static str {
        "LoopContext"
    }

    fn shown(&self) -> Outcome<String> {
        Ok(format!("<LoopContext {}/{}>", self.index(), self.length().unwrap_or_default()))
    }

    fn attribute(&self, name: &str) -> Option<Value> {
        match name {
            "index" => Some(self.index().into()),
            "index0" => Some(Value::Int(self.index0.get())),
            "first" => Some(Value::Bool(self.index0.get() == 0)),
            "depth" => Some((self.depth0 + 1).into()),
            "depth0" => Some(self.depth0.into()),
            "previtem" => {
                let first = || Value::undefined_because("there is no previous item");
                Some(self.previous.borrow().clone().unwrap_or_else(first))
            }
            _ => None,
        }
    }

    fn methods(&self) -> &'static [&'static str] {
        &["changed", "cycle"]
    }

    fn call_method(&self, name: &str, arguments: Vec<Value>) -> Outcome<Value> {
        if name == "changed" {
            return self.changed(arguments).map(Value::Bool);
        }
        if arguments.is_empty() {
            return Err(type_fault("`loop.cycle` needs at least one item"));
        }
        let at = (self.index0.get().max(0) as usize) % arguments.len();
        Ok(arguments[at].clone())
    }

    fn length(&self) -> Option<usize> {
        let left = match &*self.source.borrow() {
            Source::Items(items) => items.len(),
            Source::Generator(_) => 0,
        };
        Some(self.length.get().unwrap_or(self.index() + left))
    }

    fn is_callable(&self) -> bool {
        true
    }

    fn depth(&self) -> u16 {
        self.nesting
    }

    fn release(&self) {
        drop(self.seen.take());
    }
}

impl Interpreter {
    pub(super) fn for_loop(&mut self, node: &Arc<Loop>, items: &Value, scope: &Rc<Scope>, depth0: usize) -> Outcome<()> {
        let nesting = Measure::of(std::iter::once(items))?.depth;
        let source = match items {
            Value::Generator(generator) => Source::Generator(Rc::clone(generator)),
            _ => Source::Items(drain(items)?.into_iter()),
        };
        let length = match &source {
            Source::Items(items) if node.test.is_none() => Some(items.len()),
            _ => None,
        };
        let state = Rc::new(LoopState {
            node: Arc::clone(node),
            scope: Rc::clone(scope),
            source: RefCell::new(source),
            is_tested: Cell::new(node.test.is_none()),
            index0: Cell::new(-1),
            depth0,
            nesting,
            length: Cell::new(length),
            previous: RefCell::default(),
            current: RefCell::default(),
            ahead: RefCell::default(),
            seen: RefCell::default(),
        });
        let mut inner = Scope::new(Some(scope));
        while let Some(item) = self.next_item(&state)? {
            step()?;
            state.enter(item.clone());
            let name = Arc::clone(&self.loop_name);
            inner.set(&name, Value::Object(Rc::clone(&state) as Rc<dyn Object>));
            self.assign(&node.target, item, &inner)?;
            if self.run(&node.body, &inner)? == Flow::Break {
                return Ok(());
            }
            // A macro may have captured the scope.
            if Rc::strong_count(&inner) == 1 {
                inner.clear();
            } else {
                inner = Scope::new(Some(scope));
            }
        }
        if state.index0.get() < 0 {
            self.run(&node.otherwise, &Scope::new(Some(scope)))?;
        }
        Ok(())
    }

    fn next_item(&mut self, state: &LoopState) -> Outcome<Option<Value>> {
        match state.ahead.take() {
            Some(item) => Ok(item),
            None => self.pull(state),
        }
    }

    /// The next item that passes the loop's test.
    fn pull(&mut self, state: &LoopState) -> Outcome<Option<Value>> {
        loop {
            step()?;
            let Some(item) = state.raw()? else { return Ok(None) };
            let Some(test) = state.node.test.as_ref().filter(|_| !state.is_tested.get()) else { return Ok(Some(item)) };
            let inner = Scope::new(Some(&state.scope));
            self.assign(&state.node.target, item.clone(), &inner)?;
            if self.eval(test, &inner)?.truth() {
                return Ok(Some(item));
            }
        }
    }

    fn peek(&mut self, state: &LoopState) -> Outcome<Option<Value>> {
        if state.ahead.borrow().is_none() {
            let next = self.pull(state)?;
            state.ahead.replace(Some(next));
        }
        Ok(state.ahead.borrow().clone().flatten())
    }

    /// The number of items. If it is unknown, reads all remaining items.
    fn length_of(&mut self, state: &LoopState) -> Outcome<usize> {
        if let Some(length) = state.length.get() {
            return Ok(length);
        }
        let ahead = matches!(*state.ahead.borrow(), Some(Some(_)));
        let mut rest = Vec::new();
        while let Some(item) = self.pull(state)? {
            crate::budget::charge(crate::budget::ITEM_BYTES)?;
            rest.push(item);
        }
        let length = state.index() + usize::from(ahead) + rest.len();
        state.length.set(Some(length));
        state.is_tested.set(true);
        state.source.replace(Source::Items(rest.into_iter()));
        Ok(length)
    }

    /// An attribute of `loop` that may require reading items ahead. `None` if the value is no loop, or has the attribute already.
    pub(super) fn loop_attribute(&mut self, value: &Value, name: &str) -> Outcome<Option<Value>> {
        let Value::Object(object) = value else { return Ok(None) };
        let Some(state) = object.cast::<LoopState>() else { return Ok(None) };
        Ok(Some(match name {
            "last" => Value::Bool(self.peek(state)?.is_none()),
            "nextitem" => self.peek(state)?.unwrap_or_else(|| Value::undefined_because("there is no next item")),
            "length" => self.length_of(state)?.into(),
            "revindex" => Value::from(self.length_of(state)?.saturating_sub(state.index().saturating_sub(1))),
            "revindex0" => Value::from(self.length_of(state)?.saturating_sub(state.index())),
            _ => return Ok(None),
        }))
    }

    /// Evaluates `loop(items)` in a recursive loop: the text that its body writes for these items.
    pub(super) fn call_loop(&mut self, state: &LoopState, items: &Value) -> Outcome<Value> {
        if !state.node.is_recursive {
            return Err(type_fault("`loop` can be called only in a loop that is marked `recursive`"));
        }
        let (node, scope, depth0) = (Arc::clone(&state.node), Rc::clone(&state.scope), state.depth0 + 1);
        self.capture(|interpreter| interpreter.for_loop(&node, items, &scope, depth0))
    }
}
