//! What the server knows of a connection that has said hello, and how it is called in logs and status.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use super::peer::Peer;
use super::ring::RingCounters;
use crate::cache::ClientId;
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::object::{ClientKind, GroupRegistration};
use crate::wire::{Hello, RegisterKvCache};

/// What the server knows of a session besides what the core knows of its client.
pub(super) struct SessionInfo {
    pub(super) pid: u32,
    pub(super) kind: ClientKind,
    pub(super) name: String,
    pub(super) engine_instance: [u8; 16],
    pub(super) client: Option<ClientId>,
    /// What has gone through its ring, if it has one.
    pub(super) ring: Option<Arc<RingCounters>>,
    pub(super) registered: Option<Registered>,
    /// Why this client caches nothing, where the server knows: what it was told last when it set up.
    pub(super) refused: Option<String>,
    /// Ends the connection when it is found that its process is gone.
    pub(super) gone: Rc<Notify>,
}

/// What a rank registered, as it said.
pub(super) struct Registered {
    pub(super) request: RegisterKvCache,
    pub(super) chunk_size: u32,
    domain: ChunkKey,
}

impl SessionInfo {
    pub(super) fn new(
        hello: &Hello,
        peer: &Peer,
        client: Option<ClientId>,
        ring: Option<Arc<RingCounters>>,
    ) -> Self {
        Self {
            pid: peer.cred.pid,
            gone: Rc::clone(&peer.gone),
            kind: hello.kind,
            name: hello.name.clone(),
            engine_instance: hello.engine_instance,
            client,
            ring,
            registered: None,
            refused: None,
        }
    }

    /// Takes a registration that the core has accepted.
    pub(super) fn registered(&mut self, request: RegisterKvCache, chunk_size: u32, domain: ChunkKey) {
        self.registered = Some(Registered {
            request,
            chunk_size,
            domain,
        });
        self.refused = None;
    }

    /// The model, if it is registered in this domain.
    pub(super) fn model_of(&self, domain: &ChunkKey) -> Option<&str> {
        let own = self.registered.as_ref()?;
        (own.domain == *domain).then_some(own.request.domain.model.as_str())
    }

    /// What it has registered, for the log.
    pub(super) fn registered_text(&self) -> String {
        let Some(Registered {
            request, chunk_size, ..
        }) = &self.registered
        else {
            return "nothing".into();
        };
        let group = |group: &GroupRegistration| {
            let (number, kind) = (group.group, group_kind(group.kind));
            format!("group {number} {kind}, part {} of {}", group.part, group.parts)
        };
        let groups: Vec<String> = request.groups.iter().map(group).collect();
        format!(
            "{}, rank {} of {}{}, chunks of {chunk_size} tokens: {}",
            one_line(&request.domain.model),
            request.rank,
            request.world_size,
            if request.stores { "" } else { " (reads only)" },
            groups.join("; ")
        )
    }

    pub(super) fn unregistered(&mut self) {
        self.registered = None;
    }
}

pub(super) fn group_kind(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Full => "full",
        ObjectKind::Window { .. } => "sliding_window",
        ObjectKind::ChunkedLocal { .. } => "chunked_local",
        ObjectKind::Recurrent => "recurrent",
    }
}

pub(super) fn client_kind(kind: ClientKind) -> &'static str {
    match kind {
        ClientKind::Unspecified => "unspecified",
        ClientKind::Scheduler => "scheduler",
        ClientKind::Worker => "worker",
        ClientKind::Tool => "tool",
    }
}

/// A peer's text without what would end the line or move a terminal's cursor.
pub(super) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
