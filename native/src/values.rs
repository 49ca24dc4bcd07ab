//! Plain values and numbers. They are never extended: what needs more gets a value of its own.

#![allow(non_camel_case_types)] // the names are those of the header

/// The version of this interface: of the header when it is compiled, see kvasir_abi_version for the library.
/// It goes up when something is added.
pub const KVASIR_ABI_VERSION: u32 = 2;

/// A client. No address: a handle that was closed is an error and nothing worse. All zeroes is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvasir_client {
    /// For the library only.
    pub id: u64,
}

/// The keys of one prompt. No address, as kvasir_client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvasir_chain {
    /// For the library only.
    pub id: u64,
}

/// 32 bytes: the key of a chunk or tail, the seed of a domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvasir_key {
    /// As they travel.
    pub bytes: [u8; 32],
}

/// Bytes of any content. NULL is none; a pointer and no bytes is something that is empty.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_bytes {
    /// The first.
    pub data: *const u8,
    /// How many.
    pub size: usize,
}

/// The tokens that one block id of a KV cache group spans. 0: a group that is never cached.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvasir_span {
    /// The group's index.
    pub group: u32,
    /// 0.
    pub reserved: u32,
    /// Tokens.
    pub tokens: u64,
}

/// The name of an object.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvasir_object {
    /// Its key.
    pub key: kvasir_key,
    /// Its object group.
    pub group: u16,
    /// 0.
    pub reserved: u16,
}

/// A tail of a prompt: the key of the first tokens of a chunk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvasir_tail {
    /// Its key.
    pub key: kvasir_key,
    /// The chunk's index.
    pub chunk: u32,
    /// Tokens of the tail.
    pub tokens: u32,
}

/// An object that a lookup found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvasir_found {
    /// Its key.
    pub key: kvasir_key,
    /// The index of its chunk.
    pub chunk: u32,
    /// Its tokens: those of a chunk, or of a tail.
    pub tokens: u32,
    /// Its object group.
    pub group: u16,
    /// 0.
    pub reserved: u16,
}

/// What keeps the objects of a hit from being evicted. It belongs to one connection. An id of 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvasir_pin {
    /// The connection.
    pub connection: u64,
    /// Its number there.
    pub id: u64,
}

/// Block ids of one KV cache group, in token order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_block_list {
    /// The first.
    pub ids: *const i64,
    /// How many.
    pub count: usize,
}

/// Memory that holds KV pages. It stays valid until kvasir_client_close has returned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_region {
    /// Its first byte.
    pub base: *mut u8,
    /// Its length in bytes.
    pub bytes: u64,
}

/// One layer's pages: the page of block b is page_bytes bytes at offset + b * block_stride of its region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kvasir_layer {
    /// Index of the region.
    pub region: u32,
    /// 0.
    pub reserved: u32,
    /// Where the page of block 0 starts.
    pub offset: u64,
    /// From one block's page to the next one's.
    pub block_stride: u64,
    /// Bytes of a page, padding included.
    pub page_bytes: u64,
}

/// An image or another input that fills tokens of a prompt.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_mm_item {
    /// Its content's identity, as the engine computes it.
    pub identifier: kvasir_bytes,
    /// Its first token, from the start of the prompt.
    pub start: u64,
    /// How many tokens it fills.
    pub length: u64,
}

/// What a process is for. A number that is none of these is an error.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvasir_client_kind {
    /// Decides what is loaded. Maps the index.
    Scheduler = 1,
    /// Owns KV memory: stores and loads. Maps the index and the pool.
    Worker = 2,
    /// Anything else. Maps neither.
    Tool = 3,
}

/// What a client maps of the server's memory.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvasir_maps {
    /// What its kind needs.
    ByKind = 0,
    /// No index: every lookup is a message.
    Nothing = 1,
    /// The index: lookups need no message.
    Index = 2,
    /// The pool too: stores and loads.
    Pool = 3,
    /// A ring of its own, through which the server copies what is stored and loaded; neither index nor pool. Every lookup is
    /// a message.
    Ring = 4,
}

/// What part of a prefix the objects of an object group stand for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvasir_group_kind {
    /// The whole prefix is needed.
    Full = 1,
    /// The trailing window of window_tokens is needed.
    SlidingWindow = 2,
    /// The aligned piece of window_tokens that holds the boundary is needed.
    ChunkedLocal = 3,
    /// Only the state at the boundary is needed.
    Recurrent = 4,
}

/// What became of a part that was to be stored.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvasir_outcome {
    /// Visible now.
    Published = 0,
    /// Arrived; other ranks' parts are awaited.
    PartAccepted = 1,
    /// The key exists already.
    Exists = 2,
    /// The parent is not there: store again from the first missing chunk.
    NoParent = 3,
    /// Another rank cannot store the object.
    Skipped = 4,
    /// No room in the pool or the index. Counted.
    Dropped = 5,
    /// No server, or none that answered: then it may be stored all the same. Counted.
    Unavailable = 6,
}

/// What a server says of itself.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvasir_server_health {
    /// There is no connection to one.
    None = 0,
    /// Not ready yet.
    Starting = 1,
    /// Takes requests.
    Serving = 2,
    /// Answers what is under way and takes nothing new.
    Draining = 3,
    /// Gone for good.
    Stopped = 4,
}

/// What keeps an engine from caching and only the engine knows, as bits.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvasir_condition {
    /// Its weights are being read.
    WeightsPending = 1,
    /// Its weights could not be read, and that is tried again.
    WeightsUnreadable = 2,
    /// What its weights are will not be known as long as it runs.
    WeightsUnknown = 4,
    /// Its workers cannot be served, or differ in what has to be equal.
    WorkersRefused = 8,
    /// The server's chunk size does not suit it.
    ChunkRefused = 16,
    /// A load that fails would fail its request, so nothing is loaded.
    LoadsForbidden = 32,
    /// It is not known what one of its adapters is.
    AdapterUnknown = 64,
    /// It does not hash images and other media.
    MediaUnhashed = 128,
    /// Its servers differ, or are one.
    ServersDiffer = 256,
    /// Its steps end where recurrent state cannot be resumed.
    StatesUnreached = 512,
    /// The engine's connector has kept an error of its own from the engine.
    ErrorsSpared = 1024,
}

/// A flag of kvasir_client_options: bytes are neither summed nor compared.
pub const KVASIR_NO_CHECKSUMS: u32 = 1;
/// A value of kvasir_client_options.grant_bytes: no space is held ahead.
pub const KVASIR_GRANT_NONE: u64 = 0xffff_ffff_ffff_ffff;
/// A flag of kvasir_registration: this rank only reads what a lower one stores.
pub const KVASIR_READS_ONLY: u32 = 1;
/// A flag of kvasir_lookup_request: what is found is not pinned.
pub const KVASIR_LOOKUP_NO_PIN: u32 = 1;
/// A flag of kvasir_answer: the server could not be asked, nor its memory read. A miss that says nothing about what it holds.
pub const KVASIR_ANSWER_DEGRADED: u32 = 1;
/// A flag of kvasir_answer: there is more, but the pins of this client keep as much as they may.
pub const KVASIR_ANSWER_SHORTENED: u32 = 2;
/// A flag of kvasir_store_item: this rank cannot store the object, and the others are told.
pub const KVASIR_STORE_SKIP: u32 = 1;
