//! Segments of a reserved address range whose physical memory is committed later.
//!
//! An engine with an extensible KV cache reserves address space for the largest pool it could ever have, and
//! commits physical memory to the first `n` blocks once it knows what is free. Physical memory comes in
//! granules (2 MiB on CUDA), handed out in allocations; registering or exporting device memory works per
//! allocation. So the planner answers where each segment must start for its committed range to lie in one
//! allocation, without ever changing the number of blocks. Everything here is address arithmetic of one
//! worker; a scheduler never sees it.

mod commit;
mod error;
mod region;

pub use commit::Commit;
pub use error::SegmentError;
pub use region::{HeadSlices, SegmentInput, TensorPlacement};

use std::fmt;
use std::str::FromStr;

use num_integer::Integer;

/// Most segments of one reservation: 512 layers of 128 heads each, twice over.
pub const MAX_SEGMENTS: u64 = 1 << 17;

/// Order of the dimensions layer, block, head, token slot (N) and content, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Layer, block, slot, head ("NHD").
    Lbnhc,
    /// Layer, block, head, slot ("HND").
    Lbhnc,
    /// Layer, head, block, slot: a block of a layer is one slice per head.
    Lhbnc,
    /// Block, layer, head, slot.
    Blhnc,
    /// Block, layer, slot, head.
    Blnhc,
    /// Block, head, layer, slot.
    Bhlnc,
}

const LAYOUTS: &[(Layout, &str)] = &[
    (Layout::Lbnhc, "LBNHC"),
    (Layout::Lbhnc, "LBHNC"),
    (Layout::Lhbnc, "LHBNC"),
    (Layout::Blhnc, "BLHNC"),
    (Layout::Blnhc, "BLNHC"),
    (Layout::Bhlnc, "BHLNC"),
];

impl Layout {
    /// The engine's tag.
    pub fn as_str(self) -> &'static str {
        LAYOUTS
            .iter()
            .find(|(layout, _)| *layout == self)
            .map_or("unknown", |(_, tag)| tag)
    }

    /// One block of every layer lies together.
    pub fn is_block_outermost(self) -> bool {
        matches!(self, Self::Blhnc | Self::Blnhc | Self::Bhlnc)
    }

    /// One block of one layer is one contiguous page. Other layouts are planned, but their device memory is
    /// not registered: no page could be exported as one range.
    pub fn is_block_compact(self) -> bool {
        !matches!(self, Self::Lhbnc | Self::Bhlnc)
    }
}

/// A layout whose device memory cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "device memory in layout {layout} is not registered: a block of a layer is not one range of bytes; \
     use LBHNC or BLHNC"
)]
pub struct NotBlockCompact {
    /// The layout in question.
    pub layout: Layout,
}

impl Layout {
    /// Refuses to register device memory in a layout that is not block-compact.
    pub fn require_block_compact(self) -> Result<(), NotBlockCompact> {
        if self.is_block_compact() {
            Ok(())
        } else {
            Err(NotBlockCompact { layout: self })
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The tag names no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown layout {tag:?}; known: {}, NHD, HND", known_tags())]
pub struct UnknownLayout {
    tag: String,
}

fn known_tags() -> String {
    LAYOUTS.iter().map(|(_, tag)| *tag).collect::<Vec<_>>().join(", ")
}

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(tag: &str) -> Result<Self, Self::Err> {
        let found = match tag {
            "NHD" => Some(Self::Lbnhc),
            "HND" => Some(Self::Lbhnc),
            _ => LAYOUTS
                .iter()
                .find(|(_, known)| *known == tag)
                .map(|(layout, _)| *layout),
        };
        found.ok_or_else(|| UnknownLayout {
            tag: tag.chars().take(64).collect(),
        })
    }
}

/// A part of the reservation in which block `b` starts at `offset + b * block_stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First byte inside the reservation.
    pub offset: u64,
    /// Bytes from one block to the next.
    pub block_stride: u64,
}

/// Where segments lie, and how much address space that takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Segments by offset.
    pub segments: Vec<Segment>,
    /// Bytes of the reservation.
    pub total_bytes: u64,
}

