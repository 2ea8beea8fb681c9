//! Evaluates calls.

use std::collections::HashSet;
use std::rc::Rc;

use super::Interpreter;
use super::loops::LoopState;
use super::macros::MacroValue;
use super::scope::Scope;
use crate::budget::walk_items;
use crate::failure::{Outcome, type_fault};
use crate::library::call_args::CallArgs;
use crate::library::functions::call_function;
use crate::library::methods::call_method;
use crate::library::objects::{Joiner, Namespace};
use crate::syntax::ast::Arguments;
use crate::value::{Value, drain};

impl Interpreter {
    pub(super) fn arguments(&mut self, arguments: &Arguments, scope: &Rc<Scope>) -> Outcome<CallArgs> {
        let mut args = CallArgs::default();
        for value in &arguments.positional {
            args.positional.push(self.eval(value, scope)?);
        }
        for (name, value) in &arguments.named {
            args.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(more) = &arguments.more {
            let more = self.eval(more, scope)?;
            args.positional.extend(drain(&more)?);
        }
        if let Some(more) = &arguments.more_named {
            let more = self.eval(more, scope)?;
            let Value::Dict(dict) = &more else { return Err(type_fault(format!("`**` needs a dict, not {}", more.type_name()))) };
            walk_items(dict.len())?;
            for (key, value) in dict.iter() {
                let name = key.as_text().ok_or_else(|| type_fault("the names of arguments are strings"))?;
                args.named.push((name.into(), value.clone()));
            }
        }
        let mut known = HashSet::with_capacity(args.named.len());
        match args.named.iter().find(|(name, _)| !known.insert(name)) {
            Some((name, _)) => Err(type_fault(format!("a call has two values for `{name}`"))),
            None => Ok(args),
        }
    }

    pub(super) fn call(&mut self, callee: &Value, args: CallArgs) -> Outcome<Value> {
        match callee {
            Value::Undefined(why) => Err(why.fault()),
            Value::Function(name) => {
                let value = call_function(name, args, self.clock)?;
                if let Value::Object(object) = &value
                    && object.cast::<Namespace>().is_some()
                {
                    self.captured.object(object)?;
                }
                Ok(value)
            }
            Value::Method(method) => {
                if let Value::Object(object) = &method.receiver {
                    self.captured.object(object)?;
                }
                call_method(method, args)
            }
            Value::Object(object) => {
                if let Some(called) = object.cast::<MacroValue>() {
                    return self.deeper(|interpreter| interpreter.call_macro(called, args));
                }
                if let Some(state) = object.cast::<LoopState>() {
                    let [items] = args.bind("loop", ["iterable"], 1)?;
                    return self.deeper(|interpreter| interpreter.call_loop(state, &items.unwrap_or(Value::None)));
                }
                match object.cast::<Joiner>() {
                    Some(joiner) => args.none("joiner").and_then(|()| joiner.call()),
                    None => Err(type_fault(format!("a value of type {} cannot be called", callee.type_name()))),
                }
            }
            _ => Err(type_fault(format!("a value of type {} cannot be called", callee.type_name()))),
        }
    }
}
