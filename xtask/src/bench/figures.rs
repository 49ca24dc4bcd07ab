//! What was measured in this run, and nothing else: a figure that is not there is `None` all the way to the page.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

/// A figure as benches write it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: String,
}

/// The file of a bench.
#[derive(Debug, Deserialize)]
struct File {
    taken_unix_s: u64,
    figures: Vec<Figure>,
    version: Option<String>,
}

/// Figures of a bench's file, if this run has written it; and a version, if it names one.
pub(super) fn of_file(path: &Path, began_unix_s: u64) -> Result<Option<(Vec<Figure>, Option<String>)>> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(None);
    };
    let file: File =
        serde_json::from_str(&text).with_context(|| format!("{} is no file of a bench", path.display()))?;
    if let Some(figure) = file.figures.iter().find(|figure| !figure.value.is_finite()) {
        bail!("{}: {} is {}", path.display(), figure.name, figure.value);
    }
    // What an earlier run has left is not this run's.
    Ok((file.taken_unix_s >= began_unix_s).then_some((file.figures, file.version)))
}

/// A median of criterion's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Criterion {
    pub(super) id: String,
    pub(super) median_ns: f64,
}

/// What criterion has measured since this run began.
pub(super) fn of_criterion(directory: &Path, began: SystemTime) -> Result<Vec<Criterion>> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for path in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
        {
            let estimates = path.join("estimates.json");
            let is_new = path.file_name().is_some_and(|name| name == "new");
            if !is_new || !estimates.is_file() {
                open.push(path);
                continue;
            }
            if fs::metadata(&estimates)?.modified()? < began {
                continue;
            }
            let read = |name: &str| -> Result<Value> {
                Ok(serde_json::from_str(&fs::read_to_string(path.join(name))?)?)
            };
            let (benchmark, estimates) = (read("benchmark.json")?, read("estimates.json")?);
            let id = benchmark["full_id"].as_str();
            let median = estimates["median"]["point_estimate"].as_f64();
            if let (Some(id), Some(median_ns)) = (id, median) {
                let id = id.to_owned();
                found.push(Criterion { id, median_ns });
            }
        }
    }
    found.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(found)
}

/// One side of the comparison, over the rounds of this run.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) version: Option<String>,
    rounds: BTreeMap<String, (String, Vec<f64>)>,
}

impl Side {
    /// Adds a round's figures.
    pub(super) fn add(&mut self, figures: Vec<Figure>) {
        for figure in figures {
            let (_, values) = self
                .rounds
                .entry(figure.name)
                .or_insert((figure.unit, Vec::new()));
            values.push(figure.value);
        }
    }

    /// The rounds of a figure, in the unit that is asked for.
    pub(super) fn rounds(&self, name: &str, unit: &str) -> &[f64] {
        match self.rounds.get(name) {
            Some((found, values)) if found == unit => values,
            _ => &[],
        }
    }

    /// The median of a figure's rounds.
    pub(super) fn median(&self, name: &str, unit: &str) -> Option<f64> {
        let mut values = self.rounds(name, unit).to_vec();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            count if count % 2 == 1 => Some(values[middle]),
            _ => Some((values[middle - 1] + values[middle]) / 2.0),
        }
    }
}

/// A question that both sides are asked.
pub(super) struct Question {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    pub(super) unit: &'static str,
    /// Whether more is better.
    more: bool,
    /// How many times better Kvasir wants to be.
    pub(super) aim: f64,
}

const fn less(name: &'static str, text: &'static str, unit: &'static str, aim: f64) -> Question {
    Question {
        name,
        text,
        unit,
        more: false,
        aim,
    }
}

const fn more(name: &'static str, text: &'static str, unit: &'static str, aim: f64) -> Question {
    Question {
        name,
        text,
        unit,
        more: true,
        aim,
    }
}

/// One figure for each.
pub(super) const QUESTIONS: [Question; 14] = [
    less("noop", "time of an exchange that does nothing", "us", 7.0),
    less(
        "lookup_repeated",
        "time of a lookup of 128 chunks that hit, keys known",
        "us",
        150.0,
    ),
    less(
        "lookup_hashing",
        "time of the same lookup, from 32768 tokens",
        "us",
        40.0,
    ),
    less("store_1", "time of a store of one chunk of 64 KiB", "us", 40.0),
    less("store_128", "time of a store of 128 chunks of 64 KiB", "us", 25.0),
    less("load_1", "time of a load of one chunk of 64 KiB", "us", 40.0),
    less("load_128", "time of a load of 128 chunks of 64 KiB", "us", 40.0),
    less(
        "start",
        "time from the start of the process to its first answer",
        "ms",
        300.0,
    ),
    less(
        "idle_memory",
        "memory of an idle server without its pool",
        "MiB",
        50.0,
    ),
    more(
        "requests_of_4",
        "lookups per second (16 chunks, released), four clients",
        "1/s",
        250.0,
    ),
    more(
        "store_1MiB",
        "bytes per second of a store of 16 chunks of 1 MiB",
        "GB/s",
        3.0,
    ),
    more(
        "load_1MiB",
        "bytes per second of a load of 16 chunks of 1 MiB",
        "GB/s",
        3.0,
    ),
    more(
        "store_32MiB",
        "bytes per second of a store of 16 chunks of 32 MiB",
        "GB/s",
        1.0,
    ),
    more(
        "load_32MiB",
        "bytes per second of a load of 16 chunks of 32 MiB",
        "GB/s",
        1.0,
    ),
];

