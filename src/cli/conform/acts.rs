//! What the kit does with a message, and how messages are called.

use super::steps::Step;
use crate::wire::{Reply, Request};

/// What becomes of a request.
pub(super) enum Act {
    /// The server answers it.
    Forward,
    /// The kit does, and the server never sees it.
    Answer(Reply),
    /// The kit does, and closes the connection.
    Refuse(Reply),
}

/// How a reply travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// In pieces.
    pub(super) pieces: bool,
    /// With fields that the client does not know.
    pub(super) grown: bool,
    /// After others.
    pub(super) late: bool,
}

/// The step that a request belongs to.
pub(super) fn step_of(request: &Request) -> Step {
    match request {
        Request::Hello(_) => Step::Hello,
        Request::Negotiate(_) | Request::GetChunkSize => Step::Negotiate,
        Request::Attach => Step::Attach,
        Request::RegisterKvCache(_) | Request::UnregisterKvCache => Step::Register,
        Request::Lookup(_) => Step::Lookup,
        Request::Retrieve(_) | Request::Discard { .. } | Request::RingRead { .. } => Step::Retrieve,
        Request::Release { .. } | Request::ReleaseLabel { .. } => Step::Release,
        Request::Grant(_) | Request::Abort { .. } => Step::Grant,
        Request::Commit(_) | Request::RingWrite { .. } => Step::Commit,
        Request::Clear | Request::Status | Request::Kick(_) => Step::Close,
    }
}

/// The request's name in the schema.
pub(super) fn kind_of(request: &Request) -> &'static str {
    match request {
        Request::Hello(_) => "Hello",
        Request::Negotiate(_) => "Negotiate",
        Request::GetChunkSize => "GetChunkSize",
        Request::Attach => "Attach",
        Request::RegisterKvCache(_) => "RegisterKvCache",
        Request::UnregisterKvCache => "UnregisterKvCache",
        Request::Lookup(_) => "Lookup",
        Request::Retrieve(_) => "Retrieve",
        Request::Release { .. } => "Release",
        Request::ReleaseLabel { .. } => "EndSession",
        Request::Grant(_) => "Grant",
        Request::Commit(_) => "Commit",
        Request::Abort { .. } => "Abort",
        Request::Clear => "Clear",
        Request::Discard { .. } => "Discard",
        Request::Status => "Status",
        Request::Kick(_) => "Kick",
        Request::RingWrite { .. } => "RingWrite",
        Request::RingRead { .. } => "RingRead",
    }
}
