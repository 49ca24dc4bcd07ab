//! The messages as owned types. `schema/` holds their binary form, docs/protocol.md their meaning.
//! What a message says about objects is in `object`.

use super::error::WireError;
use crate::keys::{ChunkKey, Domain};
use crate::object::{
    ClientKind, CommitAnswer, CommitRequest, Extent, GrantRequest, GroupRegistration, GroupSpan, Lookup,
    LookupAnswer, ObjectId, PayloadPath, RetrieveAnswer, RetrieveRequest, RingPart, RingRun, numbered,
};

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
    Retrieve(RetrieveRequest),
    /// Gives pins back.
    Release {
        /// The pins.
        pins: Vec<u64>,
    },
    /// Drops every pin that carries this label.
    ReleaseLabel {
        /// The label.
        label: u64,
    },
    /// Asks for space to write into.
    Grant(GrantRequest),
    /// Publishes what a step stored.
    Commit(CommitRequest),
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
    /// Moves the next bytes of the store lane into granted frames.
    RingWrite {
        /// Where they go.
        runs: Vec<RingRun>,
    },
    /// Moves bytes of pinned parts into the load lane.
    RingRead {
        /// The pin of their retrieve.
        pin: u64,
        /// Which bytes.
        parts: Vec<RingPart>,
    },
    /// Ends clients for an operator.
    Kick(Kick),
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
    Lookup(LookupAnswer),
    /// To [`Request::Retrieve`].
    Retrieve(RetrieveAnswer),
    /// To [`Request::Grant`].
    Grant {
        /// The space that now belongs to the client. Less than asked for when the pool is short.
        extents: Vec<Extent>,
    },
    /// To [`Request::Commit`].
    Commit(CommitAnswer),
    /// To [`Request::Status`].
    Status {
        /// The document of docs/operations.md.
        json: String,
    },
    /// To [`Request::Kick`].
    Kick {
        /// What became of each client.
        clients: Vec<Kicked>,
    },
}

/// Which clients an operator ends, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kick {
    /// Its number in the status; 0: not given.
    pub client: u64,
    /// All clients of this process; 0: not given.
    pub pid: u32,
    /// How long each may take to let go by itself.
    pub grace_ms: u32,
    /// The process of one that does not let go is left alone.
    pub spare: bool,
}

numbered! {
    /// What became of a client that an operator ended.
    KickOutcome: u8 {
        /// Nothing is held for it any more.
        LetGo = 0,
        /// Its process was killed, and nothing is held for it any more.
        Killed = 1,
        /// It holds what it held.
        Kept = 2,
        /// Its process has ended, and something else holds its lock.
        HeldByOther = 3,
    }
}

/// A client that an operator ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kicked {
    /// Its number.
    pub client: u64,
    /// Its process.
    pub pid: u32,
    /// What became of it.
    pub outcome: KickOutcome,
}

numbered! {
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
        /// The peer's payload ring.
        Ring = 6,
    }
}

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`super::PROTOCOL_VERSION`] of the client.
    pub protocol_version: u32,
    /// Feature bits; none are defined yet.
    pub features: u64,
    /// What the peer is for.
    pub kind: ClientKind,
    /// Free text for status, at most [`super::MAX_NAME_BYTES`].
    pub name: String,
    /// The same 16 bytes in all processes of one serving engine; zeroes for a tool.
    pub engine_instance: [u8; 16],
    /// Asks for the regions of the shm-direct path.
    pub wants_pool: bool,
    /// Bytes of each lane of the payload ring that it asks for instead of the pool; 0 for none.
    pub ring_bytes: u64,
    /// The ring is to have a name, since this client cannot receive descriptors.
    pub named: bool,
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

/// A region with a name in place of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRegion {
    /// Which region.
    pub kind: RegionKind,
    /// Its path.
    pub path: String,
    /// Its length.
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
    /// Regions that came by name.
    pub named: Vec<NamedRegion>,
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
    pub groups: Vec<GroupRegistration>,
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
