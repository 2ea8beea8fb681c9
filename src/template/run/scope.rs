//! [`Scope`]: the variables of a part of a template.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::failure::Outcome;
use crate::syntax::ast::Text;
use crate::value::{Object, Value};

/// The variables of a template, a loop's body, a macro or another block. Each scope sees the variables of the scope around it.
#[derive(Default)]
pub(super) struct Scope {
    variables: RefCell<Vec<(Text, Value)>>,
    outer: Option<Rc<Scope>>,
}

impl Scope {
    pub fn new(outer: Option<&Rc<Scope>>) -> Rc<Self> {
        Rc::new(Self { variables: RefCell::default(), outer: outer.cloned() })
    }

    pub fn set(&self, name: &Text, value: Value) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => variables.push((Text::clone(name), value)),
        }
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some((_, value)) = scope.variables.borrow().iter().find(|(known, _)| **known == *name) {
                return Some(value.clone());
            }
            scope = scope.outer.as_deref()?;
        }
    }

    pub fn clear(&self) {
        drop(self.variables.take());
    }
}

thread_local! {
    /// Variables of dropped scopes that are still to be freed. Empty unless a scope is being dropped.
    static GONE: RefCell<Vec<Vec<(Text, Value)>>> = const { RefCell::new(Vec::new()) };
    static IS_FREEING: Cell<bool> = const { Cell::new(false) };
}

/// Frees scopes one after another. A variable may be a loop that holds another scope, and so on without limit, so that recursion would
/// overflow the stack.
impl Drop for Scope {
    fn drop(&mut self) {
        let variables = self.variables.take();
        if variables.is_empty() {
            return;
        }
        GONE.with_borrow_mut(|gone| gone.push(variables));
        if IS_FREEING.replace(true) {
            return;
        }
        while let Some(variables) = GONE.with_borrow_mut(Vec::pop) {
            drop(variables);
        }
        IS_FREEING.set(false);
    }
}

/// Scopes captured by macros, and objects that receive values after they are made. They may refer to each other in a cycle,
/// so they are emptied when the render ends. All are held until then, so a long chain of them is not freed by recursion.
#[derive(Default)]
pub(super) struct Captured {
    scopes: Vec<Rc<Scope>>,
    objects: Vec<Rc<dyn Object>>,
}

impl Captured {
    pub fn scope(&mut self, scope: &Rc<Scope>) -> Outcome<()> {
        if !self.scopes.last().is_some_and(|last| Rc::ptr_eq(last, scope)) {
            crate::budget::charge(crate::budget::ITEM_BYTES)?;
            self.scopes.push(Rc::clone(scope));
        }
        Ok(())
    }

    pub fn object(&mut self, object: &Rc<dyn Object>) -> Outcome<()> {
        if !self.objects.last().is_some_and(|last| std::ptr::addr_eq(Rc::as_ptr(last), Rc::as_ptr(object))) {
            crate::budget::charge(2 * crate::budget::ITEM_BYTES)?;
            self.objects.push(Rc::clone(object));
        }
        Ok(())
    }

    pub fn free(&mut self) {
        self.objects.iter().for_each(|object| object.release());
        self.scopes.iter().for_each(|scope| scope.clear());
    }
}
