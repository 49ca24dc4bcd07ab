//! Whether a plan reads what it writes, for memory of the host and of devices alike.

use std::ops::Range;

use super::error::CopyError;

/// A piece by its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
}

/// Refuses pieces of which one reads what it or another writes. Regions are compared first: mostly no two of them share addresses.
///
/// # Errors
/// [`CopyError::Overlap`], with the numbers of two such pieces.
pub(crate) fn check(
    src: impl Iterator<Item = Range<u64>>,
    dst: impl Iterator<Item = Range<u64>> + Clone,
    pieces: impl Iterator<Item = Placed> + Clone,
) -> Result<(), CopyError> {
    let meet = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
    let mut src = src;
    if !src.any(|a| dst.clone().any(|b| meet(&a, &b))) {
        return Ok(());
    }
    let mut written: Vec<(u64, u64, usize)> = (pieces.clone().enumerate())
        .map(|(index, piece)| (piece.to, piece.to + piece.bytes, index))
        .collect();
    written.sort_unstable();
    // Each entry carries the furthest end of all before it, so that one look finds any overlap.
    for at in 1..written.len() {
        if written[at - 1].1 > written[at].1 {
            (written[at].1, written[at].2) = (written[at - 1].1, written[at - 1].2);
        }
    }
    for (read, piece) in pieces.enumerate() {
        let before = written.partition_point(|entry| entry.0 < piece.from + piece.bytes);
        if let Some(&(_, furthest, write)) = before.checked_sub(1).map(|last| &written[last])
            && furthest > piece.from
        {
            return Err(CopyError::Overlap { read, write });
        }
    }
    Ok(())
}
