//! Which path this machine copies fastest on: a measurement of some milliseconds, once in a process.
//!
//! Every candidate gathers the same scattered pages from memory that was just written past the caches, as KV is cold when it is copied.
//! They take turns, and the shortest time of each counts: another process can only make a copy slower. Why it is measured and not looked
//! up: docs/decisions/0013-two-level-sums.md.

use std::time::{Duration, Instant};

use super::engine::CopyEngine;
use super::memory::{HostMemory, Span};
use super::path::{AHEADS, CopyPath, CopyPathError, Kernel, Summing, Weave};
use super::share::SHARE_BYTES_MIN;
use super::summed::SummedPlan;
use crate::shm::first::FirstMade;

/// The environment's word for the path, such as `portable` or `avx2-4x512+avx2-ahead8`.
pub const PATH_VARIABLE: &str = "KVASIR_COPY_PATH";

/// What is wrong with the environment's word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {PATH_VARIABLE}: {0}")]
pub struct NamedPathError(CopyPathError);

/// How long the choice of paths may take, and that of threads. A candidate that is under way is not stopped.
const BUDGET: Duration = Duration::from_millis(8);
/// Bytes of a turn.
const TURN_BYTES: usize = 1 << 20;
/// Pages of a turn are scattered over as many times its bytes, so that addresses are as cold as in a large cache.
const SPREAD: usize = 4;
const PAGE: usize = 16 << 10;
const ROUNDS: usize = 4;
/// What a candidate has to gain over the one that stands first in its list.
const GAIN_MIN: f64 = 1.03;
/// Most threads that are tried.
const THREADS_TRIED: [usize; 2] = [2, 4];
/// What a byte may cost with more threads, of its cost with one.
const THREADS_COST_MAX: f64 = 1.1;

impl CopyEngine {
    /// The fastest path of this machine, with one thread. It is measured when it is first asked for, for some milliseconds, and
    /// remembered for the process. [`PATH_VARIABLE`] names another, and one that cannot be is refused by [`check_named`](Self::check_named).
    pub fn detect() -> Self {
        static DETECTED: FirstMade<CopyEngine> = FirstMade::new();
        *DETECTED.get_or_make(|| named().ok().flatten().unwrap_or_else(measure))
    }

    /// Refuses what [`PATH_VARIABLE`] names where no copy is called so, or this machine cannot copy so. Programs ask before they begin:
    /// a slip would leave the measured copy in the place of the one that is wanted.
    ///
    /// # Errors
    /// [`NamedPathError`], with the names that there are.
    pub fn check_named() -> Result<(), NamedPathError> {
        named().map(drop).map_err(NamedPathError)
    }

    /// [`detect`](Self::detect), with as many threads for large copies as a measurement says is worth it: one on machines with two cores or
    /// fewer, and elsewhere so many that a byte costs at most a tenth more of a processor's time.
    pub fn with_measured_threads(self) -> Self {
        static THREADS: FirstMade<usize> = FirstMade::new();
        // Asked once: the answer takes a dozen system calls, and a copy has none to spare.
        let measure = || match std::thread::available_parallelism().map_or(1, usize::from) {
            0..=2 => 1,
            cores => measure_threads(self, cores),
        };
        self.with_threads(*THREADS.get_or_make(measure))
    }
}

/// What the environment says.
fn named() -> Result<Option<CopyEngine>, CopyPathError> {
    match std::env::var_os(PATH_VARIABLE) {
        Some(name) if !name.is_empty() => of_name(&name.to_string_lossy()).map(Some),
        // Set to nothing is not set.
        _ => Ok(None),
    }
}

fn of_name(name: &str) -> Result<CopyEngine, CopyPathError> {
    CopyEngine::on(name.parse()?).ok_or_else(|| CopyPathError::NotHere {
        name: name.to_owned(),
    })
}

/// Scattered pages of cold memory, and where they go.
struct Ground {
    plan: SummedPlan,
    /// What makes the source cold.
    wipe: Option<CopyEngine>,
    blank: [HostMemory; 1],
    source: [HostMemory; 1],
    target: [HostMemory; 1],
}

