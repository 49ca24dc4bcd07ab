//! `kvasir doctor`: every trap in an engine's settings and its server, in one run.
//!
//! Only what the settings and the server say is judged. What cannot be known from them is listed as not checked, and
//! nothing is changed anywhere.

mod compare;
mod connector;
mod engine;
mod model;
mod server;
mod state;

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use self::engine::Engine;
use super::output::{fail, print};
use super::plan::shape::unknown_fields;
use super::plan::{PlanError, groups, read_input, unread};
use super::{BAD_INPUT, socket};
use crate::describe;

/// Arguments of `kvasir doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Path of the server's socket, where the engine's settings name none [default: as for serve]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    socket: Option<PathBuf>,
    /// JSON with the engine's settings, or - for standard input; `kvasir plan from-vllm` writes it. Given twice, the two
    /// engines are also compared: what keeps them from sharing. Without it only the server is asked
    #[arg(long, value_name = "FILE|-")]
    engine: Vec<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// How bad a finding is; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    /// The engine does not start, or fails in its first request.
    Refused,
    /// The engine runs, and the cache silently does not do what it is for, or not safely.
    Silent,
    /// It works, with less to gain.
    Slow,
    /// Good to know.
    Note,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Slow => "slow",
            Self::Note => "note",
        }
    }
}

/// One trap.
#[derive(Debug)]
struct Finding {
    severity: Severity,
    /// Stable.
    name: &'static str,
    /// One sentence: the numbers, and what to set.
    message: String,
}

/// What a run found, and what it could not look at.
#[derive(Debug, Default)]
struct Report {
    findings: Vec<Finding>,
    unchecked: Vec<String>,
    /// In front of each message: which of several engines it is about.
    about: String,
}

impl Report {
    fn refused(&mut self, name: &'static str, message: impl fmt::Display) {
        self.push(Severity::Refused, name, message);
    }

    fn silent(&mut self, name: &'static str, message: impl fmt::Display) {
        self.push(Severity::Silent, name, message);
    }

    fn slow(&mut self, name: &'static str, message: impl fmt::Display) {
        self.push(Severity::Slow, name, message);
    }

    fn note(&mut self, name: &'static str, message: impl fmt::Display) {
        self.push(Severity::Note, name, message);
    }

    fn push(&mut self, severity: Severity, name: &'static str, message: impl fmt::Display) {
        // One line each: values of the input are in it.
        let message = format!("{}{message}", self.about).replace(char::is_control, " ");
        self.findings.push(Finding {
            severity,
            name,
            message,
        });
    }

    fn unchecked(&mut self, what: impl Into<String>) {
        let what = format!("{}{}", self.about, what.into());
        if !self.unchecked.contains(&what) {
            self.unchecked.push(what);
        }
    }

    /// Whether anything keeps the cache from working.
    fn is_bad(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity <= Severity::Silent)
    }

    fn to_json(&self) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "severity": finding.severity.name(),
                    "name": finding.name,
                    "message": finding.message,
                })
            })
            .collect();
        json!({"findings": findings, "unchecked": self.unchecked})
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let severity = finding.severity.name();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{severity:<10}{:<25}{}", finding.name, finding.message);
        }
        for what in &self.unchecked {
            let _ = writeln!(text, "{:<10}{what}", "unchecked");
        }
        if self.findings.is_empty() {
            text.push_str("no findings\n");
        }
        text
    }
}

pub(super) fn run(args: &DoctorArgs) -> ExitCode {
    let report = match examine(args) {
        Ok(report) => report,
        Err(error) if args.json => {
            // A reader who has gone does not make the input any better.
            let _ = print(&format!("{}\n", error.to_json()));
            return ExitCode::from(BAD_INPUT);
        }
        Err(error) => return fail("doctor", error, BAD_INPUT),
    };
    let written = if args.json {
        print(&format!("{}\n", report.to_json()))
    } else {
        print(&report.to_text())
    };
    if report.is_bad() {
        ExitCode::FAILURE
    } else {
        written
    }
}

fn examine(args: &DoctorArgs) -> Result<Report, PlanError> {
    let mut report = Report::default();
    if args.engine.is_empty() {
        report.unchecked(
            "engine: no settings were given; name a file with --engine (`kvasir plan from-vllm` writes it)",
        );
        let servers = [args.socket.clone().unwrap_or_else(socket::default_path)];
        server::check(&servers, None, &mut report);
        report.findings.sort_by_key(|finding| finding.severity);
        return Ok(report);
    }
    if args.engine.iter().filter(|file| *file == Path::new("-")).count() > 1 {
        return Err(PlanError::new(
            "usage",
            "--engine - reads standard input, which is there only once",
        ));
    }
    let several = args.engine.len() > 1;
    let mut documents = Vec::new();
    for file in &args.engine {
        let read = read_input(file).and_then(|bytes| Ok(describe::json(&bytes)?));
        documents.push((
            file.display().to_string(),
            read.map_err(|error| of_file(error, file, several))?,
        ));
    }
    let mut engines: Vec<(&str, Engine<'_>, connector::Settings)> = Vec::new();
    for ((name, document), file) in documents.iter().zip(&args.engine) {
        report.about = if several {
            format!("{name}: ")
        } else {
            String::new()
        };
        let read = Engine::read(document).and_then(|engine| {
            let settings = examine_engine(&engine, document, args, &mut report)?;
            Ok((name.as_str(), engine, settings))
        });
        engines.push(read.map_err(|error| of_file(error, file, several))?);
    }
    report.about = String::new();
    if let [one, others @ ..] = engines.as_slice() {
        for other in others {
            let [one, other] = [one, other].map(|(name, engine, settings)| compare::Side {
                name,
                engine,
                settings,
            });
            compare::check(&one, &other, &mut report);
        }
    }
    // Stable: within a severity the order is that of the checks.
    report.findings.sort_by_key(|finding| finding.severity);
    Ok(report)
}

/// Says which of several files an error is about.
fn of_file(mut error: PlanError, file: &Path, several: bool) -> PlanError {
    if several && error.kind != "io" {
        error.message = format!("{}: {}", file.display(), error.message);
    }
    error
}

fn examine_engine(
    engine: &Engine<'_>,
    document: &Value,
    args: &DoctorArgs,
    report: &mut Report,
) -> Result<connector::Settings, PlanError> {
    if let Some(unread) = unread(&unknown_fields(document, &groups::ENGINE)) {
        report.note("unread_fields", unread);
    }
    let settings = connector::check(engine, args.socket.clone(), report);
    let geometry = model::check(engine, report)?;
    if settings.sockets.is_empty() {
        report.unchecked("server: the settings name none");
    } else {
        let fit = server::Fit {
            geometry: geometry.as_ref(),
            preferred_base: settings.preferred_base,
            max_model_len: engine.max_model_len,
        };
        server::check(&settings.sockets, Some(&fit), report);
    }
    Ok(settings)
}
