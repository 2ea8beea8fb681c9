//! Translates pipelines to expressions of Jinja.

use std::collections::HashMap;

use super::error::GoTemplateError;
use super::fields::{self, Form, Kind, OWN};
use super::tree::{Operand, Pipeline};

/// An expression in Jinja, and what it is in Ollama's data.
#[derive(Clone, Debug)]
pub struct Value {
    pub text: String,
    pub kind: Kind,
    /// The value's length, if it is known without the value.
    length: Option<String>,
}

impl Value {
    pub fn new(text: impl Into<String>, kind: Kind) -> Self {
        Self { text: text.into(), kind, length: None }
    }
}

/// The names that expressions can refer to.
pub struct Names {
    pub form: Form,
    dots: Vec<Value>,
    /// Variables by name, one map per block.
    scopes: Vec<HashMap<String, Value>>,
    made: usize,
}

type Outcome<T> = Result<T, GoTemplateError>;

fn fault<T>(line: usize, what: impl Into<String>) -> Outcome<T> {
    Err(GoTemplateError::new(line, what))
}

/// A string literal of Jinja.
pub fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

impl Names {
    pub fn new(form: Form) -> Self {
        let root = Value::new("", Kind::Root);
        Self { form, dots: vec![root], scopes: vec![HashMap::new()], made: 0 }
    }

    /// Enters a block, with another value for the dot if it has one.
    pub fn enter(&mut self, dot: Option<Value>) {
        let dot = dot.or_else(|| self.dots.last().cloned());
        self.dots.extend(dot);
        self.scopes.push(HashMap::new());
    }

    pub fn leave(&mut self) {
        self.dots.pop();
        self.scopes.pop();
    }

    /// A new variable of the translation.
    pub fn fresh(&mut self) -> String {
        self.made += 1;
        format!("{OWN}.v{}", self.made)
    }

