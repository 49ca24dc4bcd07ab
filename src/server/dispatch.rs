//! A request becomes a call of the binding or the core, and its result a reply.

use std::rc::Rc;
use std::time::Instant;

use tracing::info;

use super::answer::Answer;
use super::kick;
use super::opening::{Session, client_info, draining};
use super::rings;
use super::session::one_line;
use super::state::Server;
use super::status::{self, payload_path};
use super::work::work;
use crate::cache::{
    Abort, Clear, ClientId, Committing, Core, Discard, Grant, Looking, Register, Registration, Releasing,
    ReleasingLabel, Retrieving, Turn, Unregister,
};
use crate::control::NegotiateRequest;
use crate::geometry::chunk;
use crate::keys::ChunkKey;
use crate::object::{CommitRequest, Lookup, PayloadPath, RetrieveRequest, RingPart, RingRun};
use crate::wire::{
    ErrorCode, Negotiate, NegotiateReply, RegisterKvCache, RegisterReply, Reply, Request, WireError,
};

/// Answers a frame after the hello.
///
/// Comes back between the turns of a long request, when others have been served; `turn` is what is left of the last one.
pub(super) async fn answer(
    server: &Server,
    session: &mut Session,
    request: Request,
    turn: &mut Turn,
) -> Reply {
    if let Some(info) = server.sessions.borrow().get(&session.number) {
        info.known.heard.set(Instant::now());
    }
    let changes = changes_totals(&request);
    let sets_up = matches!(request, Request::Negotiate(_) | Request::RegisterKvCache(_));
    let answered = handle(server, session, request, turn).await;
    if sets_up && let Err(error) = &answered {
        note_refusal(server, session, Some(error.to_string()));
    }
    let reply = answered.unwrap_or_else(Reply::Error);
    if changes {
        server.publish_counters();
    }
    reply
}

/// What a request costs beside its work: its frame, its reply, a system call each.
const REQUEST_STEPS: u32 = 16;

/// Whether a request can move what the control region publishes.
fn changes_totals(request: &Request) -> bool {
    !matches!(
        request,
        Request::Hello(_) | Request::Negotiate(_) | Request::GetChunkSize | Request::Attach | Request::Status
    )
}

async fn handle(
    server: &Server,
    session: &mut Session,
    request: Request,
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    turn.spend(REQUEST_STEPS);
    if server.is_draining() && takes_something_new(&request) {
        return Err(draining());
    }
    match request {
        Request::Hello(_) => Err(WireError::new(
            ErrorCode::HelloExpected,
            "a connection says hello once; open another connection",
            [],
        )),
        Request::Negotiate(request) => negotiate(server, session, &request).await,
        Request::GetChunkSize => {
            let domain = session.binding_domain;
            let chunk_size = server.bindings.get_chunk_size(domain.as_ref()).await?;
            Ok(Reply::Negotiate(NegotiateReply {
                chunk_size: u64::from(chunk_size),
                warnings: Vec::new(),
            }))
        }
        Request::Attach => {
            with_client(server, session, Core::attach)?;
            if let Some(ring) = &mut session.ring {
                ring.attached();
            }
            Ok(Reply::Ack)
        }
        Request::RegisterKvCache(request) => register(server, session, request, turn).await,
        Request::UnregisterKvCache => ack(unregister(server, session, turn).await),
        Request::Lookup(request) => lookup(server, session, request, turn).await,
        Request::Retrieve(request) => retrieve(server, session, request, turn).await,
        Request::Release { pins } => {
            let client = client_of(server, session)?;
            if let Some(ring) = &mut session.ring {
                ring.forget_pins(&pins, turn).await;
            }
            ack(work(server, Releasing::new(client, &pins), turn).await)
        }
        Request::ReleaseLabel { label } => {
            let client = client_of(server, session)?;
            if let Some(ring) = &mut session.ring {
                ring.forget_label(label, turn).await;
            }
            ack(work(server, ReleasingLabel::new(client, label), turn).await)
        }
        Request::Grant(request) => {
            require_bound(server, session)?;
            let client = client_of(server, session)?;
            let extents = work(server, Grant::asked(client, &request), turn).await?;
            Ok(Reply::Grant { extents })
        }
        Request::Commit(request) => commit(server, session, request, turn).await,
        Request::Abort { extents } => {
            let client = client_of(server, session)?;
            if let Some(ring) = &mut session.ring {
                rings::forget_frames(ring, &extents, turn).await;
            }
            ack(work(server, Abort::new(client, &extents), turn).await)
        }
        Request::Clear => {
            let clear = Clear::new(&server.core());
            ack(work(server, clear, turn).await.map(drop))
        }
        Request::Discard { domain_seed, objects } => {
            require_bound(server, session)?;
            let client = client_of(server, session)?;
            ack(work(server, Discard::new(client, domain_seed, &objects), turn).await)
        }
        Request::Status => Ok(Reply::Status {
            json: status::document(server, session.number, turn).await?,
        }),
        Request::RingWrite { runs } => ring_write(server, session, &runs, turn).await,
        Request::Kick(request) => kick::kick(server, session, &request).await,
        Request::RingRead { pin, parts } => ring_read(server, session, pin, &parts, turn).await,
    }
}

