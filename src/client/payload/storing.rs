//! One call of a store: what has to be copied at all, space for it, copies, commits.
//!
//! Commits are sent one behind the other ([`Commits`]): the next objects are copied while the server works on the last ones.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::batch::Batch;
#[cfg(feature = "cuda")]
use super::by_device;
use super::by_ring::{self, Outgoing};
use super::commits::{Commits, UNDER_WAY};
use super::known;
use super::request::{Checked, StoreOutcome, StoreRequest};
use crate::client::ClientError;
use crate::client::extents::ExtentCursor;
use crate::client::link::attached::Attached;
use crate::client::link::core::Core;
use crate::client::link::populate::When;
use crate::client::link::ring::RingSide;
use crate::client::link::session::{PoolSide, Session};
use crate::client::link::wanted::Registered;
use crate::client::memory::KvMemory;
use crate::control::Counter;
use crate::copy::SummedPlan;
use crate::geometry::ObjectKind;
use crate::keys::{ChunkKey, KeyHashing};
use crate::object::{CommitRequest, GrantRequest, ObjectId};
use crate::wire::{ErrorCode, Reply, Request};

/// Chunks that one question for space names. Further chains of the call are not spared by it.
const UNDER_MAX: usize = 1024;
/// How often a store that waits for the pool to grow looks whether it has.
const GROWTH_POLL: Duration = Duration::from_millis(1);

/// How far the server has made the pool present.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Growth {
    present: u64,
    left: u64,
}

impl Growth {
    fn of(session: &Session) -> Self {
        let control = session.control();
        Self {
            present: control.counter(Counter::Prefaulted),
            left: control.counter(Counter::PrefaultLeft),
        }
    }
}

/// One call of [`Client::store`] on one session.
pub(crate) struct Storing<'a> {
    core: &'a Arc<Core>,
    memory: &'a KvMemory,
    registered: &'a Registered,
    session: &'a Arc<Session>,
    /// Tails that are needless once all is stored; empty once the server was told.
    supersedes: &'a [ObjectId],
    /// Of each part what became of it.
    pub(crate) outcomes: Vec<StoreOutcome>,
    /// Of each part whether its bytes were copied.
    pub(crate) copied: Vec<bool>,
    /// Of each part whether the server has the object already.
    known: Vec<bool>,
    /// Of each part whether there is nothing more to do for it.
    settled: Vec<bool>,
    /// Full attention that this call is yet to commit.
    coming: HashSet<ObjectId, KeyHashing>,
    /// Full attention that there was no room for in this call.
    given_up: HashSet<ObjectId, KeyHashing>,
    /// The group that windows and states hang under.
    anchor: Option<u16>,
    /// Whether a store may be more commits than its space makes necessary. Where ranks store parts of the same objects the server
    /// counts commits to tell who was passed by.
    splits: bool,
    /// Whether there may be parts that hang under something that is not there, for all that is known by now.
    doubtful: bool,
    commits: Commits<'a>,
}

impl<'a> Storing<'a> {
    pub(crate) fn new(
        core: &'a Arc<Core>,
        memory: &'a KvMemory,
        registered: &'a Registered,
        session: &'a Arc<Session>,
        supersedes: &'a [ObjectId],
        parts: usize,
    ) -> Self {
        let groups = &registered.request.groups;
        let full = groups.iter().filter(|group| group.kind == ObjectKind::Full);
        Self {
            core,
            memory,
            registered,
            session,
            supersedes,
            outcomes: vec![StoreOutcome::Unavailable; parts],
            copied: vec![false; parts],
            known: vec![false; parts],
            settled: vec![false; parts],
            coming: HashSet::default(),
            given_up: HashSet::default(),
            anchor: full.map(|group| group.group).min(),
            splits: groups.iter().all(|group| group.parts == 1),
            doubtful: true,
            commits: Commits::new(core, session),
        }
    }

