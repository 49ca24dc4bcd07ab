//! The control protocol: frames, messages as owned Rust types, error codes (docs/protocol.md).
//!
//! A peer is never trusted: a frame's length is checked before memory is taken for it ([`FrameReader`]), the
//! whole flatbuffer is verified with limits before a field is read, and every field is checked when it becomes an
//! owned type ([`decode_request`], [`decode_reply`]). What comes out can be relied on in form, not in meaning:
//! whether an extent belongs to the peer is for the cache to say.
//!
//! ```
//! use kvasir::object::GrantRequest;
//! use kvasir::wire::{Encoder, Request, decode_request};
//!
//! let mut encoder = Encoder::new();
//! let frame = encoder.request(7, &Request::Grant(GrantRequest::of(1 << 20)))?;
//! assert_eq!(decode_request(frame)?, (7, Request::Grant(GrantRequest::of(1 << 20))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decode;
mod encode;
mod error;
mod frame;
/// What flatc makes of `schema/`. It reads fields through raw pointers after the verifier has accepted the whole
/// buffer, and is spared the lints that hand-written code obeys. Only `encode` and `decode` look in here.
#[allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    missing_docs,
    unreachable_pub,
    unused_imports,
    dead_code,
    deprecated,
    mismatched_lifetime_syntaxes,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod generated;
mod grown;
mod message;

pub use decode::{decode_reply, decode_request, explain_request};
pub use encode::{EncodeError, Encoder};
pub use error::{BadFrame, DecodeError, ErrorCode, WireError};
pub use frame::{FirstBytes, FrameError, FrameReader, PREFIX_BYTES};
pub use grown::grow;
pub use message::{
    Hello, HelloReply, Kick, KickOutcome, Kicked, NamedRegion, Negotiate, NegotiateReply, Region, RegionKind,
    RegisterKvCache, RegisterReply, Reply, Request,
};

pub use crate::keys::Domain;

/// The version that both sides of a connection have to speak.
pub const PROTOCOL_VERSION: u32 = 2;
/// The longest frame, without its length prefix.
pub const MAX_FRAME_BYTES: usize = 4 << 20;
/// The longest frame before a connection has said hello.
pub const MAX_HELLO_FRAME_BYTES: usize = 4 << 10;
/// The most descriptors that ride with one frame.
pub const MAX_FDS_PER_FRAME: usize = 6;
/// The most chunk keys, and the most tail keys, of one lookup.
pub const MAX_KEYS: usize = 32768;
/// The most items of a commit, a retrieve, a release, a discard or a move through a ring.
pub const MAX_ITEMS: usize = 16384;
/// The most extents of one message.
pub const MAX_EXTENTS: usize = 131_072;
/// The most KV cache groups, or object groups, of a negotiation or registration.
pub const MAX_MESSAGE_GROUPS: usize = 1024;
/// The longest peer name in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// The longest path of a named region in bytes.
pub const MAX_REGION_PATH_BYTES: usize = 255;
/// The longest field of a domain in bytes.
pub const MAX_DOMAIN_FIELD_BYTES: usize = 4096;