/// What a server that is stopping refuses. Everything that finishes or gives back is still taken.
fn takes_something_new(request: &Request) -> bool {
    matches!(
        request,
        Request::Negotiate(_)
            | Request::GetChunkSize
            | Request::Attach
            | Request::RegisterKvCache(_)
            | Request::Lookup(_)
            | Request::Retrieve(_)
            | Request::Grant(_)
            | Request::Kick(_)
    )
}

fn ack(done: Result<(), WireError>) -> Result<Reply, WireError> {
    done.map(|()| Reply::Ack)
}

/// Calls the core as this session's client.
fn with_client<T>(
    server: &Server,
    session: &mut Session,
    call: impl FnOnce(&mut Core, ClientId) -> Result<T, crate::cache::CoreError>,
) -> Result<T, WireError> {
    let client = client_of(server, session)?;
    call(&mut server.core(), client).map_err(|e| e.to_wire())
}

/// This session's client, which a peer without a pool becomes when it first needs to.
fn client_of(server: &Server, session: &mut Session) -> Result<ClientId, WireError> {
    if let Some(client) = session.client {
        return Ok(client);
    }
    let opened = server.core().open_client(client_info(&session.hello));
    let client = opened.map_err(|e| e.to_wire())?;
    session.client = Some(client);
    if let Some(info) = server.sessions.borrow_mut().get_mut(&session.number) {
        info.client = Some(client);
        server.holders.borrow_mut().insert(client, Rc::clone(&info.known));
    }
    Ok(client)
}

fn require_bound(server: &Server, session: &Session) -> Result<u32, WireError> {
    server.bindings.require_bound(session.binding_domain.as_ref())
}

async fn negotiate(server: &Server, session: &mut Session, request: &Negotiate) -> Result<Reply, WireError> {
    let domain = request.binding_domain;
    let wanted = NegotiateRequest {
        required_alignment: request.required_alignment,
        preferred_base: request.preferred_base,
        previous_size: request.previous_size,
        spans: request.spans.clone(),
    };
    let negotiated = server.bindings.negotiate(domain.as_ref(), wanted).await?;
    session.binding_domain = domain;
    let (agreed, offered) = (request.previous_size, u64::from(negotiated.chunk_size));
    let other = (agreed != 0 && agreed != offered).then(|| {
        format!(
            "it agreed on chunks of {agreed} tokens with an earlier server, and this one has {offered}: restart the server \
             with --chunk-size {agreed}, or the engine"
        )
    });
    if let Some(why) = &other {
        say_unused(server, session, why);
    }
    note_refusal(server, session, other);
    Ok(Reply::Negotiate(NegotiateReply {
        chunk_size: u64::from(negotiated.chunk_size),
        warnings: negotiated.warnings.iter().map(ToString::to_string).collect(),
    }))
}