    /// Stores everything that there is room for.
    pub(crate) fn run(&mut self, checked: &[Checked<'_>]) -> Result<(), ClientError> {
        let pool = self.session.pool()?;
        // Twice, so that space which is in use at a heartbeat does not look idle at the next.
        pool.note_use();
        let done = self.store_all(pool, checked);
        // Also after an error, such as the refusal of one: of the others it is known what became of them.
        let answered = self.await_answers(pool, 0);
        pool.note_use();
        done.and(answered)
    }

    fn store_all(&mut self, pool: &PoolSide, checked: &[Checked<'_>]) -> Result<(), ClientError> {
        let (mut next, mut batch, mut waiting) = (0, Batch::default(), None);
        self.find_known(pool, &mut batch, checked)?;
        let mut wanted = self.frames_of(pool, checked, next);
        while next < checked.len() {
            let growth = Growth::of(self.session);
            let held = pool.granted().frames();
            let asks = |wanted, commits: &Commits<'_>| held < wanted && commits.is_empty();
            // Before space is asked for: what can only be refused is not to cost others theirs.
            if std::mem::take(&mut self.doubtful) || asks(wanted, &self.commits) {
                self.settle_hopeless(pool, &mut batch, checked, next);
                wanted = self.frames_of(pool, checked, next);
            }
            if asks(wanted, &self.commits) {
                let bytes = (wanted - held).saturating_mul(pool.frame_bytes());
                self.ask_for(bytes, self.under(checked, next))?;
            }
            let first = next;
            while let Some(item) = checked.get(next)
                && (next == first || !self.splits || !batch.is_full())
                && self.take(pool, &mut batch, next, item)
            {
                wanted -= self.frames_of_one(pool, next, item);
                next += 1;
            }
            if next == first && !self.commits.is_empty() {
                // The answers bring space.
                self.await_answers(pool, 0)?;
                continue;
            }
            if next == first {
                // Not even this one fits what the server gives. It gives more as long as its pool grows.
                let since = *waiting.get_or_insert_with(Instant::now);
                if !self.await_growth(growth, since) {
                    wanted -= self.frames_of_one(pool, next, &checked[next]);
                    self.give_up(&mut batch, next, &checked[next], StoreOutcome::Dropped);
                    next += 1;
                    waiting = None;
                }
                continue;
            }
            waiting = None;
            if batch.extents.is_empty() {
                continue;
            }
            if self.gather(pool, &mut batch, checked)? {
                self.commit(pool, std::mem::take(&mut batch), wanted)?;
            } else {
                batch = self.give_up_rest(batch, checked, next);
                break;
            }
        }
        // What stays needs no space: parts that will not come, and tails that are needless.
        if !batch.items.is_empty() || (!self.supersedes.is_empty() && self.given_up.is_empty()) {
            self.commit(pool, batch, 0)?;
        }
        Ok(())
    }

    /// Looks into the index: what is there already is neither copied nor is space asked for it.
    fn find_known(
        &mut self,
        pool: &PoolSide,
        batch: &mut Batch,
        checked: &[Checked<'_>],
    ) -> Result<(), ClientError> {
        let mut records = Vec::new();
        let asked = match pool.attached() {
            Some(_) => HashSet::new(),
            None => known::ask(self.core, self.registered, pool, checked)?,
        };
        for (position, item) in checked.iter().enumerate() {
            let id = item.request.id;
            if item.request.blocks.is_none() {
                continue;
            }
            let find = |attached: &Attached| attached.find(self.registered.domain, &id);
            let record = pool.attached().and_then(find);
            if record.is_some() || asked.contains(&id) {
                self.known[position] = true;
                self.settled[position] = true;
                self.outcomes[position] = StoreOutcome::Exists;
                self.tell_other_ranks(batch, position, item);
                records.extend(record);
            } else if self.is_full(id.group) {
                self.coming.insert(id);
            }
        }
        // The deepest first, so that what it hangs under is the more recent.
        records.reverse();
        if let Some(attached) = pool.attached().filter(|_| !records.is_empty()) {
            attached.touch(&records);
        }
        Ok(())
    }

    /// Frames for what is to be copied from a position on.
    fn frames_of(&self, pool: &PoolSide, checked: &[Checked<'_>], first: usize) -> u64 {
        let rest = checked.iter().enumerate().skip(first);
        rest.map(|(at, item)| self.frames_of_one(pool, at, item)).sum()
    }

    fn frames_of_one(&self, pool: &PoolSide, position: usize, item: &Checked<'_>) -> u64 {
        match self.is_copied(position, item) {
            true => item.bytes.div_ceil(pool.frame_bytes()),
            false => 0,
        }
    }

    fn is_copied(&self, position: usize, item: &Checked<'_>) -> bool {
        item.request.blocks.is_some() && !self.settled[position]
    }

    /// Gives up what hangs under something that is not there and is not coming, and what hangs under that.
    fn settle_hopeless(&mut self, pool: &PoolSide, batch: &mut Batch, checked: &[Checked<'_>], first: usize) {
        for (position, item) in checked.iter().enumerate().skip(first) {
            if self.is_copied(position, item)
                && let Some(outcome) = self.hopeless(pool, item)
            {
                self.give_up(batch, position, item, outcome);
            }
        }
    }

    /// What the parts that are to be copied from a position on hang under, as far as it is not among them.
    fn under(&self, checked: &[Checked<'_>], first: usize) -> Vec<ChunkKey> {
        let rest = checked.iter().enumerate().skip(first);
        let rest = rest.filter(|(at, item)| self.is_copied(*at, item));
        let copied: Vec<&StoreRequest> = rest.map(|(_, item)| item.request).collect();
        let own: HashSet<ChunkKey, KeyHashing> = copied.iter().map(|request| request.id.key).collect();
        let (mut seen, mut under) = (HashSet::with_hasher(KeyHashing::default()), Vec::new());
        for request in copied {
            // A window's or state's full attention may have been stored by a call before.
            let beside = (!self.is_full(request.id.group)).then_some(request.id.key);
            let parent = request.parent.filter(|parent| !own.contains(parent));
            for key in [beside, parent].into_iter().flatten() {
                if under.len() < UNDER_MAX && seen.insert(key) {
                    under.push(key);
                }
            }
        }
        under
    }

    fn is_full(&self, group: u16) -> bool {
        let kind = self.registered.group(group).map(|(kind, _)| kind);
        kind.is_ok_and(|kind| kind == ObjectKind::Full)
    }

    /// In how many parts the objects of a group are stored.
    fn parts(&self, group: u16) -> u16 {
        let groups = &self.registered.request.groups;
        let group = groups.iter().find(|object| object.group == group);
        group.map_or(1, |group| group.parts)
    }

    /// Why a part cannot be stored whatever room there is: what it hangs under is not there.
    fn hopeless(&self, pool: &PoolSide, item: &Checked<'_>) -> Option<StoreOutcome> {
        let request = item.request;
        let lacks = |key: ChunkKey, group: u16| {
            let id = ObjectId { key, group };
            // What other ranks store parts of is not in the index before the last of them has come.
            let may_lack =
                !self.coming.contains(&id) && pool.lacks(self.registered.domain, &id, self.parts(group) == 1);
            may_lack.then_some(id)
        };
        let before = |group| request.parent.and_then(|parent| lacks(parent, group));
        let lacked = match (self.is_full(request.id.group), self.anchor) {
            (true, _) => before(request.id.group),
            (false, None) => None,
            // With more parts than attention has it is given its place by the last of them.
            (false, Some(anchor)) if self.parts(request.id.group) > self.parts(anchor) => None,
            (false, Some(anchor)) => {
                // That of a tail hangs under the chunk before where the tail's attention was not stored.
                let is_tail = self.core.chunk_size() != Some(request.tokens.into());
                let own = lacks(request.id.key, anchor).filter(|id| pool.missing().contains(id));
                own.filter(|_| !is_tail || request.parent.is_none() || before(anchor).is_some())
            }
        };
        lacked.map(|lacked| match self.given_up.contains(&lacked) {
            true => StoreOutcome::Dropped,
            false => StoreOutcome::NoParent,
        })
    }

    /// Asks for more space. Less than asked for, or none, is for the caller to notice.
    fn ask_for(&self, bytes: u64, under: Vec<ChunkKey>) -> Result<(), ClientError> {
        let request = Request::Grant(GrantRequest {
            bytes,
            under,
            ahead: false,
        });
        match self.core.call(Some(self.session), &request) {
            Ok((Reply::Grant { extents }, session)) => {
                let pool = session.pool()?;
                pool.gain(extents, When::Now);
                Ok(())
            }
            Ok((reply, session)) => Err(self.core.distrust(&session, &reply)),
            Err(ClientError::Refused(error)) if error.code == ErrorCode::LimitExceeded => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until more of the pool is present than before the last question for space, as long as a call may take. False:
    /// asking again is of no use.
    fn await_growth(&self, before: Growth, since: Instant) -> bool {
        if before.left == 0 {
            return false;
        }
        while Growth::of(self.session) == before {
            if since.elapsed() >= self.core.config.deadline || !self.session.is_current() {
                return false;
            }
            thread::sleep(GROWTH_POLL);
        }
        true
    }

    /// Takes one part into a batch, or finds that there is nothing to do for it; false if there is no room.
    fn take(&mut self, pool: &PoolSide, batch: &mut Batch, position: usize, item: &Checked<'_>) -> bool {
        if self.settled[position] {
            return true;
        }
        if item.request.blocks.is_none() {
            batch.push(position, item, true, &[]);
            return true;
        }
        let Some(extents) = pool.granted().take(item.bytes.div_ceil(pool.frame_bytes())) else {
            return false;
        };
        batch.push(position, item, false, &extents);
        self.copied[position] = true;
        true
    }

    /// A part is not stored.
    fn give_up(&mut self, batch: &mut Batch, position: usize, item: &Checked<'_>, outcome: StoreOutcome) {
        let id = item.request.id;
        self.outcomes[position] = outcome;
        self.settled[position] = true;
        self.coming.remove(&id);
        if self.is_full(id.group)
            && let Ok(pool) = self.session.pool()
        {
            pool.missing().add(id);
            if outcome == StoreOutcome::Dropped {
                self.given_up.insert(id);
            }
        }
        // Where the parent is missing the server refuses their parts too, and without keeping account of it.
        if outcome == StoreOutcome::Dropped {
            self.tell_other_ranks(batch, position, item);
        }
    }

    /// Where others store parts of the same object they have to hear that this one will not come.
    fn tell_other_ranks(&self, batch: &mut Batch, position: usize, item: &Checked<'_>) {
        if self.parts(item.request.id.group) > 1 {
            batch.push(position, item, true, &[]);
        }
    }

    /// A device could not copy a batch: its parts and all further ones are given up. What is left is what others are told.
    fn give_up_rest(&mut self, batch: Batch, checked: &[Checked<'_>], next: usize) -> Batch {
        let mut left = Batch::default();
        for (item, position) in batch.items.iter().zip(batch.positions) {
            if item.skipped {
                left.push(position, &checked[position], true, &[]);
            } else {
                self.copied[position] = false;
                self.give_up(&mut left, position, &checked[position], StoreOutcome::Dropped);
            }
        }
        for (position, item) in checked.iter().enumerate().skip(next) {
            if self.is_copied(position, item) {
                self.give_up(&mut left, position, item, StoreOutcome::Dropped);
            } else if item.request.blocks.is_none() {
                left.push(position, item, true, &[]);
            }
        }
        left
    }

    /// Copies all pages of a batch with one plan, and notes the checksums. False: a device could not, and the extents are
    /// seen to.
    fn gather(
        &self,
        pool: &PoolSide,
        batch: &mut Batch,
        checked: &[Checked<'_>],
    ) -> Result<bool, ClientError> {
        if let Some(ring) = pool.ring() {
            return self.gather_by_ring(pool, ring, batch, checked).map(|()| true);
        }
        let mut plan = SummedPlan::new();
        for (item, &position) in batch.items.iter().zip(&batch.positions) {
            if let Some(lists) = checked[position]
                .request
                .blocks
                .as_ref()
                .filter(|_| !item.skipped)
            {
                let object = self.memory.group(item.id.group)?;
                let mut cursor = ExtentCursor::new(item.extents(&batch.extents), pool.frame_bytes());
                self.memory.gather(&mut plan, object, lists, &mut cursor);
            }
        }
        #[cfg(feature = "cuda")]
        if let Some(pages) = self.memory.device() {
            let copied = by_device::store(self.core, self.session, pages, &plan, &batch.extents)?;
            let stored = batch.items.iter_mut().filter(|item| !item.skipped);
            for (item, checksum) in stored.zip(copied.iter().flatten()) {
                item.checksum = *checksum;
            }
            return Ok(copied.is_some());
        }
        // The copy ends in a store fence, so the commit finds all bytes in place.
        let engine = self.core.engine();
        let checksums = match self.core.config.checksums {
            true => engine.execute_summed(&plan, self.memory.regions(), pool.memory()),
            false => engine
                .execute(&plan.unsummed(), self.memory.regions(), pool.memory())
                .map(|_| Vec::new()),
        };
        if checksums.is_err() {
            pool.granted().add(batch.extents.iter().copied());
        }
        let stored = batch.items.iter_mut().filter(|item| !item.skipped);
        for (item, checksum) in stored.zip(checksums?) {
            item.checksum = checksum;
        }
        Ok(true)
    }

    /// The same through the ring.
    fn gather_by_ring(
        &self,
        pool: &PoolSide,
        ring: &RingSide,
        batch: &mut Batch,
        checked: &[Checked<'_>],
    ) -> Result<(), ClientError> {
        let mut parts = Vec::with_capacity(batch.items.len());
        for (item, &position) in batch.items.iter().zip(&batch.positions) {
            if let Some(lists) = checked[position]
                .request
                .blocks
                .as_ref()
                .filter(|_| !item.skipped)
            {
                parts.push(Outgoing {
                    object: self.memory.group(item.id.group)?,
                    lists,
                    bytes: item.bytes,
                    extents: item.extents(&batch.extents),
                });
            }
        }
        let checksums = by_ring::store(self.core, self.session, ring, self.memory, &parts);
        if checksums.is_err() {
            pool.granted().add(batch.extents.iter().copied());
        }
        let stored = batch.items.iter_mut().filter(|item| !item.skipped);
        for (item, checksum) in stored.zip(checksums?) {
            item.checksum = checksum;
        }
        Ok(())
    }

    /// Has a batch published. The answer brings the space for what is still to come, or the space that is held between
    /// calls: more than that would lie idle.
    fn commit(&mut self, pool: &PoolSide, batch: Batch, frames_left: u64) -> Result<(), ClientError> {
        if let Err(error) = self.await_answers(pool, UNDER_WAY - 1) {
            pool.granted().add(batch.extents); // nobody was told of them
            return Err(error);
        }
        let last = frames_left == 0;
        let left = frames_left.saturating_mul(pool.frame_bytes());
        let request = CommitRequest {
            domain_seed: self.registered.seed,
            items: batch.items,
            extents: batch.extents,
            // What was to replace them has to be there.
            supersedes: if last && self.given_up.is_empty() {
                std::mem::take(&mut self.supersedes).to_vec()
            } else {
                Vec::new()
            },
            grant_bytes: self.core.config.grant_bytes.max(left),
        };
        let when = match pool.granted().frames() < frames_left {
            true => When::Now,
            false => When::Later,
        };
        self.commits.send(pool, request, batch.positions, when)
    }

    /// Waits until at most so many commits are under way, and takes what the server said of the others.
    fn await_answers(&mut self, pool: &PoolSide, left: usize) -> Result<(), ClientError> {
        let (answered, all) = self.commits.answers(pool, left);
        for (sent, answer) in answered {
            let items = sent.ids.into_iter().zip(sent.positions);
            for ((id, position), outcome) in items.zip(answer.outcomes) {
                self.settle(pool, id, position, outcome.into());
            }
            pool.gain(answer.granted, sent.when);
        }
        all
    }

    /// Takes what the server said of one item.
    fn settle(&mut self, pool: &PoolSide, id: ObjectId, position: usize, outcome: StoreOutcome) {
        use StoreOutcome::{Dropped, Exists, NoParent, PartAccepted, Published, Skipped, Unavailable};
        // What was given up stays that, whatever the server makes of the news.
        if matches!(self.outcomes[position], Dropped | NoParent) {
            return;
        }
        let outcome = match (self.known[position], outcome) {
            (true, Skipped) => Dropped, // it went before the server heard of it
            (_, outcome) => outcome,
        };
        self.outcomes[position] = outcome;
        self.coming.remove(&id);
        if self.is_full(id.group) {
            match outcome {
                Published | PartAccepted | Exists => pool.missing().remove(&id),
                Dropped | NoParent => {
                    self.doubtful = true;
                    pool.missing().add(id);
                }
                // The server keeps account of what comes after it.
                Skipped | Unavailable => {}
            }
        }
    }
}
