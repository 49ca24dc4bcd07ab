//! Every interleaving of the two ends of a lane, by loom: what is read was written, and nothing is written over that was
//! not read.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --lib shm::ring::loom`.

use super::{Consumer, Producer, RingError};
use crate::sync::{Arc, AtomicU64, thread};

/// A lane of two slots.
const SLOTS: usize = 2;
const SLOT: u64 = super::LANE_ALIGN;

struct Lane {
    written: Arc<AtomicU64>,
    read: Arc<AtomicU64>,
    /// Not atomic: loom reports every read that the words do not order after its write, and every write over a read.
    bytes: Arc<[loom::cell::UnsafeCell<u64>; SLOTS]>,
}

fn lane() -> Lane {
    Lane {
        written: Arc::new(AtomicU64::new(0)),
        read: Arc::new(AtomicU64::new(0)),
        bytes: Arc::new([loom::cell::UnsafeCell::new(0), loom::cell::UnsafeCell::new(0)]),
    }
}

fn slot(position: u64) -> usize {
    (position / SLOT) as usize % SLOTS
}

#[test]
fn loom_what_is_read_was_written() {
    loom::model(|| {
        let Lane { written, read, bytes } = lane();
        let capacity = SLOT * SLOTS as u64;
        let mut to = Producer::new(capacity, Arc::clone(&written), Arc::clone(&read));
        let mut from = Consumer::new(capacity, written, read);
        let shared = Arc::clone(&bytes);
        let writer = thread::spawn(move || {
            let mut value = 1_u64;
            // Three into a lane of two: the third is written over the first, or not at all.
            for _ in 0..3 {
                match to.claim(SLOT) {
                    Ok(at) => {
                        shared[slot(at)].with_mut(|place| assert!(store(place, value)));
                        to.publish(SLOT).unwrap();
                        value += 1;
                    }
                    Err(RingError::NotThere { there: 0, .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut expected = 1;
        for _ in 0..2 {
            match from.claim(SLOT) {
                Ok(at) => {
                    bytes[slot(at)].with(|place| assert_eq!(load(place), expected));
                    from.release(SLOT).unwrap();
                    expected += 1;
                }
                Err(RingError::NotThere { there: 0, .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        writer.join().unwrap();
    });
}

#[allow(unsafe_code)]
fn store(place: *mut u64, value: u64) -> bool {
    // SAFETY: loom's cell hands out a pointer that is valid inside of `with_mut`, and reports any other access meanwhile.
    unsafe { *place = value };
    true
}

#[allow(unsafe_code)]
fn load(place: *const u64) -> u64 {
    // SAFETY: as above, inside of `with`.
    unsafe { *place }
}
