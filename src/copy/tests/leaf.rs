//! The two levels of a part's sum, against the library that sums one.

use super::*;
use crate::copy::{CopyEngine, HostMemory, Span, SummedPlan};

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8)
        .collect()
}

/// The definition, written as plainly as can be.
fn plainly(bytes: &[u8]) -> u64 {
    let leaves: Vec<u64> = bytes.chunks(LEAF_BYTES).map(XxHash3_64::oneshot).collect();
    let sum = match leaves.len() {
        0 => XxHash3_64::oneshot(&[]),
        1 => leaves[0],
        _ => XxHash3_64::oneshot(
            &leaves
                .iter()
                .flat_map(|leaf| leaf.to_le_bytes())
                .collect::<Vec<_>>(),
        ),
    };
    sum.max(1)
}

#[test]
fn sums_are_those_of_the_definition_however_the_bytes_come() {
    let bytes = pattern(80 * LEAF_BYTES + 1);
    let edges = [1, 2, 3, 64, 80].map(|leaves| leaves * LEAF_BYTES);
    let around = edges.into_iter().flat_map(|edge| [edge - 1, edge, edge + 1]);
    for len in [0, 1, 17, 240, 241, 656, 4097].into_iter().chain(around) {
        for step in [977, 4096, LEAF_BYTES, usize::MAX] {
            let mut sum = Checksum::new();
            bytes[..len]
                .chunks(step.min(len.max(1)))
                .for_each(|some| sum.update(some));
            assert_eq!(
                sum.value(),
                plainly(&bytes[..len]),
                "{len} bytes, {step} at a time"
            );
            assert_eq!(sum.leaves().bytes(), len as u64);
            assert_eq!(sum.leaves().sums().len(), leaves_of(len as u64));
            assert_eq!(sum.leaves().checksum(), sum.value());
        }
        let lengths: Vec<usize> = lengths_of(len as u64).collect();
        assert_eq!(lengths.len(), leaves_of(len as u64));
        assert_eq!(lengths.iter().sum::<usize>(), len);
    }
}

#[test]
fn a_sum_of_nothing_is_xxh3_of_nothing_and_no_sum_is_zero() {
    // From the reference implementation's own test vectors: XXH3-64 of nothing, seed 0.
    assert_eq!(Checksum::new().value(), 0x2D06_8005_38D3_94C2);
    assert_eq!((of_leaves(&[0]), of_leaves(&[1])), (1, 1));
}

/// The vectors that `tests/sums_golden.py` checks with another library.
#[test]
fn golden_vectors() {
    let file = include_str!("../../../tests/data/sums/golden.txt");
    let mut checked = 0;
    for line in file.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [len, step, sum] = fields[..] else {
            panic!("a length, a step and a sum: {line:?}")
        };
        let (len, step): (usize, u64) = (len.parse().unwrap(), step.parse().unwrap());
        let bytes: Vec<u8> = (0..len as u64).map(|i| (i * step % 251) as u8).collect();
        let mut own = Checksum::new();
        own.update(&bytes);
        assert_eq!(format!("{:016x}", own.value()), sum, "{line:?}");
        checked += 1;
    }
    assert!(checked >= 15, "{checked} vectors");
}

#[test]
fn a_front_is_confirmed_by_whole_leaves_and_by_the_end() {
    let bytes = pattern(3 * LEAF_BYTES + 100);
    let whole = LeafSums::of(&bytes);
    let confirmed = |len: usize| whole.confirmed(&LeafSums::of(&bytes[..len]));
    let leaf = LEAF_BYTES as u64;
    assert_eq!(confirmed(0), 0);
    assert_eq!(confirmed(LEAF_BYTES - 1), 0);
    assert_eq!(confirmed(LEAF_BYTES), leaf);
    assert_eq!(confirmed(2 * LEAF_BYTES + 1), 2 * leaf);
    assert_eq!(confirmed(3 * LEAF_BYTES + 99), 3 * leaf);
    assert_eq!(confirmed(3 * LEAF_BYTES + 100), 3 * leaf + 100);

    let mut damaged = bytes.clone();
    damaged[LEAF_BYTES + 5] ^= 1;
    assert_eq!(whole.confirmed(&LeafSums::of(&damaged)), leaf);
    let mut damaged = bytes;
    damaged[3 * LEAF_BYTES] ^= 1;
    assert_eq!(whole.confirmed(&LeafSums::of(&damaged)), 3 * leaf);
}

/// A reader that has the leaf sums of a part, and copies only its front: the front's leaf sums come out of the copy.
#[test]
fn a_copied_front_is_checked_without_the_rest() {
    let bytes = pattern(5 * LEAF_BYTES);
    let memory = HostMemory::zeroed(bytes.len());
    memory.write(0, &bytes).unwrap();
    let (src, whole) = ([memory], LeafSums::of(&bytes));
    for engine in CopyEngine::all() {
        let dst = [HostMemory::zeroed(bytes.len())];
        let front = |len: usize| {
            let mut plan = SummedPlan::new();
            plan.push(Span::new(0, 0), Some(Span::new(0, 0)), len as u64);
            plan.end_part();
            engine.execute_leaves(&plan, &src, &dst).unwrap().remove(0)
        };
        assert_eq!(front(bytes.len()), whole);
        assert_eq!(whole.confirmed(&front(2 * LEAF_BYTES)), 2 * LEAF_BYTES as u64);
        src[0].write(LEAF_BYTES as u64, &[!bytes[LEAF_BYTES]]).unwrap();
        assert_eq!(whole.confirmed(&front(2 * LEAF_BYTES)), LEAF_BYTES as u64);
        src[0].write(LEAF_BYTES as u64, &[bytes[LEAF_BYTES]]).unwrap();
    }
}
