//! The fields that a request body may have, in every dialect and at every depth.
//!
//! The known fields are derived from the type that describes the request in the OpenAPI document, so a documented field is a known one. A
//! dialect adds names that it knows without documenting them ([`SilentFields`]) and names that it refuses ([`Unsupported`]).
//!
//! An unknown field is refused if it looks like a mistake: its name is within two edits of a known one, or another server has the field and
//! it would change the answer. Every other unknown field is removed from the body before anything reads the body, and is reported by name.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{ApiError, Kind, quoted};
use super::foreign_fields::{Meaning, SAMPLES, meaning};
use super::ignored::{self, Ignored};
use super::neutral::Neutral;
use config::UnknownFields;

/// Fields that a dialect knows without documenting them: the types that have them, their names, and why their values have no effect here,
/// or what reads or refuses them. The program does not need the reason, but the table's readers do.
pub type SilentFields = (&'static [&'static str], &'static [&'static str], &'static str);

/// A known but unsupported field, and the values with which it asks for nothing.
pub type Unsupported = (&'static str, Neutral);

/// Defines the field schemas of a dialect's bodies: a static per body, with its type and what [`FieldSchema`]'s methods add to it. The
/// first argument is the dialect's table of [`SilentFields`].
#[macro_export]
macro_rules! field_schemas {
    ($silent:expr; $($(#[$doc:meta])* $name:ident: $body:ty $(=> $(.$change:ident($($argument:expr),*))+)?;)+) => {
        $($(#[$doc])*
        pub static $name: std::sync::LazyLock<$crate::field_schema::FieldSchema> = std::sync::LazyLock::new(|| {
            $crate::field_schema::FieldSchema::of::<$body>($silent)$($(.$change($($argument),*))+)?
        });)+
    };
}

/// The greatest depth to which references are followed. Below it, any field is accepted.
const MAX_DEPTH: usize = 24;
/// The least similarity at which one name is suggested for another (1 means equal).
const ALIKE: f64 = 0.82;
/// The length from which names are seldom similar by chance [bytes].
const LONG: usize = 8;
/// The longest name that is compared with the known ones [bytes].
const MAX_COMPARED: usize = 64;

/// The fields of a JSON value and of everything inside it.
#[derive(Clone, Debug, Default)]
pub struct FieldSchema {
    fields: BTreeMap<String, Field>,
    /// The schema of a list's items.
    items: Option<Box<FieldSchema>>,
    /// Whether an object may have any field.
    open: bool,
    /// Whether unknown fields stay in the body because it is returned as it came. They are reported all the same.
    keeps: bool,
    /// The prefixes of the types of objects that nothing here reads, which may have any field.
    foreign: &'static [&'static str],
}

#[derive(Clone, Debug, Default)]
struct Field {
    schema: FieldSchema,
    /// Whether the field is documented. Only documented fields are suggested for unknown ones.
    documented: bool,
    /// Refuses the field unless it asks for nothing. The text is the reason.
    refused: Option<(Neutral, &'static str)>,
}

/// Collects what happens to the unknown fields of one body.
struct Visit {
    unknown: UnknownFields,
    ignored: Ignored,
}

impl FieldSchema {
    /// Builds the schema of the fields that `T` documents, plus those that `silent` adds to its types.
    pub fn of<T: ToSchema>(silent: &[SilentFields]) -> Self {
        let mut all = Vec::new();
        T::schemas(&mut all);
        let name = T::name().into_owned();
        all.push((name.clone(), T::schema()));
        let json = |(name, schema)| (name, serde_json::to_value(schema).expect("a schema is JSON"));
        let reader = Reader { schemas: all.into_iter().map(json).collect(), silent };
        reader.named(&name, 0)
    }

    /// Adds fields that are refused by name. `why` completes the sentence "`FIELD` …".
    #[must_use]
    pub fn refusing(mut self, tables: &[&[Unsupported]], why: &'static str) -> Self {
        for (name, neutral) in tables.iter().copied().flatten() {
            let field = self.fields.entry((*name).to_owned()).or_insert_with(Field::open);
            field.refused = Some((*neutral, why));
        }
        self
    }

    /// Keeps unknown fields in the list `field`, because the list is stored and returned.
    #[must_use]
    pub fn keeping(mut self, field: &str) -> Self {
        self.fields.entry(field.to_owned()).and_modify(|field| field.schema.each_below(&|schema| schema.keeps = true));
        self
    }

    /// Lets objects of the list `field` have any field if their `type` begins with a prefix in `foreign`.
    #[must_use]
    pub fn passing(mut self, field: &str, foreign: &'static [&'static str]) -> Self {
        if let Some(items) = self.fields.get_mut(field).and_then(|field| field.schema.items.as_mut()) {
            items.foreign = foreign;
        }
        self
    }

    fn each_below(&mut self, change: &dyn Fn(&mut Self)) {
        change(self);
        self.items.iter_mut().for_each(|items| items.each_below(change));
        self.fields.values_mut().for_each(|field| field.schema.each_below(change));
    }

    /// Refuses the first field that the body must not have. Removes the other unknown fields from the body and returns their names.
    pub fn admit(&self, body: &mut Value, unknown: UnknownFields) -> Result<Ignored, ApiError> {
        let mut visit = Visit { unknown, ignored: Ignored::default() };
        self.visit(body, &Path::Root, &mut visit)?;
        Ok(visit.ignored)
    }

    fn visit(&self, value: &mut Value, path: &Path<'_>, visit: &mut Visit) -> Result<(), ApiError> {
        match (value, &self.items) {
            (Value::Object(map), _) if !self.open && !self.fields.is_empty() && !self.is_foreign(map) => {
                self.visit_fields(map, path, visit)
            }
            (Value::Array(items), Some(schema)) if schema.items.is_some() || !schema.fields.is_empty() => {
                items.iter_mut().enumerate().try_for_each(|(i, item)| schema.visit(item, &Path::Item(path, i), visit))
            }
            _ => Ok(()),
        }
    }

    fn is_foreign(&self, map: &Map<String, Value>) -> bool {
        let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
        self.foreign.iter().any(|begin| kind.starts_with(begin))
    }

    fn visit_fields(&self, map: &mut Map<String, Value>, path: &Path<'_>, visit: &mut Visit) -> Result<(), ApiError> {
        let mut result = Ok(());
        map.retain(|name, value| {
            let at = Path::Field(path, name);
            match self.fields.get(name) {
                _ if result.is_err() => true,
                Some(field) => {
                    result = field.visit(value, &at, visit);
                    true
                }
                None => {
                    result = self.leave_out(name, value, &at, visit);
                    self.keeps
                }
            }
        });
        result
    }

    /// Decides whether an unknown field is refused or left out.
    fn leave_out(&self, name: &str, value: &Value, path: &Path<'_>, visit: &mut Visit) -> Result<(), ApiError> {
        if asks_nothing(value) {
            return Ok(());
        }
        let listed = ignored::plain(&path.without_places());
        if visit.ignored.has(&listed) {
            return Ok(());
        }
        match visit.unknown {
            UnknownFields::Refuse => return Err(self.refused(name, value, path).unwrap_or_else(|| unknown(path, self.alike(name)))),
            UnknownFields::Name => self.refused(name, value, path).map_or(Ok(()), Err)?,
            UnknownFields::Ignore => {}
        }
        if self.is_off(name, value) || visit.ignored.add(listed) {
            return Ok(());
        }
        Err(ApiError::new(Kind::UnknownField, format!("the request has more than {} unknown fields: leave them out", ignored::MOST)))
    }

    /// Whether another server's field has a value with which it asks for nothing.
    fn is_off(&self, name: &str, value: &Value) -> bool {
        meaning(name, |known| self.offers(known)).is_some_and(|(off, _)| off.is(value))
    }

    /// Returns the error for a field of another server that would change the answer, or for a name that looks mistyped.
    fn refused(&self, name: &str, value: &Value, path: &Path<'_>) -> Option<ApiError> {
        match meaning(name, |known| self.offers(known)) {
            Some((off, _)) if off.is(value) => None,
            Some((_, Meaning::Same(ours))) => Some(unknown(path, Some(ours))),
            Some((_, Meaning::Sampling)) => {
                let path = quoted(&path.to_string());
                let message =
                    format!("there is no field `{path}`, which would change the answer: the nearest is `{SAMPLES}`; leave it out");
                Some(ApiError::new(Kind::UnknownField, message).with_param(path))
            }
            None => self.mistyped(name).map(|near| unknown(path, Some(near))),
        }
    }

    fn offers(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|field| field.documented)
    }

    /// Returns the known name that `name` is a few edits away from: at most one edit if the shorter name has three to six bytes, two if it
    /// has more. A short known name without an effect is not considered.
    fn mistyped(&self, name: &str) -> Option<&str> {
        let name = comparable(name)?;
        let is_near = |known: &str| {
            let most = match known.len().min(name.len()) {
                ..3 => 0,
                3..7 => 1,
                _ => 2,
            };
            known.len().abs_diff(name.len()) <= most && strsim::osa_distance(&known.to_ascii_lowercase(), &name) <= most
        };
        let matters = |known: &str, field: &Field| field.documented || field.refused.is_some() || known.len() >= LONG;
        let near = self.fields.iter().filter(|(known, field)| matters(known, field) && is_near(known)).map(|(known, _)| known.as_str());
        near.max_by(|a, b| likeness(a, &name).total_cmp(&likeness(b, &name)))
    }

    /// Returns the documented name most similar to `name`, if one is similar enough.
    fn alike(&self, name: &str) -> Option<&str> {
        nearest(self.fields.iter().filter(|(_, field)| field.documented).map(|(known, _)| known.as_str()), name)
    }

    /// Adds everything that the other schema knows.
    fn merge(&mut self, other: Self) {
        self.open |= other.open;
        for (name, field) in other.fields {
            let own = self.fields.entry(name).or_default();
            own.documented |= field.documented;
            own.schema.merge(field.schema);
        }
        match (&mut self.items, other.items) {
            (Some(items), Some(more)) => items.merge(*more),
            (items, more) => *items = items.take().or(more),
        }
    }
}

impl Field {
    /// Creates a field that takes any value and is not suggested.
    fn open() -> Self {
        Self { schema: FieldSchema { open: true, ..FieldSchema::default() }, ..Self::default() }
    }

    fn visit(&self, value: &mut Value, path: &Path<'_>, visit: &mut Visit) -> Result<(), ApiError> {
        match self.refused {
            Some((neutral, why)) if !value.is_null() && !neutral.is(value) => {
                let path = path.to_string();
                Err(ApiError::unsupported(&path, format!("`{path}` {why}")))
            }
            _ => self.schema.visit(value, path, visit),
        }
    }
}

/// The schemas that a type is made of, by name, and the dialect's table of silent fields.
struct Reader<'a> {
    schemas: BTreeMap<String, Value>,
    silent: &'a [SilentFields],
}

impl Reader<'_> {
    fn named(&self, name: &str, depth: usize) -> FieldSchema {
        let Some(schema) = self.schemas.get(name).filter(|_| depth < MAX_DEPTH) else { return Field::open().schema };
        let mut found = self.read(schema, depth + 1);
        for field in self.silent.iter().filter(|(types, ..)| types.contains(&name)).flat_map(|(_, fields, _)| *fields) {
            found.fields.entry((*field).to_owned()).or_insert_with(Field::open);
        }
        found
    }

    fn read(&self, schema: &Value, depth: usize) -> FieldSchema {
        let mut found = FieldSchema::default();
        if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
            found.merge(self.named(name, depth));
        }
        for part in ["allOf", "oneOf", "anyOf"].iter().filter_map(|key| schema[key].as_array()).flatten() {
            found.merge(self.read(part, depth));
        }
        if let Some(fields) = schema["properties"].as_object() {
            for (name, schema) in fields {
                let own = found.fields.entry(name.clone()).or_default();
                own.documented = true;
                own.schema.merge(self.read(schema, depth));
            }
        } else if is_object(&schema["type"]) {
            found.open = true;
        }
        if !schema["items"].is_null() {
            found.items = Some(Box::new(self.read(&schema["items"], depth)));
        }
        found
    }
}

