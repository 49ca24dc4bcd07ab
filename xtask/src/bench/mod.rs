//! `cargo xtask bench`: every suite and the head-to-head with the peer in one run, then a page, charts and JSON of it.

mod chart;
mod figures;
mod machine;
mod page;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use self::figures::{Side, of_criterion, of_file};
use self::machine::Machine;
use self::page::Run;
use crate::command::{self, cargo, output, program};
use crate::peer_env;

/// Suites besides the head-to-head, in the order in which they run.
const SUITES: [&str; 12] = [
    "copy",
    "gather",
    "commit",
    "clients",
    "geometry",
    "hash",
    "lookup",
    "negotiate",
    "startup",
    "transfer",
    "turns",
    "weights",
];
/// Kvasir's side of the head-to-head.
const OWN: &str = "head_to_head";
const PEER_DRIVER: &str = "python/benches/lmcache_peer.py";

/// The peers that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    Lmcache,
}

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Ask another server the same questions in the same run; it is installed into .venv-peer
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Write all figures and ratios as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Few rounds of everything, to see that it works; the page goes to target/ and not to docs/
    #[arg(long)]
    quick: bool,
    /// Rounds of the head-to-head, which alternate between the two
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// Run these suites only, or none of them with `--only head_to_head`
    #[arg(long, value_name = "SUITE")]
    only: Vec<String>,
    /// Build with this profile instead of cargo's for benches; such figures make no page of the documents
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Flags for criterion, behind --
    #[arg(last = true)]
    criterion: Vec<String>,
}

impl Options {
    /// Whether this run is one that a page in docs/ may be made of.
    fn is_whole(&self) -> bool {
        let is_cut =
            self.quick || self.profile.is_some() || !self.only.is_empty() || !self.criterion.is_empty();
        !is_cut && self.peer.is_some()
    }

    fn profile(&self) -> Vec<String> {
        let named = self.profile.iter();
        named
            .flat_map(|name| ["--profile".to_owned(), name.clone()])
            .collect()
    }

    fn wants(&self, suite: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == suite)
    }
}

/// `cargo xtask bench`.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(unknown) = options
        .only
        .iter()
        .find(|only| !SUITES.contains(&only.as_str()) && *only != OWN)
    {
        bail!(
            "there is no suite {unknown:?}; there are {}, {OWN}",
            SUITES.join(", ")
        );
    }
    // What takes the machine's time is done before anything is measured.
    let peer = options.peer.map(|Peer::Lmcache| peer_env::ensure()).transpose()?;
    let wanted = SUITES
        .into_iter()
        .chain([OWN])
        .filter(|suite| options.wants(suite));
    let mut build = undisturbed(cargo());
    build.args(["bench", "--no-run"]).args(options.profile());
    build.args(wanted.flat_map(|suite| ["--bench", suite]));
    command::run(&mut build).context("the benches do not compile")?;

    let (began, clock) = (SystemTime::now(), Instant::now());
    let mut machine = Machine::look();
    let mut missing = Vec::new();
    let (mut own, mut other) = (Side::default(), Side::default());
    let rounds = if options.quick { 1 } else { options.rounds };
    if options.wants(OWN) {
        for round in 1..=rounds {
            println!("head-to-head, round {round} of {rounds}");
            note(&mut missing, OWN, own_round(options, &mut own));
            if let Some(environment) = &peer {
                note(
                    &mut missing,
                    "lmcache",
                    peer_round(options, &environment.python(), &mut other),
                );
            }
        }
    }
    if peer.is_none() || !options.wants(OWN) {
        missing.push("lmcache".into());
    }
    let mut suites = Vec::new();
    for suite in SUITES {
        if !options.wants(suite) {
            missing.push(suite.into());
            continue;
        }
        let ran = bench(options, suite).and_then(|()| {
            let found = of_file(&result(suite), unix(began))?;
            suites.extend(found.map(|(figures, _)| (suite.to_owned(), figures)));
            Ok(())
        });
        note(&mut missing, suite, ran);
    }
    machine.ended();
    let found = Run {
        machine,
        day: output(program("date").arg("+%Y-%m-%d"))?,
        command: shown(options),
        rounds: rounds as usize,
        minutes: clock.elapsed().as_secs().div_ceil(60),
        own,
        peer: other,
        suites,
        criterion: of_criterion(&command::target().join("criterion"), began)?,
        missing,
    };
    write(options, &found)
}

/// Says that something failed, and goes on with the rest: its figures are then not measured.
fn note(missing: &mut Vec<String>, what: &str, ran: Result<()>) {
    let Err(error) = ran else { return };
    eprintln!("error: {what}: {error:#}");
    if !missing.iter().any(|other| other == what) {
        missing.push(what.to_owned());
    }
}

/// Variables of the environment that change what is measured, and that no page tells: those of the benches and of Kvasir.
const DISTURBING: [&str; 2] = ["BENCH_", "KVASIR_"];

/// A command without such variables of the caller's.
fn undisturbed(command: Command) -> Command {
    without(command, env::vars_os().map(|(name, _)| name))
}