/// Whose question a size answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sizes pools and admits requests; padding is none of its business.
    Scheduler,
    /// Owns the reservation.
    Worker,
}

/// Segments of one worker's reservation, plain and padded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentPlan {
    layout: Layout,
    granule: u64,
    blocks: u64,
    block_alignment: u64,
    plain: Placement,
    padded: Placement,
}

impl SegmentPlan {
    /// Plans `input`. `registers_device_memory` is whether the engine exports this memory: only then does a
    /// segment need an allocation of its own, so without it the padded placement is the plain one.
    pub fn new(input: &SegmentInput, registers_device_memory: bool) -> Result<Self, SegmentError> {
        let segments = region::segments(input)?;
        let strides: Vec<u64> = segments.iter().map(|segment| segment.block_stride).collect();
        let block_alignment = block_alignment(&strides, input.granule)?;
        let plain = Placement {
            segments,
            total_bytes: input.total_bytes,
        };
        let padded = if registers_device_memory {
            pad(&plain, input.blocks, input.granule)?
        } else {
            plain.clone()
        };
        Ok(Self {
            layout: input.layout,
            granule: input.granule,
            blocks: input.blocks,
            block_alignment,
            plain,
            padded,
        })
    }

    /// Layout tag.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Bytes of the smallest unit of physical memory.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    /// Blocks the reservation has room for: always the number that was asked for.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Block count multiple that engines without padding round down to; for information only.
    pub fn block_alignment(&self) -> u64 {
        self.block_alignment
    }

    /// The placement without padding.
    pub fn plain(&self) -> &Placement {
        &self.plain
    }

    /// The placement in which every segment starts on a granule.
    pub fn padded(&self) -> &Placement {
        &self.padded
    }

    /// The placement that a role may use: only the worker that owns the reservation sees padding.
    pub fn placement(&self, role: Role) -> &Placement {
        match role {
            Role::Scheduler => &self.plain,
            Role::Worker => &self.padded,
        }
    }

    /// What committing the first `blocks` blocks (at most the capacity) to a fresh reservation maps.
    pub fn commit(&self, blocks: u64) -> Commit {
        commit::commit(self, blocks)
    }
}

/// Smallest block count at which every segment of the given strides ends on a granule.
pub fn block_alignment(strides: &[u64], granule: u64) -> Result<u64, SegmentError> {
    if granule == 0 {
        return Err(SegmentError::ZeroGranule);
    }
    let mut alignment = 1_u64;
    for &stride in strides {
        let one = granule / granule.gcd(&stride);
        let lcm = (alignment / alignment.gcd(&one)).checked_mul(one);
        alignment = lcm.ok_or(SegmentError::AlignmentOverflow { granule, stride })?;
    }
    Ok(alignment)
}

/// Moves every segment up to a granule that is behind the granules of the segment before it.
fn pad(plain: &Placement, blocks: u64, granule: u64) -> Result<Placement, SegmentError> {
    let overflow = SegmentError::Overflow {
        what: "padded reservation",
    };
    let up = |bytes: u64| bytes.checked_next_multiple_of(granule).ok_or(overflow.clone());
    let mut segments = Vec::with_capacity(plain.segments.len());
    let mut end = 0_u64;
    for segment in &plain.segments {
        // A gap that is already there is kept: a padded placement is its own padding.
        let offset = end.max(up(segment.offset)?);
        let length = segment.block_stride.checked_mul(blocks).ok_or(overflow.clone())?;
        end = up(offset.checked_add(length).ok_or(overflow.clone())?)?;
        segments.push(Segment {
            offset,
            block_stride: segment.block_stride,
        });
    }
    Ok(Placement {
        segments,
        total_bytes: end.max(up(plain.total_bytes)?),
    })
}

#[cfg(test)]
mod tests;