/// Creates the error for an unknown field. `near` is the name that was most likely meant.
fn unknown(path: &Path<'_>, near: Option<&str>) -> ApiError {
    let path = quoted(&path.to_string());
    let advice = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "leave it out, or let the server leave such fields out with limits.unknown_fields = \"name\"".to_owned(),
    };
    ApiError::new(Kind::UnknownField, format!("there is no field `{path}`: {advice}")).with_param(path)
}

/// Normalises a name for comparison. `None` if it is longer than any known name.
fn comparable(name: &str) -> Option<String> {
    (name.len() <= MAX_COMPARED).then(|| name.to_ascii_lowercase())
}

/// Returns the known name most similar to `name`, if one is similar enough.
pub fn nearest<'a>(known: impl Iterator<Item = &'a str>, name: &str) -> Option<&'a str> {
    let name = comparable(name)?;
    let scored = known.map(|known| (likeness(known, &name), known)).filter(|(score, _)| *score >= ALIKE);
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// The similarity of two names (1 means equal).
fn likeness(known: &str, name: &str) -> f64 {
    strsim::jaro_winkler(known, name).max(strsim::normalized_damerau_levenshtein(known, name))
}

/// Whether a value asks for nothing. Null means absence, and an empty value says nothing either.
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

/// The path of a value in the body. It becomes text only if there is an error to report.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    /// The field names from the root, without list positions, as in `messages.content.text`.
    fn without_places(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Field(Self::Root, name) => (*name).to_owned(),
            Self::Field(parent, name) => format!("{}.{name}", parent.without_places()),
            Self::Item(parent, _) => parent.without_places(),
        }
    }
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
#[path = "field_schema_tests.rs"]
mod tests;
