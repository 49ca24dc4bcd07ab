//! The steps of the script, what was found at each, and the verdict.

use std::fmt::{Display, Write as _};

use serde_json::{Value, json};

/// What a client has to get right, in the order in which it comes by (docs/conformance.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Hello,
    HelloAgain,
    Attach,
    Negotiate,
    Register,
    Pieces,
    NewFields,
    GrantEmpty,
    Grant,
    Commit,
    Late,
    LookupRefused,
    Lookup,
    Retrieve,
    Release,
    CommitRefused,
    Untouched,
    Restart,
    Again,
    Close,
}

/// The steps, how they are called, and what each asks for.
const STEPS: [(Step, &str, &str); 20] = [
    (Step::Hello, "hello", "says hello first, in the right version"),
    (
        Step::HelloAgain,
        "hello-again",
        "connects again after a hello that was refused for now",
    ),
    (
        Step::Attach,
        "attach",
        "locks its byte of the liveness file, then attaches",
    ),
    (
        Step::Negotiate,
        "negotiate",
        "negotiates with the least common multiple of its spans",
    ),
    (
        Step::Register,
        "register",
        "registers one rank with one full-attention group",
    ),
    (
        Step::Pieces,
        "pieces",
        "puts replies together that come in pieces",
    ),
    (
        Step::NewFields,
        "new-fields",
        "passes over fields of replies that it does not know",
    ),
    (
        Step::GrantEmpty,
        "grant-empty",
        "asks again for space that it did not get",
    ),
    (Step::Grant, "grant", "gets space to write into"),
    (
        Step::Commit,
        "commit",
        "stores the first prompt: keys, parents, sizes, frames, checksums",
    ),
    (Step::Late, "late", "takes a late reply for what it is"),
    (
        Step::LookupRefused,
        "lookup-refused",
        "goes on after a lookup that was refused",
    ),
    (Step::Lookup, "lookup", "looks up the first prompt and hits"),
    (
        Step::Retrieve,
        "retrieve",
        "loads the second prompt, and stores the same bytes as the third",
    ),
    (Step::Release, "release", "gives its pins back"),
    (
        Step::CommitRefused,
        "commit-refused",
        "closes the connection after a commit that failed midway",
    ),
    (
        Step::Untouched,
        "untouched",
        "writes no frame that is no longer its own",
    ),
    (
        Step::Restart,
        "restart",
        "comes back after a restart, with the chunk size that it had",
    ),
    (
        Step::Again,
        "again",
        "stores and finds the first prompt in the new server",
    ),
    (Step::Close, "close", "ends its connection between two frames"),
];

/// Steps that need descriptors, or a second connection.
const NOT_OVER_PIPES: [Step; 10] = [
    Step::HelloAgain,
    Step::Attach,
    Step::GrantEmpty,
    Step::Grant,
    Step::Commit,
    Step::Late,
    Step::CommitRefused,
    Step::Untouched,
    Step::Restart,
    Step::Again,
];

/// Most findings that are kept of one step.
const FINDINGS_MAX: usize = 8;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) step: Step,
    /// The message and its field, or what else is meant.
    pub(super) field: String,
    pub(super) expected: String,
    pub(super) found: String,
}

/// What is known of a client.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    held: Vec<(Step, String)>,
    findings: Vec<Finding>,
    /// Frames that the client sent.
    pub(super) frames: u64,
    /// The client's frames come through a pipe.
    pub(super) pipes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Held,
    Failed,
    NotReached,
    Skipped,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Failed => "failed",
            Self::NotReached => "not_reached",
            Self::Skipped => "skipped",
        }
    }
}

impl Sheet {
    pub(super) fn new(pipes: bool) -> Self {
        Self {
            pipes,
            ..Self::default()
        }
    }

    /// A step went as it should. A note says how, where there is more than one way.
    pub(super) fn hold(&mut self, step: Step, note: &str) {
        if !self.is_held(step) {
            self.held.push((step, note.to_owned()));
        }
    }

