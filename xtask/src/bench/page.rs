//! The page of a run, its charts and its JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::chart::{Bar, Scale, draw};
use super::figures::{CEILINGS, Criterion, Figure, QUESTIONS, Side};
use super::machine::Machine;

/// What stands where nothing was measured.
const MISSING: &str = "not measured";
/// Characters of a name in a table.
const NAME_MAX: usize = 100;

/// All that a run has found.
pub(super) struct Run {
    pub(super) machine: Machine,
    pub(super) day: String,
    /// The command line, to be run again.
    pub(super) command: String,
    pub(super) rounds: usize,
    pub(super) minutes: u64,
    pub(super) own: Side,
    pub(super) peer: Side,
    pub(super) suites: Vec<(String, Vec<Figure>)>,
    pub(super) criterion: Vec<Criterion>,
    /// Suites that failed or were left out.
    pub(super) missing: Vec<String>,
}

/// A number with three digits that count.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.01 => 3,
        _ => 6,
    };
    format!("{value:.digits$}")
}

fn shown(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| format!("{} {unit}", number(value)))
}

fn times(value: Option<f64>) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| format!("{}x", number(value)))
}

fn cell(text: &str) -> String {
    let text = text.replace('|', "/");
    text.chars().take(NAME_MAX).collect()
}

impl Run {
    fn ceiling(&self, name: &str, side: &Side) -> Option<f64> {
        let copy = CEILINGS.iter().find(|(rate, _)| *rate == name)?.1;
        Some(side.median(name, "GB/s")? / side.median(copy, "GB/s")?)
    }

    pub(super) fn to_json(&self) -> Value {
        let ceilings = CEILINGS.map(|(name, copy)| {
            json!({
                "name": name,
                "copy_gb_per_s": self.own.median(copy, "GB/s"),
                "kvasir": self.ceiling(name, &self.own),
                "peer": self.ceiling(name, &self.peer),
            })
        });
        let figures = |figures: &[Figure]| -> Vec<Value> {
            let one = |f: &Figure| json!({ "name": f.name, "value": f.value, "unit": f.unit });
            figures.iter().map(one).collect()
        };
        let suites = self
            .suites
            .iter()
            .map(|(name, found)| (name.clone(), json!(figures(found))));
        let criterion = self.criterion.iter();
        json!({
            "day": self.day,
            "command": self.command,
            "rounds": self.rounds,
            "minutes": self.minutes,
            "machine": self.machine.to_json(),
            "peer_version": self.peer.version,
            "questions": QUESTIONS.iter().map(|q| q.to_json(&self.own, &self.peer)).collect::<Vec<_>>(),
            "of_ceiling": ceilings,
            "suites": suites.collect::<serde_json::Map<_, _>>(),
            "criterion": criterion.map(|one| json!({ "id": one.id, "median_ns": one.median_ns })).collect::<Vec<_>>(),
            "not_measured": self.missing,
        })
    }

    /// The charts, by the names of their files.
    pub(super) fn charts(&self) -> Vec<(&'static str, String)> {
        let ratios = QUESTIONS.iter().map(|question| {
            let ratio = question.ratio(&self.own, &self.peer);
            Bar {
                label: question.text.to_owned(),
                value: ratio,
                text: times(ratio),
                mark: Some(question.aim),
            }
        });
        let ceilings = CEILINGS.iter().flat_map(|(name, _)| {
            [("Kvasir", &self.own), ("LMCache", &self.peer)].map(|(who, side)| {
                let share = self.ceiling(name, side);
                Bar {
                    label: format!("{who}, {}", name.replace('_', " of ")),
                    value: share,
                    text: share.map_or_else(|| MISSING.to_owned(), |share| format!("{:.0} %", share * 100.0)),
                    mark: Some(1.0),
                }
            })
        });
        vec![
            (
                "ratios.svg",
                draw(
                    "How many times better Kvasir is than the peer (line: what is aimed at)",
                    Scale::Log,
                    &ratios.collect::<Vec<_>>(),
                ),
            ),
            (
                "ceilings.svg",
                draw(
                    "Throughput as a share of the fastest plain copy (line: 100 %)",
                    Scale::Linear,
                    &ceilings.collect::<Vec<_>>(),
                ),
            ),
        ]
    }

    pub(super) fn to_markdown(&self) -> String {
        let mut page = String::from(
            "# Benchmarks\n\nThis page is written by `cargo xtask bench` and not by hand.\n\
             A figure that the run did not measure is *not measured*; none is carried over from another run.\n\n",
        );
        let _ = writeln!(
            page,
            "## Machine\n\n| what | found |\n|---|---|\n| day | {} |",
            self.day
        );
        for (name, value) in self.machine.rows() {
            let _ = writeln!(page, "| {name} | {} |", cell(&value));
        }
        let version = self.peer.version.as_deref().unwrap_or(MISSING);
        let _ = writeln!(
            page,
            "| peer | LMCache {version}, multiprocess server, shared memory |\n"
        );
        self.against_the_peer(&mut page);
        self.of_the_ceiling(&mut page);
        self.suites(&mut page);
        let _ = writeln!(
            page,
            "## How to repeat\n\n```sh\n{}\n```\n\nIt took {} minutes.\n`cargo xtask bench --help` lists what can be left out.",
            self.command, self.minutes
        );
        page
    }