/// Rates that have a ceiling: the fastest plain copy of as many bytes in the same run.
pub(super) const CEILINGS: [(&str, &str); 4] = [
    ("store_1MiB", "copy_1MiB"),
    ("load_1MiB", "copy_1MiB"),
    ("store_32MiB", "copy_32MiB"),
    ("load_32MiB", "copy_32MiB"),
];

impl Question {
    /// How many times better the first is.
    pub(super) fn ratio(&self, own: &Side, peer: &Side) -> Option<f64> {
        let (own, peer) = (
            own.median(self.name, self.unit)?,
            peer.median(self.name, self.unit)?,
        );
        let (above, below) = if self.more { (own, peer) } else { (peer, own) };
        (below > 0.0).then_some(above / below)
    }

    pub(super) fn to_json(&self, own: &Side, peer: &Side) -> Value {
        json!({
            "name": self.name,
            "question": self.text,
            "unit": self.unit,
            "kvasir": own.median(self.name, self.unit),
            "kvasir_rounds": own.rounds(self.name, self.unit),
            "peer": peer.median(self.name, self.unit),
            "peer_rounds": peer.rounds(self.name, self.unit),
            "ratio": self.ratio(own, peer),
            "aim": self.aim,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(values: &[(&str, f64, &str)]) -> Side {
        let mut side = Side::default();
        side.add(
            values
                .iter()
                .map(|(name, value, unit)| Figure {
                    name: (*name).to_owned(),
                    value: *value,
                    unit: (*unit).to_owned(),
                })
                .collect(),
        );
        side
    }

    #[test]
    fn a_ratio_needs_both_sides_of_this_run() {
        let own = side(&[
            ("noop", 10.0, "us"),
            ("store_1MiB", 6.0, "GB/s"),
            ("start", 5.0, "s"),
        ]);
        let peer = side(&[
            ("noop", 70.0, "us"),
            ("store_1MiB", 2.0, "GB/s"),
            ("start", 9.0, "ms"),
        ]);
        let ratio = |name: &str| {
            let question = QUESTIONS.iter().find(|question| question.name == name).unwrap();
            question.ratio(&own, &peer)
        };
        assert_eq!(ratio("noop"), Some(7.0), "less is better");
        assert_eq!(ratio("store_1MiB"), Some(3.0), "more is better");
        assert_eq!(ratio("load_1MiB"), None, "neither was measured");
        assert_eq!(ratio("start"), None, "in another unit");
    }

    #[test]
    fn rounds_give_their_median() {
        let mut own = Side::default();
        for value in [3.0, 100.0, 4.0] {
            own.add(vec![Figure {
                name: "noop".into(),
                value,
                unit: "us".into(),
            }]);
        }
        assert_eq!(own.median("noop", "us"), Some(4.0));
        assert_eq!(own.rounds("noop", "us").len(), 3);
        assert_eq!(own.median("noop", "ms"), None);
    }

    #[test]
    fn a_file_of_an_earlier_run_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        assert_eq!(of_file(&path, 0).unwrap().map(|(figures, _)| figures), None);
        let text =
            r#"{"bench": "a", "taken_unix_s": 50, "figures": [{"name": "x", "value": 1.5, "unit": "us"}]}"#;
        fs::write(&path, text).unwrap();
        assert!(of_file(&path, 51).unwrap().is_none(), "older than the run");
        let (figures, version) = of_file(&path, 50).unwrap().unwrap();
        assert_eq!((figures[0].value, version), (1.5, None));
        fs::write(&path, "{}").unwrap();
        assert!(of_file(&path, 0).is_err());
    }

    #[test]
    fn criterions_figures_are_those_since_the_run_began() {
        let directory = tempfile::tempdir().unwrap();
        let new = directory.path().join("group/one/new");
        fs::create_dir_all(&new).unwrap();
        fs::write(new.join("benchmark.json"), r#"{"full_id": "group/one"}"#).unwrap();
        fs::write(
            new.join("estimates.json"),
            r#"{"median": {"point_estimate": 12.5}}"#,
        )
        .unwrap();
        let found = of_criterion(directory.path(), SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id.as_str(), found[0].median_ns), ("group/one", 12.5));
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        assert_eq!(of_criterion(directory.path(), later).unwrap(), []);
    }
}
