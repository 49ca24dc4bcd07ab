//! Descriptions of engines, as JSON: docs/geometry.md says what they hold.
//!
//! The commands `plan` and `doctor` read them, and so does the Python package. Everything here is a pure function of
//! the bytes. Present with the feature `describe`.

mod fields;
mod groups;
mod json;

use std::fmt;

#[cfg(all(feature = "cli", not(loom)))]
pub(crate) use fields::{Fields, key_shown, shown};
pub use groups::parse as groups;
#[cfg(all(feature = "cli", not(loom)))]
pub(crate) use groups::read as read_groups;
#[cfg(all(feature = "cli", not(loom)))]
pub(crate) use json::parse as json;

/// Why a description cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptionError {
    /// A stable word for the kind of error.
    pub kind: &'static str,
    /// One line that says what is wrong.
    pub message: String,
    /// Offending groups by index, and the reason for each.
    pub groups: Vec<(usize, String)>,
}

impl DescriptionError {
    fn new(kind: &'static str, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
            groups: Vec::new(),
        }
    }

    /// An error that names offending groups.
    fn of_groups(groups: Vec<(usize, String)>) -> Self {
        let parts: Vec<String> = groups
            .iter()
            .map(|(index, reason)| format!("group {index}: {reason}"))
            .collect();
        Self {
            kind: "invalid",
            message: parts.join("; "),
            groups,
        }
    }
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DescriptionError {}