impl Ground {
    /// For turns of that many bytes.
    fn new(bytes: usize, wipe: Option<CopyEngine>) -> Self {
        let mut plan = SummedPlan::new();
        let pages = SPREAD * bytes / PAGE;
        for index in 0..bytes / PAGE {
            // An odd step over a power of two of pages meets each of them once.
            let from = (index * 0x9e37_79b1 % pages * PAGE) as u64;
            let to = Span::new(0, (index * PAGE) as u64);
            plan.push(Span::new(0, from), Some(to), PAGE as u64);
        }
        plan.end_part();
        Self {
            plan,
            wipe,
            blank: [HostMemory::zeroed(bytes)],
            source: [HostMemory::zeroed(SPREAD * bytes)],
            target: [HostMemory::zeroed(bytes)],
        }
    }

    /// Makes the pages cold, and copies them.
    fn time(&self, engine: CopyEngine, summed: bool) -> Duration {
        if let Some(wipe) = self.wipe {
            let mut plan = super::CopyPlan::new();
            let pages = SPREAD * self.blank[0].len() / PAGE;
            for index in 0..self.blank[0].len() / PAGE {
                let to = (index * 0x9e37_79b1 % pages * PAGE) as u64;
                plan.push(Span::new(0, (index * PAGE) as u64), Span::new(0, to), PAGE as u64);
            }
            let _ = wipe.execute(&plan, &self.blank, &self.source);
        }
        let plain = self.plan.unsummed();
        let begin = Instant::now();
        // Both plans fit the memory that they were made for.
        let _ = match summed {
            true => engine
                .execute_summed(&self.plan, &self.source, &self.target)
                .map(drop),
            false => engine.execute(&plain, &self.source, &self.target).map(drop),
        };
        begin.elapsed()
    }
}

fn measure() -> CopyEngine {
    let weaves = Weave::ALL.map(|weave| CopyPath {
        plain: Some(weave),
        summing: None,
    });
    let weaves: Vec<CopyEngine> = weaves.into_iter().filter_map(CopyEngine::on).collect();
    let summings = Kernel::ALL.iter().rev().flat_map(|&kernel| {
        AHEADS.map(|ahead| CopyPath {
            plain: weaves.first().and_then(|engine| engine.path().plain),
            summing: Some(Summing { kernel, ahead }),
        })
    });
    let summings: Vec<CopyEngine> = summings.filter_map(CopyEngine::on).collect();
    let ground = Ground::new(TURN_BYTES, weaves.first().copied());
    // The first turn makes the memory present, which is no candidate's time. Each half has a budget of its own.
    ground.time(CopyEngine::portable(), true);
    let until = || Instant::now() + BUDGET / 2;
    let plain = fastest(&weaves, ROUNDS, until(), |engine| ground.time(engine, false));
    let summing = fastest(&summings, ROUNDS, until(), |engine| ground.time(engine, true));
    CopyEngine::on(CopyPath {
        plain: plain.and_then(|engine| engine.path().plain),
        summing: summing.and_then(|engine| engine.path().summing),
    })
    .unwrap_or(CopyEngine::portable())
}

/// The candidate with the shortest of its times; the first one unless another gains on it. Rounds in which the time is up do not count.
fn fastest<T: Copy>(
    candidates: &[T],
    rounds: usize,
    end: Instant,
    mut time: impl FnMut(T) -> Duration,
) -> Option<T> {
    let first = *candidates.first()?;
    let mut best = vec![Duration::MAX; candidates.len()];
    let mut whole = None;
    for _ in 0..rounds {
        for (candidate, best) in candidates.iter().zip(&mut best) {
            if candidates.len() == 1 || Instant::now() >= end {
                return Some(whole.unwrap_or(first));
            }
            *best = time(*candidate).min(*best);
        }
        let (at, shortest) = best.iter().enumerate().min_by_key(|(_, time)| **time)?;
        let gains = best[0].as_secs_f64() >= GAIN_MIN * shortest.as_secs_f64();
        whole = Some(if gains { candidates[at] } else { first });
    }
    whole
}

