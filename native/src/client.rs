//! Making and ending clients, agreeing with the server, registering.

#![allow(unsafe_code)] // pointers go on to `input` and `output`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use std::ffi::c_char;

use kvasir::client::{
    Client, ClientConfig, ClientKind, Domain, GroupRegistration, GroupSpan, Maps, Negotiate, ObjectKind,
    PayloadPath, RegisterKvCache,
};
use kvasir::copy::THREADS_MAX;
use kvasir::geometry;
use kvasir::shm::ring::MAX_LANE_BYTES;
use kvasir::wire::{MAX_DOMAIN_FIELD_BYTES, MAX_MESSAGE_GROUPS};

use crate::failure::{Failure, Outcome, kvasir_code};
use crate::guard::call;
use crate::options::*;
use crate::output::{self, Place};
use crate::values::*;
use crate::{input, table};

/// Makes a client and tries once to connect, for at most the deadline. A server that is away is no error: the client connects
/// as soon as there is one. Any number of threads may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_client_open(
    options: *const kvasir_client_options,
    client: *mut kvasir_client,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules, as in every function of this file.
        let place = unsafe { Place::new(client, "client") }?;
        // SAFETY: as above.
        let config = unsafe { config(options) }?;
        table::count_forks()?;
        let id = table::clients().add(Client::new(config)?);
        place.write(kvasir_client { id });
        Ok(())
    })
}

/// Ends the connection and waits for the calls that other threads have in the client. When it returns, nothing reads or
/// writes the memory that the pages lie in any more.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_client_close(client: kvasir_client) -> kvasir_code {
    call(|| {
        let removed = table::clients().remove(client.id)?;
        // Calls that wait for the server do not wait any longer.
        removed.value().close();
        removed.wait();
        Ok(())
    })
}

unsafe fn config(options: *const kvasir_client_options) -> Outcome<ClientConfig> {
    // SAFETY: the caller's promise, here and below.
    let options = unsafe { input::read_struct(options, "options") }?;
    let kind = match options.kind {
        1 => ClientKind::Scheduler,
        2 => ClientKind::Worker,
        3 => ClientKind::Tool,
        other => {
            return Err(Failure::argument_of(
                &[other.into()],
                format!("kind {other} is none of kvasir_client_kind"),
            ));
        }
    };
    input::check_flags(options.flags, KVASIR_NO_CHECKSUMS, "options")?;
    // SAFETY: as above.
    let (socket, name) = unsafe {
        (
            input::path(options.socket, "options.socket")?,
            input::text(options.name, "options.name")?,
        )
    };
    let mut config = ClientConfig::new(socket, kind, &name, options.engine_instance);
    config.deadline = input::time_or(options.deadline_ms, config.deadline, "options.deadline_ms")?;
    config.heartbeat = input::time_or(options.heartbeat_ms, config.heartbeat, "options.heartbeat_ms")?;
    config.grant_bytes = match options.grant_bytes {
        0 => config.grant_bytes,
        KVASIR_GRANT_NONE => 0,
        bytes => bytes,
    };
    config.maps = match options.maps {
        0 => config.maps,
        1 => Maps::Nothing,
        2 => Maps::Index,
        3 => Maps::Pool,
        4 => Maps::Ring,
        other => {
            return Err(Failure::argument_of(
                &[other.into()],
                format!("options.maps is {other}, none of kvasir_maps"),
            ));
        }
    };
    config.checksums = options.flags & KVASIR_NO_CHECKSUMS == 0;
    input::check_reserved(options.reserved, "options")?;
    config.ring_bytes = ring_bytes(options.ring_bytes, &config)?;
    config.copy_threads = copy_threads(options.copy_threads)?;
    Ok(config)
}

/// Bytes of a lane, where there is a ring; 0 is the default.
fn ring_bytes(given: u64, config: &ClientConfig) -> Outcome<u64> {
    if given == 0 {
        return Ok(config.ring_bytes);
    }
    if config.maps != Maps::Ring {
        return Err(Failure::argument_of(
            &[given],
            format!(
                "options.ring_bytes is {given}, and there is no ring: set options.maps to KVASIR_MAPS_RING"
            ),
        ));
    }
    if given > MAX_LANE_BYTES {
        return Err(Failure::argument_of(
            &[given, MAX_LANE_BYTES],
            format!("options.ring_bytes is {given}, at most {MAX_LANE_BYTES} are allowed"),
        ));
    }
    Ok(given)
}

fn copy_threads(given: u32) -> Outcome<usize> {
    let threads = given as usize;
    if threads > THREADS_MAX {
        return Err(Failure::argument_of(
            &[given.into(), THREADS_MAX as u64],
            format!("options.copy_threads is {given}, at most {THREADS_MAX} are allowed"),
        ));
    }
    Ok(threads)
}

/// The least common multiple of the positive spans: what every boundary of this model is a multiple of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_required_alignment(
    spans: *const kvasir_span,
    span_count: usize,
    alignment: *mut u64,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(alignment, "alignment") }?;
        // SAFETY: as above.
        let spans = unsafe { self::spans(spans, span_count, "spans") }?;
        let tokens: Vec<u64> = spans.iter().map(|span| span.tokens).collect();
        let alignment = geometry::chunk::alignment(&tokens).map_err(Failure::argument)?;
        place.write(alignment);
        Ok(())
    })
}

