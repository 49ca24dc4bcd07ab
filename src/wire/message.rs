//! The messages as owned types. `schema/` holds their binary form, docs/protocol.md their meaning.
//!
//! Imports `keys` and this module's `error`. No unsafe code.

use super::error::WireError;
use crate::keys::ChunkKey;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first frame of a connection, and only that.
    Hello(Hello),
    /// Agrees on a chunk size.
    Negotiate(Negotiate),
    /// Asks for the chunk size without a geometry; freezes the configured minimum when nothing is bound.
    GetChunkSize,
    /// The client's lock byte is held; its slab is ready.
    Attach,
    /// Tells what this rank stores.
    RegisterKvCache(RegisterKvCache),
    /// Drops this connection's registration.
    UnregisterKvCache,
    /// Asks for the longest cached prefix.
    Lookup(Lookup),
    /// Pins objects and asks where one part of each lies.
    Retrieve(Retrieve),
    /// Gives pins back.
    Release {
        /// The pins.
        pins: Vec<u64>,
    },
    /// Drops every pin that carries this label.
    EndSession {
        /// The label.
        session: u64,
    },
    /// Asks for space to write into.
    Grant(Grant),
    /// Publishes what a step stored.
    Commit(Commit),
    /// Gives granted space back unused.
    Abort {
        /// The space.
        extents: Vec<Extent>,
    },
    /// Drops every unpinned object.
    Clear,
    /// Drops objects whose bytes a reader found wrong, and what hangs under them.
    Discard {
        /// The domain.
        domain_seed: ChunkKey,
        /// The objects, each with the incarnation that was read.
        objects: Vec<(ObjectId, u64)>,
    },
    /// Asks for the status document.
    Status,
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The request was refused and has changed nothing, unless its code says otherwise.
    Error(WireError),
    /// Done; there is nothing to say.
    Ack,
    /// To [`Request::Hello`].
    Hello(HelloReply),
    /// To [`Request::Negotiate`] and [`Request::GetChunkSize`].
    Negotiate(NegotiateReply),
    /// To [`Request::RegisterKvCache`].
    Register(RegisterReply),
    /// To [`Request::Lookup`].
    Lookup(LookupReply),
    /// To [`Request::Retrieve`].
    Retrieve(RetrieveReply),
    /// To [`Request::Grant`].
    Grant {
        /// The space that now belongs to the client. Less than asked for when the pool is short.
        extents: Vec<Extent>,
    },
    /// To [`Request::Commit`].
    Commit(CommitReply),
    /// To [`Request::Status`].
    Status {
        /// The document of docs/operations.md.
        json: String,
    },
}

/// Declares an enum of the protocol with its numbers.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident: $repr:ty { $($(#[$doc:meta])* $variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$doc])* $variant = $number),+ }

        impl $name {
            /// The variant of a number of the protocol.
            pub fn from_number(number: $repr) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }

            /// The number in the protocol.
            pub fn number(self) -> $repr {
                self as $repr
            }
        }
    };
}
pub(super) use wire_enum;

wire_enum! {
    /// What a peer is for.
    PeerKind: u8 {
        /// It did not say.
        Unspecified = 0,
        /// The process that decides what to load.
        Scheduler = 1,
        /// A rank that owns KV tensors.
        Worker = 2,
        /// A command, not an engine.
        Tool = 3,
    }
}

wire_enum! {
    /// How payload moves between a rank and the pool.
    PayloadPath: u8 {
        /// Not at all.
        None = 0,
        /// The rank maps the pool and copies to and from host memory.
        ShmDirect = 1,
        /// The rank's device copies to and from the pool, registered as pinned memory.
        Pinned = 2,
        /// The server copies to and from the rank's device memory.
        Cuda = 3,
        /// Through a ring of the connection's own.
        ShmRing = 4,
    }
}

