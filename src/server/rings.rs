//! The messages that move bytes between a ring and the pool, and what a client with a ring may commit.
//!
//! A client with a ring maps nothing of the pool, so all that it reads and writes is decided here. It writes only frames that
//! the directory grants to it, it commits only bytes that came through its ring, and it reads only parts that its pins hold.
//! The copies themselves are made on other threads ([`super::ring_copy`]). A connection is served one request after another,
//! so what was checked holds until the copy has ended: nothing else can give the frames away, or drop the pins. That rests on
//! the session's outliving its copies: whoever ends one from elsewhere has to wait for them first.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::answer::Answer;
use super::ring::{EXTENTS_MAX, PLACES_MAX, Ring};
use super::ring_copy::{Direction, Job, Move};
use super::state::Server;
use super::turns::spend;
use crate::cache::{ClientId, Turn};
use crate::copy::HostMemory;
use crate::object::{CommitRequest, Extent, FRAME_BYTES, RetrieveAnswer, RingPart, RingRun, frames_for};
use crate::shm::ring::{Lane, RingError, lane_bytes};
use crate::wire::{ErrorCode, Reply, WireError};

/// Steps of one run, part or frame.
const RUN_STEPS: u32 = 1;
/// Runs and parts that are added up in one step.
const NAMED_PER_STEP: u32 = 32;

/// The refusal of a request that broke the ring or its rules.
pub(super) fn broken(error: RingError) -> WireError {
    let numbers = match &error {
        RingError::Garbage {
            value, least, most, ..
        } => vec![*value, *least, *most],
        RingError::NotThere { asked, there, .. } => vec![*asked, *there],
        RingError::Header { .. } => vec![],
        // The client has not done that.
        RingError::Copy { .. } => return WireError::new(ErrorCode::Internal, error, []),
        RingError::Shm(shm) => match shm.to_wire() {
            exhausted if exhausted.code == ErrorCode::Exhausted => return exhausted,
            other => other.numbers,
        },
    };
    WireError::new(ErrorCode::RingBroken, error, numbers)
}

fn refused(text: impl std::fmt::Display, numbers: impl Into<Vec<u64>>) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text, numbers)
}

/// The refusal of a move where there is no ring.
pub(super) fn none() -> WireError {
    refused("this connection has no ring; connect with ring_bytes set", [])
}

/// The refusal of a retrieve that names more than is kept for reads through a ring.
pub(super) fn too_many_places(found: &RetrieveAnswer) -> WireError {
    let (places, extents) = (found.locations.len() as u64, found.extents.len() as u64);
    WireError::new(
        ErrorCode::LimitExceeded,
        format_args!(
            "{places} objects in {extents} extents beside what the other pins of this connection hold are more than the \
             {PLACES_MAX} and {EXTENTS_MAX} that are kept for its ring; release some, or retrieve fewer at a time"
        ),
        [places, extents, PLACES_MAX as u64, EXTENTS_MAX as u64],
    )
}

/// Forgets what was written into frames that are no longer the client's.
pub(super) async fn forget_frames(ring: &mut Ring, extents: &[Extent], turn: &mut Turn) {
    for extent in extents {
        step(turn).await;
        // Only those that are there: a run may name as many as it likes.
        while let Some((&frame, _)) = ring.filled.range(extent.frames()).next() {
            ring.filled.remove(&frame);
            step(turn).await;
        }
    }
}

