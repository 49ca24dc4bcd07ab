//! The first frame of a connection, and what the server keeps of one that has said hello.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::answer::Answer;
use super::peer::Peer;
use super::ring::Ring;
use super::ring_desk::RingDesk;
use super::session::SessionInfo;
use super::state::Server;
use crate::cache::{ClientId, ClientInfo};
use crate::control::DomainId;
use crate::control::view::CONTROL_BYTES;
use crate::keys::ChunkKey;
use crate::object::FRAME_BYTES;
use crate::wire::{ErrorCode, Hello, HelloReply, PROTOCOL_VERSION, Region, RegionKind, WireError};

/// A connection that has said hello. However it ends, what its client held is taken back as soon as may be.
pub(super) struct Session {
    server: Rc<Server>,
    /// Its number in [`Server::sessions`].
    pub(super) number: u64,
    pub(super) hello: Hello,
    pub(super) client: Option<ClientId>,
    /// The ring of a client that has one.
    pub(super) ring: Option<Ring>,
    /// Of the last successful negotiation.
    pub(super) binding_domain: Option<DomainId>,
    /// The domain that its figures count for.
    pub(super) looked_up: Option<ChunkKey>,
}

impl Session {
    /// Its number in [`Server::sessions`].
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            RingDesk::end(ring);
        }
        self.server.end_session(self.number);
    }
}

/// What a hello led to.
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) reply: HelloReply,
    pub(super) fds: Vec<OwnedFd>,
}

/// Answers the first frame of a connection.
pub(super) async fn open(server: &Rc<Server>, hello: Hello, peer: &Peer) -> Result<Opened, WireError> {
    if hello.protocol_version != PROTOCOL_VERSION {
        let theirs = hello.protocol_version;
        return Err(WireError::new(
            ErrorCode::ProtocolVersion,
            format_args!(
                "you speak protocol version {theirs}, this server version {PROTOCOL_VERSION}; upgrade the older of the two"
            ),
            [u64::from(theirs), u64::from(PROTOCOL_VERSION)],
        ));
    }
    if server.is_draining() {
        return Err(draining());
    }
    let mut reply = HelloReply {
        protocol_version: PROTOCOL_VERSION,
        features: 0,
        boot_id: server.control.boot().boot_id,
        boot_seq: server.control.boot().boot_seq,
        pool_id: server.pool_id,
        frame_bytes: FRAME_BYTES as u32,
        slab: 0,
        regions: Vec::new(),
        named: Vec::new(),
    };
    let mut fds = Vec::new();
    if !hello.named {
        fds.push(server.control.client_fd().map_err(|e| e.to_wire())?);
        reply
            .regions
            .push(region(RegionKind::Control, 0, CONTROL_BYTES as u64));
    }
    let (mut client, mut ring) = (None, None);
    if hello.named || hello.ring_bytes > 0 {
        let rings = &server.rings;
        let made = rings.open(&server.copies, &hello, &mut reply, &mut fds).await?;
        client = Some(open_served(server, &hello)?);
        ring = Some(made);
    } else if hello.wants_pool {
        client = Some(open_pool(server, &hello, &mut reply.regions, &mut fds)?);
    }
    reply.slab = client.map_or(0, |client| u32::from(client.slab()));
    let counters = ring.as_ref().map(|ring| Arc::clone(&ring.counters));
    let number = server.begin_session(|number| SessionInfo::new(number, &hello, peer, client, counters));
    let session = Session {
        server: Rc::clone(server),
        number,
        hello,
        client,
        ring,
        binding_domain: None,
        looked_up: None,
    };
    Ok(Opened { session, reply, fds })
}

/// A slab for a client that the server copies for: its number is its name in the books, and it maps none of it.
fn open_served(server: &Server, hello: &Hello) -> Result<ClientId, WireError> {
    let mut core = server.core();
    let opened = core.open_client(client_info(hello));
    let served = opened.and_then(|client| core.serve_client(client).map(|()| client));
    served.map_err(|error| error.to_wire())
}

/// A slab for the client, and the descriptors of the shm-direct path in the order of docs/protocol.md.
fn open_pool(
    server: &Server,
    hello: &Hello,
    regions: &mut Vec<Region>,
    fds: &mut Vec<OwnedFd>,
) -> Result<ClientId, WireError> {
    let mut core = server.core();
    let client = core.open_client(client_info(hello)).map_err(|e| e.to_wire())?;
    let parts = match core.regions(client) {
        Ok(parts) => parts,
        Err(error) => {
            // Nothing was sent, so the lock byte cannot be held: this gives the slab back.
            let _ = core.client_gone(client);
            return Err(error.to_wire());
        }
    };
    regions.extend([
        region(RegionKind::Index, 0, parts.index_bytes),
        region(RegionKind::Epochs, 0, parts.epochs_bytes),
        region(RegionKind::PinSlab, parts.slab_offset, parts.slab_bytes),
        region(RegionKind::Liveness, u64::from(client.slab()), 1),
        region(RegionKind::Pool, 0, parts.pool_bytes),
    ]);
    fds.extend([parts.index, parts.epochs, parts.slabs, parts.liveness, parts.pool]);
    Ok(client)
}

fn region(kind: RegionKind, offset: u64, bytes: u64) -> Region {
    Region { kind, offset, bytes }
}

pub(super) fn client_info(hello: &Hello) -> ClientInfo {
    ClientInfo {
        engine_instance: hello.engine_instance,
        kind: hello.kind,
        name: hello.name.clone(),
    }
}

pub(super) fn draining() -> WireError {
    WireError::new(
        ErrorCode::Draining,
        "the server is stopping; connect again once a new one is up",
        [],
    )
}
