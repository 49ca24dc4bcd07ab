//! Frames into owned messages, with every field checked.

mod explain;
mod field;
mod reply;
mod request;

use flatbuffers::VerifierOptions;

pub use explain::explain_request;

use super::MAX_FRAME_BYTES;
use super::error::{BadFrame, DecodeError};
use super::generated::kvasir::wire as fb;
use super::message::{Reply, Request};

/// Limits of the verifier. A frame that is no larger than allowed can only be beyond these when its tables share
/// parts, which no encoder of ours makes.
const LIMITS: VerifierOptions = VerifierOptions {
    max_depth: 16,
    max_tables: 65536,
    max_apparent_size: 2 * MAX_FRAME_BYTES,
    ignore_missing_null_terminator: false,
};

type Decoded<T> = Result<T, DecodeError>;

/// Reads a request and its id from a frame with its length prefix.
///
/// # Errors
/// [`BadFrame`], with the id to answer under.
pub fn decode_request(frame: &[u8]) -> Result<(u64, Request), BadFrame> {
    let root = flatbuffers::size_prefixed_root_with_opts::<fb::Request>(&LIMITS, frame)
        .map_err(|error| malformed(&error))?;
    let id = root.id();
    request::body(&root)
        .map(|request| (id, request))
        .map_err(|error| BadFrame { id, error })
}

/// Reads a reply and its id from a frame with its length prefix.
///
/// # Errors
/// [`BadFrame`], with the id of the request that was answered.
pub fn decode_reply(frame: &[u8]) -> Result<(u64, Reply), BadFrame> {
    let root = flatbuffers::size_prefixed_root_with_opts::<fb::Reply>(&LIMITS, frame)
        .map_err(|error| malformed(&error))?;
    let id = root.id();
    reply::body(&root)
        .map(|reply| (id, reply))
        .map_err(|error| BadFrame { id, error })
}

fn malformed(error: &flatbuffers::InvalidFlatbuffer) -> BadFrame {
    // The first line says what; the rest is a trace of fields.
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    BadFrame {
        id: 0,
        error: DecodeError::Malformed(line.trim_end_matches('.').to_owned()),
    }
}
