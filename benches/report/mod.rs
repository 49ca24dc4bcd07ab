//! Ratios of the benches, for people and for programs.
//!
//! Criterion keeps what one function costs. What matters here is how two compare that were measured in turn, and that is
//! printed and written to `target/kvasir-bench/NAME.json`; with `--save-baseline B` to `NAME.B.json` as well.
//! Nothing is compared where criterion is asked for something else (`--list`, `--test`, `--load-baseline`, ...) or for
//! benchmarks of other names.

#![allow(dead_code, unreachable_pub)] // each bench uses its own part of this

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Criterion's options that are followed by a value.
const WITH_VALUE: [&str; 19] = [
    "-b",
    "-c",
    "-s",
    "--baseline",
    "--baseline-lenient",
    "--color",
    "--confidence-level",
    "--format",
    "--load-baseline",
    "--measurement-time",
    "--noise-threshold",
    "--nresamples",
    "--output-format",
    "--plotting-backend",
    "--profile-time",
    "--sample-size",
    "--save-baseline",
    "--significance-level",
    "--warm-up-time",
];

/// Options under which criterion measures nothing itself, or not to compare.
const MEASURES_NOTHING: [&str; 9] = [
    "--help",
    "--ignored",
    "--list",
    "--load-baseline",
    "--profile-time",
    "--test",
    "--version",
    "-V",
    "-h",
];

/// What a bench was asked for, as far as comparisons go.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    measures: bool,
    filters: Vec<String>,
    is_exact: bool,
    baseline: Option<String>,
}

impl Asked {
    /// Reads the arguments that cargo and the user gave, without the program's name.
    pub fn of(args: impl IntoIterator<Item = String>) -> Self {
        // `cargo test --benches` runs each benchmark once and does not say `--bench`.
        let (mut is_bench, mut is_other) = (false, false);
        let mut asked = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (name, mut value) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            is_other |= MEASURES_NOTHING.contains(&name);
            is_bench |= name == "--bench";
            asked.is_exact |= name == "--exact";
            if WITH_VALUE.contains(&name) && value.is_none() {
                value = args.next();
            }
            if name == "--save-baseline" || name == "-s" {
                asked.baseline = value;
            } else if !name.starts_with('-') {
                asked.filters.push(arg);
            }
        }
        asked.measures = is_bench && !is_other;
        asked
    }

    /// Whether the comparison of this name is asked for.
    pub fn wants(&self, name: &str) -> bool {
        let is_meant = |filter: &String| match self.is_exact {
            true => name == filter,
            false => name.contains(filter.as_str()),
        };
        self.measures && (self.filters.is_empty() || self.filters.iter().any(is_meant))
    }
}

/// The comparisons of one bench.
pub struct Report {
    name: &'static str,
    asked: Asked,
    figures: Vec<Value>,
}

impl Report {
    /// A report of the bench of this name, by the program's arguments.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            asked: Asked::of(std::env::args().skip(1)),
            figures: Vec::new(),
        }
    }

    /// Whether to measure the comparisons, which criterion's filters find under `NAME/ratios`.
    pub fn is_wanted(&self) -> bool {
        self.asked.wants(&format!("{}/ratios", self.name))
    }

    /// Keeps a figure; the caller prints it.
    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        let name = name.into();
        self.figures
            .push(json!({"name": name, "value": value, "unit": unit}));
    }

    /// Keeps how many times `of` the value `one` is, and returns it.
    pub fn ratio(&mut self, name: impl Into<String>, one: f64, of: f64) -> f64 {
        let ratio = one / of;
        self.figure(name, ratio, "ratio");
        ratio
    }

    /// Writes what was kept, if anything was, and says where.
    pub fn finish(self) {
        if self.figures.is_empty() {
            return;
        }
        let directory = directory();
        let baseline = self.asked.baseline.as_ref();
        let names = [
            Some(self.name.to_owned()),
            baseline.map(|baseline| format!("{}.{}", self.name, file_name(baseline))),
        ];
        let taken = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let document = json!({"bench": self.name, "taken_unix_s": taken, "figures": self.figures});
        for name in names.into_iter().flatten() {
            let path = directory.join(name + ".json");
            match write(&path, &document) {
                Ok(()) => println!("ratios written to {}", path.display()),
                Err(error) => eprintln!("ratios not written to {}: {error}", path.display()),
            }
        }
    }
}

fn write(path: &Path, document: &Value) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, format!("{document:#}\n"))
}

/// `kvasir-bench` in cargo's target directory, wherever that is.
fn directory() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().unwrap_or(temporary).join("kvasir-bench")
}

/// A baseline's name as part of a file's.
fn file_name(baseline: &str) -> String {
    baseline.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_', "_")
}

/// The median of some times in seconds.
pub fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}
