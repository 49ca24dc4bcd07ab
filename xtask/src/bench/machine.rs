//! Where and of what the figures are.

use std::fs;

use serde_json::{Value, json};

use crate::command::{output, program};

/// The machine and the versions of a run.
pub(super) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    rustc: String,
    commit: String,
    load_before: String,
    load_after: String,
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn said(command: &[&str]) -> String {
    let text = output(program(command[0]).args(&command[1..]));
    text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

impl Machine {
    pub(super) fn look() -> Self {
        let kib = field("/proc/meminfo", "MemTotal");
        let kib = kib.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        // The page may be what is committed next, so its own change says nothing.
        let changed = said(&[
            "git",
            "status",
            "--porcelain",
            "--",
            ":!docs/benchmarks.*",
            ":!docs/charts",
        ]);
        let commit = said(&["git", "rev-parse", "--short=12", "HEAD"]);
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_gib: kib.unwrap_or(0) >> 20,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            rustc: said(&["rustc", "--version"]),
            commit: if changed.is_empty() {
                commit
            } else {
                format!("{commit}, with changes that are not committed")
            },
            load_before: load(),
            load_after: String::new(),
        }
    }

    /// The run is over.
    pub(super) fn ended(&mut self) {
        self.load_after = load();
    }

    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        vec![
            ("processor", format!("{}, {} cores", self.cpu, self.cores)),
            ("memory", format!("{} GiB", self.memory_gib)),
            ("kernel", self.kernel.clone()),
            ("compiler", self.rustc.clone()),
            ("commit", self.commit.clone()),
            (
                "load average",
                format!("{} before, {} after", self.load_before, self.load_after),
            ),
        ]
    }

    pub(super) fn to_json(&self) -> Value {
        let rows = self.rows().into_iter();
        rows.map(|(name, value)| (name.to_owned(), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}
