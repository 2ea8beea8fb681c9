//! The fields that a request may have. An unknown one is refused, with the nearest known name, unless the configuration ignores them.
//!
//! What is known follows from the type that describes the request in the OpenAPI document, its objects and lists included. So a field is
//! known as soon as it is documented. A dialect adds the names that it knows and does not document.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{ApiError, Kind, quoted};
use config::UnknownFields;

/// A field that a dialect knows without documenting it.
pub struct Also {
    /// The type that has the field.
    pub schema: &'static str,
    pub field: &'static str,
    /// Why its value means nothing here, or what refuses it.
    #[allow(dead_code, reason = "the table's readers need it, the program does not")]
    pub reason: &'static str,
}

/// A name that other servers use, and ours for the same.
pub type Alias = (&'static str, &'static str);

/// Deeper references are not followed: what stands there is free.
const MAX_DEPTH: usize = 24;
/// How alike two names must be for one to be offered for the other: 1 is equal.
const ALIKE: f64 = 0.82;
/// The longest name that is compared with the known ones. In bytes.
const MAX_COMPARED: usize = 64;

/// The fields of a JSON value, and of what it holds.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    fields: BTreeMap<String, Field>,
    /// What a list holds.
    items: Option<Box<Shape>>,
    /// Whether an object may have any field.
    open: bool,
}

#[derive(Clone, Debug, Default)]
struct Field {
    shape: Shape,
    /// Only a field that is documented is offered for an unknown one.
    documented: bool,
}

/// The schemas that a shape is made of, by name, and the tables of the dialect.
struct Reader<'a> {
    schemas: BTreeMap<String, Value>,
    also: &'a [Also],
}

impl Shape {
    /// The shape that `T` documents, with what `also` adds to its types.
    pub fn of<T: ToSchema>(also: &[Also]) -> Self {
        let mut all = Vec::new();
        T::schemas(&mut all);
        let name = T::name().into_owned();
        all.push((name.clone(), T::schema()));
        let json = |(name, schema)| (name, serde_json::to_value(schema).expect("a schema is JSON"));
        let reader = Reader { schemas: all.into_iter().map(json).collect(), also };
        reader.named(&name, 0)
    }

    /// Adds fields that the dialect refuses by name.
    #[must_use]
    pub fn with(mut self, names: impl Iterator<Item = &'static str>) -> Self {
        for name in names {
            self.fields.entry(name.to_owned()).or_insert_with(Field::open);
        }
        self
    }

    /// Leaves what these fields hold to whoever reads them.
    #[must_use]
    pub fn leaving(mut self, names: &[&str]) -> Self {
        for name in names {
            self.fields.entry((*name).to_owned()).and_modify(|field| field.shape = Field::open().shape);
        }
        self
    }

    /// Refuses the first field that is not known, unless `unknown` says otherwise.
    pub fn check(&self, body: &Value, aliases: &[Alias], unknown: UnknownFields) -> Result<(), ApiError> {
        match unknown {
            UnknownFields::Refuse => self.check_at(body, &Path::Root, aliases),
            UnknownFields::Ignore => Ok(()),
        }
    }

    fn check_at(&self, value: &Value, path: &Path<'_>, aliases: &[Alias]) -> Result<(), ApiError> {
        match (value, &self.items) {
            (Value::Object(map), _) if !self.open && !self.fields.is_empty() => self.check_fields(map, path, aliases),
            (Value::Array(items), Some(shape)) if shape.items.is_some() || !shape.fields.is_empty() => {
                items.iter().enumerate().try_for_each(|(i, item)| shape.check_at(item, &Path::Item(path, i), aliases))
            }
            _ => Ok(()),
        }
    }

    fn check_fields(&self, map: &Map<String, Value>, path: &Path<'_>, aliases: &[Alias]) -> Result<(), ApiError> {
        for (name, value) in map {
            let at = Path::Field(path, name);
            match self.fields.get(name) {
                Some(field) => field.shape.check_at(value, &at, aliases)?,
                None if asks_nothing(value) => {}
                None => return Err(self.unknown(name, &at, aliases)),
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str, path: &Path<'_>, aliases: &[Alias]) -> ApiError {
        let documented = self.fields.iter().filter(|(_, field)| field.documented).map(|(known, _)| known.as_str());
        refused(&path.to_string(), nearest(documented, name, aliases))
    }

    /// What either shape knows.
    fn merge(&mut self, other: Self) {
        self.open |= other.open;
        for (name, field) in other.fields {
            let own = self.fields.entry(name).or_default();
            own.documented |= field.documented;
            own.shape.merge(field.shape);
        }
        match (&mut self.items, other.items) {
            (Some(items), Some(more)) => items.merge(*more),
            (items, more) => *items = items.take().or(more),
        }
    }
}

impl Field {
    /// A field with any value, which is not offered.
    fn open() -> Self {
        Self { shape: Shape { open: true, ..Shape::default() }, documented: false }
    }
}

impl Reader<'_> {
    fn named(&self, name: &str, depth: usize) -> Shape {
        let Some(schema) = self.schemas.get(name).filter(|_| depth < MAX_DEPTH) else { return Shape { open: true, ..Shape::default() } };
        let mut shape = self.shape(schema, depth + 1);
        for also in self.also.iter().filter(|also| also.schema == name) {
            shape.fields.entry(also.field.to_owned()).or_insert_with(Field::open);
        }
        shape
    }

    fn shape(&self, schema: &Value, depth: usize) -> Shape {
        let mut shape = Shape::default();
        if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
            shape.merge(self.named(name, depth));
        }
        for part in ["allOf", "oneOf", "anyOf"].iter().filter_map(|key| schema[key].as_array()).flatten() {
            shape.merge(self.shape(part, depth));
        }
        if let Some(fields) = schema["properties"].as_object() {
            for (name, schema) in fields {
                let own = shape.fields.entry(name.clone()).or_default();
                own.documented = true;
                own.shape.merge(self.shape(schema, depth));
            }
        } else if is_object(&schema["type"]) {
            shape.open = true;
        }
        if !schema["items"].is_null() {
            shape.items = Some(Box::new(self.shape(&schema["items"], depth)));
        }
        shape
    }
}

