//! Calls macros and the bodies of call blocks.

use std::rc::Rc;
use std::sync::Arc;

use super::Interpreter;
use super::scope::Scope;
use crate::budget::walk_over;
use crate::failure::{Outcome, type_fault};
use crate::library::call_args::CallArgs;
use crate::syntax::ast::Macro;
use crate::value::{Object, Value};

/// A macro with the scope in which it is defined.
pub(super) struct MacroValue {
    node: Arc<Macro>,
    scope: Rc<Scope>,
}

impl Object for MacroValue {
    fn type_name(&self) -> &'static str {
        "Macro"
    }

    fn shown(&self) -> Outcome<String> {
        Ok(format!("<Macro '{}'>", self.node.name))
    }

    fn attribute(&self, name: &str) -> Option<Value> {
        match name {
            "name" => Some(Value::shared(&self.node.name)),
            "arguments" => Value::tuple(self.node.params.iter().map(Value::shared).collect()).ok(),
            "caller" => Some(Value::Bool(self.node.reads_caller)),
            "catch_kwargs" => Some(Value::Bool(self.node.reads_kwargs)),
            "catch_varargs" => Some(Value::Bool(self.node.reads_varargs)),
            _ => None,
        }
    }

    fn is_callable(&self) -> bool {
        true
    }
}

impl Interpreter {
    pub(super) fn macro_value(&mut self, node: &Arc<Macro>, scope: &Rc<Scope>) -> Outcome<Value> {
        self.captured.scope(scope)?;
        Ok(Value::Object(Rc::new(MacroValue { node: Arc::clone(node), scope: Rc::clone(scope) })))
    }

    pub(super) fn define_macro(&mut self, node: &Arc<Macro>, scope: &Rc<Scope>) -> Outcome<()> {
        let value = self.macro_value(node, scope)?;
        scope.set(&node.name, value);
        Ok(())
    }

    /// Calls a macro and returns the text that it writes.
    pub(super) fn call_macro(&mut self, called: &MacroValue, args: CallArgs) -> Outcome<Value> {
        let node = Arc::clone(&called.node);
        let inner = Scope::new(Some(&called.scope));
        self.bind_parameters(&node, args, &inner)?;
        self.capture(|interpreter| interpreter.run(&node.body, &inner).map(|_| ()))
    }

    fn bind_parameters(&mut self, node: &Macro, args: CallArgs, scope: &Rc<Scope>) -> Outcome<()> {
        let CallArgs { positional, mut named } = args;
        let name = &node.name;
        // Each parameter is searched for among the names.
        walk_over((node.params.len() as u64).saturating_mul(named.len() as u64))?;
        let mut rest = positional.into_iter();
        let mut missing = Vec::new();
        for (at, param) in node.params.iter().enumerate() {
            let given = rest.next().or_else(|| named.iter().position(|(known, _)| known == param).map(|at| named.remove(at).1));
            match given {
                Some(value) => scope.set(param, value),
                None => missing.push((at, param)),
            }
        }
        if node.reads_caller {
            let caller = named.iter().position(|(known, _)| **known == *"caller").map(|at| named.remove(at).1);
            scope.set(&"caller".into(), caller.unwrap_or_else(|| Value::undefined_because("no caller is defined")));
        }
        if node.reads_kwargs {
            let pairs = std::mem::take(&mut named).into_iter().map(|(name, value)| (Value::shared(&name), value));
            scope.set(&"kwargs".into(), Value::dict(pairs)?);
        }
        if let Some((extra, _)) = named.first() {
            return Err(type_fault(format!("the macro `{name}` has no argument `{extra}`")));
        }
        let rest: Vec<Value> = rest.collect();
        if node.reads_varargs {
            scope.set(&"varargs".into(), Value::tuple(rest)?);
        } else if !rest.is_empty() {
            return Err(type_fault(format!("the macro `{name}` takes at most {} arguments", node.params.len())));
        }
        let first_default = node.params.len() - node.defaults.len();
        // A default can use the parameters before it.
        for (at, param) in missing {
            let value = match at.checked_sub(first_default) {
                Some(default) => self.eval(&node.defaults[default], scope)?,
                None => Value::undefined_because(format!("the parameter `{param}` was not given")),
            };
            scope.set(param, value);
        }
        Ok(())
    }
}