fn measure_threads(engine: CopyEngine, cores: usize) -> usize {
    let tried: Vec<usize> = THREADS_TRIED
        .into_iter()
        .filter(|threads| *threads < cores)
        .collect();
    let most = tried.iter().copied().max().unwrap_or(1);
    let ground = Ground::new(most * SHARE_BYTES_MIN as usize, Some(engine));
    let mut best = vec![Duration::MAX; tried.len() + 1];
    // Makes the memory present, which is no candidate's time.
    ground.time(engine, true);
    let end = Instant::now() + BUDGET;
    for round in 0..ROUNDS {
        for (threads, best) in std::iter::once(&1).chain(&tried).zip(&mut best) {
            *best = ground.time(engine.with_threads(*threads), true).min(*best);
        }
        if round > 0 && Instant::now() >= end {
            break;
        }
    }
    worthwhile(best[0], tried.iter().copied().zip(best[1..].iter().copied()))
}

/// The most threads that cost at most [`THREADS_COST_MAX`] of what one does, all together.
fn worthwhile(one: Duration, more: impl Iterator<Item = (usize, Duration)>) -> usize {
    let cost = |(threads, time): (usize, Duration)| threads as f64 * time.as_secs_f64();
    let affordable = more.filter(|&of| cost(of) <= THREADS_COST_MAX * one.as_secs_f64());
    affordable.map(|(threads, _)| threads).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_shortest_of_all_rounds_counts_and_the_first_wins_ties() {
        let end = Instant::now() + Duration::from_secs(3600);
        let mut turns = [5, 9, 7, 100, 2, 7].into_iter();
        let best = fastest(&['a', 'b', 'c'], 2, end, |_| MS * turns.next().unwrap());
        assert_eq!(best, Some('b'));
        let tie = fastest(&['a', 'b'], 3, end, |name| {
            MS * if name == 'a' { 100 } else { 98 }
        });
        assert_eq!(tie, Some('a'));
        let none: Option<char> = fastest(&[], 3, end, |_| MS);
        assert_eq!(none, None);
    }

    #[test]
    fn without_time_the_first_is_taken_and_with_little_what_whole_rounds_say() {
        let never = |_| -> Duration { panic!("measured") };
        assert_eq!(fastest(&['a', 'b'], 3, Instant::now(), never), Some('a'));
        assert_eq!(
            fastest(&['a'], 3, Instant::now() + MS * 3_600_000, never),
            Some('a')
        );
        let end = Instant::now() + MS * 20;
        let mut turns = 0;
        let best = fastest(&['a', 'b'], 3, end, |name| {
            turns += 1;
            if turns == 3 {
                std::thread::sleep(MS * 30);
            }
            match (name, turns) {
                ('b', 2) => MS,
                ('a', 3) => Duration::ZERO,
                _ => MS * 10,
            }
        });
        assert_eq!((best, turns), (Some('b'), 3), "the second round was cut off");
    }

    #[test]
    fn threads_are_taken_while_a_byte_costs_hardly_more() {
        let of = |two: u32, four: u32| worthwhile(MS * 100, [(2, MS * two), (4, MS * four)].into_iter());
        assert_eq!(of(50, 25), 4);
        assert_eq!(of(55, 40), 2);
        assert_eq!(of(56, 30), 1);
        assert_eq!(of(70, 27), 4);
    }

    #[test]
    fn a_name_gives_its_copy_or_an_error() {
        assert_eq!(of_name("portable"), Ok(CopyEngine::portable()));
        assert!(matches!(of_name("Portable"), Err(CopyPathError::Unknown { .. })));
        let here = CopyEngine::all();
        for path in CopyPath::every() {
            match of_name(&path.to_string()) {
                Ok(engine) => assert_eq!((engine.path(), CopyEngine::on(path)), (path, Some(engine))),
                Err(error) => {
                    assert!(!here.iter().any(|engine| engine.path() == path), "{error}");
                }
            }
        }
    }

    #[test]
    fn what_is_measured_is_a_path_of_this_machine() {
        let engine = measure();
        assert_eq!(CopyEngine::on(engine.path()), Some(engine));
        let can = |engines: fn(&CopyEngine) -> bool| CopyEngine::all().iter().any(engines);
        assert_eq!(
            engine.path().plain.is_some(),
            can(|engine| engine.path().plain.is_some())
        );
        assert_eq!(
            engine.path().summing.is_some(),
            can(|engine| engine.path().summing.is_some())
        );
        assert!([1, 2, 4].contains(&measure_threads(engine, 8)));
    }
}