/// Keeps for the status why a client caches nothing.
fn note_refusal(server: &Server, session: &Session, why: Option<String>) {
    if let Some(info) = server.sessions.borrow_mut().get_mut(&session.number) {
        info.refused = why;
    }
}

/// Says, once, why a client caches nothing though it was refused nothing. What is refused is in the log anyway.
fn say_unused(server: &Server, session: &Session, why: &str) {
    let sessions = server.sessions.borrow();
    if let Some(info) = sessions.get(&session.number)
        && info.refused.as_deref() != Some(why)
    {
        info!(pid = info.pid, name = %one_line(&info.name), "client caches nothing: {why}");
    }
}

async fn register(
    server: &Server,
    session: &mut Session,
    request: RegisterKvCache,
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    let chunk_size = server
        .bindings
        .recheck(session.binding_domain.as_ref(), &request.spans)?;
    check_alignment(&request, chunk_size)?;
    let needs_pool = matches!(request.payload_path, PayloadPath::ShmDirect | PayloadPath::Pinned);
    if needs_pool && !session.hello.wants_pool {
        let path = payload_path(request.payload_path);
        return Err(WireError::new(
            ErrorCode::InvalidArgument,
            format_args!("payload path {path} needs the pool; connect with wants_pool set"),
            [u64::from(request.payload_path.number())],
        ));
    }
    if request.payload_path == PayloadPath::ShmRing && session.ring.is_none() {
        return Err(WireError::new(
            ErrorCode::InvalidArgument,
            "payload path shm-ring needs a ring; connect with ring_bytes set",
            [u64::from(PayloadPath::ShmRing.number())],
        ));
    }
    let domain_seed = request.domain.seed(u64::from(chunk_size));
    let domain_seed = domain_seed.map_err(|error| WireError::new(ErrorCode::InvalidArgument, error, []))?;
    let registration = registration(&request, domain_seed, chunk_size);
    let client = client_of(server, session)?;
    let (domain, kept_frames_max) = work(server, Register::new(client, &registration), turn).await?;
    if let Some(info) = server.sessions.borrow_mut().get_mut(&session.number) {
        info.registered(request, chunk_size, domain_seed);
        server.journal.registered(info);
    }
    Ok(Reply::Register(RegisterReply {
        domain_seed,
        chunk_size: u64::from(chunk_size),
        domain: Some(domain),
        kept_frames_max,
    }))
}

/// The registration of a rank in the domain of a seed.
fn registration(request: &RegisterKvCache, domain_seed: ChunkKey, chunk_size: u32) -> Registration {
    Registration {
        domain_seed,
        rank: request.rank,
        world_size: request.world_size,
        required_alignment: request.required_alignment,
        chunk_size,
        groups: request.groups.clone(),
        payload_path: request.payload_path,
        stores: request.stores,
    }
}

async fn unregister(server: &Server, session: &mut Session, turn: &mut Turn) -> Result<(), WireError> {
    let client = client_of(server, session)?;
    work(server, Unregister::new(client), turn).await?;
    if let Some(info) = server.sessions.borrow_mut().get_mut(&session.number) {
        info.unregistered();
    }
    Ok(())
}

