//! Runs statements.

use std::rc::Rc;

use super::Interpreter;
use super::scope::Scope;
use crate::budget::step;
use crate::failure::{Outcome, other, type_fault, value_fault};
use crate::library::call_args::CallArgs;
use crate::library::escape;
use crate::library::objects::Namespace;
use crate::syntax::ast::{Arguments, Expr, Filters, Statement, StatementKind as Kind, Target};
use crate::value::{Value, drain, text_of};

/// The way in which a statement ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

impl Interpreter {
    pub(super) fn run(&mut self, body: &[Statement], scope: &Rc<Scope>) -> Outcome<Flow> {
        for statement in body {
            step()?;
            let flow = self.deeper(|interpreter| interpreter.statement(statement, scope)).map_err(|fault| fault.at(statement.line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &Statement, scope: &Rc<Scope>) -> Outcome<Flow> {
        match &statement.kind {
            Kind::Text(text) => self.output.write(text)?,
            Kind::Print(value) => {
                let value = self.eval(value, scope)?;
                self.print(&value)?;
            }
            Kind::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.truth() {
                        return self.run(body, scope);
                    }
                }
                return self.run(otherwise, scope);
            }
            Kind::For(node) => {
                let items = self.eval(&node.items, scope)?;
                self.for_loop(node, &items, scope, 0)?;
            }
            Kind::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Kind::SetBlock(target, filters, body) => {
                let value = self.captured_block(body, filters, scope)?;
                self.assign(target, value, scope)?;
            }
            Kind::With(values, body) => return self.with(values, body, scope),
            Kind::Macro(node) => self.define_macro(node, scope)?,
            Kind::CallBlock(callee, arguments, body) => {
                let caller = self.macro_value(body, scope)?;
                let value = self.call_with(callee, arguments, Some(caller), scope)?;
                self.print(&value)?;
            }
            Kind::FilterBlock(filters, body) => {
                let value = self.captured_block(body, filters, scope)?;
                self.print(&value)?;
            }
            Kind::Scope(body) => return self.run(body, &Scope::new(Some(scope))),
            Kind::Block(body) => {
                let root = Rc::clone(&self.root);
                return self.run(body, &Scope::new(Some(&root)));
            }
            Kind::AutoEscape(on, body) => return self.auto_escape(on, body, scope),
            Kind::OtherTemplate(tag) => return Err(other(format!("`{tag}` needs another template, and there is none"))),
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn print(&mut self, value: &Value) -> Outcome<()> {
        match value {
            Value::Text(text) if !self.escapes || text.safe => self.output.write(&text.text),
            Value::Undefined(_) => Ok(()),
            _ => {
                let text = text_of(value)?;
                if self.escapes { self.output.write(&escape(&text)?) } else { self.output.write(&text) }
            }
        }
    }

    fn with(&mut self, values: &[(Target, Expr)], body: &[Statement], scope: &Rc<Scope>) -> Outcome<Flow> {
        let inner = Scope::new(Some(scope));
        for (target, value) in values {
            // A value sees the variables outside, not those of the same `with`.
            let value = self.eval(value, scope)?;
            self.assign(target, value, &inner)?;
        }
        self.run(body, &inner)
    }

    fn auto_escape(&mut self, on: &Expr, body: &[Statement], scope: &Rc<Scope>) -> Outcome<Flow> {
        let on = self.eval(on, scope)?.truth();
        let before = std::mem::replace(&mut self.escapes, on);
        let flow = self.run(body, &Scope::new(Some(scope)));
        self.escapes = before;
        flow
    }

    /// Captures the text that `write` writes, as a value.
    pub(super) fn capture(&mut self, write: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<Value> {
        self.output.start_capture();
        let result = write(self);
        let text = self.output.end_capture();
        result?;
        // The text has already been charged.
        Ok(Value::Text(crate::value::Text { text: text.into(), safe: self.escapes }))
    }

    fn captured_block(&mut self, body: &[Statement], filters: &Filters, scope: &Rc<Scope>) -> Outcome<Value> {
        let inner = Scope::new(Some(scope));
        let mut value = self.capture(|interpreter| interpreter.run(body, &inner).map(|_| ()))?;
        for (name, arguments) in filters {
            let args = self.arguments(arguments, scope)?;
            value = self.filter(name, &value, args)?;
        }
        Ok(value)
    }

    pub(super) fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Outcome<()> {
        match target {
            Target::Name(name) => {
                scope.set(name, value);
                Ok(())
            }
            Target::Member(name, member) => match self.variable(name, scope) {
                Value::Object(object) if object.cast::<Namespace>().is_some() => {
                    object.cast::<Namespace>().map_or(Ok(()), |namespace| namespace.set(member, value))
                }
                _ => Err(other(format!("`{name}.{member}` cannot be set: `{name}` is not a namespace"))),
            },
            Target::Tuple(targets) => {
                let items = drain(&value).map_err(|_| type_fault(format!("a value of type {} cannot be unpacked", value.type_name())))?;
                if items.len() != targets.len() {
                    return Err(value_fault(format!("{} values cannot be assigned to {} names", items.len(), targets.len())));
                }
                targets.iter().zip(items).try_for_each(|(target, item)| self.assign(target, item, scope))
            }
        }
    }

    /// Calls the result of `callee` with `caller` as an additional argument.
    fn call_with(&mut self, callee: &Expr, arguments: &Arguments, caller: Option<Value>, scope: &Rc<Scope>) -> Outcome<Value> {
        let callee = self.eval(callee, scope)?;
        let mut args: CallArgs = self.arguments(arguments, scope)?;
        args.named.extend(caller.map(|caller| ("caller".into(), caller)));
        self.call(&callee, args)
    }
}