/// Refuses a commit of bytes that have not come through the ring.
pub(super) async fn check_filled(
    ring: &Ring,
    request: &CommitRequest,
    turn: &mut Turn,
) -> Result<(), WireError> {
    // Each of these can be committed once.
    let mut unnamed = ring.filled.len();
    for item in request.items.iter().filter(|item| !item.skipped) {
        step(turn).await;
        let mut left = item.bytes;
        for frame in item.extents(&request.extents).iter().flat_map(|e| e.frames()) {
            if left == 0 {
                break; // what is named beyond the part is for the core to refuse
            }
            let needed = left.min(FRAME_BYTES);
            let there = u64::from(ring.filled.get(&frame).copied().unwrap_or(0));
            if there < needed {
                return Err(refused(
                    format_args!(
                        "frame {frame} is to be committed with {needed} bytes, of which {there} have come through the \
                         ring; write a part before it is committed"
                    ),
                    [u64::from(frame), needed, there],
                ));
            }
            left -= needed;
            unnamed = unnamed.checked_sub(1).ok_or_else(|| {
                WireError::new(
                    ErrorCode::InvalidExtent,
                    format_args!(
                        "frame {frame} is named a second time: this commit names more than the {} frames that have come \
                         through the ring",
                        ring.filled.len()
                    ),
                    [u64::from(frame), ring.filled.len() as u64],
                )
            })?;
            step(turn).await;
        }
    }
    Ok(())
}

async fn step(turn: &mut Turn) {
    spend(turn, RUN_STEPS).await;
}

/// Moves the next bytes of the store lane into granted frames.
pub(super) async fn write(
    server: &Server,
    client: ClientId,
    ring: &mut Ring,
    runs: &[RingRun],
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    let total = runs
        .iter()
        .fold(0_u64, |sum, run| sum.saturating_add(lane_bytes(run.bytes)));
    turn.spend(runs.len() as u32 / NAMED_PER_STEP);
    let mut position = ring.store.claim(total).map_err(broken)?;
    let mut moves = Vec::new();
    // Of each frame how many bytes it has once this is done.
    let mut fresh: HashMap<u32, u32> = HashMap::new();
    let (mut bytes, mut filled) = (0, 0_u64);
    for run in runs {
        step(turn).await;
        let end = u64::from(run.offset) + run.bytes;
        let count = frames_for(end);
        if run.bytes == 0 || u64::from(run.offset) >= FRAME_BYTES {
            let (frame, offset) = (run.frame, run.offset);
            return Err(refused(
                format_args!(
                    "a run of {} bytes at byte {offset} of frame {frame}; name at least one byte, inside of the frame",
                    run.bytes
                ),
                [u64::from(frame), u64::from(offset), run.bytes],
            ));
        }
        // The lane has so many bytes, so this is small.
        let extent = Extent::new(run.frame, count as u32);
        if extent
            .end()
            .is_none_or(|end| u64::from(end) * FRAME_BYTES > server.pool_memory.len() as u64)
        {
            let (frame, count) = (extent.frame, extent.count);
            return Err(WireError::new(
                ErrorCode::InvalidExtent,
                format_args!("frames {frame} and {count} on are not in the pool"),
                [u64::from(frame), u64::from(count)],
            ));
        }
        let mut at = u64::from(run.offset);
        for frame in extent.frames() {
            step(turn).await;
            let granted = server.core().check_granted(client, Extent::new(frame, 1));
            granted.map_err(|error| error.to_wire())?;
            let there = fresh
                .get(&frame)
                .or(ring.filled.get(&frame))
                .copied()
                .unwrap_or(0);
            if u64::from(there) != at % FRAME_BYTES {
                return Err(refused(
                    format_args!(
                        "byte {} of frame {frame} is to be written, which has {there} bytes; write a frame from its front on",
                        at % FRAME_BYTES
                    ),
                    [u64::from(frame), at % FRAME_BYTES, u64::from(there)],
                ));
            }
            let next = end.min((at / FRAME_BYTES + 1) * FRAME_BYTES);
            fresh.insert(frame, (next - (at / FRAME_BYTES) * FRAME_BYTES) as u32);
            at = next;
        }
        let mut pool = u64::from(run.frame) * FRAME_BYTES + u64::from(run.offset);
        for span in ring.layout.spans(Lane::Store, position, run.bytes) {
            push(&mut moves, span.offset, pool, span.bytes);
            pool += span.bytes;
        }
        position += lane_bytes(run.bytes);
        bytes += run.bytes;
        filled += count;
    }
    debug_assert!(fresh.len() as u64 <= filled);
    copy(server, ring, Direction::IntoPool, moves).await?;
    for entry in fresh {
        ring.filled.insert(entry.0, entry.1);
        step(turn).await;
    }
    ring.store.release(total).map_err(broken)?;
    ring.counters.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
    ring.counters.moves.fetch_add(1, Ordering::Relaxed);
    Ok(Reply::Ack)
}