/// Agrees with the server on the tokens of a chunk: a multiple of the required alignment. Remembered, and asked again of
/// every server to come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_negotiate(
    client: kvasir_client,
    request: *const kvasir_negotiation,
    chunk_size: *mut u64,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(chunk_size, "chunk_size") }?;
        let client = table::clients().find(client.id)?;
        // SAFETY: as above.
        let given = unsafe { input::read_struct(request, "request") }?;
        input::check_flags(given.flags, 0, "request")?;
        let binding_domain = match given.binding_domain.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { input::value(given.binding_domain, "request.binding_domain") }?.bytes),
        };
        let reply = client.negotiate(Negotiate {
            required_alignment: given.required_alignment,
            // SAFETY: as above.
            spans: unsafe { spans(given.spans, given.span_count, "request.spans") }?,
            preferred_base: given.preferred_base,
            previous_size: given.previous_size,
            binding_domain,
        })?;
        place.write(reply.chunk_size);
        Ok(())
    })
}

/// What the last negotiation had to say to the engine's log, a line each. For the buffer see kvasir_state_text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_warnings(
    client: kvasir_client,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules.
        unsafe { output::text(buffer, capacity, length, || Ok(client.warnings().join("\n"))) }
    })
}

/// Registers what this rank stores and loads, and gives the seed of its keys. Remembered as kvasir_negotiate is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_register(
    client: kvasir_client,
    registration: *const kvasir_registration,
    seed: *mut kvasir_key,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(seed, "seed") }?;
        let client = table::clients().find(client.id)?;
        // SAFETY: as above.
        let mut request = unsafe { registration_of(registration) }?;
        request.payload_path = match client.config().maps {
            Maps::Pool => PayloadPath::ShmDirect,
            Maps::Ring => PayloadPath::ShmRing,
            Maps::Nothing | Maps::Index => PayloadPath::None,
        };
        let seed = client.register(request)?;
        place.write(kvasir_key { bytes: seed.into() });
        Ok(())
    })
}

/// The seed that kvasir_register gives, without a server. For schedulers, which register nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_domain_seed(
    domain: *const kvasir_domain,
    chunk_size: u64,
    seed: *mut kvasir_key,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(seed, "seed") }?;
        // SAFETY: as above.
        let domain = unsafe { domain_of(domain, "domain") }?;
        let seed = domain
            .seed(chunk_size)
            .map_err(kvasir::client::ClientError::from)?;
        place.write(kvasir_key { bytes: seed.into() });
        Ok(())
    })
}

unsafe fn registration_of(registration: *const kvasir_registration) -> Outcome<RegisterKvCache> {
    // SAFETY: the caller's promise, here and below.
    let given = unsafe { input::read_struct(registration, "registration") }?;
    input::check_flags(given.flags, KVASIR_READS_ONLY, "registration")?;
    input::check_reserved(given.reserved, "registration")?;
    // SAFETY: as above.
    let groups = unsafe {
        input::read_structs(
            given.groups,
            given.group_count,
            MAX_MESSAGE_GROUPS,
            "registration.groups",
        )
    }?;
    Ok(RegisterKvCache {
        // SAFETY: as above.
        domain: unsafe { domain_of(given.domain, "registration.domain") }?,
        rank: given.rank,
        world_size: given.world_size,
        required_alignment: given.required_alignment,
        // SAFETY: as above.
        spans: unsafe { spans(given.spans, given.span_count, "registration.spans") }?,
        groups: groups.iter().map(group_of).collect::<Outcome<_>>()?,
        layers: given.layers,
        blocks: given.blocks,
        payload_path: PayloadPath::None,
        stores: given.flags & KVASIR_READS_ONLY == 0,
        copy_path: String::new(), // the client's own
    })
}

fn group_of(given: &kvasir_group) -> Outcome<GroupRegistration> {
    Ok(GroupRegistration {
        group: given.group,
        kind: kind_of(given, "registration.groups")?,
        parts: given.parts,
        part: given.part,
        unit_bytes: given.unit_bytes,
    })
}

/// The kind of an object group.
pub(crate) fn kind_of(given: &kvasir_group, what: &str) -> Outcome<ObjectKind> {
    input::check_reserved(given.reserved, what)?;
    let tokens = given.window_tokens;
    Ok(match given.kind {
        1 => ObjectKind::Full,
        2 => ObjectKind::Window { tokens },
        3 => ObjectKind::ChunkedLocal { tokens },
        4 => ObjectKind::Recurrent,
        other => {
            return Err(Failure::argument_of(
                &[given.group.into(), other.into()],
                format!(
                    "object group {}: kind {other} is none of kvasir_group_kind",
                    given.group
                ),
            ));
        }
    })
}

/// # Safety
/// As [`input::read_struct`], for it and all that it names.
pub(crate) unsafe fn domain_of(domain: *const kvasir_domain, what: &str) -> Outcome<Domain> {
    // SAFETY: the caller's promise, here and below.
    let given = unsafe { input::read_struct(domain, what) }?;
    input::check_flags(given.flags, 0, what)?;
    let limit = MAX_DOMAIN_FIELD_BYTES;
    // SAFETY: as above.
    unsafe {
        Ok(Domain {
            model: input::text(given.model, "domain.model")?,
            weights_id: input::bytes(given.weights_id, limit, "domain.weights_id")?.unwrap_or_default(),
            kv_dtype: input::text(given.kv_dtype, "domain.kv_dtype")?,
            fingerprint: input::bytes(given.fingerprint, limit, "domain.fingerprint")?.unwrap_or_default(),
            parallel_shape: input::text(given.parallel_shape, "domain.parallel_shape")?,
        })
    }
}

unsafe fn spans(first: *const kvasir_span, count: usize, what: &str) -> Outcome<Vec<GroupSpan>> {
    // SAFETY: the caller's promise; any bytes are a span.
    let spans = unsafe { input::slice(first, count, MAX_MESSAGE_GROUPS, what) }?;
    let span = |span: &kvasir_span| {
        input::check_reserved(span.reserved, what)?;
        Ok(GroupSpan {
            group: span.group,
            tokens: span.tokens,
        })
    };
    spans.iter().map(span).collect()
}
