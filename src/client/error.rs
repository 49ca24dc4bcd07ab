//! What a call of the client can be refused with.

use crate::copy::CopyError;
#[cfg(feature = "cuda")]
use crate::device::DeviceError;
use crate::keys::KeyError;
use crate::wire::WireError;

/// A refusal. The call that returns it has pinned nothing, and where a mistake of its arguments is the reason, done nothing.
///
/// A store is several messages. What others of them brought may be stored, and of a load that fails half-way the blocks may hold
/// anything.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No server, one that is stopping, or none that answered in time. The client repairs itself; carry on without the cache.
    #[error("the Kvasir server is not available: {reason}")]
    Unavailable {
        /// What was tried and how it failed.
        reason: String,
    },
    /// The server's own answer.
    #[error(transparent)]
    Refused(#[from] WireError),
    /// A server that restarted with another chunk size; every key of this process would name other tokens.
    #[error(
        "the server now has chunks of {offered} tokens, this engine agreed on {agreed}; restart the server with \
         --chunk-size {agreed}, or restart this engine"
    )]
    ChunkSizeChanged {
        /// The size before.
        agreed: u64,
        /// The size now.
        offered: u64,
    },
    /// Client and server derive different keys; they would never find each other's objects.
    #[error(
        "the server derived another domain seed from the same fields; upgrade the older of client and server"
    )]
    SeedMismatch,
    /// A block id that the registered memory does not have.
    #[error("item {item}: block id {id} is outside 0..{blocks}; no block of this call was copied")]
    BlockOutOfRange {
        /// Index of the item.
        item: usize,
        /// The id.
        id: i64,
        /// Number of blocks in the registered memory.
        blocks: u64,
    },
    /// A block list of the wrong length.
    #[error(
        "item {item}: KV cache group {kv_group} of its object group has {given} block ids, {expected} make up \
         {tokens} tokens"
    )]
    BlockCount {
        /// Index of the item.
        item: usize,
        /// Position of the KV cache group in its object group.
        kv_group: usize,
        /// Ids given.
        given: u64,
        /// Ids needed (at most, for a load).
        expected: u64,
        /// Tokens of the item.
        tokens: u64,
    },
    /// Null blocks where an object cannot have them.
    #[error(
        "item {item}: object group {group} would be stored with null blocks before token {held_from} of {tokens}; only \
         the object of a window may begin with null blocks, and it must end with others"
    )]
    NullBlocks {
        /// Index of the item.
        item: usize,
        /// The object group.
        group: u16,
        /// The first token from which on no block is null.
        held_from: u64,
        /// Tokens of the object.
        tokens: u32,
    },
    /// An object group that was not registered or has no memory.
    #[error("object group {group} is not part of the registered {what}; register it first")]
    UnknownGroup {
        /// The group.
        group: u16,
        /// "caches" or "memory".
        what: &'static str,
    },
    /// Pages that do not lie in their memory, or do not add up to what was registered.
    #[error("the KV memory layout is not usable: {reason}")]
    InvalidLayout {
        /// What is wrong, with the numbers.
        reason: String,
    },
    /// A store or load before [`super::Client::set_memory`].
    #[error("no KV memory was set; call set_memory before store and load")]
    NoMemory,
    /// A store or load before [`super::Client::register`].
    #[error("no KV cache was registered; call register before store and load")]
    NoRegistration,
    /// More items than one message holds.
    #[error("{given} items in one call, at most {limit} are allowed; split the call")]
    TooManyItems {
        /// Items given.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// A pin of this client's slab that it does not hold (any more).
    #[error("pin {pin} is not held; release each pin once, by the client that made it")]
    UnknownPin {
        /// The pin.
        pin: u64,
    },
    /// A lookup ticket that was never given out or has ended.
    #[error("lookup ticket {ticket} is unknown or has ended")]
    UnknownTicket {
        /// The ticket.
        ticket: u64,
    },
    /// A copy plan that was refused before the first byte.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Device memory that cannot be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Key material that cannot be hashed.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Any other value that makes no sense.
    #[error("{reason}")]
    InvalidArgument {
        /// What is wrong.
        reason: String,
    },
}

impl ClientError {
    pub(super) fn unavailable(reason: impl ToString) -> Self {
        Self::Unavailable {
            reason: reason.to_string(),
        }
    }

    /// The same, but a server that cannot serve for now is one that is away.
    pub(super) fn if_away(self) -> Self {
        match self {
            Self::Refused(error) if error.code.is_passing() => Self::unavailable(error),
            error => error,
        }
    }

    pub(super) fn invalid(reason: impl ToString) -> Self {
        Self::InvalidArgument {
            reason: reason.to_string(),
        }
    }

    pub(super) fn layout(reason: impl ToString) -> Self {
        Self::InvalidLayout {
            reason: reason.to_string(),
        }
    }

    /// A stable word for the kind: the server's error code or the client's own.
    pub fn kind(&self) -> String {
        match self {
            Self::Unavailable { .. } => "Unavailable".into(),
            Self::Refused(error) => format!("{:?}", error.code),
            Self::ChunkSizeChanged { .. } => "ChunkSizeChanged".into(),
            Self::SeedMismatch => "SeedMismatch".into(),
            Self::BlockOutOfRange { .. } => "BlockOutOfRange".into(),
            Self::BlockCount { .. } => "BlockCount".into(),
            Self::NullBlocks { .. } => "NullBlocks".into(),
            Self::UnknownGroup { .. } => "UnknownGroup".into(),
            Self::InvalidLayout { .. } | Self::Copy(_) => "InvalidLayout".into(),
            Self::NoMemory => "NoMemory".into(),
            Self::NoRegistration => "NoRegistration".into(),
            Self::TooManyItems { .. } => "TooManyItems".into(),
            Self::UnknownPin { .. } => "UnknownPin".into(),
            Self::UnknownTicket { .. } => "UnknownTicket".into(),
            #[cfg(feature = "cuda")]
            Self::Device(_) => "Device".into(),
            Self::Key(_) | Self::InvalidArgument { .. } => "InvalidArgument".into(),
        }
    }

    /// The numbers of the message, in the order in which it names them.
    pub fn numbers(&self) -> Vec<i64> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        match self {
            Self::Refused(error) => error.numbers.iter().copied().map(signed).collect(),
            Self::ChunkSizeChanged { agreed, offered } => vec![signed(*offered), signed(*agreed)],
            Self::BlockOutOfRange { item, id, blocks } => vec![*item as i64, *id, signed(*blocks)],
            Self::BlockCount {
                item,
                kv_group,
                given,
                expected,
                tokens,
            } => {
                let [given, expected, tokens] = [*given, *expected, *tokens].map(signed);
                vec![*item as i64, *kv_group as i64, given, expected, tokens]
            }
            Self::NullBlocks {
                item,
                group,
                held_from,
                tokens,
            } => vec![
                *item as i64,
                i64::from(*group),
                signed(*held_from),
                i64::from(*tokens),
            ],
            Self::UnknownGroup { group, .. } => vec![i64::from(*group)],
            Self::TooManyItems { given, limit } => vec![*given as i64, *limit as i64],
            Self::UnknownPin { pin } => vec![signed(*pin)],
            Self::UnknownTicket { ticket } => vec![signed(*ticket)],
            _ => Vec::new(),
        }
    }
}
