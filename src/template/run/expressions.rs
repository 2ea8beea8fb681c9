//! Evaluates expressions.

use std::rc::Rc;

use super::Interpreter;
use super::scope::Scope;
use crate::budget::step;
use crate::failure::{Kind, Outcome};
use crate::library::attributes::{attribute, item};
use crate::library::call_args::CallArgs;
use crate::library::functions::function;
use crate::library::operators::{binary, concat, signed};
use crate::library::{self, compare, slice};
use crate::syntax::ast::{Comparison, Expr, Literal, Text};
use crate::value::Value;

fn literal(literal: &Literal) -> Value {
    match literal {
        Literal::None => Value::None,
        Literal::Bool(on) => Value::Bool(*on),
        Literal::Int(number) => Value::Int(*number),
        Literal::Large(number) => Value::big(number.clone()),
        Literal::Float(number) => Value::Float(*number),
        Literal::Text(text) => Value::shared(text),
    }
}

impl Interpreter {
    pub(super) fn eval(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Outcome<Value> {
        step()?;
        match expr {
            Expr::Const(value) => Ok(literal(value)),
            Expr::Name(name) => Ok(self.variable(name, scope)),
            _ => self.deeper(|interpreter| interpreter.composite(expr, scope)),
        }
    }

    /// The value of a variable, or else the function of that name.
    pub(super) fn variable(&self, name: &Text, scope: &Rc<Scope>) -> Value {
        scope.get(name).or_else(|| function(name)).unwrap_or_else(|| Value::undefined(name))
    }

    fn all(&mut self, exprs: &[Expr], scope: &Rc<Scope>) -> Outcome<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn composite(&mut self, expr: &Expr, scope: &Rc<Scope>) -> Outcome<Value> {
        match expr {
            Expr::Const(value) => Ok(literal(value)),
            Expr::Name(name) => Ok(self.variable(name, scope)),
            Expr::List(items) => Value::list(self.all(items, scope)?),
            Expr::Tuple(items) => Value::tuple(self.all(items, scope)?),
            Expr::Dict(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| Ok((self.eval(key, scope)?, self.eval(value, scope)?)));
                let pairs: Vec<(Value, Value)> = pairs.collect::<Outcome<_>>()?;
                Value::dict(pairs)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.eval(value, scope)?.truth())),
            Expr::Sign(is_minus, value) => signed(*is_minus, &self.eval(value, scope)?),
            Expr::Binary(operator, left, right) => {
                let left = self.eval(left, scope)?;
                binary(*operator, &left, &self.eval(right, scope)?)
            }
            Expr::And(left, right) => {
                let left = self.eval(left, scope)?;
                if left.truth() { self.eval(right, scope) } else { Ok(left) }
            }
            Expr::Or(left, right) => {
                let left = self.eval(left, scope)?;
                if left.truth() { Ok(left) } else { self.eval(right, scope) }
            }
            // Jinja joins constants before it knows whether to escape them.
            Expr::Concat(parts) => concat(&self.all(parts, scope)?, self.escapes && !expr.is_constant()),
            Expr::Compare(first, rest) => self.comparisons(first, rest, scope),
            Expr::If { test, then, otherwise } => match (self.eval(test, scope)?.truth(), otherwise) {
                (true, _) => self.eval(then, scope),
                (false, Some(otherwise)) => self.eval(otherwise, scope),
                (false, None) => Ok(Value::undefined_because("the condition of an `if` without `else` does not hold")),
            },
            Expr::Attribute(value, name) => {
                let value = self.eval(value, scope)?;
                self.attribute(&value, name)
            }
            Expr::Item(value, key) => {
                let value = self.eval(value, scope)?;
                item(&value, &self.eval(key, scope)?)
            }
            Expr::Slice(value, bounds) => match self.slice(value, bounds, scope) {
                // For a constant, Jinja looks an attribute up as if it were an item.
                Err(fault) if fault.kind() == Kind::Type && expr.is_constant() => Ok(Value::undefined_because(fault.text())),
                result => result,
            },
            Expr::Filter(value, name, arguments) => {
                let value = self.eval(value, scope)?;
                let args = self.arguments(arguments, scope)?;
                self.filter(name, &value, args)
            }
            Expr::Test(value, name, arguments) => {
                let value = self.eval(value, scope)?;
                Ok(Value::Bool(library::test(name, &value, self.arguments(arguments, scope)?)?))
            }
            Expr::Call(callee, arguments) => {
                let callee = self.eval(callee, scope)?;
                let args = self.arguments(arguments, scope)?;
                self.call(&callee, args)
            }
        }
    }

    /// Evaluates `a < b < c`: each operand is evaluated once, and none after the first comparison that fails.
    fn comparisons(&mut self, first: &Expr, rest: &[(Comparison, Expr)], scope: &Rc<Scope>) -> Outcome<Value> {
        let mut left = self.eval(first, scope)?;
        for (comparison, right) in rest {
            let right = self.eval(right, scope)?;
            if !compare(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn slice(&mut self, value: &Expr, bounds: &[Option<Expr>; 3], scope: &Rc<Scope>) -> Outcome<Value> {
        let value = self.eval(value, scope)?;
        let mut bound = |at: usize| bounds[at].as_ref().map_or(Ok(Value::None), |bound| self.eval(bound, scope));
        let (start, stop, step) = (bound(0)?, bound(1)?, bound(2)?);
        slice(&value, [&start, &stop, &step])
    }

    fn attribute(&mut self, value: &Value, name: &str) -> Outcome<Value> {
        match self.loop_attribute(value, name)? {
            Some(found) => Ok(found),
            None => attribute(value, name),
        }
    }

    pub(super) fn filter(&mut self, name: &str, value: &Value, args: CallArgs) -> Outcome<Value> {
        library::filter(name, value, args, library::test)
    }
}