    /// Declares a variable in the current block, and returns its name in Jinja.
    pub fn declare(&mut self, name: &str, kind: Kind) -> String {
        let text = self.fresh();
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), Value::new(&*text, kind));
        }
        text
    }

    /// Finds the variable that is set anew, and returns its name in Jinja.
    pub fn assigned(&mut self, name: &str, kind: Kind, line: usize) -> Outcome<String> {
        let Some(known) = self.scopes.iter_mut().rev().find_map(|scope| scope.get_mut(name)) else {
            return fault(line, format!("the variable `${name}` is not declared"));
        };
        if known.kind != kind {
            known.kind = Kind::Any;
        }
        Ok(known.text.clone())
    }

    fn field(&self, value: Value, name: &str, line: usize) -> Outcome<Value> {
        let found = match value.kind {
            Kind::Root => fields::of_root(name, self.form),
            kind => fields::of_value(&value.text, kind, name),
        };
        match found {
            Some((text, kind)) => Ok(Value::new(text, kind)),
            None => fault(line, format!("the field `.{name}` is not known here: this value has {}", fields::names(value.kind))),
        }
    }

    fn with_fields(&self, value: Value, names: &[String], line: usize) -> Outcome<Value> {
        names.iter().try_fold(value, |value, name| self.field(value, name, line))
    }

    fn operand(&self, operand: &Operand, line: usize) -> Outcome<Value> {
        let plain = |text: String, kind: Kind| Ok(Value::new(text, kind));
        let root = || Value::new("", Kind::Root);
        match operand {
            Operand::Dot => Ok(self.dots.last().cloned().unwrap_or_else(root)),
            Operand::Field(names) => self.with_fields(self.dots.last().cloned().unwrap_or_else(root), names, line),
            Operand::Variable(name, names) if name.is_empty() => self.with_fields(root(), names, line),
            Operand::Variable(name, names) => match self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
                Some(value) => self.with_fields(value.clone(), names, line),
                None => fault(line, format!("the variable `${name}` is not declared")),
            },
            Operand::Text(text) => plain(literal(text), Kind::Text),
            Operand::Number(number) => plain(format!("({number})"), Kind::Number),
            Operand::Bool(flag) => plain(flag.to_string(), Kind::Flag),
            Operand::Nil => plain("none".to_owned(), Kind::Any),
            Operand::Function(name) => self.call(name, Vec::new(), line),
            Operand::Nested(pipeline, names) => self.with_fields(self.pipeline(pipeline)?, names, line),
        }
    }

    /// The value of a pipeline.
    pub fn pipeline(&self, pipeline: &Pipeline) -> Outcome<Value> {
        let line = pipeline.line;
        let mut piped: Option<Value> = None;
        for command in &pipeline.commands {
            let [first, rest @ ..] = command.as_slice() else { return fault(line, "a value is missing") };
            let mut args = rest.iter().map(|operand| self.operand(operand, line)).collect::<Outcome<Vec<_>>>()?;
            args.extend(piped.take());
            piped = Some(match first {
                Operand::Function(name) => self.call(name, args, line)?,
                first if args.is_empty() => self.operand(first, line)?,
                _ => return fault(line, "a value that is no function has arguments"),
            });
        }
        piped.map_or_else(|| fault(line, "a value is missing"), Ok)
    }

    fn call(&self, name: &str, args: Vec<Value>, line: usize) -> Outcome<Value> {
        let plain = |text: String, kind: Kind| Ok(Value::new(text, kind));
        if args.iter().any(|arg| arg.kind == Kind::Root) {
            return fault(line, format!("`{name}`: all values at once cannot be an argument"));
        }
        match (name, args.as_slice()) {
            ("not", [one]) => plain(format!("(not {})", one.text), Kind::Flag),
            ("and" | "or", [first, ..]) => {
                let same = args.iter().all(|arg| arg.kind == first.kind);
                plain(joined(&args, &format!(" {name} ")), if same { first.kind } else { Kind::Any })
            }
            ("eq", [one, other]) => plain(format!("({} == {})", one.text, other.text), Kind::Flag),
            ("eq", [one, others @ ..]) if !others.is_empty() => plain(format!("({} in {})", one.text, joined(others, ", ")), Kind::Flag),
            ("ne", [one, other]) => plain(format!("({} != {})", one.text, other.text), Kind::Flag),
            ("lt" | "le" | "gt" | "ge", [one, other]) => {
                let sign = if name.starts_with('l') { "<" } else { ">" };
                let equal = if name.ends_with('e') { "=" } else { "" };
                plain(format!("({} {sign}{equal} {})", one.text, other.text), Kind::Flag)
            }
            ("len", [one]) => plain(length(one), Kind::Number),
            ("index", [list, at]) => match (fields::item(list.kind), list.kind) {
                (Some(kind), _) => plain(format!("{}[{}]", list.text, at.text), kind),
                (None, Kind::Json) => plain(format!("{}[{}]", list.text, at.text), Kind::Json),
                _ => fault(line, "`index` needs a list"),
            },
            // Templates ask how long the rest of a list is, for every item of it.
            ("slice", [list, from]) => {
                let rest = Value::new(format!("{}[{}:]", list.text, from.text), list.kind);
                Ok(Value { length: Some(format!("({} - {})", length(list), from.text)), ..rest })
            }
            ("slice", [list, bounds @ ..]) if bounds.len() <= 2 => {
                let bound = |at: usize| bounds.get(at).map_or("", |bound| bound.text.as_str());
                plain(format!("{}[{}:{}]", list.text, bound(0), bound(1)), list.kind)
            }
            ("json", [one]) => plain(fields::json(&one.text), Kind::Text),
            ("print", [_, ..]) => {
                let parts = args.iter().map(|arg| print(arg, line)).collect::<Outcome<Vec<_>>>()?;
                plain(format!("({})", parts.join(" ~ ")), Kind::Text)
            }
            ("printf", [format, values @ ..]) => plain(formatted(format, values, line)?, Kind::Text),
            ("currentDate", []) => plain("strftime_now('%Y-%m-%d')".to_owned(), Kind::Text),
            (
                "not" | "and" | "or" | "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "len" | "index" | "slice" | "json" | "print"
                | "currentDate",
                _,
            ) => fault(line, format!("`{name}` does not take {} arguments", args.len())),
            _ => fault(line, format!("the function `{name}` is not supported: use a chat template in Jinja instead")),
        }
    }
}

/// The length of a value.
fn length(value: &Value) -> String {
    value.length.clone().unwrap_or_else(|| format!("({} | length)", value.text))
}

fn joined(values: &[Value], between: &str) -> String {
    let texts: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
    let comma = if between == ", " { "," } else { "" };
    format!("({}{comma})", texts.join(between))
}

/// The text that a value prints.
pub fn print(value: &Value, line: usize) -> Outcome<String> {
    match fields::printed(&value.text, value.kind) {
        Some(text) => Ok(text),
        None => fault(line, "a whole message or a list cannot be printed: print its fields, or `json` of it"),
    }
}

/// `printf` with the verbs for texts and numbers.
fn formatted(format: &Value, values: &[Value], line: usize) -> Outcome<String> {
    let (mut parts, mut rest, mut values) = (Vec::new(), format.text.as_str(), values.iter());
    if format.kind != Kind::Text || !rest.starts_with('\'') {
        return fault(line, "`printf` needs a format in quotes");
    }
    rest = &rest[1..rest.len() - 1];
    let mut text = String::new();
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        let verb = rest[at + 1..].chars().next();
        rest = &rest[at + 1 + verb.map_or(0, char::len_utf8)..];
        match verb {
            Some('%') => text.push('%'),
            Some('s' | 'd' | 'v') => {
                let Some(value) = values.next() else { return fault(line, "`printf` has fewer values than its format") };
                parts.push(format!("'{}'", std::mem::take(&mut text)));
                parts.push(print(value, line)?);
            }
            _ => return fault(line, "`printf`: only %s, %d, %v and %% are supported"),
        }
    }
    if values.next().is_some() {
        return fault(line, "`printf` has more values than its format");
    }
    text.push_str(rest);
    parts.push(format!("'{text}'"));
    Ok(format!("({})", parts.join(" ~ ")))
}
