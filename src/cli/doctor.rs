//! `kvasir doctor`: every trap in an engine's settings and its server, in one run.
//!
//! Only what the settings and the server say is judged. What cannot be known from them is listed as not checked, and
//! nothing is changed anywhere.

mod clients;
mod connector;
mod engine;
mod model;
mod server;

use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use self::engine::Engine;
use super::output::{fail, print};
use super::plan::{PlanError, input, read_input, unread};
use super::{BAD_INPUT, socket};

/// Arguments of `kvasir doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Path of the server's socket, where the engine's settings name none [default: as for serve]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    socket: Option<PathBuf>,
    /// JSON with the engine's settings, or - for standard input; without it only the server is asked
    #[arg(long, value_name = "FILE|-")]
    engine: Option<PathBuf>,
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
        let message = message.to_string().replace(char::is_control, " ");
        self.findings.push(Finding {
            severity,
            name,
            message,
        });
    }

    fn unchecked(&mut self, what: impl Into<String>) {
        self.unchecked.push(what.into());
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
    let given = args.socket.clone();
    let Some(file) = &args.engine else {
        report.unchecked("engine: no settings were given; name a file with --engine");
        let servers = [given.unwrap_or_else(socket::default_path)];
        server::check(&servers, None, &mut report);
        report.findings.sort_by_key(|finding| finding.severity);
        return Ok(report);
    };
    let document = input::parse(&read_input(file)?)?;
    let engine = Engine::read(&document)?;
    if let Some(unread) = unread(&input::unknown_fields(&document, &engine::DESCRIPTION)) {
        report.note("unread_fields", unread);
    }
    let settings = connector::check(&engine, given, &mut report);
    let geometry = model::check(&engine, &mut report)?;
    if settings.sockets.is_empty() {
        report.unchecked("server: the settings name none");
    } else {
        let fit = server::Fit {
            geometry: geometry.as_ref(),
            preferred_base: settings.preferred_base,
            max_model_len: engine.max_model_len,
        };
        server::check(&settings.sockets, Some(&fit), &mut report);
    }
    // Stable: within a severity the order is that of the checks.
    report.findings.sort_by_key(|finding| finding.severity);
    Ok(report)
}
