//! [`Fault`]: why a template does not parse or a render stops.

use std::borrow::Cow;

/// The kind of exception that Jinja in Python would raise. Some filters catch some kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `raise_exception`, with the template's own text.
    Raised,
    /// A limit of the sandbox, which nothing catches.
    Limit,
    Syntax,
    Type,
    Value,
    Lookup,
    /// An operation on an undefined value.
    Undefined,
    /// Anything else: an overflow, a division by zero, or a runtime error of Jinja.
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Fault(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: Kind,
    text: String,
    line: Option<u32>,
}

pub(crate) type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub fn new(kind: Kind, text: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner { kind, text: text.into().into_owned(), line: None }))
    }

    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The line in the source, counted from 1.
    pub fn line(&self) -> Option<u32> {
        self.0.line
    }

    /// Adds the line, unless an inner statement has already added its own.
    pub fn at(mut self, line: u32) -> Self {
        self.0.line.get_or_insert(line);
        self
    }
}

pub(crate) fn type_fault(text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(Kind::Type, text)
}

pub(crate) fn value_fault(text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(Kind::Value, text)
}

pub(crate) fn limit(text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(Kind::Limit, text)
}

pub(crate) fn other(text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(Kind::Other, text)
}
