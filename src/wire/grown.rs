//! A reply as a later server would send it: with fields that this version does not know.
//!
//! The schema grows at the end of tables (schema/README.md), so every client has to pass over what it does not know.
//! [`grow`] makes such a frame out of one of today's: the root and the body move to the front, each with a longer vtable
//! and two more numbers behind its own fields, and all that they point at stays as it is.

use super::PREFIX_BYTES;
use super::generated::kvasir::wire::ReplyBody;

/// What the unknown fields hold: no number that could be taken for a small one.
const UNKNOWN: u64 = 0xdead_beef_0bad_cafe;
/// The slots of the two unknown fields: behind all that a table of this schema has, with room for a few that grow before them.
const UNKNOWN_SLOTS: [usize; 2] = [30, 31];
/// Bytes of a vtable with these slots.
const VTABLE_BYTES: usize = 4 + 2 * (UNKNOWN_SLOTS[1] + 1);
/// The largest alignment of anything in a frame.
const ALIGN: usize = 8;

/// Slots of a body that hold offsets.
fn offset_slots(body_type: u8) -> &'static [usize] {
    match ReplyBody(body_type) {
        ReplyBody::Error => &[1, 2],
        ReplyBody::HelloReply => &[7],
        ReplyBody::NegotiateReply => &[1],
        ReplyBody::LookupReply => &[2, 3, 4],
        ReplyBody::RetrieveReply => &[1, 2],
        ReplyBody::GrantReply | ReplyBody::StatusReply | ReplyBody::KickReply => &[0],
        ReplyBody::CommitReply => &[0, 1],
        _ => &[],
    }
}

/// Adds unknown fields to the reply in a frame and to its body. `None` for a frame that is no reply of this version.
pub fn grow(frame: &[u8]) -> Option<Vec<u8>> {
    super::decode_reply(frame).ok()?;
    let root = Table::at(frame, PREFIX_BYTES + u32_at(frame, PREFIX_BYTES)? as usize)?;
    let body_type = *frame.get(root.field(1)?)?;
    let body_at = root.field(2)?;
    let body = Table::at(frame, body_at + u32_at(frame, body_at)? as usize)?;

    // Prefix, offset of the root; root and body with their vtables; then the old frame, at a place that keeps its alignment.
    let mut out = vec![0; 2 * PREFIX_BYTES];
    let new_root = root.write(&mut out);
    let new_body = body.write(&mut out);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    let moved = out.len();
    out.extend_from_slice(frame);

    let point =
        |out: &mut Vec<u8>, from: usize, to: usize| put(out, from, &((to - from) as u32).to_le_bytes());
    point(&mut out, PREFIX_BYTES, new_root);
    point(&mut out, new_root + root.inline(2)?, new_body);
    for &slot in offset_slots(body_type) {
        if let Some(inline) = body.inline(slot) {
            let old = body.start + inline;
            let target = old + u32_at(frame, old)? as usize;
            point(&mut out, new_body + inline, moved + target);
        }
    }
    let bytes = (out.len() - PREFIX_BYTES) as u32;
    put(&mut out, 0, &bytes.to_le_bytes());
    Some(out)
}

/// A table of a frame that was verified.
struct Table<'a> {
    frame: &'a [u8],
    start: usize,
    vtable: usize,
}

impl<'a> Table<'a> {
    fn at(frame: &'a [u8], start: usize) -> Option<Self> {
        let back = u32_at(frame, start)? as i32;
        let vtable = usize::try_from(start as i64 - i64::from(back)).ok()?;
        Some(Self { frame, start, vtable })
    }

    fn u16_at(&self, at: usize) -> Option<usize> {
        let bytes = self.frame.get(at..at + 2)?;
        Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
    }

    /// Offset of a field inside the table, if the table has it.
    fn inline(&self, slot: usize) -> Option<usize> {
        let at = 4 + 2 * slot;
        (at < self.u16_at(self.vtable)?)
            .then(|| self.u16_at(self.vtable + at))?
            .filter(|&inline| inline != 0)
    }

    /// Where a field is in the frame.
    fn field(&self, slot: usize) -> Option<usize> {
        Some(self.start + self.inline(slot)?)
    }