fn without(mut command: Command, names: impl Iterator<Item = OsString>) -> Command {
    for name in names {
        let text = name.to_string_lossy();
        if DISTURBING.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// What runs a suite, with the profile that it was built with.
fn suite_command(options: &Options, suite: &str) -> Command {
    let mut command = undisturbed(cargo());
    command.arg("bench").args(options.profile());
    command.args(["--bench", suite, "--"]).args(&options.criterion);
    command
}

fn bench(options: &Options, suite: &str) -> Result<()> {
    let mut command = suite_command(options, suite);
    if options.quick {
        command.env("BENCH_QUICK", "1");
        command.args(["--quick", "--noplot"]);
    }
    command::run(&mut command)
}

fn own_round(options: &Options, side: &mut Side) -> Result<()> {
    let began = SystemTime::now();
    bench(options, OWN)?;
    take(&result(OWN), began, side)
}

fn peer_round(options: &Options, python: &Path, side: &mut Side) -> Result<()> {
    let began = SystemTime::now();
    let path = result("lmcache");
    let mut driver = undisturbed(program(python));
    driver.arg(PEER_DRIVER).arg(&path);
    if options.quick {
        driver.arg("--quick");
    }
    command::run(&mut driver)?;
    take(&path, began, side)
}

/// Takes what a round has written, which has to be newer than its beginning.
fn take(path: &Path, began: SystemTime, side: &mut Side) -> Result<()> {
    let Some((figures, version)) = of_file(path, unix(began))? else {
        bail!("it has not written {}", path.display());
    };
    side.version = version;
    side.add(figures);
    Ok(())
}

fn result(suite: &str) -> PathBuf {
    command::target()
        .join("kvasir-bench")
        .join(format!("{suite}.json"))
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The command that makes this run again.
fn shown(options: &Options) -> String {
    let mut words = vec!["cargo xtask bench".to_owned()];
    words.extend(options.peer.map(|_| "--peer lmcache".to_owned()));
    words.extend(options.quick.then(|| "--quick".to_owned()));
    words.extend(options.profile.as_ref().map(|name| format!("--profile {name}")));
    words.extend((!options.quick && options.rounds != 3).then(|| format!("--rounds {}", options.rounds)));
    words.extend(options.only.iter().map(|only| format!("--only {only}")));
    if !options.criterion.is_empty() {
        words.push(format!("-- {}", options.criterion.join(" ")));
    }
    words.join(" ")
}

fn write(options: &Options, run: &Run) -> Result<()> {
    // Only a whole run is what a page of the documents may say.
    let directory = match options.is_whole() {
        true => command::root().join("docs"),
        false => command::target().join("kvasir-bench"),
    };
    let put = |path: &Path, text: &str| {
        let parent = path.parent().unwrap_or(path);
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written: {}", path.display());
        anyhow::Ok(())
    };
    if let Some(json) = &options.json {
        put(&command::root().join(json), &format!("{:#}\n", run.to_json()))?;
    }
    put(&directory.join("benchmarks.md"), &run.to_markdown())?;
    for (name, svg) in run.charts() {
        put(&directory.join("charts").join(name), &svg)?;
    }
    let failed = run.missing.iter().filter(|name| match name.as_str() {
        "lmcache" => options.peer.is_some() && options.wants(OWN),
        suite => options.wants(suite),
    });
    let failed: Vec<&str> = failed.map(String::as_str).collect();
    if !failed.is_empty() {
        bail!("not measured, because they failed: {}", failed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn options(text: &str) -> Options {
        Arguments::parse_from(std::iter::once("bench").chain(text.split_whitespace())).options
    }

    #[test]
    fn only_a_whole_run_makes_a_page_of_the_documents() {
        assert!(options("--peer lmcache --json a.json").is_whole());
        for part in [
            "",
            "--peer lmcache --quick",
            "--peer lmcache --only copy",
            "--peer lmcache --profile dev",
            "--peer lmcache -- --sample-size 10",
        ] {
            assert!(!options(part).is_whole(), "{part}");
        }
    }

    #[test]
    fn variables_that_change_what_is_measured_are_taken_away() {
        let names = [
            "BENCH_RUNS",
            "KVASIR_COPY_PATH",
            "BENCHES",
            "PATH",
            "MY_KVASIR_COPY_PATH",
        ];
        let command = without(program("true"), names.iter().map(OsString::from));
        let removed: Vec<_> = command.get_envs().collect();
        let expected = ["BENCH_RUNS", "KVASIR_COPY_PATH"].map(|name| (name.as_ref(), None));
        assert_eq!(removed, expected);
    }

    #[test]
    fn a_suite_runs_with_the_profile_that_it_was_built_with() {
        let arguments = |text: &str| -> Vec<String> {
            let command = suite_command(&options(text), "copy");
            let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect()
        };
        assert_eq!(arguments(""), ["bench", "--bench", "copy", "--"]);
        assert_eq!(
            arguments("--profile dev -- --sample-size 10"),
            [
                "bench",
                "--profile",
                "dev",
                "--bench",
                "copy",
                "--",
                "--sample-size",
                "10"
            ]
        );
    }

    #[test]
    fn the_command_is_the_one_that_was_given() {
        assert_eq!(
            shown(&options("--peer lmcache --json a.json")),
            "cargo xtask bench --peer lmcache"
        );
        let part = options("--only copy -- --sample-size 10");
        assert_eq!(shown(&part), "cargo xtask bench --only copy -- --sample-size 10");
        assert!(part.wants("copy") && !part.wants("hash"));
    }

    #[test]
    fn every_bench_of_the_manifest_is_run() {
        let manifest = fs::read_to_string(command::root().join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let benches = manifest["bench"].as_array().unwrap().iter();
        let names: Vec<&str> = benches.map(|bench| bench["name"].as_str().unwrap()).collect();
        for name in &names {
            assert!(SUITES.contains(name) || *name == OWN, "{name} is not run");
        }
        assert_eq!(names.len(), SUITES.len() + 1);
    }

    #[test]
    fn what_fails_is_said_once() {
        let mut missing = vec![];
        note(&mut missing, "copy", Ok(()));
        note(&mut missing, "copy", Err(anyhow::anyhow!("one")));
        note(&mut missing, "copy", Err(anyhow::anyhow!("two")));
        assert_eq!(missing, ["copy"]);
    }
}
