//! Payload of a client that maps nothing of the pool: through its ring, window by window.
//!
//! A window is half of a lane. While the server copies one, this side copies the next. A part that is longer than a window goes
//! through in pieces, and is then summed over a small buffer instead of in the copy itself.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::request::LoadRequest;
use super::windows::{Slice, Window, runs, windows};
use crate::client::ClientError;
use crate::client::extents::ExtentCursor;
use crate::client::link::core::Core;
use crate::client::link::ring::{RingSide, Taken};
use crate::client::link::session::Session;
use crate::client::memory::{Holding, KvMemory, ObjectGroupPages};
use crate::copy::{Checksum, CopyPlan, Span, SummedPlan};
use crate::object::{Extent, RingPart};
use crate::shm::ring::{LANE_ALIGN, Lane, RingError, lane_bytes};
use crate::wire::{ErrorCode, Reply, Request};

/// Objects that one retrieve of such a client names, so that the server keeps few locations for it.
pub(crate) const RING_ITEMS: usize = 1024;
/// Loads that are under way at a time: one for each half of the lane.
const WINDOWS: usize = 2;
/// Stores that are under way at a time, where they are short. Long ones wait for room.
const MOVES: usize = 16;
/// Windows after which a call lets others have the lane, if there are any: they wait for so many, however long the call is.
const TURN_WINDOWS: usize = 16;
/// What pieces of long parts go through.
const STAGE_BYTES: u64 = 64 << 10;

/// Goes through so many objects in rounds of at most [`RING_ITEMS`]. What a round brings, one after the other, and how many
/// objects that are. A pool in many pieces lets the server keep fewer locations: rounds are halved then, and where it
/// keeps none, the rest is left.
pub(crate) fn in_rounds<T>(
    count: usize,
    mut round: impl FnMut(Range<usize>) -> Result<Vec<T>, ClientError>,
) -> Result<(Vec<T>, usize), ClientError> {
    let (mut all, mut at, mut items) = (Vec::new(), 0, RING_ITEMS);
    while at < count {
        let end = count.min(at + items);
        match round(at..end) {
            Ok(some) => {
                all.extend(some);
                at = end;
            }
            Err(ClientError::Refused(error)) if error.code == ErrorCode::LimitExceeded => {
                if end - at == 1 {
                    break;
                }
                items = (end - at) / 2;
            }
            Err(error) => return Err(error),
        }
    }
    Ok((all, at))
}

/// A part to store.
pub(crate) struct Outgoing<'a> {
    pub(crate) object: &'a ObjectGroupPages,
    pub(crate) lists: &'a [Vec<i64>],
    pub(crate) bytes: u64,
    /// Where it goes in the pool.
    pub(crate) extents: &'a [Extent],
}

/// A part to load.
pub(crate) struct Incoming<'a> {
    pub(crate) object: &'a ObjectGroupPages,
    pub(crate) holding: Holding,
    pub(crate) request: &'a LoadRequest,
    pub(crate) bytes: u64,
    /// Its place in the answer to the retrieve.
    pub(crate) place: u32,
}

/// A long part: its pages by their place among its bytes.
struct Long {
    part: usize,
    plan: CopyPlan,
    /// Pieces of the plan that are behind.
    done: usize,
    sum: Checksum,
}

impl Long {
    /// A cursor over the bytes of one part, from 0 on.
    fn whole(bytes: u64) -> [Extent; 1] {
        [Extent::new(0, bytes.div_ceil(LANE_ALIGN) as u32)]
    }

    fn new(part: usize, plan: &SummedPlan) -> Self {
        Self {
            part,
            plan: plan.unsummed(),
            done: 0,
            sum: Checksum::new(),
        }
    }

    /// Goes through the plan's pieces between two places of the part, which come in order; `at` names a piece's place.
    fn pieces(
        &mut self,
        from: u64,
        to: u64,
        at: impl Fn(&crate::copy::Piece) -> u64,
        mut each: impl FnMut(&crate::copy::Piece, u64, u64) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        while let Some(piece) = self.plan.pieces().get(self.done) {
            let (start, end) = (at(piece), at(piece) + piece.len);
            if start >= to {
                break;
            }
            let (first, last) = (start.max(from), end.min(to));
            if first < last {
                each(piece, first, last - first)?;
            }
            if end > to {
                break;
            }
            self.done += 1;
        }
        Ok(())
    }
}

/// One transfer of a call.
struct Transfer<'a> {
    core: &'a Arc<Core>,
    session: &'a Arc<Session>,
    ring: &'a RingSide,
    memory: &'a KvMemory,
    sums: bool,
    /// Moves under way, oldest first.
    under_way: VecDeque<u64>,
    /// Whether both sides agree about the lane.
    whole: bool,
}

