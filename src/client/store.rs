//! Storing: pages straight into granted extents, then one commit for everything a step stored.

use std::sync::Arc;

use super::extents::ExtentCursor;
use super::layout::{Holding, KvMemory, ObjectGroupPages};
use super::populate::When;
use super::session::{PoolSide, Session};
use super::stats::Stat;
use super::wanted::Registered;
use super::{Client, ClientError};
use crate::copy::{CopyEngine, SummedPlan};
use crate::keys::ChunkKey;
use crate::wire::{
    Commit, CommitOutcome, ErrorCode, Extent, GroupKind, MAX_ITEMS, ObjectId, Reply, Request, StoreItem,
};

/// One part of one object to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRequest {
    /// The object.
    pub id: ObjectId,
    /// The object before it; `None` for the first chunk of a prompt.
    pub parent: Option<ChunkKey>,
    /// The part that this rank writes.
    pub part: u16,
    /// Tokens of the object.
    pub tokens: u32,
    /// Block ids in token order, one list per KV cache group of the object group; `None`: this rank cannot store it.
    pub blocks: Option<Vec<Vec<i64>>>,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreOutcome {
    /// Visible now.
    Published,
    /// Arrived; other ranks' parts are awaited.
    PartAccepted,
    /// The key exists already.
    Exists,
    /// The parent is not there: store again from the first missing chunk.
    NoParent,
    /// Another rank cannot store the object.
    Skipped,
    /// No room in the pool or the index. Counted.
    Dropped,
    /// No server. Counted.
    Unavailable,
}

impl StoreOutcome {
    /// Name in logs and bindings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::PartAccepted => "part_accepted",
            Self::Exists => "exists",
            Self::NoParent => "no_parent",
            Self::Skipped => "skipped",
            Self::Dropped => "dropped",
            Self::Unavailable => "unavailable",
        }
    }
}

impl From<CommitOutcome> for StoreOutcome {
    fn from(outcome: CommitOutcome) -> Self {
        match outcome {
            CommitOutcome::Published => Self::Published,
            CommitOutcome::PartAccepted => Self::PartAccepted,
            CommitOutcome::Exists => Self::Exists,
            CommitOutcome::NoParent => Self::NoParent,
            CommitOutcome::Skipped => Self::Skipped,
            CommitOutcome::Dropped => Self::Dropped,
        }
    }
}

/// A store that has passed its checks.
struct Checked<'a> {
    request: &'a StoreRequest,
    bytes: u64,
    /// The first token from which on no block is null.
    held_from: u32,
}

/// One commit's worth of items, with the space that was found for each.
#[derive(Default)]
struct Batch {
    items: Vec<StoreItem>,
    extents: Vec<Extent>,
    /// Position in the call, for each item.
    positions: Vec<usize>,
}

impl Client {
    /// Copies the parts out of KV memory into the pool and publishes them: one commit, unless the space held is less
    /// than they need; then as many as it takes. `supersedes` names tails that are needless afterwards. The blocks may
    /// be reused when this returns.
    ///
    /// # Errors
    /// For a mistake in any item, and then nothing was stored. A missing server or missing room is an outcome.
    pub fn store(
        &self,
        requests: &[StoreRequest],
        supersedes: &[ObjectId],
    ) -> Result<Vec<StoreOutcome>, ClientError> {
        self.core.check_process()?;
        let outcomes = self.try_store(requests, supersedes);
        if outcomes.is_err() {
            let given = requests.iter().filter(|request| request.blocks.is_some());
            self.core.count(Stat::DroppedStores, given.count() as u64);
        }
        outcomes
    }

