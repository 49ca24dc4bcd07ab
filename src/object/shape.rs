//! What a reader has to know of a domain before it can look anything up.

use crate::geometry::ObjectKind;

/// One object group as one rank registers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRegistration {
    /// Number of the object group.
    pub group: u16,
    /// What part of a prefix its objects stand for.
    pub kind: ObjectKind,
    /// Distinct parts of an object over all ranks.
    pub parts: u16,
    /// The part that this rank writes or reads.
    pub part: u16,
    /// Bytes of this rank's part per required alignment; of a recurrent group, of one state.
    pub unit_bytes: u64,
}

/// One object group of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// Its number.
    pub group: u16,
    /// Its kind.
    pub kind: ObjectKind,
    /// Its bit in the words that tell what is with a record.
    pub bit: u32,
}

/// A domain in which all ranks have registered: it does not change any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainShape {
    /// The number that its records carry.
    pub domain: u32,
    /// Tokens of a full chunk.
    pub chunk_size: u32,
    /// Tokens that every boundary is a multiple of.
    pub alignment: u64,
    /// Number of the full-attention group whose records tell their companions.
    pub anchor: Option<u16>,
    /// Object groups in ascending order.
    pub groups: Vec<GroupShape>,
    /// Frames that all pins of one client may keep.
    pub kept_frames_max: u64,
}

/// The bit of a tail in the word of the chunk before it. Two that share a bit differ by 32 alignments or more.
pub fn tail_bit(tokens: u32, alignment: u64) -> u32 {
    let unit = (u64::from(tokens) / alignment).saturating_sub(1);
    1 << (unit % u64::from(u32::BITS))
}

impl DomainShape {
    /// The anchor group.
    pub fn anchor(&self) -> Option<&GroupShape> {
        let anchor = self.anchor?;
        self.groups.iter().find(|group| group.group == anchor)
    }
}
