//! Fields of a description that nothing reads: often they are misspelt.

use serde_json::Value;

use crate::describe::key_shown;

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
