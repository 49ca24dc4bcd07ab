//! Storing: pages straight into granted extents, then one commit for everything a step stored.

use std::sync::Arc;

use super::layout::{Holding, KvMemory, ObjectGroupPages};
use super::stats::Stat;
use super::storing::Storing;
use super::wanted::Registered;
use super::{Client, ClientError};
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::object::{CommitOutcome, ObjectId};
use crate::wire::MAX_ITEMS;

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
pub(super) struct Checked<'a> {
    pub(super) request: &'a StoreRequest,
    pub(super) bytes: u64,
    /// The first token from which on no block is null.
    pub(super) held_from: u32,
}

impl Client {
    /// Copies the parts out of KV memory into the pool and publishes them: one commit, unless the space held is less
    /// than they need; then as many as it takes. What the index shows to be there already is not copied, nor what hangs under
    /// something that there was no room for. `supersedes` names tails that are needless afterwards. The blocks may
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
        let (mut outcomes, mut copied) = (vec![StoreOutcome::Unavailable; requests.len()], Vec::new());
        if let Some(session) = self.core.linked_session() {
            session.pool()?;
            let parts = requests.len();
            let mut store = Storing::new(self, &memory, &registered, &session, supersedes, parts);
            match store.run(&checked) {
                Ok(()) | Err(ClientError::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
            (outcomes, copied) = (store.outcomes, store.copied);
        }
        self.count_stores(&checked, &outcomes, &copied);
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

    fn count_stores(&self, checked: &[Checked<'_>], outcomes: &[StoreOutcome], copied: &[bool]) {
        let (mut stores, mut bytes, mut dropped) = (0, 0, 0);
        for (position, (item, outcome)) in checked.iter().zip(outcomes).enumerate() {
            match outcome {
                _ if item.request.blocks.is_none() => {}
                StoreOutcome::Dropped | StoreOutcome::Unavailable => dropped += 1,
                _ if copied.get(position) == Some(&true) => {
                    stores += 1;
                    bytes += item.bytes;
                }
                _ => {}
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
    let windowed = matches!(kind, ObjectKind::Window { .. } | ObjectKind::ChunkedLocal { .. });
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
    if kind == ObjectKind::Recurrent {
        return Ok((Holding::State, Some(unit_bytes)));
    }
    let alignment = registered.request.required_alignment;
    let aligned = alignment > 0 && tokens.is_multiple_of(alignment);
    let bytes = aligned
        .then(|| unit_bytes.checked_mul(tokens / alignment))
        .flatten();
    Ok((Holding::Tokens(tokens), bytes))
}