    pub(super) fn is_held(&self, step: Step) -> bool {
        self.held.iter().any(|(held, _)| *held == step)
    }

    /// Something is wrong.
    pub(super) fn find(
        &mut self,
        step: Step,
        field: impl Display,
        expected: impl Display,
        found: impl Display,
    ) {
        let finding = Finding {
            step,
            field: field.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        };
        let of_step = self.findings.iter().filter(|other| other.step == step).count();
        if of_step < FINDINGS_MAX && !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    fn verdict(&self, step: Step) -> Verdict {
        if self.findings.iter().any(|finding| finding.step == step) {
            Verdict::Failed
        } else if self.is_held(step) {
            Verdict::Held
        } else if self.pipes && NOT_OVER_PIPES.contains(&step) {
            Verdict::Skipped
        } else {
            Verdict::NotReached
        }
    }

    /// Whether every step held that could be tried.
    pub(super) fn all_held(&self) -> bool {
        STEPS
            .iter()
            .all(|(step, ..)| matches!(self.verdict(*step), Verdict::Held | Verdict::Skipped))
    }

    /// For people.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        let count = |verdict| {
            STEPS
                .iter()
                .filter(|(step, ..)| self.verdict(*step) == verdict)
                .count()
        };
        for (step, name, what) in STEPS {
            let verdict = self.verdict(step);
            let word = match verdict {
                Verdict::Held => "held",
                Verdict::Failed => "FAILED",
                Verdict::NotReached => "not reached",
                Verdict::Skipped => "skipped",
            };
            let note = self.held.iter().find(|(held, _)| *held == step);
            let note = match (verdict, note) {
                (Verdict::Held, Some((_, note))) if !note.is_empty() => format!(" ({note})"),
                (Verdict::Skipped, _) => " (needs descriptors or a second connection)".to_owned(),
                _ => String::new(),
            };
            let _ = writeln!(text, "{word:<12} {name:<15} {what}{note}");
            for finding in self.findings.iter().filter(|finding| finding.step == step) {
                let _ = writeln!(
                    text,
                    "             {}: expected {}, found {}",
                    finding.field, finding.expected, finding.found
                );
            }
        }
        let _ = writeln!(
            text,
            "{} held, {} failed, {} not reached, {} skipped, {} frames read",
            count(Verdict::Held),
            count(Verdict::Failed),
            count(Verdict::NotReached),
            count(Verdict::Skipped),
            self.frames
        );
        text
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let steps = STEPS.map(|(step, name, what)| {
            let findings = self.findings.iter().filter(|finding| finding.step == step);
            let findings: Vec<Value> = findings
                .map(|f| json!({ "field": f.field, "expected": f.expected, "found": f.found }))
                .collect();
            json!({ "step": name, "what": what, "verdict": self.verdict(step).name(), "findings": findings })
        });
        json!({ "conforms": self.all_held(), "frames": self.frames, "steps": steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_conforms_when_every_step_held() {
        let mut sheet = Sheet::default();
        assert!(!sheet.all_held(), "nothing was seen");
        for (step, ..) in STEPS {
            sheet.hold(step, "");
        }
        assert!(sheet.all_held());
        sheet.find(Step::Grant, "Grant.bytes", 1, 2);
        assert!(
            !sheet.all_held(),
            "a step that held once and was broken later has failed"
        );
        assert!(sheet.to_text().contains("Grant.bytes: expected 1, found 2"));
        assert_eq!(sheet.to_json()["conforms"], false);
    }

    #[test]
    fn every_step_has_its_line_in_order() {
        assert!(STEPS.is_sorted_by_key(|(step, ..)| *step));
        let mut sheet = Sheet::new(true);
        for (step, ..) in STEPS.iter().filter(|(step, ..)| !NOT_OVER_PIPES.contains(step)) {
            sheet.hold(*step, "");
        }
        assert!(sheet.all_held());
        assert!(
            sheet
                .to_text()
                .contains("10 held, 0 failed, 0 not reached, 10 skipped")
        );
    }
}
