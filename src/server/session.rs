//! What the server knows of a connection that has said hello, and how it is called in logs and status.
//!
//! Some of it is known as long as its client holds anything, which may be longer than the connection.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;

use super::peer::Peer;
use super::ring::RingCounters;
use crate::cache::ClientId;
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::object::{ClientKind, GroupRegistration, PayloadPath};
use crate::shm::process::process_facts;
use crate::shm::readable::Readable;
use crate::wire::{Hello, RegisterKvCache};

/// Who is, or was, at the other end of a connection.
pub(super) struct Known {
    /// Of its connection, and of its client as long as there is one.
    pub(super) number: u64,
    pub(super) pid: u32,
    pub(super) name: String,
    /// Names the process that connected, and never another. None where the kernel has no such thing.
    pub(super) process: Option<Rc<Readable>>,
    /// When it connected.
    pub(super) since: Instant,
    /// When its last message came.
    pub(super) heard: Cell<Instant>,
}

impl Known {
    /// Whether the process that connected has ended, as far as that can be known.
    pub(super) fn process_has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_ready())
    }

    /// How that process is, in a word: `running`, `stopped` or `ended`. None where that cannot be known.
    pub(super) fn process_word(&self) -> Option<&'static str> {
        self.process.as_ref()?;
        let facts = process_facts(self.pid);
        if self.process_has_ended() {
            return Some("ended"); // what was read may be of another one
        }
        Some(if facts?.is_stopped { "stopped" } else { "running" })
    }
}

/// What the server knows of a session besides what the core knows of its client.
pub(super) struct SessionInfo {
    pub(super) known: Rc<Known>,
    pub(super) pid: u32,
    pub(super) kind: ClientKind,
    pub(super) name: String,
    pub(super) engine_instance: [u8; 16],
    pub(super) client: Option<ClientId>,
    /// What has gone through its ring, if it has one.
    pub(super) ring: Option<Arc<RingCounters>>,
    pub(super) registered: Option<Registered>,
    had_device: bool,
    /// Why this client caches nothing, where the server knows: what it was told last when it set up.
    pub(super) refused: Option<String>,
    /// Ends the connection when it is found that its process is gone.
    pub(super) gone: Rc<Notify>,
    /// Ends the connection for an operator.
    pub(super) kicked: Rc<Notify>,
}

/// What a rank registered, as it said.
pub(super) struct Registered {
    pub(super) request: RegisterKvCache,
    pub(super) chunk_size: u32,
    domain: ChunkKey,
}

impl SessionInfo {
    pub(super) fn new(
        number: u64,
        hello: &Hello,
        peer: &Peer,
        client: Option<ClientId>,
        ring: Option<Arc<RingCounters>>,
    ) -> Self {
        let now = Instant::now();
        Self {
            known: Rc::new(Known {
                number,
                pid: peer.cred.pid,
                name: hello.name.clone(),
                process: peer.process.clone(),
                since: now,
                heard: Cell::new(now),
            }),
            pid: peer.cred.pid,
            gone: Rc::clone(&peer.gone),
            kicked: Rc::clone(&peer.kicked),
            kind: hello.kind,
            name: hello.name.clone(),
            engine_instance: hello.engine_instance,
            client,
            ring,
            registered: None,
            had_device: false,
            refused: None,
        }
    }

    /// Takes a registration that the core has accepted.
    pub(super) fn registered(&mut self, request: RegisterKvCache, chunk_size: u32, domain: ChunkKey) {
        self.had_device |= request.payload_path == PayloadPath::Pinned;
        self.registered = Some(Registered {
            request,
            chunk_size,
            domain,
        });
        self.refused = None;
    }

    /// Whether a device has ever copied its payload: such a copy may go on when the registration has gone.
    pub(super) fn has_device(&self) -> bool {
        self.had_device
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