    fn against_the_peer(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "## Against the peer\n\n![Ratios](charts/ratios.svg)\n\n\
             - Both do the same work in the same run, in {} rounds that alternate; a figure is the median of the rounds.\n\
             - Chunks have 256 tokens, and every byte of a store or load is copied by the client in both.\n\
             - Each side is driven by its own client: Kvasir's in Rust, LMCache's in Python.\n\
             - Both copy with one thread.\n\
             - Kvasir has its default settings otherwise, with checksums; the peer has none.\n\
             - A ratio above 1 says that Kvasir is better.\n\n\
             | question | Kvasir | LMCache | ratio | aim |\n|---|---|---|---|---|",
            self.rounds
        );
        for question in &QUESTIONS {
            let side = |side: &Side| shown(side.median(question.name, question.unit), question.unit);
            let ratio = times(question.ratio(&self.own, &self.peer));
            let (own, peer) = (side(&self.own), side(&self.peer));
            let _ = writeln!(
                page,
                "| {} | {own} | {peer} | {ratio} | {}x |",
                question.text, question.aim
            );
        }
        page.push('\n');
    }

    fn of_the_ceiling(&self, page: &mut String) {
        page.push_str(
            "## Of the ceiling\n\n![Shares of the ceiling](charts/ceilings.svg)\n\n\
             The ceiling of a side is the fastest plain copy by one thread that its own bench makes in the same run.\n\
             It copies as many bytes, and all are cold: those of a store, a load or a copy were last touched long before.\n\n\
             | rate | plain copy | Kvasir | LMCache |\n|---|---|---|---|\n",
        );
        for (name, copy) in CEILINGS {
            let share = |side| {
                let share = self.ceiling(name, side);
                share.map_or_else(|| MISSING.to_owned(), |share| format!("{:.0} %", share * 100.0))
            };
            let copy = shown(self.own.median(copy, "GB/s"), "GB/s");
            let (own, peer) = (share(&self.own), share(&self.peer));
            let _ = writeln!(
                page,
                "| {} | {copy} | {own} | {peer} |",
                name.replace('_', " of ")
            );
        }
        page.push('\n');
    }

    fn suites(&self, page: &mut String) {
        page.push_str("## Suites\n\nEach is `cargo bench --bench NAME`.\n\n");
        for (name, figures) in &self.suites {
            let _ = writeln!(page, "### {name}\n\n| figure | value |\n|---|---|");
            for figure in figures {
                let value = format!("{} {}", number(figure.value), figure.unit);
                let _ = writeln!(page, "| {} | {value} |", cell(&figure.name));
            }
            page.push('\n');
        }
        for name in &self.missing {
            let _ = writeln!(page, "- {name}: {MISSING}");
        }
        if !self.missing.is_empty() {
            page.push('\n');
        }
        page.push_str("### Criterion's medians\n\n| benchmark | median |\n|---|---|\n");
        for one in &self.criterion {
            let _ = writeln!(page, "| {} | {} us |", cell(&one.id), number(one.median_ns / 1e3));
        }
        page.push('\n');
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn empty() -> Run {
        Run {
            machine: Machine::look(),
            day: "2026-01-02".into(),
            command: "cargo xtask bench".into(),
            rounds: 3,
            minutes: 1,
            own: Side::default(),
            peer: Side::default(),
            suites: vec![],
            criterion: vec![],
            missing: vec!["copy".into()],
        }
    }

    fn figure(name: &str, value: f64, unit: &str) -> Figure {
        Figure {
            name: name.into(),
            value,
            unit: unit.into(),
        }
    }

    #[test]
    fn a_run_that_measured_nothing_has_no_figure() {
        let run = empty();
        let page = run.to_markdown();
        for question in &QUESTIONS {
            let row = format!("| {} | {MISSING} | {MISSING} | {MISSING} |", question.text);
            assert!(page.contains(&row), "{row}");
        }
        assert!(page.contains("- copy: not measured"));
        let json = run.to_json();
        assert!(
            json["questions"]
                .as_array()
                .unwrap()
                .iter()
                .all(|q| q["ratio"].is_null())
        );
        for (_, svg) in run.charts() {
            assert!(!svg.contains("<rect "), "no bar without a figure");
        }
    }

    #[test]
    fn what_was_measured_is_on_the_page() {
        let mut run = empty();
        run.own.add(vec![
            figure("noop", 20.0, "us"),
            figure("store_1MiB", 5.0, "GB/s"),
            figure("copy_1MiB", 10.0, "GB/s"),
        ]);
        run.peer.add(vec![figure("noop", 150.0, "us")]);
        let page = run.to_markdown();
        assert!(
            page.contains("| time of an exchange that does nothing | 20.0 us | 150 us | 7.50x | 7x |"),
            "{page}"
        );
        assert!(
            page.contains("| store of 1MiB | 10.0 GB/s | 50 % | not measured |"),
            "{page}"
        );
        assert_eq!(run.to_json()["questions"][0]["ratio"], 7.5);
    }
}
