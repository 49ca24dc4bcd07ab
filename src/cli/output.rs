//! Printing that survives a reader who has gone.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// Writes to standard output. A closed pipe fails the command without a word, as other programs do.
pub(super) fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Says on standard error why a command failed.
pub(super) fn fail(command: &str, error: impl fmt::Display, code: u8) -> ExitCode {
    // There is nobody left to tell if this fails.
    let _ = io::stderr().lock().write_all(failure(command, error).as_bytes());
    ExitCode::from(code)
}

/// The line that says why a command failed.
pub(super) fn failure(command: &str, error: impl fmt::Display) -> String {
    format!("kvasir {command}: {error}\n")
}
