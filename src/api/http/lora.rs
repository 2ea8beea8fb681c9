//! Reads a list of adapters, in llama.cpp's form: `[{"id": 0, "scale": 0.5}]`.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use registry::{AdapterAsk, AdapterRef};

/// The largest factor of an adapter, either way.
const MAX_SCALE: f64 = 1000.0;
/// The longest name of an adapter [bytes].
const MAX_NAME: usize = 200;

/// Reads the adapters in `list`, which is at `path` in the body.
///
/// # Errors
/// There are more than `most`, or one has no id or name, both, or no valid scale.
pub fn adapters(list: &[Value], path: &str, most: usize) -> Result<Vec<AdapterAsk>, ApiError> {
    if list.len() > most {
        return Err(ApiError::field(path, format!("`{path}` has {} adapters, and {most} are allowed", list.len())));
    }
    let read = |(index, item): (usize, &Value)| {
        let fields = Fields::at(item, &format!("{path}[{index}]"))?;
        let number = fields.integer("id", 0..=i64::from(u32::MAX))?;
        let which = match (number, fields.string("name")?) {
            (Some(number), None) => AdapterRef::Number(number as usize),
            (None, Some(name)) if (1..=MAX_NAME).contains(&name.len()) => AdapterRef::Name(name.to_owned()),
            (None, Some(_)) => return Err(fields.invalid("name", format_args!("must have 1 to {MAX_NAME} bytes"))),
            (Some(_), Some(_)) => return Err(fields.invalid("name", "is not allowed with `id`: either names the adapter")),
            (None, None) => return Err(fields.invalid("id", "or `name` is required: GET /lora-adapters lists both")),
        };
        let scale = fields.number("scale", -MAX_SCALE..=MAX_SCALE)?;
        Ok(AdapterAsk { which, scale: fields.required("scale", scale)? as f32 })
    };
    list.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_adapter_has_an_id_or_a_name_and_a_scale() {
        let read = |value: Value| adapters(value.as_array().unwrap(), "lora", 2);
        let found = read(json!([{"id": 3, "scale": -0.5}, {"name": "a", "scale": 1}])).unwrap();
        let named = |which, scale| AdapterAsk { which, scale };
        assert_eq!(found, [named(AdapterRef::Number(3), -0.5), named(AdapterRef::Name("a".into()), 1.0)]);
        for (wrong, param) in [
            (json!([{"scale": 1}]), "lora[0].id"),
            (json!([{"id": 0}]), "lora[0].scale"),
            (json!([{"id": -1, "scale": 1}]), "lora[0].id"),
            (json!([{"id": 0, "name": "a", "scale": 1}]), "lora[0].name"),
            (json!([{"name": "", "scale": 1}]), "lora[0].name"),
            (json!([{"id": 0, "scale": 1001}]), "lora[0].scale"),
            (json!([{"id": 0, "scale": "1"}]), "lora[0].scale"),
            (json!([{"id": 0, "scale": 1}, 5]), "lora[1]"),
            (json!([{}, {}, {}]), "lora"),
        ] {
            assert_eq!(read(wrong.clone()).unwrap_err().param.as_deref(), Some(param), "{wrong}");
        }
    }
}