/// Moves bytes of pinned parts into the load lane.
pub(super) async fn read(
    server: &Server,
    ring: &mut Ring,
    pin: u64,
    parts: &[RingPart],
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    let total = parts
        .iter()
        .fold(0_u64, |sum, part| sum.saturating_add(lane_bytes(part.bytes)));
    turn.spend(parts.len() as u32 / NAMED_PER_STEP);
    let pinned = ring.pinned.get(&pin).ok_or_else(|| {
        WireError::new(
            ErrorCode::UnknownPin,
            format_args!(
                "pin {pin} is not one that a retrieve of this connection has made and that it still holds"
            ),
            [pin],
        )
    })?;
    let mut position = ring.load.claim(total).map_err(broken)?;
    let mut moves = Vec::new();
    let mut bytes = 0;
    for part in parts {
        step(turn).await;
        let location = pinned.locations.get(part.place as usize);
        let end = part.offset.checked_add(part.bytes);
        let location = location.filter(|location| {
            location.incarnation != 0 && part.bytes > 0 && end.is_some_and(|end| end <= location.bytes)
        });
        let Some(location) = location else {
            let (place, places) = (u64::from(part.place), pinned.locations.len() as u64);
            // 0: there is no such place, or no object was found for it.
            let found = pinned.locations.get(part.place as usize);
            let has = found
                .filter(|found| found.incarnation != 0)
                .map_or(0, |found| found.bytes);
            return Err(refused(
                format_args!(
                    "{} bytes from byte {} of place {place} of pin {pin}, which has {places} places, and {has} bytes in this \
                     one; name bytes of a part that is there",
                    part.bytes, part.offset
                ),
                [pin, place, part.offset, part.bytes, places, has],
            ));
        };
        let (mut skip, mut left) = (part.offset, part.bytes);
        for extent in location.extents(&pinned.extents) {
            step(turn).await;
            let size = extent.bytes();
            let run = left.min(size.saturating_sub(skip));
            if run > 0 {
                let mut pool = u64::from(extent.frame) * FRAME_BYTES + skip;
                for span in ring.layout.spans(Lane::Load, position, run) {
                    push(&mut moves, span.offset, pool, span.bytes);
                    pool += span.bytes;
                }
                position += run;
                left -= run;
            }
            skip = skip.saturating_sub(size);
            if left == 0 {
                break;
            }
        }
        position += lane_bytes(part.bytes) - part.bytes;
        bytes += part.bytes;
    }
    copy(server, ring, Direction::IntoRing, moves).await?;
    ring.load.publish(total).map_err(broken)?;
    ring.counters.loaded_bytes.fetch_add(bytes, Ordering::Relaxed);
    ring.counters.moves.fetch_add(1, Ordering::Relaxed);
    Ok(Reply::Ack)
}

fn push(moves: &mut Vec<Move>, ring: u64, pool: u64, bytes: u64) {
    if bytes > 0 {
        moves.push(Move { ring, pool, bytes });
    }
}

async fn copy(server: &Server, ring: &Ring, direction: Direction, moves: Vec<Move>) -> Result<(), WireError> {
    let job = Job {
        ring: ring.memory.clone(),
        pool: HostMemory::mapped(Arc::clone(&server.pool_memory)),
        direction,
    };
    job.run(&server.copies, moves).await.map_err(broken)
}