impl Drop for Transfer<'_> {
    /// What ends early leaves bytes in the lane that the next transfer would take for its own.
    fn drop(&mut self) {
        if !self.whole {
            self.core
                .degrade(self.session, "a transfer through the payload ring ended early");
        }
    }
}

impl<'a> Transfer<'a> {
    fn new(core: &'a Arc<Core>, session: &'a Arc<Session>, ring: &'a RingSide, memory: &'a KvMemory) -> Self {
        Self {
            core,
            session,
            ring,
            memory,
            sums: core.config.checksums,
            under_way: VecDeque::new(),
            whole: false,
        }
    }

    fn begin(&mut self, request: &Request) -> Result<(), ClientError> {
        let deadline = self.core.deadline();
        let mut link = self.core.acquire(Some(self.session), deadline)?;
        self.under_way.push_back(link.begin(request, deadline)?);
        Ok(())
    }

    /// Waits for the oldest move.
    fn finish(&mut self) -> Result<(), ClientError> {
        let Some(id) = self.under_way.pop_front() else {
            return Ok(());
        };
        let deadline = self.core.deadline();
        let mut link = self.core.acquire(Some(self.session), deadline)?;
        match link.finish(id, deadline) {
            Ok(Reply::Ack) => Ok(()),
            Ok(reply) => {
                drop(link);
                Err(self.core.distrust(self.session, &reply))
            }
            // The two sides disagree about the ring, or what it moves: only a new one is sure to be right.
            Err(ClientError::Refused(error)) => {
                let reason = format!("the server refused a move through the ring: {error}");
                link.give_up(&reason);
                Err(ClientError::unavailable(reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Lets others have the lane. Nothing of this transfer is under way.
    fn let_others<'l, T>(&mut self, lane: Taken<'l, T>) -> Result<Taken<'l, T>, ClientError> {
        // Both sides agree about what is left behind.
        self.whole = true;
        let lane = lane.let_others(self.core.deadline())?;
        self.whole = false;
        Ok(lane)
    }

    /// A ring whose words make no sense is of no more use.
    fn broken(&self, error: &RingError) -> ClientError {
        let reason = format!("the payload ring: {error}");
        self.core.degrade(self.session, &reason);
        ClientError::unavailable(reason)
    }
}

/// Copies parts into the pool, and returns their checksums, or none where none are wanted.
pub(crate) fn store(
    core: &Arc<Core>,
    session: &Arc<Session>,
    ring: &RingSide,
    memory: &KvMemory,
    parts: &[Outgoing<'_>],
) -> Result<Vec<u64>, ClientError> {
    let mut sums = vec![0; parts.len()];
    let frame_bytes = session.pool()?.frame_bytes();
    let mut lane = ring.store(core.deadline())?;
    let mut transfer = Transfer::new(core, session, ring, memory);
    let (mut long, mut in_turn) = (None, 0);
    for window in windows(parts.iter().map(|part| part.bytes), ring.window()) {
        if in_turn >= TURN_WINDOWS && lane.is_wanted() {
            while !transfer.under_way.is_empty() {
                transfer.finish()?;
            }
            lane = transfer.let_others(lane)?;
            in_turn = 0;
        }
        in_turn += 1;
        let position = loop {
            match lane.claim(window.bytes) {
                Ok(position) if transfer.under_way.len() < MOVES => break position,
                Ok(_) => transfer.finish()?,
                // Full: when the oldest move has ended there is room again.
                Err(RingError::NotThere { .. }) if !transfer.under_way.is_empty() => transfer.finish()?,
                Err(error) => return Err(transfer.broken(&error)),
            }
        };
        transfer.fill(parts, &window, position, &mut long, &mut sums)?;
        lane.publish(window.bytes)
            .map_err(|error| transfer.broken(&error))?;
        let mut runs_of = Vec::with_capacity(window.slices.len());
        for slice in &window.slices {
            runs(parts[slice.part].extents, frame_bytes, *slice, &mut runs_of);
        }
        transfer.begin(&Request::RingWrite { runs: runs_of })?;
    }
    while !transfer.under_way.is_empty() {
        transfer.finish()?;
    }
    transfer.whole = true;
    Ok(if core.config.checksums { sums } else { Vec::new() })
}

/// Copies parts out of the pool that a pin holds, and returns the checksums of what came, where they are wanted.
pub(crate) fn load(
    core: &Arc<Core>,
    session: &Arc<Session>,
    ring: &RingSide,
    memory: &KvMemory,
    pin: u64,
    parts: &[Incoming<'_>],
) -> Result<Vec<u64>, ClientError> {
    let mut sums = vec![0; parts.len()];
    let mut lane = ring.load(core.deadline())?;
    let mut transfer = Transfer::new(core, session, ring, memory);
    let windows = windows(parts.iter().map(|part| part.bytes), ring.window());
    let (mut long, mut in_turn) = (None, 0);
    let mut ahead = windows.iter();
    for window in &windows {
        if in_turn >= TURN_WINDOWS && transfer.under_way.is_empty() {
            lane = transfer.let_others(lane)?;
            in_turn = 0;
        }
        // The server has room for both halves: what came before them was given back. At the end of a turn no more are begun.
        while transfer.under_way.len() < WINDOWS
            && (in_turn < TURN_WINDOWS || !lane.is_wanted())
            && let Some(next) = ahead.next()
        {
            let named = next.slices.iter().map(|slice| RingPart {
                place: parts[slice.part].place,
                offset: slice.offset,
                bytes: slice.bytes,
            });
            let parts = named.collect();
            transfer.begin(&Request::RingRead { pin, parts })?;
            in_turn += 1;
        }
        transfer.finish()?;
        let position = lane
            .claim(window.bytes)
            .map_err(|error| transfer.broken(&error))?;
        transfer.empty(parts, window, position, &mut long, &mut sums)?;
        lane.release(window.bytes)
            .map_err(|error| transfer.broken(&error))?;
    }
    transfer.whole = true;
    Ok(if core.config.checksums { sums } else { Vec::new() })
}

impl Transfer<'_> {
    /// Copies a window's bytes from pages into the lane.
    fn fill(
        &self,
        parts: &[Outgoing<'_>],
        window: &Window,
        position: u64,
        long: &mut Option<Long>,
        sums: &mut [u64],
    ) -> Result<(), ClientError> {
        if let [slice] = window.slices[..]
            && slice.bytes < parts[slice.part].bytes
        {
            let part = &parts[slice.part];
            let mut entire = long
                .take()
                .filter(|long| long.part == slice.part)
                .unwrap_or_else(|| {
                    let mut plan = SummedPlan::new();
                    let whole = Long::whole(part.bytes);
                    let mut cursor = ExtentCursor::new(&whole, LANE_ALIGN);
                    self.memory
                        .gather(&mut plan, part.object, part.lists, &mut cursor);
                    Long::new(slice.part, &plan)
                });
            self.fill_piece(&mut entire, slice, position)?;
            if slice.offset + slice.bytes == part.bytes {
                sums[slice.part] = entire.sum.value();
            } else {
                *long = Some(entire);
            }
            return Ok(());
        }
        let mut plan = SummedPlan::new();
        let mut at = position;
        for slice in &window.slices {
            let part = &parts[slice.part];
            let extents = self.ring.extents(Lane::Store, at, slice.bytes);
            let mut cursor = ExtentCursor::new(&extents, LANE_ALIGN);
            self.memory
                .gather(&mut plan, part.object, part.lists, &mut cursor);
            at += lane_bytes(slice.bytes);
        }
        self.copy(&plan, Lane::Store, window, sums)
    }

    /// Copies a window's bytes from the lane into pages.
    fn empty(
        &self,
        parts: &[Incoming<'_>],
        window: &Window,
        position: u64,
        long: &mut Option<Long>,
        sums: &mut [u64],
    ) -> Result<(), ClientError> {
        if let [slice] = window.slices[..]
            && slice.bytes < parts[slice.part].bytes
        {
            let part = &parts[slice.part];
            let mut entire = long
                .take()
                .filter(|long| long.part == slice.part)
                .unwrap_or_else(|| {
                    let mut plan = SummedPlan::new();
                    let whole = Long::whole(part.bytes);
                    let mut cursor = ExtentCursor::new(&whole, LANE_ALIGN);
                    let blocks = &part.request.blocks;
                    self.memory
                        .scatter(&mut plan, part.object, part.holding, blocks, &mut cursor);
                    Long::new(slice.part, &plan)
                });
            self.empty_piece(&mut entire, slice, position)?;
            if slice.offset + slice.bytes == part.bytes {
                sums[slice.part] = entire.sum.value();
            } else {
                *long = Some(entire);
            }
            return Ok(());
        }
        let mut plan = SummedPlan::new();
        let mut at = position;
        for slice in &window.slices {
            let part = &parts[slice.part];
            let extents = self.ring.extents(Lane::Load, at, slice.bytes);
            let mut cursor = ExtentCursor::new(&extents, LANE_ALIGN);
            let blocks = &part.request.blocks;
            self.memory
                .scatter(&mut plan, part.object, part.holding, blocks, &mut cursor);
            at += lane_bytes(slice.bytes);
        }
        self.copy(&plan, Lane::Load, window, sums)
    }

    fn copy(
        &self,
        plan: &SummedPlan,
        lane: Lane,
        window: &Window,
        sums: &mut [u64],
    ) -> Result<(), ClientError> {
        let (from, to) = match lane {
            Lane::Store => (self.memory.regions(), self.ring.memory()),
            Lane::Load => (self.ring.memory(), self.memory.regions()),
        };
        let engine = self.core.engine();
        if !self.sums {
            engine.execute(&plan.unsummed(), from, to)?;
            return Ok(());
        }
        let summed = engine.execute_summed(plan, from, to)?;
        for (slice, sum) in window.slices.iter().zip(summed) {
            sums[slice.part] = sum;
        }
        Ok(())
    }

    fn fill_piece(&self, long: &mut Long, slice: Slice, position: u64) -> Result<(), ClientError> {
        let mut stage = vec![0; STAGE_BYTES as usize];
        let mut done = 0;
        while done < slice.bytes {
            let bytes = (slice.bytes - done).min(STAGE_BYTES);
            let stage = &mut stage[..bytes as usize];
            let from = slice.offset + done;
            let regions = self.memory.regions();
            long.pieces(
                from,
                from + bytes,
                |piece| piece.dst.offset,
                |piece, first, len| {
                    let page = Span::new(piece.src.region, piece.src.offset + first - piece.dst.offset);
                    let place = (first - from) as usize;
                    let into = &mut stage[place..place + len as usize];
                    Ok(regions[usize::from(page.region)].read(page.offset, into)?)
                },
            )?;
            if self.sums {
                long.sum.update(stage);
            }
            self.ring.write(Lane::Store, position + done, stage)?;
            done += bytes;
        }
        Ok(())
    }

    fn empty_piece(&self, long: &mut Long, slice: Slice, position: u64) -> Result<(), ClientError> {
        let mut stage = vec![0; STAGE_BYTES as usize];
        let mut done = 0;
        while done < slice.bytes {
            let bytes = (slice.bytes - done).min(STAGE_BYTES);
            let stage = &mut stage[..bytes as usize];
            let from = slice.offset + done;
            self.ring.read(Lane::Load, position + done, stage)?;
            if self.sums {
                long.sum.update(stage);
            }
            let regions = self.memory.regions();
            long.pieces(
                from,
                from + bytes,
                |piece| piece.src.offset,
                |piece, first, len| {
                    let page = Span::new(piece.dst.region, piece.dst.offset + first - piece.src.offset);
                    let place = (first - from) as usize;
                    let bytes = &stage[place..place + len as usize];
                    Ok(regions[usize::from(page.region)].write(page.offset, bytes)?)
                },
            )?;
            done += bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;

    /// What comes of so many objects where the server keeps so many at a time, and how often it is asked.
    fn rounds_of(count: usize, kept: impl Fn(usize) -> usize) -> (Vec<usize>, usize, usize) {
        let mut asked = 0;
        let (all, done) = in_rounds(count, |at| {
            asked += 1;
            match at.len() <= kept(at.start) {
                true => Ok(at.collect()),
                false => {
                    let error = WireError::new(ErrorCode::LimitExceeded, "too many", []);
                    Err(ClientError::Refused(error))
                }
            }
        })
        .unwrap();
        (all, done, asked)
    }

    #[test]
    fn rounds_are_halved_until_the_server_keeps_what_they_name() {
        let all = |count: usize| (0..count).collect::<Vec<_>>();
        assert_eq!(rounds_of(0, |_| RING_ITEMS), (vec![], 0, 0));
        assert_eq!(rounds_of(2500, |_| RING_ITEMS), (all(2500), 2500, 3));
        // Four that are refused, and then 40 of 64.
        assert_eq!(rounds_of(2500, |_| 100), (all(2500), 2500, 44));
        // From some place on the server keeps none: what came before stays, and it is not asked for each of the rest.
        assert_eq!(
            rounds_of(2500, |at| if at < 1024 { 1024 } else { 0 }),
            (all(1024), 1024, 12)
        );
        let failed = in_rounds(3, |_| Err::<Vec<()>, _>(ClientError::unavailable("gone")));
        assert!(matches!(failed, Err(ClientError::Unavailable { .. })));
    }
}
