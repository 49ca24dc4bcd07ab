//! Publish, evict and read over a miniature, every interleaving, by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --lib cache::loom`.
//!
//! The mappings themselves cannot be followed (their words are the processor's), so this is a model by
//! hand: one record, one frame, one pin word, with the orders of docs/shm-layout.md. The payload is two
//! words written with relaxed stores, as a gather would; each publication fills them with its incarnation.

use crate::sync::{Arc, AtomicU64, Ordering, fence, thread};

const DEAD: u64 = 1;
const FIRST: u64 = 10;
const SECOND: u64 = 11;

struct Mini {
    slot: AtomicU64,
    meta: AtomicU64,
    /// The record's field: the key, different for each incarnation.
    key: AtomicU64,
    epoch: AtomicU64,
    pin: AtomicU64,
    bytes: [AtomicU64; 2],
}

impl Mini {
    /// The first object is published before any reader exists.
    fn new() -> Self {
        Self {
            slot: AtomicU64::new(1),
            meta: AtomicU64::new(FIRST),
            key: AtomicU64::new(FIRST),
            epoch: AtomicU64::new(FIRST),
            pin: AtomicU64::new(0),
            bytes: [AtomicU64::new(FIRST), AtomicU64::new(FIRST)],
        }
    }

    /// Evicts the object if it can. Whether its frame is free now.
    fn evict(&self) -> bool {
        self.meta.store(DEAD, Ordering::Relaxed);
        self.slot.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.pin.load(Ordering::Relaxed) != 0 {
            return false; // limbo
        }
        self.epoch.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        true
    }

    /// Another object in the same frame and record: the writer fills the frame, then it is published.
    fn publish_second(&self) {
        for word in &self.bytes {
            word.store(SECOND, Ordering::Relaxed);
        }
        self.meta.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.key.store(SECOND, Ordering::Relaxed);
        self.epoch.store(SECOND, Ordering::Relaxed);
        self.meta.store(SECOND, Ordering::Release);
        self.slot.store(1, Ordering::Release);
    }

    /// Reads the object with key `key`; what it accepts, or nothing.
    fn read(&self, key: u64) -> Option<Accepted> {
        if self.slot.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.pin.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let accepted = self.read_pinned(key);
        self.pin.store(0, Ordering::Release);
        accepted
    }

    fn read_pinned(&self, key: u64) -> Option<Accepted> {
        let meta = self.meta.load(Ordering::Acquire);
        if meta == 0 || meta == DEAD || self.key.load(Ordering::Relaxed) != key {
            return None;
        }
        fence(Ordering::Acquire);
        if self.meta.load(Ordering::Relaxed) != meta {
            return None;
        }
        let bytes = [
            self.bytes[0].load(Ordering::Relaxed),
            self.bytes[1].load(Ordering::Relaxed),
        ];
        fence(Ordering::Acquire);
        let kept = self.epoch.load(Ordering::Relaxed) == meta;
        kept.then_some(Accepted { meta, bytes })
    }
}

struct Accepted {
    meta: u64,
    bytes: [u64; 2],
}

impl Accepted {
    /// A reader got the bytes of the incarnation that it validated, all of them.
    fn check(&self, key: u64) {
        assert_eq!(
            self.meta, key,
            "a record of another object was taken for this one"
        );
        assert_eq!(self.bytes, [key; 2], "bytes of a re-used frame were accepted");
    }
}

#[test]
fn a_reader_never_accepts_bytes_of_a_reused_frame() {
    loom::model(|| {
        let mini = Arc::new(Mini::new());
        let reader = {
            let mini = Arc::clone(&mini);
            thread::spawn(move || {
                if let Some(accepted) = mini.read(FIRST) {
                    accepted.check(FIRST);
                }
            })
        };
        if mini.evict() {
            mini.publish_second();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_whose_pin_nobody_saw_knows_by_the_epoch() {
    // The pin was counted by a server that is gone, or is not in a slab at all: only the last check is left.
    loom::model(|| {
        let mini = Arc::new(Mini::new());
        let reader = {
            let mini = Arc::clone(&mini);
            thread::spawn(move || {
                if let Some(accepted) = mini.read_pinned(FIRST) {
                    accepted.check(FIRST);
                }
            })
        };
        if mini.evict() {
            mini.publish_second();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_of_the_new_object_gets_the_new_bytes() {
    loom::model(|| {
        let mini = Arc::new(Mini::new());
        let reader = {
            let mini = Arc::clone(&mini);
            thread::spawn(move || {
                if let Some(accepted) = mini.read(SECOND) {
                    accepted.check(SECOND);
                }
            })
        };
        if mini.evict() {
            mini.publish_second();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_pin_that_the_scan_has_missed_is_a_reader_that_sees_the_object_dead() {
    loom::model(|| {
        let mini = Arc::new(Mini::new());
        let reader = {
            let mini = Arc::clone(&mini);
            thread::spawn(move || {
                mini.pin.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                mini.meta.load(Ordering::Acquire)
            })
        };
        let freed = mini.evict();
        let seen = reader.join().unwrap();
        assert!(
            !freed || seen == DEAD,
            "the frame is free and its reader thinks it has it"
        );
    });
}

/// Two objects' pins in two words that the scan reads apart from each other, with other work of the server between.
#[test]
fn a_scan_that_goes_on_in_another_turn_misses_no_pin_that_counts() {
    loom::model(|| {
        let metas = Arc::new([AtomicU64::new(FIRST), AtomicU64::new(FIRST)]);
        let pins = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let others = Arc::new(AtomicU64::new(0));
        let reader = {
            let (metas, pins, others) = (Arc::clone(&metas), Arc::clone(&pins), Arc::clone(&others));
            thread::spawn(move || {
                pins[1].store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                let seen = metas[1].load(Ordering::Acquire);
                others.load(Ordering::Relaxed);
                seen
            })
        };
        for meta in metas.iter() {
            meta.store(DEAD, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        let first = pins[0].load(Ordering::Relaxed);
        others.store(7, Ordering::Release);
        let second = pins[1].load(Ordering::Relaxed);
        let seen = reader.join().unwrap();
        assert_eq!(first, 0);
        assert!(
            second != 0 || seen == DEAD,
            "the frame is free and its reader thinks it has it"
        );
    });
}