    fn try_store(
        &self,
        requests: &[StoreRequest],
        supersedes: &[ObjectId],
    ) -> Result<Vec<StoreOutcome>, ClientError> {
        let memory = self.core.memory()?;
        let registered = self.registered_or_wanted()?;
        if requests.len() > MAX_ITEMS || supersedes.len() > MAX_ITEMS {
            return Err(ClientError::TooManyItems {
                given: requests.len().max(supersedes.len()),
                limit: MAX_ITEMS,
            });
        }
        let checked = check(&memory, &registered, requests)?;
        let mut outcomes = vec![StoreOutcome::Unavailable; requests.len()];
        if let Some(session) = self.core.linked_session() {
            session.pool()?;
            let mut store = Storing {
                client: self,
                memory: &memory,
                registered: &registered,
                session: &session,
                supersedes,
                outcomes: &mut outcomes,
            };
            match store.run(&checked) {
                Ok(()) | Err(ClientError::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.count_stores(&checked, &outcomes);
        Ok(outcomes)
    }

    /// The registration that the server confirmed, or the one that still waits for a server: enough to check a call.
    pub(super) fn registered_or_wanted(&self) -> Result<Arc<Registered>, ClientError> {
        if let Some(registered) = self.core.registered() {
            return Ok(registered);
        }
        let request = self.core.wanted().register.ok_or(ClientError::NoRegistration)?;
        let seed = super::wanted::domain_seed(&request, self.core.chunk_size().unwrap_or(0))?;
        Ok(Arc::new(Registered {
            request,
            seed,
            domain: None,
            kept_frames_max: 0,
        }))
    }

    fn count_stores(&self, checked: &[Checked<'_>], outcomes: &[StoreOutcome]) {
        let (mut stores, mut bytes, mut dropped) = (0, 0, 0);
        for (item, outcome) in checked.iter().zip(outcomes) {
            match outcome {
                _ if item.request.blocks.is_none() => {}
                StoreOutcome::Dropped | StoreOutcome::Unavailable => dropped += 1,
                _ => {
                    stores += 1;
                    bytes += item.bytes;
                }
            }
        }
        for (stat, count) in [
            (Stat::Stores, stores),
            (Stat::StoredBytes, bytes),
            (Stat::DroppedStores, dropped),
        ] {
            if count > 0 {
                self.core.count(stat, count);
            }
        }
    }
}

/// Checks every item against the registration, the layout and the block-id space.
fn check<'a>(
    memory: &KvMemory,
    registered: &Registered,
    requests: &'a [StoreRequest],
) -> Result<Vec<Checked<'a>>, ClientError> {
    let mut checked = Vec::with_capacity(requests.len());
    for (item, request) in requests.iter().enumerate() {
        let object = memory.group(request.id.group)?;
        let (holding, expected) = part_of(registered, request.id.group, u64::from(request.tokens))?;
        let Some(lists) = &request.blocks else {
            checked.push(Checked {
                request,
                bytes: 0,
                held_from: 0,
            });
            continue;
        };
        memory.check_blocks(item, object, holding, lists, false)?;
        let bytes = object.part_bytes(holding);
        if bytes != expected || bytes.is_none() {
            return Err(ClientError::layout(format!(
                "the pages of {} tokens of object group {} have {bytes:?} bytes, registered are {expected:?}",
                request.tokens, request.id.group
            )));
        }
        checked.push(Checked {
            request,
            bytes: bytes.unwrap_or(0),
            held_from: check_holes(item, registered, object, request, lists)?,
        });
    }
    Ok(checked)
}

/// The first token that is held: only the object of a window may begin with null blocks, and must end with others.
fn check_holes(
    item: usize,
    registered: &Registered,
    object: &ObjectGroupPages,
    request: &StoreRequest,
    lists: &[Vec<i64>],
) -> Result<u32, ClientError> {
    let held_from = object.held_from(lists);
    let (kind, _) = registered.group(request.id.group)?;
    let windowed = matches!(kind, GroupKind::SlidingWindow | GroupKind::ChunkedLocal);
    if held_from == 0 || windowed && held_from < u64::from(request.tokens) {
        return Ok(held_from as u32);
    }
    Err(ClientError::NullBlocks {
        item,
        group: request.id.group,
        held_from,
        tokens: request.tokens,
    })
}

/// What an object of a group holds, and its part's bytes as registered; nothing if the tokens are not aligned.
pub(super) fn part_of(
    registered: &Registered,
    group: u16,
    tokens: u64,
) -> Result<(Holding, Option<u64>), ClientError> {
    let (kind, unit_bytes) = registered.group(group)?;
    if kind == GroupKind::Recurrent {
        return Ok((Holding::State, Some(unit_bytes)));
    }
    let alignment = registered.request.required_alignment;
    let aligned = alignment > 0 && tokens.is_multiple_of(alignment);
    let bytes = aligned
        .then(|| unit_bytes.checked_mul(tokens / alignment))
        .flatten();
    Ok((Holding::Tokens(tokens), bytes))
}

/// One call of [`Client::store`] on one session.
struct Storing<'a> {
    client: &'a Client,
    memory: &'a KvMemory,
    registered: &'a Registered,
    session: &'a Arc<Session>,
    supersedes: &'a [ObjectId],
    outcomes: &'a mut [StoreOutcome],
}

impl Storing<'_> {
    fn run(&mut self, checked: &[Checked<'_>]) -> Result<(), ClientError> {
        let pool = self.session.pool()?;
        let frames = |item: &Checked<'_>| item.bytes.div_ceil(pool.frame_bytes());
        let mut next = 0;
        while next < checked.len() {
            let wanted: u64 = checked[next..].iter().map(frames).sum();
            let held = pool.credit().frames();
            if held < wanted {
                self.ask_for((wanted - held).saturating_mul(pool.frame_bytes()))?;
            }
            let mut batch = Batch::default();
            while next < checked.len() && self.reserve(pool, &mut batch, next, &checked[next]) {
                next += 1;
            }
            if batch.items.is_empty() {
                // Not even this one fits what the server gives, for which it has ended other ranks' parts of it as well.
                self.outcomes[next] = StoreOutcome::Dropped;
                next += 1;
                continue;
            }
            self.gather(pool, &mut batch, checked)?;
            let left: u64 = checked[next..].iter().map(frames).sum();
            self.commit(pool, batch, left * pool.frame_bytes())?;
        }
        Ok(())
    }

    /// Asks for more space. Less than asked for, or none, is for the caller to notice.
    fn ask_for(&self, bytes: u64) -> Result<(), ClientError> {
        match self
            .client
            .core
            .call(Some(self.session), &Request::Grant { bytes })
        {
            Ok((Reply::Grant { extents }, session)) => {
                let pool = session.pool()?;
                pool.gain(extents, When::Now);
                Ok(())
            }
            Ok((reply, session)) => Err(self.client.core.distrust(&session, &reply)),
            Err(ClientError::Refused(error)) if error.code == ErrorCode::LimitExceeded => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Finds room for one item among the credit; false if there is none.
    fn reserve(&self, pool: &PoolSide, batch: &mut Batch, position: usize, item: &Checked<'_>) -> bool {
        let request = item.request;
        let first_extent = batch.extents.len() as u32;
        let mut extent_count = 0;
        if request.blocks.is_some() {
            let Some(extents) = pool.credit().take(item.bytes.div_ceil(pool.frame_bytes())) else {
                return false;
            };
            extent_count = extents.len() as u32;
            batch.extents.extend(extents);
        }
        batch.items.push(StoreItem {
            id: request.id,
            parent: request.parent,
            skipped: request.blocks.is_none(),
            part: request.part,
            tokens: request.tokens,
            held_from: item.held_from,
            bytes: item.bytes,
            checksum: 0,
            first_extent,
            extent_count,
        });
        batch.positions.push(position);
        true
    }

    /// Copies all pages of a batch with one plan, and notes the checksums.
    fn gather(&self, pool: &PoolSide, batch: &mut Batch, checked: &[Checked<'_>]) -> Result<(), ClientError> {
        let mut plan = SummedPlan::new();
        for (item, &position) in batch.items.iter().zip(&batch.positions) {
            if let Some(lists) = &checked[position].request.blocks {
                let object = self.memory.group(item.id.group)?;
                let mut cursor = ExtentCursor::new(item.extents(&batch.extents), pool.frame_bytes());
                self.memory.gather(&mut plan, object, lists, &mut cursor);
            }
        }
        // The copy ends in a store fence, so the commit finds all bytes in place.
        let engine = CopyEngine::detect();
        let checksums = match self.client.core.config.checksums {
            true => engine.execute_summed(&plan, self.memory.regions(), pool.memory()),
            false => engine
                .execute(&plan.unsummed(), self.memory.regions(), pool.memory())
                .map(|_| Vec::new()),
        };
        if checksums.is_err() {
            pool.credit().add(batch.extents.iter().copied());
        }
        let stored = batch.items.iter_mut().filter(|item| !item.skipped);
        for (item, checksum) in stored.zip(checksums?) {
            item.checksum = checksum;
        }
        Ok(())
    }

    /// Publishes a batch. The reply brings the space for the `left` bytes that are still to come, or the credit that is held
    /// between calls: more than that would lie idle.
    fn commit(&mut self, pool: &PoolSide, batch: Batch, left: u64) -> Result<(), ClientError> {
        let last = left == 0;
        let request = Request::Commit(Commit {
            domain_seed: self.registered.seed,
            items: batch.items,
            extents: batch.extents,
            supersedes: if last {
                self.supersedes.to_vec()
            } else {
                Vec::new()
            },
            credit_bytes: self.client.core.config.credit_bytes.max(left),
        });
        let (reply, session) = match self.client.core.call(Some(self.session), &request) {
            Ok(answered) => answered,
            Err(ClientError::Refused(error)) if !error.code.refuses_whole_commit() => {
                // The two sides disagree about this client's space, or some of it may hold objects by now: start anew rather
                // than write into it again.
                let reason = format!("the server refused a commit: {error}");
                self.client.core.degrade(self.session, &reason);
                return Err(ClientError::unavailable(reason));
            }
            Err(error) => {
                if let (ClientError::Refused(_), Request::Commit(commit)) = (&error, request) {
                    pool.credit().add(commit.extents); // refused as a whole: still ours
                }
                return Err(error);
            }
        };
        match reply {
            Reply::Commit(reply) if reply.outcomes.len() == batch.positions.len() => {
                for (position, outcome) in batch.positions.into_iter().zip(reply.outcomes) {
                    self.outcomes[position] = outcome.into();
                }
                pool.gain(reply.granted, if last { When::Later } else { When::Now });
                Ok(())
            }
            reply => Err(self.client.core.distrust(&session, &reply)),
        }
    }
}
