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

/// What clap has against the arguments, as one line: the reason, without hints and usage.
pub(super) fn one_line(error: &clap::Error) -> String {
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "name a command; kvasir --help lists them".to_owned();
    }
    let text = error.render().to_string();
    let reason = text.split("\n\n").next().unwrap_or_default();
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ")
        .unwrap_or(&line)
        .chars()
        .filter(|character| !character.is_control())
        .collect()
}
