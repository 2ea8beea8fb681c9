//! Calls methods of values.

use super::call_args::CallArgs;
use super::methods_other::{dict_method, float_method, int_method, sequence_method};
use super::methods_text::text_method;
use crate::failure::{Outcome, type_fault};
use crate::value::{Method, Number, Value};

/// Calls a method that [`super::attributes`] has found.
pub(crate) fn call_method(method: &Method, args: CallArgs) -> Outcome<Value> {
    match &method.receiver {
        Value::Text(text) => text_method(text, method.name, args),
        Value::Dict(dict) => dict_method(dict, method.name, args),
        Value::Function(_) => dict_method(&std::rc::Rc::new(crate::value::Dict::new([])?), method.name, args),
        Value::List(_) | Value::Tuple(_) | Value::Range(_) => sequence_method(&method.receiver, method.name, args),
        Value::Object(object) => {
            if let Some((name, _)) = args.named.first() {
                return Err(type_fault(format!("`{}` has no argument `{name}`", method.name)));
            }
            object.call_method(method.name, args.positional)
        }
        receiver => match Number::of(receiver) {
            Some(Number::Float(number)) => float_method(number, method.name, args),
            Some(number) => int_method(&number.big().unwrap_or_default(), method.name, args),
            None => Err(type_fault(format!("a value of type {} has no methods", receiver.type_name()))),
        },
    }
}
