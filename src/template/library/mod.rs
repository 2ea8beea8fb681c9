//! Everything that templates can call: operators, filters, tests, methods and functions, as Jinja and Python define them.

pub(crate) mod attributes;
pub(crate) mod call_args;
mod cases;
mod digits;
mod entities;
mod filters;
mod format_spec;
pub(crate) mod functions;
mod html;
mod index;
mod json;
mod markup;
pub(crate) mod methods;
mod methods_other;
mod methods_text;
mod number_filters;
pub(crate) mod objects;
pub(crate) mod operators;
mod order;
mod percent;
mod predicates;
mod pretty;
mod select_filters;
mod sequence_filters;
mod splitting;
mod str_format;
mod text_filters;
mod urlize;
mod wrap;

pub(crate) use filters::{filter, has_filter};
pub(crate) use index::slice;
pub(crate) use markup::escape;
pub(crate) use operators::compare;
pub(crate) use predicates::{has_test, test};
