//! Values with special behaviour: undefined ones, methods, and objects of the interpreter.

use std::any::Any;
use std::sync::Arc;

use super::{Object, Undefined, Value, repr};
use crate::failure::{Fault, Kind};

impl Undefined {
    pub fn fault(&self) -> Fault {
        Fault::new(
            Kind::Undefined,
            match self {
                Self::Name(name) => format!("`{name}` is undefined"),
                Self::Member(of, Value::Text(name)) => format!("a value of type {of} has no attribute `{}`", name.text),
                Self::Member(of, item) => format!("a value of type {of} has no element {}", repr(item).unwrap_or_default()),
                Self::Because(reason) => reason.clone(),
            },
        )
    }
}

impl dyn Object {
    pub fn cast<T: Object>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

impl Value {
    pub fn undefined(name: &Arc<str>) -> Self {
        Self::Undefined(Undefined::Name(Arc::clone(name)).into())
    }

    pub fn undefined_because(reason: impl Into<String>) -> Self {
        Self::Undefined(Undefined::Because(reason.into()).into())
    }

    /// The undefined value for a member that a value lacks.
    pub fn undefined_member(of: &Value, name: Value) -> Self {
        // Only flat keys are kept, so undefined values do not nest.
        let name = match name {
            Self::Undefined(_) | Self::Method(_) | Self::Object(_) | Self::Generator(_) => Self::None,
            name if name.measure().depth > 0 => Self::None,
            name => name,
        };
        Self::Undefined(Undefined::Member(of.type_name(), name).into())
    }
}