    /// Appends the table with its vtable before it and unknown fields at its end. Offsets in it are not right yet.
    fn write(&self, out: &mut Vec<u8>) -> usize {
        let size = self.u16_at(self.vtable + 2).unwrap_or(4);
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        let vtable = out.len();
        out.resize(vtable + VTABLE_BYTES, 0);
        // The same place within eight bytes, so that all of its fields stay aligned.
        while out.len() % ALIGN != self.start % ALIGN {
            out.push(0);
        }
        let start = out.len();
        out.extend_from_slice(&self.frame[self.start..self.start + size]);
        while !(out.len() - start + start % ALIGN).is_multiple_of(ALIGN) {
            out.push(0);
        }
        let mut extra = [0; 2];
        for inline in &mut extra {
            *inline = out.len() - start;
            out.extend_from_slice(&UNKNOWN.to_le_bytes());
        }
        let table_bytes = out.len() - start;
        put(out, vtable, &(VTABLE_BYTES as u16).to_le_bytes());
        put(out, vtable + 2, &(table_bytes as u16).to_le_bytes());
        for slot in 0..UNKNOWN_SLOTS[0] {
            let inline = self.inline(slot).unwrap_or(0) as u16;
            put(out, vtable + 4 + 2 * slot, &inline.to_le_bytes());
        }
        for (slot, inline) in UNKNOWN_SLOTS.into_iter().zip(extra) {
            put(out, vtable + 4 + 2 * slot, &(inline as u16).to_le_bytes());
        }
        put(out, start, &((start - vtable) as u32).to_le_bytes());
        start
    }
}

fn u32_at(frame: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(frame.get(at..at + 4)?.try_into().ok()?))
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::ChunkKey;
    use crate::object::{
        CommitAnswer, CommitOutcome, Extent, LoadItem, LookupAnswer, ObjectId, PartLocation, RetrieveAnswer,
    };
    use crate::wire::{
        Encoder, ErrorCode, HelloReply, NegotiateReply, Region, RegionKind, RegisterReply, Reply, WireError,
        decode_reply,
    };

    fn replies() -> Vec<Reply> {
        let key = ChunkKey::from_bytes([7; 32]);
        let id = ObjectId { key, group: 3 };
        let extents = vec![Extent { frame: 5, count: 2 }];
        vec![
            Reply::Ack,
            Reply::Error(WireError::new(ErrorCode::UnknownPin, "no such pin", [9, 8])),
            Reply::Hello(HelloReply {
                protocol_version: 2,
                features: 0,
                boot_id: [1; 16],
                boot_seq: 4,
                pool_id: [2; 16],
                frame_bytes: 65536,
                slab: 3,
                regions: vec![Region {
                    kind: RegionKind::Pool,
                    offset: 1,
                    bytes: 2,
                }],
                named: vec![],
            }),
            Reply::Negotiate(NegotiateReply {
                chunk_size: 640,
                warnings: vec!["one".into(), "two".into()],
            }),
            Reply::Register(RegisterReply {
                domain_seed: key,
                chunk_size: 640,
                domain: Some(6),
                kept_frames_max: 11,
            }),
            Reply::Lookup(LookupAnswer {
                hit_tokens: 64,
                pin: 3,
                loads: vec![LoadItem {
                    id,
                    chunk: 1,
                    tokens: 2,
                }],
                present_tokens: vec![64, 32],
                ..LookupAnswer::default()
            }),
            Reply::Retrieve(RetrieveAnswer {
                pin: 5,
                locations: vec![PartLocation::default()],
                extents: extents.clone(),
            }),
            Reply::Grant {
                extents: extents.clone(),
            },
            Reply::Commit(CommitAnswer {
                outcomes: vec![CommitOutcome::Published, CommitOutcome::Exists],
                granted: extents,
            }),
            Reply::Status { json: "{}".into() },
        ]
    }

    #[test]
    fn a_grown_reply_is_read_as_the_one_it_was() {
        let mut encoder = Encoder::new();
        for (id, reply) in (70..).zip(replies()) {
            let frame = encoder.reply(id, &reply).unwrap();
            let grown = grow(frame).unwrap();
            assert!(grown.len() > frame.len() + 32);
            assert_eq!(decode_reply(&grown), Ok((id, reply)));
            // As often as there will be new versions.
            assert_eq!(decode_reply(&grow(&grown).unwrap()), decode_reply(frame));
            let unknown = grown.windows(8).filter(|bytes| **bytes == UNKNOWN.to_le_bytes());
            assert_eq!(unknown.count(), 4, "two in the root, two in the body");
        }
        assert_eq!(grow(&[0; 40]), None);
    }
}
