//! `kvasir plan`: what chunk size a model gets, which refusals it meets, and how its segments lie.
//!
//! Pure questions to [`crate::geometry`]: nothing is started, nothing is stored. Answers go to standard
//! output, as a table or as JSON; bad input gives one line (or a JSON error) and exit code 2.

pub mod chunk;
mod from_vllm;
pub mod groups;
pub mod segments;
pub(super) mod shape;
mod table;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::failure;
use crate::describe::DescriptionError;

/// Longest input that is read. A description of a thousand layers takes some hundred kilobytes.
const MAX_INPUT_BYTES: u64 = 16 << 20;

/// Most unknown fields that a warning names.
const LISTED_FIELDS: usize = 16;

/// Exit code for input that has no answer.
const BAD_INPUT: u8 = 2;

/// Arguments of `kvasir plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// What chunk size a model's KV cache groups need, and why
    Groups(groups::GroupsArgs),
    /// Describe an engine by vLLM's own arguments, for `plan groups` and `doctor --engine`
    #[command(long_flag = "from-vllm")]
    FromVllm(from_vllm::FromVllmArgs),
    /// What chunk size a list of spans needs
    Chunk(chunk::ChunkArgs),
    /// How the segments of a reserved address range lie, and what commits map
    Segments(segments::SegmentsArgs),
}

/// Why a plan has no answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanError {
    /// A stable word for the kind of error.
    pub kind: &'static str,
    /// One line that says what is wrong.
    pub message: String,
    /// Offending entries by index (groups, spans or tensors) and the reason for each.
    pub groups: Vec<(usize, String)>,
    /// What the answer would be if the model could be served, where that is known.
    pub would_be: Option<Value>,
}

impl PlanError {
    pub(super) fn new(kind: &'static str, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
            groups: Vec::new(),
            would_be: None,
        }
    }

    /// An error that names offending entries, which `noun` calls by their kind.
    fn listing(kind: &'static str, noun: &str, groups: Vec<(usize, String)>) -> Self {
        let parts: Vec<String> = groups
            .iter()
            .map(|(index, reason)| format!("{noun} {index}: {reason}"))
            .collect();
        Self {
            kind,
            message: parts.join("; "),
            groups,
            would_be: None,
        }
    }

    /// What clap has against the arguments, as one line: the reason, without hints and usage.
    fn arguments(error: &clap::Error) -> Self {
        use clap::error::{ContextKind, ContextValue, ErrorKind};
        // All commands know --json, so it was written in front of them.
        let misplaced = error.kind() == ErrorKind::UnknownArgument
            && error.get(ContextKind::InvalidArg) == Some(&ContextValue::String("--json".to_owned()));
        if misplaced || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Self::new(
                "usage",
                "say first what to plan: from-vllm, groups, chunk or segments",
            );
        }
        Self::new("usage", failure::one_line(error))
    }

    /// The answer in JSON.
    pub fn to_json(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|(index, reason)| json!({"index": index, "reason": reason}))
            .collect();
        let mut answer = self.would_be.clone().unwrap_or_else(|| json!({}));
        answer["error"] = json!({"kind": self.kind, "message": self.message, "groups": groups});
        answer
    }
}

impl From<DescriptionError> for PlanError {
    fn from(error: DescriptionError) -> Self {
        Self {
            kind: error.kind,
            message: error.message,
            groups: error.groups,
            would_be: None,
        }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PlanError {}

/// An answer in both forms.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// For programs.
    pub json: Value,
    /// For people.
    pub text: String,
    /// Fields of the input that nothing reads.
    pub unknown_fields: Vec<String>,
}

/// Notes what nothing has read, with an answer and with an error: there it may be what is missing, misspelt.
fn with_unknown_fields(
    answer: Result<Answer, PlanError>,
    unknown_fields: Vec<String>,
) -> Result<Answer, PlanError> {
    match answer {
        Ok(answer) => Ok(Answer {
            unknown_fields,
            ..answer
        }),
        Err(mut error) => {
            if let Some(unread) = unread(&unknown_fields) {
                error.message = format!("{}; {unread}", error.message);
            }
            Err(error)
        }
    }
}

/// One line about fields that nothing reads, if there are any.
pub(super) fn unread(fields: &[String]) -> Option<String> {
    let more = fields.len().saturating_sub(LISTED_FIELDS);
    let listed = fields[..fields.len() - more].join(", ");
    match (fields.len(), more) {
        (0, _) => None,
        (1, _) => Some(format!("nothing reads the field {listed}")),
        (_, 0) => Some(format!("nothing reads the fields {listed}")),
        _ => Some(format!("nothing reads the fields {listed} and {more} more")),
    }
}

/// Answers one `kvasir plan` command on standard output and returns its exit code.
///
/// `json` says that the answer is wanted in JSON even where the command's own flag was not recognized.
pub fn run(args: &PlanArgs, json: bool) -> ExitCode {
    let (answer, flag) = match &args.command {
        PlanCommand::Groups(args) => (groups::run(args), args.json),
        PlanCommand::FromVllm(args) => (from_vllm::run(args), false),
        PlanCommand::Chunk(args) => (chunk::run(args), args.json),
        PlanCommand::Segments(args) => (segments::run(args), args.json),
    };
    let json = json || flag;
    report(answer, json)
}

/// Answers arguments that are none, in the shape of every other bad input.
pub(super) fn refuse_arguments(error: &clap::Error, json: bool) -> ExitCode {
    report(Err(PlanError::arguments(error)), json)
}

fn report(answer: Result<Answer, PlanError>, json: bool) -> ExitCode {
    let unknown = answer.as_ref().map(|answer| answer.unknown_fields.as_slice());
    if let Some(unread) = unread(unknown.unwrap_or_default()) {
        // A warning that nobody can read changes nothing about the answer.
        let _ = writeln!(io::stderr().lock(), "kvasir plan: warning: {unread}");
    }
    let (written, code) = match &answer {
        Ok(answer) if json => (print(&format!("{}\n", answer.json)), ExitCode::SUCCESS),
        Ok(answer) => (print(&answer.text), ExitCode::SUCCESS),
        Err(error) if json => (
            print(&format!("{}\n", error.to_json())),
            ExitCode::from(BAD_INPUT),
        ),
        Err(error) => (
            writeln!(io::stderr().lock(), "kvasir plan: {error}"),
            ExitCode::from(BAD_INPUT),
        ),
    };
    // A closed pipe must not look like an answer, and must not panic either.
    if written.is_ok() { code } else { ExitCode::FAILURE }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Reads a file, or standard input for `-`, up to the limit.
pub(super) fn read_input(path: &Path) -> Result<Vec<u8>, PlanError> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin()
            .lock()
            .take(MAX_INPUT_BYTES + 1)
            .read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| PlanError::new("io", format_args!("cannot read {path:?}: {error}")))?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(PlanError::new(
            "too_large",
            format_args!("{path:?} is larger than {MAX_INPUT_BYTES} bytes"),
        ));
    }
    Ok(bytes)
}

/// Parses a number given on the command line.
fn number(option: &str, text: &str) -> Result<u64, PlanError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| {
        let shown: String = text.chars().take(64).collect();
        PlanError::new(
            "invalid",
            format_args!("{option} {shown:?} is not an integer in 0..=2^64-1"),
        )
    })
}
