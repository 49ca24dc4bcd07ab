//! Reading JSON fields with errors that name the field and what was found.

use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::PlanError;

/// Longest piece of a found value that an error repeats.
const SHOWN_CHARS: usize = 64;

/// A JSON object whose absent and null fields are the same.
#[derive(Clone, Copy)]
pub(in crate::cli) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(in crate::cli) fn of(value: &'a Value) -> Result<Self, String> {
        value
            .as_object()
            .map(Self)
            .ok_or_else(|| format!("expected an object, found {}", shown(value)))
    }

    pub(in crate::cli) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub(in crate::cli) fn require(self, key: &str) -> Result<&'a Value, String> {
        self.get(key).ok_or_else(|| format!("{key} is missing"))
    }

    pub(in crate::cli) fn number(self, key: &str) -> Result<Option<u64>, String> {
        self.get(key).map(|value| as_number(key, value)).transpose()
    }

    pub(in crate::cli) fn required_number(self, key: &str) -> Result<u64, String> {
        self.require(key).and_then(|value| as_number(key, value))
    }

    pub(in crate::cli) fn flag(self, key: &str) -> Result<Option<bool>, String> {
        let read = |value: &Value| {
            value
                .as_bool()
                .ok_or_else(|| format!("{key} is {}, expected true or false", shown(value)))
        };
        self.get(key).map(read).transpose()
    }

    pub(in crate::cli) fn text(self, key: &str) -> Result<Option<&'a str>, String> {
        let read = |value: &'a Value| {
            value
                .as_str()
                .ok_or_else(|| format!("{key} is {}, expected a string", shown(value)))
        };
        self.get(key).map(read).transpose()
    }

    pub(in crate::cli) fn required_text(self, key: &str) -> Result<&'a str, String> {
        self.text(key)?.ok_or_else(|| format!("{key} is missing"))
    }

    pub(in crate::cli) fn list(self, key: &str) -> Result<&'a [Value], String> {
        let value = self.require(key)?;
        let items = value
            .as_array()
            .ok_or_else(|| format!("{key} is {}, expected a list", shown(value)))?;
        Ok(items)
    }
}

fn as_number(key: &str, value: &Value) -> Result<u64, String> {
    value
        .as_u64()
        .ok_or_else(|| format!("{key} is {}, expected an integer in 0..=2^64-1", shown(value)))
}

/// A value as JSON, short enough for one line.
pub(in crate::cli) fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        _ => {
            let text = value.to_string();
            if text.chars().count() <= SHOWN_CHARS {
                return text;
            }
            text.chars().take(SHOWN_CHARS).chain("...".chars()).collect()
        }
    }
}

/// Fields that describe and change nothing: nobody is warned of them.
const DESCRIPTIVE: [&str; 4] = ["name", "note", "comment", "source"];

/// What the objects of a description may hold.
pub(in crate::cli) struct Shape {
    /// Fields that are read.
    pub(in crate::cli) fields: &'static [&'static str],
    /// Those of them that are lists of objects.
    pub(in crate::cli) lists: &'static [(&'static str, &'static Shape)],
}

/// Fields of `value` that nothing reads, by their paths.
pub(in crate::cli) fn unknown_fields(value: &Value, shape: &Shape) -> Vec<String> {
    let mut found = Vec::new();
    collect_unknown(value, shape, "", &mut found);
    found
}

fn collect_unknown(value: &Value, shape: &Shape, path: &str, found: &mut Vec<String>) {
    // What is no object where one is expected is an error elsewhere.
    for (field, value) in value.as_object().into_iter().flatten() {
        let key = field.as_str();
        if let Some((_, inner)) = shape.lists.iter().find(|(list, _)| *list == key) {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                collect_unknown(item, inner, &format!("{path}{key}[{index}]."), found);
            }
        } else if !shape.fields.contains(&key) && !DESCRIPTIVE.contains(&key) {
            found.push(format!("{path}{}", key_shown(key)));
        }
    }
}

/// A key in one line and not too long, whatever is in it.
pub(in crate::cli) fn key_shown(key: &str) -> String {
    let short: String = key.chars().take(SHOWN_CHARS).collect();
    short.escape_debug().to_string()
}

/// The one JSON value in `bytes`.
pub(in crate::cli) fn parse(bytes: &[u8]) -> Result<Value, PlanError> {
    let read = serde_json::from_slice(bytes).map(|Unique(value)| value);
    read.map_err(|error| {
        if error.classify() == serde_json::error::Category::Data {
            // Any value will do, so this can only be what `Unique` refuses.
            PlanError::new("duplicate", error)
        } else {
            PlanError::new("json", format_args!("not JSON: {error}"))
        }
    })
}

/// A JSON value in which no object has a field twice. Readers disagree on which of the two counts, so neither does.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Unique(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if fields.contains_key(&key) {
                let key = key_shown(&key);
                return Err(A::Error::custom(format_args!(
                    "the field {key} is given twice in one object; remove one of the two"
                )));
            }
            let Unique(value) = map.next_value()?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}
