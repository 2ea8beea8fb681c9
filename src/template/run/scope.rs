//! Variables.

use std::cell::RefCell;
use std::rc::Rc;

use crate::failure::Outcome;
use crate::syntax::ast::Text;
use crate::value::{Object, Value};

/// The variables of a template, a loop's body, a macro or another block. Each sees those of the scope around it.
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

/// Scopes that macros capture, and objects that are given values after they are made. They may hold each other in a circle, so they are
/// emptied when the render ends. All of them are held until then, so that a long chain of them is not freed by recursion.
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
