//! The table of Jinja's filters.

use std::cell::Cell;

use super::call_args::CallArgs;
use super::{json, number_filters as numbers, pretty, select_filters as select, sequence_filters as sequences, text_filters as texts};
use super::{urlize, wrap};
use crate::budget::walk_over;
use crate::failure::{Outcome, limit, other};
use crate::value::Value;

type Filter = fn(&Value, CallArgs) -> Outcome<Value>;

/// Returns the filter `name`. `map` and the selecting filters (`CALLING`) need this table themselves, so [`filter`] calls them.
fn named(name: &str) -> Option<Filter> {
    Some(match name {
        "abs" => numbers::abs,
        "attr" => sequences::attr,
        "batch" => sequences::batch,
        "capitalize" => texts::capitalize,
        "center" => texts::center,
        "count" | "length" => sequences::length,
        "d" | "default" => sequences::default,
        "dictsort" => sequences::dictsort,
        "e" | "escape" => texts::escape,
        "filesizeformat" => numbers::filesizeformat,
        "first" => sequences::first,
        "float" => numbers::float,
        "forceescape" => texts::forceescape,
        "format" => texts::format,
        "from_json" => json::from_json,
        "groupby" => select::groupby,
        "indent" => texts::indent,
        "int" => numbers::int,
        "items" => sequences::items,
        "join" => select::join,
        "last" => sequences::last,
        "list" => sequences::list,
        "lower" => texts::lower,
        "max" => select::max,
        "min" => select::min,
        "pprint" => pretty::pprint,
        "random" => sequences::random,
        "replace" => texts::replace,
        "reverse" => sequences::reverse,
        "round" => numbers::round,
        "safe" => texts::safe,
        "slice" => sequences::slice,
        "sort" => select::sort,
        "string" => texts::string,
        "striptags" => texts::striptags,
        "sum" => select::sum,
        "title" => texts::title,
        "tojson" => json::tojson,
        "trim" => texts::trim,
        "truncate" => wrap::truncate,
        "unique" => select::unique,
        "upper" => texts::upper,
        "urlencode" => texts::urlencode,
        "urlize" => urlize::urlize,
        "wordcount" => texts::wordcount,
        "wordwrap" => wrap::wordwrap,
        "xmlattr" => texts::xmlattr,
        _ => return None,
    })
}

const CALLING: [&str; 5] = ["map", "select", "reject", "selectattr", "rejectattr"];

pub(crate) fn has_filter(name: &str) -> bool {
    CALLING.contains(&name) || named(name).is_some()
}

/// The deepest nesting of `map` calls that apply `map`, since each level recurses.
const MAX_MAPS: usize = 100;

thread_local! {
    static MAPS: Cell<usize> = const { Cell::new(0) };
}

fn map(value: &Value, args: CallArgs, test: select::Test) -> Outcome<Value> {
    let depth = MAPS.get();
    if depth == MAX_MAPS {
        return Err(limit(format!("`map` applies itself more than {MAX_MAPS} times")));
    }
    MAPS.set(depth + 1);
    let result = select::map(value, args, &|name, value, args| filter(name, value, args, test));
    MAPS.set(depth);
    result
}

/// Evaluates `value | name(args)`. `test`: the function through which the selecting filters call tests.
pub(crate) fn filter(name: &str, value: &Value, args: CallArgs, test: select::Test) -> Outcome<Value> {
    if let (Value::Text(text), false) = (value, matches!(name, "d" | "default" | "first" | "safe")) {
        walk_over(text.text.len() as u64)?;
    }
    match name {
        "map" => map(value, args, test),
        "select" => select::select(value, args, test, [true, false]),
        "reject" => select::select(value, args, test, [false, false]),
        "selectattr" => select::select(value, args, test, [true, true]),
        "rejectattr" => select::select(value, args, test, [false, true]),
        _ => match named(name) {
            Some(filter) => filter(value, args),
            None => Err(other(format!("there is no filter `{name}`"))),
        },
    }
}