wire_enum! {
    /// A region whose descriptor rides with the hello reply.
    RegionKind: u8 {
        /// The control region, read-only.
        Control = 0,
        /// The index region, read-only.
        Index = 1,
        /// The epochs region, read-only.
        Epochs = 2,
        /// The pin arena; this peer's slab is at the region's offset.
        PinSlab = 3,
        /// The liveness file; this peer's byte is at the region's offset.
        Liveness = 4,
        /// The pool.
        Pool = 5,
    }
}

wire_enum! {
    /// What an object group needs at a boundary.
    GroupKind: u8 {
        /// Every token from 0.
        Full = 0,
        /// The trailing window.
        SlidingWindow = 1,
        /// The tokens from the last multiple of the attention chunk.
        ChunkedLocal = 2,
        /// The state at exactly the boundary.
        Recurrent = 3,
    }
}

wire_enum! {
    /// What became of one item of a commit.
    CommitOutcome: u8 {
        /// The object is visible now.
        Published = 0,
        /// This part arrived; others are awaited.
        PartAccepted = 1,
        /// The key exists; the first copy stays, the space went back.
        Exists = 2,
        /// The parent object is not live: store again from the first missing chunk.
        NoParent = 3,
        /// Another rank cannot store it.
        Skipped = 4,
        /// No room in the index could be made free.
        Dropped = 5,
    }
}

/// A run of frames of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first frame.
    pub frame: u32,
    /// How many.
    pub count: u32,
}

/// Names one object: both members are compared, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// The key of the chunk or tail.
    pub key: ChunkKey,
    /// The object group.
    pub group: u16,
}

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`super::PROTOCOL_VERSION`] of the client.
    pub protocol_version: u32,
    /// Feature bits; none are defined yet.
    pub features: u64,
    /// What the peer is for.
    pub kind: PeerKind,
    /// Free text for status, at most [`super::MAX_NAME_BYTES`].
    pub name: String,
    /// The same 16 bytes in all processes of one serving engine; zeroes for a tool.
    pub engine_instance: [u8; 16],
    /// Asks for the regions of the shm-direct path.
    pub wants_pool: bool,
}

/// One descriptor of the hello reply, in the order in which they ride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Which region.
    pub kind: RegionKind,
    /// The first byte of this peer's part.
    pub offset: u64,
    /// The length of this peer's part.
    pub bytes: u64,
}

/// The answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// [`super::PROTOCOL_VERSION`] of the server.
    pub protocol_version: u32,
    /// Feature bits that both sides have.
    pub features: u64,
    /// This life of the server.
    pub boot_id: [u8; 16],
    /// Counts the lives of the pool.
    pub boot_seq: u64,
    /// The pool.
    pub pool_id: [u8; 16],
    /// The allocation unit of the pool.
    pub frame_bytes: u32,
    /// The peer's pin slab, when it has one.
    pub slab: u32,
    /// The descriptors that came along.
    pub regions: Vec<Region>,
}

/// One KV cache group and the tokens that a block id of it spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpan {
    /// The engine's index of the group.
    pub group: u32,
    /// Tokens per block id; 0 is never cached.
    pub tokens: u64,
}

/// Asks for a chunk size that suits a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiate {
    /// The least common multiple of the positive spans.
    pub required_alignment: u64,
    /// The groups the alignment came from.
    pub spans: Vec<GroupSpan>,
    /// The preferred minimum, used by `auto` only. 0: none.
    pub preferred_base: u64,
    /// The size an earlier life of the server gave. 0: none.
    pub previous_size: u64,
    /// What shares a chunk size with this model on a server with one size per binding domain; other servers
    /// ignore it.
    pub binding_domain: Option<[u8; 32]>,
}

/// The chunk size in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiateReply {
    /// In tokens.
    pub chunk_size: u64,
    /// What the engine's log should say.
    pub warnings: Vec<String>,
}

/// What makes two objects comparable, without the chunk size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// The model's name.
    pub model: String,
    /// The identity of its weights.
    pub weights_id: Vec<u8>,
    /// The type of a KV element.
    pub kv_dtype: String,
    /// The layout fingerprint.
    pub fingerprint: Vec<u8>,
    /// How the model is spread over ranks.
    pub parallel_shape: String,
}

