//! Why a command failed, for people and for programs.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::output::{fail, print};

/// A failure. In text it is one line on standard error; with `--json` it is an object `error` on standard output, where a program
/// looks for the answer. The exit code is the same.
#[derive(Debug)]
pub(super) struct Failure {
    /// A stable word.
    kind: &'static str,
    message: String,
    exit: u8,
    /// What else programs get.
    more: Value,
}

impl Failure {
    pub(super) fn new(kind: &'static str, message: impl fmt::Display, exit: u8) -> Self {
        Self {
            kind,
            message: message.to_string(),
            exit,
            more: json!({}),
        }
    }

    /// Adds a field of the object.
    #[must_use]
    pub(super) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.more[field] = value.into();
        self
    }

    fn to_json(&self) -> Value {
        let mut error = self.more.clone();
        error["kind"] = json!(self.kind);
        error["message"] = json!(self.message);
        json!({ "error": error })
    }

    /// Says it and returns the exit code.
    pub(super) fn report(&self, command: &str, json: bool) -> ExitCode {
        if !json {
            return fail(command, &self.message, self.exit);
        }
        // A reader who has gone does not make it any better.
        let _ = print(&format!("{}\n", self.to_json()));
        ExitCode::from(self.exit)
    }
}
