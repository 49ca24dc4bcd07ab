//! From a plan to what is submitted: every check, and as few descriptors as there can be.

use crate::copy::{CopyError, CopyPlan, Side, overlap};

use super::memory::PlanMemory;

/// Pieces from this size on are copied by calls of their own: a call costs less than the copy then. It is an estimate
/// (6 us for a call, 50 GB/s on the wire), not yet measured on a GPU.
pub const PLAIN_FROM_BYTES: u64 = 300 << 10;

/// The sizes from which on pieces are copied by calls of their own, for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossovers {
    /// Of copies into device memory.
    pub to_device: u64,
    /// Of copies into host memory.
    pub to_host: u64,
}

impl Crossovers {
    /// The same size for both directions.
    pub const fn both(bytes: u64) -> Self {
        Self {
            to_device: bytes,
            to_host: bytes,
        }
    }
}

/// One copy, as the driver is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) bytes: u64,
}

/// A piece with its places: regions and offsets of both sides.
#[derive(Clone, Copy)]
struct Placed {
    dst: (u16, u64),
    src: (u16, u64),
    bytes: u64,
}

/// Checks every piece against the regions, and that no byte is both read and written; then merges pieces that follow
/// each other on both sides, and cuts them where a region is in pieces.
///
/// # Errors
/// [`CopyError`]; nothing is copied then.
pub(super) fn descriptors(
    plan: &CopyPlan,
    src: &[&dyn PlanMemory],
    dst: &[&dyn PlanMemory],
) -> Result<Vec<Descriptor>, CopyError> {
    let mut placed = Vec::with_capacity(plan.pieces().len());
    let mut total = 0u64;
    for (index, piece) in plan.pieces().iter().enumerate() {
        region(src, Side::Source, index, piece.src.region)?.check(
            Side::Source,
            index,
            piece.src,
            piece.len,
        )?;
        region(dst, Side::Destination, index, piece.dst.region)?.check(
            Side::Destination,
            index,
            piece.dst,
            piece.len,
        )?;
        total = total
            .checked_add(piece.len)
            .ok_or(CopyError::TooManyBytes { piece: index })?;
        placed.push(Placed {
            dst: (piece.dst.region, piece.dst.offset),
            src: (piece.src.region, piece.src.offset),
            bytes: piece.len,
        });
    }
    let range = |memory: &&dyn PlanMemory| memory.address()..memory.address() + memory.bytes();
    let start = |regions: &[&dyn PlanMemory], (region, offset): (u16, u64)| {
        regions[usize::from(region)].address() + offset
    };
    let addresses = placed.iter().map(|piece| overlap::Placed {
        from: start(src, piece.src),
        to: start(dst, piece.dst),
        bytes: piece.bytes,
    });
    overlap::check(src.iter().map(range), dst.iter().map(range), addresses)?;
    Ok(cut(&merged(placed), src, dst))
}

fn region<'a>(
    regions: &[&'a dyn PlanMemory],
    side: Side,
    piece: usize,
    region: u16,
) -> Result<&'a dyn PlanMemory, CopyError> {
    let regions_given = regions.len();
    regions
        .get(usize::from(region))
        .copied()
        .ok_or(CopyError::UnknownRegion {
            piece,
            side,
            region,
            regions: regions_given,
        })
}

/// Merges pieces that follow each other on both sides, in whichever order the plan names them. A batch has no order,
/// and what two pieces write to one byte is not specified.
fn merged(mut placed: Vec<Placed>) -> Vec<Placed> {
    placed.sort_unstable_by_key(|piece| (piece.dst, piece.src));
    let mut merged: Vec<Placed> = Vec::with_capacity(placed.len());
    for piece in placed {
        match merged.last_mut() {
            Some(last)
                if (last.dst.0, last.dst.1 + last.bytes) == piece.dst
                    && (last.src.0, last.src.1 + last.bytes) == piece.src =>
            {
                last.bytes += piece.bytes;
            }
            _ => merged.push(piece),
        }
    }
    merged
}

fn cut(placed: &[Placed], src: &[&dyn PlanMemory], dst: &[&dyn PlanMemory]) -> Vec<Descriptor> {
    let mut found = Vec::with_capacity(placed.len());
    for piece in placed {
        let (from, to) = (src[usize::from(piece.src.0)], dst[usize::from(piece.dst.0)]);
        let mut done = 0;
        while done < piece.bytes {
            let (source, target) = (piece.src.1 + done, piece.dst.1 + done);
            // At least one byte, whatever an implementation says: this loop has to end.
            let bytes = (piece.bytes - done)
                .min(from.run(source))
                .min(to.run(target))
                .max(1);
            found.push(Descriptor {
                to: to.address() + target,
                from: from.address() + source,
                bytes,
            });
            done += bytes;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{HostMemory, Span};

    fn plan(pieces: &[(u64, u64, u64)]) -> CopyPlan {
        let mut plan = CopyPlan::new();
        for &(src, dst, len) in pieces {
            plan.push(Span::new(0, src), Span::new(0, dst), len);
        }
        plan
    }

    fn made(pieces: &[(u64, u64, u64)]) -> Result<Vec<(u64, u64, u64)>, CopyError> {
        let (src, dst) = (HostMemory::zeroed(4096), HostMemory::zeroed(4096));
        let found = descriptors(&plan(pieces), &[&src], &[&dst])?;
        let place = |d: &Descriptor| {
            (
                d.from - PlanMemory::address(&src),
                d.to - PlanMemory::address(&dst),
                d.bytes,
            )
        };
        Ok(found.iter().map(place).collect())
    }

    #[test]
    fn neighbours_on_both_sides_are_one_in_any_order() {
        assert_eq!(made(&[(64, 128, 64), (0, 64, 64)]), Ok(vec![(0, 64, 128)]));
        assert_eq!(
            made(&[(0, 64, 64), (64, 128, 64), (128, 192, 1)]),
            Ok(vec![(0, 64, 129)])
        );
        // Neighbours on one side alone.
        assert_eq!(
            made(&[(0, 0, 64), (128, 64, 64)]),
            Ok(vec![(0, 0, 64), (128, 64, 64)])
        );
        assert_eq!(
            made(&[(0, 0, 64), (64, 128, 64)]),
            Ok(vec![(0, 0, 64), (64, 128, 64)])
        );
        assert_eq!(made(&[]), Ok(vec![]));
    }

    #[test]
    fn a_plan_that_reads_what_it_writes_is_refused() {
        let memory = HostMemory::zeroed(4096);
        let check =
            |pieces: &[(u64, u64, u64)]| descriptors(&plan(pieces), &[&memory], &[&memory]).map(|d| d.len());
        assert_eq!(check(&[(0, 64, 64), (128, 256, 64)]), Ok(2));
        assert_eq!(
            check(&[(0, 63, 64)]),
            Err(CopyError::Overlap { read: 0, write: 0 })
        );
        assert_eq!(
            check(&[(0, 512, 64), (520, 1024, 8)]),
            Err(CopyError::Overlap { read: 1, write: 0 })
        );
    }

    #[test]
    fn a_region_that_is_not_there_is_refused() {
        let memory = HostMemory::zeroed(64);
        let error = descriptors(&plan(&[(0, 0, 8)]), &[], &[&memory]).unwrap_err();
        assert_eq!(
            error,
            CopyError::UnknownRegion {
                piece: 0,
                side: Side::Source,
                region: 0,
                regions: 0
            }
        );
    }
}
