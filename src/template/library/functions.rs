//! The functions that every template can call.

use super::call_args::{CallArgs, int};
use super::objects::{cycler, dict_pairs, joiner, namespace};
use crate::clock::Clock;
use crate::failure::{Fault, Kind, Outcome, value_fault};
use crate::value::{Range, Value, text_of};

const FUNCTIONS: [&str; 7] = ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"];

/// The function of that name.
pub(crate) fn function(name: &str) -> Option<Value> {
    FUNCTIONS.into_iter().find(|known| *known == name).map(Value::Function)
}

pub(crate) fn call_function(name: &str, args: CallArgs, clock: Clock) -> Outcome<Value> {
    match name {
        "range" => range(args),
        "dict" => Value::dict(dict_pairs("dict", args)?),
        "namespace" => namespace(args),
        "cycler" => cycler(args),
        "joiner" => joiner(args),
        "strftime_now" => {
            let [format] = args.bind(name, ["format"], 1)?;
            let format = format.unwrap_or(Value::None);
            let format = super::call_args::text(name, &format)?;
            // A code of two bytes becomes at most a date and time.
            crate::budget::afford_copies(format.len(), 16, 0)?;
            Value::text(clock.strftime(format)?)
        }
        _ => {
            let [message] = args.bind(name, ["message"], 1)?;
            Err(Fault::new(Kind::Raised, text_of(&message.unwrap_or(Value::None))?))
        }
    }
}

fn range(args: CallArgs) -> Outcome<Value> {
    let [first, second, step] = args.bind("range", ["", "", ""], 1)?;
    let number = |value: Option<Value>, default: i64| value.map_or(Ok(default), |value| int("range", &value));
    let step = number(step, 1)?;
    if step == 0 {
        return Err(value_fault("the step of a range is 0"));
    }
    let (start, stop) = match second {
        Some(stop) => (number(first, 0)?, number(Some(stop), 0)?),
        None => (0, number(first, 0)?),
    };
    Ok(Value::Range(Range::new(start, stop, step)?.into()))
}
