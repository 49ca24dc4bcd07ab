//! Reading JSON fields with errors that name the field and what was found.

use serde_json::{Map, Value};

/// Longest piece of a found value that an error repeats.
const SHOWN_CHARS: usize = 64;

/// A JSON object whose absent and null fields are the same.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(crate) fn of(value: &'a Value) -> Result<Self, String> {
        value
            .as_object()
            .map(Self)
            .ok_or_else(|| format!("expected an object, found {}", shown(value)))
    }

    pub(crate) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn require(self, key: &str) -> Result<&'a Value, String> {
        self.get(key).ok_or_else(|| format!("{key} is missing"))
    }

    pub(crate) fn number(self, key: &str) -> Result<Option<u64>, String> {
        self.get(key).map(|value| as_number(key, value)).transpose()
    }

    pub(crate) fn required_number(self, key: &str) -> Result<u64, String> {
        self.require(key).and_then(|value| as_number(key, value))
    }

    pub(crate) fn flag(self, key: &str) -> Result<Option<bool>, String> {
        let read = |value: &Value| {
            value
                .as_bool()
                .ok_or_else(|| format!("{key} is {}, expected true or false", shown(value)))
        };
        self.get(key).map(read).transpose()
    }

    pub(crate) fn text(self, key: &str) -> Result<Option<&'a str>, String> {
        let read = |value: &'a Value| {
            value
                .as_str()
                .ok_or_else(|| format!("{key} is {}, expected a string", shown(value)))
        };
        self.get(key).map(read).transpose()
    }

    pub(crate) fn required_text(self, key: &str) -> Result<&'a str, String> {
        self.text(key)?.ok_or_else(|| format!("{key} is missing"))
    }

    pub(crate) fn list(self, key: &str) -> Result<&'a [Value], String> {
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
pub(crate) fn shown(value: &Value) -> String {
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

/// A key in one line and not too long, whatever is in it.
pub(crate) fn key_shown(key: &str) -> String {
    let short: String = key.chars().take(SHOWN_CHARS).collect();
    short.escape_debug().to_string()
}