/// The error about a field that is not known. `near`: the name that it most likely stands for.
pub fn refused(path: &str, near: Option<&str>) -> ApiError {
    let path = quoted(path);
    let advice = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "leave it out, or let the server ignore such fields with limits.unknown_fields = \"ignore\"".to_owned(),
    };
    ApiError::new(Kind::UnknownField, format!("there is no field `{path}`: {advice}")).with_param(path)
}

/// The known name that `name` most likely stands for.
pub fn nearest<'a>(known: impl Iterator<Item = &'a str>, name: &str, aliases: &[Alias]) -> Option<&'a str> {
    if name.len() > MAX_COMPARED {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let alias = aliases.iter().find(|(other, _)| *other == name).map(|(_, ours)| *ours);
    let score = |known: &str| match alias == Some(known) {
        true => f64::INFINITY,
        false => strsim::jaro_winkler(known, &name).max(strsim::normalized_damerau_levenshtein(known, &name)),
    };
    let scored = known.map(|known| (score(known), known)).filter(|(score, _)| *score >= ALIKE);
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// Null is absence, and what is empty says nothing either.
fn asks_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn is_object(kind: &Value) -> bool {
    kind == "object" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "object"))
}

/// Where a value stands in the body. It is written only if something is wrong there.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::json;

    use super::*;

    #[derive(Serialize, ToSchema)]
    #[schema(as = KnownOuter)]
    #[allow(dead_code, reason = "only its schema is read")]
    struct Outer {
        temperature: Option<f64>,
        repetition_penalty: Option<f64>,
        grammar: Option<String>,
        inner: Option<Inner>,
        many: Option<Vec<Inner>>,
        #[schema(value_type = Option<Object>)]
        free: Option<Value>,
        #[serde(flatten)]
        more: More,
    }

    #[derive(Serialize, ToSchema)]
    #[schema(as = KnownMore)]
    struct More {
        seed: Option<i64>,
    }

    #[derive(Serialize, ToSchema)]
    #[schema(as = KnownInner)]
    struct Inner {
        include_usage: bool,
    }

    const ALSO: &[Also] = &[Also { schema: "KnownInner", field: "cache_control", reason: "nothing" }];
    const ALIASES: &[Alias] = &[("ebnf", "grammar")];

    fn refused(body: &Value) -> Option<(String, String)> {
        let shape = Shape::of::<Outer>(ALSO).with(["audio"].into_iter());
        let error = shape.check(body, ALIASES, UnknownFields::Refuse).err()?;
        assert!(shape.check(body, ALIASES, UnknownFields::Ignore).is_ok());
        assert_eq!(error.kind, Kind::UnknownField);
        Some((error.param.unwrap(), error.message))
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_name() {
        for (body, param, near) in [
            (json!({"tempreature": 1}), "tempreature", "`temperature`"),
            (json!({"repeat_penalty": 1}), "repeat_penalty", "`repetition_penalty`"),
            (json!({"ebnf": "x"}), "ebnf", "`grammar`"),
            (json!({"SEED": 1}), "SEED", "`seed`"),
            (json!({"inner": {"include_usages": true}}), "inner.include_usages", "`include_usage`"),
            (json!({"many": [{}, {"usage": 1}]}), "many[1].usage", "leave it out"),
            (json!({"mirostat": 2}), "mirostat", "leave it out"),
            (json!({"audios": 2}), "audios", "leave it out"),
        ] {
            let (at, message) = refused(&body).unwrap();
            assert!(at == param && message.contains(near), "{body}: {at}: {message}");
        }
        let long = refused(&json!({"x\n".repeat(1000): 1})).unwrap();
        assert!(long.1.len() < 600 && !long.1.contains('\n'), "{}", long.1);
    }

    #[test]
    fn what_is_known_passes() {
        for body in [
            json!({"temperature": 1, "free": {"any": {"thing": 1}}, "inner": {"include_usage": true, "cache_control": {"x": 1}}}),
            json!({"audio": {"x": 1}, "nothing": null, "nobody": {}, "none": [], "seed": 5, "inner": null}),
            json!({"inner": "of another type", "many": 5}),
            json!([1]),
        ] {
            assert_eq!(refused(&body), None, "{body}");
        }
    }
}
