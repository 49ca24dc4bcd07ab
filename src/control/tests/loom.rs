//! Every interleaving of small races to bind, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --lib control::loom`.

use std::sync::Arc as StdArc;

use super::{
    BindError, BindState, Binding, BindingListener, ChunkSizeConfig, ChunkWord, NegotiateRequest, Negotiated,
};
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, thread};

type Model = Binding<AtomicU64>;

fn unbound() -> Model {
    Binding::new(AtomicU64::new(0), ChunkSizeConfig::default())
}

fn negotiate(binding: &Model, alignment: u64) -> Result<Negotiated, BindError> {
    binding.negotiate(NegotiateRequest {
        required_alignment: alignment,
        ..Default::default()
    })
}

/// Counts its successes without ordering, so that only the word can make them visible; fails `fails` times.
struct Counting {
    fails: AtomicU32,
    runs: Arc<AtomicU32>,
}

impl Counting {
    fn register(binding: &Model, fails: u32) -> Arc<AtomicU32> {
        let runs = Arc::new(AtomicU32::new(0));
        let listener = Self {
            fails: AtomicU32::new(fails),
            runs: Arc::clone(&runs),
        };
        binding.register(StdArc::new(listener)).unwrap();
        runs
    }
}

impl BindingListener for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn on_bound(&self, _chunk_size: u32) -> Result<(), String> {
        let left = self.fails.load(Ordering::Relaxed);
        if left > 0 {
            self.fails.store(left - 1, Ordering::Relaxed);
            return Err("not yet".to_owned());
        }
        // Not a read-modify-write: two runs at a time would lose one, which the model would find.
        self.runs
            .store(self.runs.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(())
    }
}

/// How many interleavings had the observer meet each state first: a model that never shows it a bound word
/// would prove nothing about one. Counted outside of the model, in the processor's own atomics.
static SEEN: [crate::sync::shared::AtomicU32; 3] = [const { crate::sync::shared::AtomicU32::new(0) }; 3];

#[test]
fn two_alignments_race_and_all_observe_one_size() {
    let mut model = loom::model::Builder::new();
    // Without a bound, three threads did not get through in five minutes; most races need two switches.
    model.preemption_bound = Some(2);
    model.check(|| {
        let binding = Arc::new(unbound());
        let runs = Counting::register(&binding, 0);
        let racers: Vec<_> = [256, 544]
            .map(|alignment| {
                let binding = Arc::clone(&binding);
                thread::spawn(move || (negotiate(&binding, alignment), binding.word().unwrap()))
            })
            .into_iter()
            .collect();
        // Only reads, like every client that maps the region.
        let observer = {
            let (binding, runs) = (Arc::clone(&binding), Arc::clone(&runs));
            thread::spawn(move || observe(&binding, &runs))
        };

        let outcomes: Vec<_> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
        let size = binding.bound().expect("the winner has bound");
        let observed = observer.join().unwrap();
        assert!(observed.size().is_none_or(|seen| seen == size));
        let mut winners = 0;
        for (outcome, word) in outcomes {
            assert_eq!(word.size(), Some(size));
            match outcome {
                Ok(negotiated) => {
                    winners += 1;
                    assert_eq!((negotiated.chunk_size, word), (size, ChunkWord::Bound(size)));
                }
                Err(BindError::Incompatible { chunk_size, .. }) => assert_eq!(chunk_size, size),
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(winners, 1, "256 and 544 never suit each other");
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
    let seen: Vec<u32> = SEEN.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert!(
        seen.iter().all(|&count| count > 0),
        "unbound, selected, bound were seen {seen:?} times"
    );
}

/// Reads the word twice; returns the second.
fn observe(binding: &Model, runs: &AtomicU32) -> ChunkWord {
    let first = binding.word().unwrap();
    SEEN[first.state() as usize].fetch_add(1, Ordering::Relaxed);
    if first.state() == BindState::Bound {
        assert_eq!(
            runs.load(Ordering::Relaxed),
            1,
            "bound before the listener had run"
        );
    }
    let second = binding.word().unwrap();
    assert!(
        second.state() as u8 >= first.state() as u8,
        "{first:?} then {second:?}"
    );
    assert!(
        first.size().is_none() || first.size() == second.size(),
        "{first:?} then {second:?}"
    );
    second
}

#[test]
fn two_compatible_clients_run_each_listener_once() {
    loom::model(|| {
        let binding = Arc::new(unbound());
        let runs = Counting::register(&binding, 0);
        let other = {
            let binding = Arc::clone(&binding);
            thread::spawn(move || negotiate(&binding, 16).unwrap())
        };
        let mine = negotiate(&binding, 32).unwrap();
        // The word makes what the listener did visible, whichever thread ran it.
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        let theirs = other.join().unwrap();
        assert_eq!((mine.chunk_size, theirs.chunk_size), (256, 256));
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_failing_listener_is_resumed_and_earlier_ones_are_not_run_again() {
    loom::model(|| {
        let binding = Arc::new(unbound());
        let before = Counting::register(&binding, 0);
        let failing = Counting::register(&binding, 1);
        let other = {
            let binding = Arc::clone(&binding);
            thread::spawn(move || negotiate(&binding, 16))
        };
        let mine = negotiate(&binding, 16);
        if binding.bound().is_some() {
            assert_eq!(
                failing.load(Ordering::Relaxed),
                1,
                "bound although the listener had only failed"
            );
        }
        let theirs = other.join().unwrap();
        // One of the two meets the failure; the other resumes behind it and binds.
        let (failed, bound): (Vec<_>, Vec<_>) = [mine, theirs].into_iter().partition(Result::is_err);
        assert_eq!((failed.len(), bound.len()), (1, 1));
        assert!(matches!(
            &failed[0],
            Err(BindError::ListenerFailed {
                index: 1,
                chunk_size: 256,
                ..
            })
        ));
        assert_eq!(binding.bound(), Some(256));
        assert_eq!(
            (before.load(Ordering::Relaxed), failing.load(Ordering::Relaxed)),
            (1, 1)
        );
    });
}

#[test]
fn a_question_for_the_size_races_with_a_negotiation() {
    loom::model(|| {
        let binding = Arc::new(unbound());
        let asking = {
            let binding = Arc::clone(&binding);
            thread::spawn(move || binding.get_chunk_size().unwrap())
        };
        let negotiated = negotiate(&binding, 544);
        let asked = asking.join().unwrap();
        match negotiated {
            Ok(negotiated) => assert_eq!((negotiated.chunk_size, asked), (544, 544)),
            Err(BindError::Incompatible { chunk_size, .. }) => assert_eq!((chunk_size, asked), (256, 256)),
            Err(other) => panic!("{other}"),
        }
    });
}