/// One object group as a rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectGroup {
    /// Its number.
    pub group: u16,
    /// What it needs at a boundary.
    pub kind: GroupKind,
    /// Distinct parts of an object over all ranks.
    pub parts: u16,
    /// The part that this rank writes or reads.
    pub part: u16,
    /// Tokens of the window or of the attention chunk; else 0.
    pub window_tokens: u64,
    /// Bytes of this rank's part per required alignment; of one state for [`GroupKind::Recurrent`].
    pub unit_bytes: u64,
}

/// What one rank stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterKvCache {
    /// The domain of its objects.
    pub domain: Domain,
    /// Its number.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// As negotiated.
    pub required_alignment: u64,
    /// Checked again against the bound size.
    pub spans: Vec<GroupSpan>,
    /// Its object groups.
    pub groups: Vec<ObjectGroup>,
    /// Number of layers, for status.
    pub layers: u32,
    /// Number of blocks, for status.
    pub blocks: u64,
    /// How payload moves.
    pub payload_path: PayloadPath,
    /// False for a rank that only reads what a lower one stores.
    pub stores: bool,
    /// The copy that moves its payload, for status; empty where that is not known.
    pub copy_path: String,
}

/// The answer to [`RegisterKvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterReply {
    /// The root of the domain's key chains; the client has computed the same.
    pub domain_seed: ChunkKey,
    /// The chunk size in force.
    pub chunk_size: u64,
    /// The number that records of the domain carry in the index, for clients that find objects there themselves.
    pub domain: Option<u32>,
    /// Frames of the pool that all pins of this client may keep.
    pub kept_frames_max: u64,
}

/// A partial chunk of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailKey {
    /// Its key.
    pub key: ChunkKey,
    /// The chunk it is the front of.
    pub chunk: u32,
    /// Its tokens, a multiple of the alignment.
    pub tokens: u32,
}

/// Asks for the longest prefix that every object group can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The domain.
    pub domain_seed: ChunkKey,
    /// The label of the pins.
    pub session: u64,
    /// Keys of the full chunks of the prompt, in order.
    pub keys: Vec<ChunkKey>,
    /// Partial chunks that may end the hit.
    pub tails: Vec<TailKey>,
    /// The hit is at most this many tokens.
    pub max_tokens: u64,
    /// Tokens that the engine holds already.
    pub local_tokens: u64,
    /// Whether to name and pin the objects.
    pub pin: bool,
    /// Asks for the shape of the domain.
    pub describe: bool,
}

/// One object group of a domain, for clients that look up by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// Its number.
    pub group: u16,
    /// Its kind.
    pub kind: GroupKind,
    /// Tokens of the window or of the attention chunk; else 0.
    pub window_tokens: u64,
    /// Its bit in the words of the index that tell what is beside a record.
    pub bit: u32,
}

/// What a client needs to look up in its own mapping of the index. It holds as long as the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainShape {
    /// The number that its records in the index carry.
    pub domain: u32,
    /// Tokens of a full chunk.
    pub chunk_size: u32,
    /// Tokens that every boundary is a multiple of.
    pub alignment: u64,
    /// The full-attention group whose records tell what is beside them.
    pub anchor: Option<u16>,
    /// Groups in ascending order.
    pub groups: Vec<GroupShape>,
    /// Frames of the pool that all pins of this client may keep.
    pub kept_frames_max: u64,
}

/// An object to load for a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadItem {
    /// The object.
    pub id: ObjectId,
    /// The chunk it belongs to.
    pub chunk: u32,
    /// The tokens it holds from the start of the chunk.
    pub tokens: u32,
}

