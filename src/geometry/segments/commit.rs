//! What committing blocks maps: granules, physical bytes, and whether each segment gets one allocation.

use super::{Placement, SegmentPlan};

/// One fresh commit, under the plain and the padded placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Blocks committed: what was asked for, at most the capacity.
    pub blocks: u64,
    /// Bytes of those blocks over all segments.
    pub nominal_bytes: u64,
    /// Bytes of the granules that the padded placement maps.
    pub padded_physical_bytes: u64,
    /// Under the plain placement each segment's committed range lies in one allocation.
    pub every_segment_one_chunk: bool,
    /// The same under the padded placement.
    pub padded_every_segment_one_chunk: bool,
}

pub(super) fn commit(plan: &SegmentPlan, blocks: u64) -> Commit {
    let blocks = blocks.min(plan.blocks());
    let (_, every_segment_one_chunk) = map(plan.plain(), blocks, plan.granule());
    let (granules, padded_every_segment_one_chunk) = map(plan.padded(), blocks, plan.granule());
    // Planning proved that the segments of the whole capacity lie apart inside 64 bits, so neither sum
    // overflows.
    let nominal = |segment: &super::Segment| segment.block_stride * blocks;
    Commit {
        blocks,
        nominal_bytes: plan.plain().segments.iter().map(nominal).sum(),
        padded_physical_bytes: granules.saturating_mul(plan.granule()),
        every_segment_one_chunk,
        padded_every_segment_one_chunk,
    }
}

/// Granules that a fresh commit maps, and whether every segment's range lies in one allocation.
///
/// Segments are committed by offset, and each commit turns every maximal run of its granules that are not
/// mapped yet into one allocation. Segments lie apart, so a segment can only meet the last granule mapped so
/// far: either its range is that granule, or it begins behind it, or it starts in it and goes on in an
/// allocation of its own.
fn map(placement: &Placement, blocks: u64, granule: u64) -> (u64, bool) {
    let mut mapped_end = 0_u64;
    let mut granules = 0_u64;
    let mut every_segment_one_chunk = true;
    for segment in &placement.segments {
        let bytes = segment.block_stride * blocks;
        if bytes == 0 {
            continue;
        }
        let first = segment.offset / granule;
        let end = (segment.offset + bytes).div_ceil(granule);
        if first < mapped_end && end > mapped_end {
            every_segment_one_chunk = false;
        }
        granules += end - first.max(mapped_end).min(end);
        mapped_end = mapped_end.max(end);
    }
    (granules, every_segment_one_chunk)
}