/// The alignment has to be what the spans give, as at negotiation.
fn check_alignment(request: &RegisterKvCache, chunk_size: u32) -> Result<(), WireError> {
    let sent = request.required_alignment;
    let spans: Vec<u64> = request.spans.iter().map(|span| span.tokens).collect();
    let computed = chunk::alignment(&spans).unwrap_or(0);
    if sent == 0 || sent != computed {
        return Err(WireError::new(
            ErrorCode::InvalidAlignment,
            format_args!(
                "the required alignment is {sent} tokens, but the least common multiple of the registered spans is \
                 {computed}; register what was negotiated"
            ),
            [sent, computed],
        ));
    }
    if !u64::from(chunk_size).is_multiple_of(sent) {
        return Err(WireError::new(
            ErrorCode::IncompatibleChunkSize,
            format_args!(
                "the bound chunk size of {chunk_size} tokens is not a multiple of the {sent} tokens registered; \
                 negotiate before registering"
            ),
            [u64::from(chunk_size), sent],
        ));
    }
    Ok(())
}

async fn lookup(
    server: &Server,
    session: &mut Session,
    request: Lookup,
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    require_bound(server, session)?;
    let client = client_of(server, session)?;
    let found = work(server, Looking::new(client, &request.as_request()), turn).await?;
    name_domain(server, session, request.domain_seed);
    Ok(Reply::Lookup(found))
}

/// Notes for which domain, and which model, a client's figures count.
fn name_domain(server: &Server, session: &mut Session, domain: ChunkKey) {
    if session.looked_up == Some(domain) {
        return;
    }
    let model = server.model_of(&domain);
    if let (Some(client), Some(model)) = (session.client, model)
        && server.core().reuses(client, domain, &model).is_ok()
    {
        session.looked_up = Some(domain);
    }
}

async fn retrieve(
    server: &Server,
    session: &mut Session,
    request: RetrieveRequest,
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    require_bound(server, session)?;
    let client = client_of(server, session)?;
    let found = work(server, Retrieving::new(client, &request), turn).await?;
    if let Some(ring) = &mut session.ring
        && !ring.keep(request.label, &found, turn).await
    {
        work(server, Releasing::new(client, &[found.pin]), turn).await?;
        return Err(rings::too_many_places(&found));
    }
    Ok(Reply::Retrieve(found))
}

async fn commit(
    server: &Server,
    session: &mut Session,
    mut request: CommitRequest,
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    require_bound(server, session)?;
    let client = client_of(server, session)?;
    if server.is_draining() {
        request.grant_bytes = 0; // what was stored is taken, but nothing more is granted
    }
    let filled = match &session.ring {
        Some(ring) => rings::check_filled(ring, &request, turn).await,
        None => Ok(()),
    };
    let answer = match filled {
        Ok(()) => work(server, Committing::new(client, &request), turn).await,
        Err(error) => Err(error),
    };
    if let Some(ring) = &mut session.ring {
        // Whatever became of it: what is still the client's it writes again.
        rings::forget_frames(ring, &request.extents, turn).await;
    }
    Ok(Reply::Commit(answer?))
}

async fn ring_write(
    server: &Server,
    session: &mut Session,
    runs: &[RingRun],
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    let client = client_of(server, session)?;
    let ring = session.ring.as_mut().ok_or_else(rings::none)?;
    rings::write(server, client, ring, runs, turn).await
}

async fn ring_read(
    server: &Server,
    session: &mut Session,
    pin: u64,
    parts: &[RingPart],
    turn: &mut Turn,
) -> Result<Reply, WireError> {
    let ring = session.ring.as_mut().ok_or_else(rings::none)?;
    rings::read(server, ring, pin, parts, turn).await
}

/// Undoes what a reply promised that could not be sent.
pub(super) fn take_back(server: &Server, session: &mut Session, reply: &Reply) {
    let Some(client) = session.client else { return };
    if let (Some(ring), Reply::Retrieve(found)) = (&mut session.ring, reply) {
        ring.forget_pin(found.pin);
    }
    let mut core = server.core();
    // The client never learns of these, so nothing else can have ended them.
    let _ = match reply {
        Reply::Lookup(found) if found.pin != 0 => core.release(client, &[found.pin]),
        Reply::Retrieve(found) if found.pin != 0 => core.release(client, &[found.pin]),
        // Of grants and commits there are never more runs than a reply can name.
        _ => Ok(()),
    };
}