/// The answer to [`Lookup`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupReply {
    /// The length of the hit.
    pub hit_tokens: u64,
    /// The pin that holds all `loads`; 0 when nothing was pinned.
    pub pin: u64,
    /// The objects to load.
    pub loads: Vec<LoadItem>,
    /// Per object group in ascending order: tokens up to which everything is present.
    pub present_tokens: Vec<u64>,
    /// Where it was asked for and all ranks of the domain have registered.
    pub shape: Option<DomainShape>,
}

/// Pins objects and asks where one part of each lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retrieve {
    /// The domain.
    pub domain_seed: ChunkKey,
    /// The label of the pin.
    pub session: u64,
    /// The part.
    pub part: u16,
    /// The objects.
    pub ids: Vec<ObjectId>,
}

/// Where a part lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartPlace {
    /// What the epoch of the first frame has to be after the copy. 0: the object is not there.
    pub incarnation: u64,
    /// The part's length.
    pub bytes: u64,
    /// Its checksum as the writer gave it; 0: not given.
    pub checksum: u64,
    /// Its first extent in [`RetrieveReply::extents`].
    pub first_extent: u32,
    /// How many extents it has.
    pub extent_count: u32,
    /// The tokens of the object.
    pub tokens: u32,
    /// The first of them that is held.
    pub held_from: u32,
}

/// The answer to [`Retrieve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetrieveReply {
    /// The pin that holds everything that is there; 0 when nothing is.
    pub pin: u64,
    /// One per object asked for.
    pub places: Vec<PartPlace>,
    /// The extents of all places.
    pub extents: Vec<Extent>,
}

/// One part of one object to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreItem {
    /// The object.
    pub id: ObjectId,
    /// The object before it; `None` for the first chunk of a prompt.
    pub parent: Option<ChunkKey>,
    /// This rank cannot store the object.
    pub skipped: bool,
    /// The part.
    pub part: u16,
    /// The tokens of the object.
    pub tokens: u32,
    /// The first of them that is held; those before it are holes in a window's object.
    pub held_from: u32,
    /// The length of the part.
    pub bytes: u64,
    /// XXH3-64 of its bytes; 0: not computed.
    pub checksum: u64,
    /// Its first extent in [`Commit::extents`].
    pub first_extent: u32,
    /// How many extents it has.
    pub extent_count: u32,
}

/// Asks for space to write into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// How much.
    pub bytes: u64,
    /// Keys of the chunks that what is to be stored hangs under, as far as it does not bring them along. Neither they nor
    /// what they hang under is evicted for it.
    pub under: Vec<ChunkKey>,
    /// For stores to come: nothing is evicted for it.
    pub ahead: bool,
}

impl Grant {
    /// So many bytes for what hangs under nothing yet.
    pub fn of(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }
}

/// Publishes everything that one step stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The domain.
    pub domain_seed: ChunkKey,
    /// The parts. Each one's range of extents is inside `extents` once decoded.
    pub items: Vec<StoreItem>,
    /// The extents of all items.
    pub extents: Vec<Extent>,
    /// Tails that these items make needless.
    pub supersedes: Vec<ObjectId>,
    /// Bytes of credit to hold afterwards.
    pub credit_bytes: u64,
}

/// The answer to [`Commit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitReply {
    /// One per item.
    pub outcomes: Vec<CommitOutcome>,
    /// New credit.
    pub granted: Vec<Extent>,
}

impl PartPlace {
    /// Its extents among those of the reply.
    pub fn extents<'a>(&self, all: &'a [Extent]) -> &'a [Extent] {
        extent_range(all, self.first_extent, self.extent_count)
    }
}

impl StoreItem {
    /// Its extents among those of the commit.
    pub fn extents<'a>(&self, all: &'a [Extent]) -> &'a [Extent] {
        extent_range(all, self.first_extent, self.extent_count)
    }
}

/// Empty for a range that is not inside `all`; decoding refuses those before anybody can ask.
fn extent_range(all: &[Extent], first: u32, count: u32) -> &[Extent] {
    let first = first as usize;
    all.get(first..first.saturating_add(count as usize))
        .unwrap_or_default()
}
