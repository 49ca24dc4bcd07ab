//! What a caller wants stored, and the checks before anything is done for it.

use crate::client::ClientError;
use crate::client::link::wanted::Registered;
use crate::client::memory::{Holding, KvMemory, ObjectGroupPages};
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::object::{CommitOutcome, ObjectId, PayloadPath};

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

/// One object to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    /// The object.
    pub id: ObjectId,
    /// Tokens of the whole object, as the lookup said.
    pub tokens: u32,
    /// Block ids in token order, one list per KV cache group of the object group. A list may end early, and null blocks
    /// are left alone.
    pub blocks: Vec<Vec<i64>>,
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
    /// No server, or none that answered: then it may be stored all the same. Counted.
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

/// Refuses memory of a device that the server was not told of: it would not wait for its copies when this process dies.
pub(crate) fn check_path(memory: &KvMemory, registered: &Registered) -> Result<(), ClientError> {
    let path = registered.request.payload_path;
    if memory.is_on_device() && path != PayloadPath::Pinned {
        return Err(ClientError::invalid(format!(
            "memory of a device was named after the registration as {path:?}; call register again"
        )));
    }
    Ok(())
}

/// A store that has passed its checks.
pub(crate) struct Checked<'a> {
    pub(crate) request: &'a StoreRequest,
    pub(crate) bytes: u64,
    /// The first token from which on no block is null.
    pub(crate) held_from: u32,
}

/// Checks every item against the registration, the layout and the block-id space.
pub(crate) fn check<'a>(
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
pub(crate) fn part_of(
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
