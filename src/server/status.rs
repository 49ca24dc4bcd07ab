//! The status document. Its shape is described in docs/operations.md and only grows.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::config::{ChunkScope, ChunkSize, ChunkSizePolicy};
use super::fleet::hex;
use super::limits::SPARE_CONNECTIONS;
use super::ring::RingCounters;
use super::session::{Known, Registered, SessionInfo, client_kind, group_kind};
use super::state::Server;
use super::turns::next_turn;
use super::work::work;
use super::{offload, placement};
use crate::cache::{ClientId, ClientStatus, CoreStatus, DomainReuse, MAX_DOMAINS, Reporting, Turn};
use crate::control::{Health, MAX_BINDING_DOMAINS, Minimum};
use crate::geometry::ObjectKind;
use crate::index::conditions::Condition;
use crate::index::counters::{ClientCounters, ReuseCounters};
use crate::index::slab::PIN_WORDS;
use crate::object::{ClientKind, FRAME_BYTES, GroupRegistration, PayloadPath};
use crate::wire::WireError;

/// The version of the document. Raised when a field changes its meaning; new fields do not count.
const STATUS_VERSION: u32 = 1;

/// Steps of writing down one client, and one of its groups.
const ROW_STEPS: u32 = 32;
/// Steps of asking the system about a process, and about a lock.
const SYSTEM_STEPS: u32 = 32;
/// Bytes of a text of a peer's that the document shows: what one peer says must not make it too long for all.
const TEXT_BYTES: usize = 512;

/// The document, without the session that asks. It is written in turns, client by client.
pub(super) async fn document(server: &Server, asking: u64, turn: &mut Turn) -> Result<String, WireError> {
    let reporting = Reporting::new(&server.core());
    let status = work(server, reporting, turn).await?;
    turn.spend(ROW_STEPS);
    let mut document = head(server, &status).to_string();
    // The last brace makes room for the rows.
    document.pop();
    document.push_str(",\"clients\":[");
    let mut first = true;
    let mut row = async |row: Value, turn: &mut Turn| {
        if !std::mem::take(&mut first) {
            document.push(',');
        }
        let text = row.to_string();
        turn.spend(ROW_STEPS + offload::steps(text.len()));
        document.push_str(&text);
        if turn.is_over() {
            next_turn(turn).await;
        }
    };
    // Sessions in the order in which they began, then clients whose connection is closed but who still live.
    let mut cores: BTreeMap<ClientId, &ClientStatus> =
        status.clients.iter().map(|client| (client.id, client)).collect();
    let numbers: Vec<u64> = server.sessions.borrow().keys().copied().collect();
    for number in numbers {
        let value = {
            let sessions = server.sessions.borrow();
            // It may have ended since.
            let Some(info) = sessions.get(&number) else {
                continue;
            };
            let core = info.client.and_then(|client| cores.remove(&client));
            (number != asking).then(|| {
                let mut row = connected(info, core);
                add_known(&mut row, server, Some(&info.known), core, turn);
                row
            })
        };
        if let Some(value) = value {
            row(value, turn).await;
        }
    }
    for core in cores.into_values() {
        let known = server.holders.borrow().get(&core.id).cloned();
        let mut value = orphan(core);
        add_known(&mut value, server, known.as_deref(), Some(core), turn);
        row(value, turn).await;
    }
    document.push_str("]}");
    Ok(document)
}

/// Everything but the clients.
fn head(server: &Server, status: &CoreStatus) -> Value {
    let boot = server.control.boot();
    let health = if server.is_draining() {
        Health::Draining
    } else {
        Health::Serving
    };
    let pool = &status.pool;
    json!({
        "status_version": STATUS_VERSION,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": boot.server_pid,
        "boot_id": hex(&boot.boot_id),
        "boot_seq": boot.boot_seq,
        "pool_id": hex(&server.pool_id),
        "started_unix_ms": boot.started_unix_ms,
        "uptime_s": server.started.elapsed().as_secs(),
        "health": health.name(),
        "socket": server.config.socket.to_string_lossy(),
        "binding": binding(server),
        "pool": {
            "total": pool.total,
            "prefaulted": pool.prefaulted,
            "free": pool.free,
            "used": pool.used,
            "granted": pool.granted,
            "quarantined": pool.quarantined,
            "pinned": pool.pinned,
            "frame_bytes": FRAME_BYTES,
            "memory": placement::status(server),
        },
        "objects": status.objects,
        "limbo": status.limbo,
        "incomplete": status.incomplete,
        "domains": status.domains,
        "counters": counters(status),
        "reported": reported(&status.reported),
        "tokens": tokens(&status.reported.tokens),
        "models": models(status),
        "connections": server.connections(),
        "store_amplification": amplification(&status.reported),
        "rings": rings(server),
        "kicks": kicks(server),
        "limits": limits(server),
    })
}

/// What there is room for, to be held against the figures beside it.
fn limits(server: &Server) -> Value {
    let clients = server.config.max_clients as usize;
    json!({
        "clients": clients,
        "connections": clients + SPARE_CONNECTIONS,
        "domains": MAX_DOMAINS,
        "binding_domains": MAX_BINDING_DOMAINS,
        "pin_words": PIN_WORDS,
    })
}

/// Payload rings of all clients, and how many clients broke theirs.
fn rings(server: &Server) -> Value {
    let (bytes, limit) = server.rings.totals();
    json!({ "bytes": bytes, "limit": limit, "broken": server.rings.broken() })
}

/// What operators did to clients.
fn kicks(server: &Server) -> Value {
    let kicks = server.kicks.get();
    json!({ "let_go": kicks.let_go, "killed": kicks.killed, "kept": kicks.kept })
}

fn ring(counters: &RingCounters) -> Value {
    json!({
        "lane_bytes": counters.lane_bytes,
        "named": counters.named,
        "stored_bytes": counters.stored_bytes.load(Ordering::Relaxed),
        "loaded_bytes": counters.loaded_bytes.load(Ordering::Relaxed),
        "moves": counters.moves.load(Ordering::Relaxed),
    })
}

fn binding(server: &Server) -> Value {
    let mut row = server.bindings.status();
    let ChunkSize(minimum) = server.config.chunk_size;
    row["minimum"] = match minimum {
        Minimum::Auto => json!("auto"),
        Minimum::Tokens(tokens) => json!(tokens),
    };
    row["policy"] = json!(match server.config.chunk_size_policy {
        ChunkSizePolicy::Negotiate => "negotiate",
        ChunkSizePolicy::Fixed => "fixed",
    });
    row["scope"] = json!(match server.config.chunk_scope {
        ChunkScope::Server => "server",
        ChunkScope::Model => "model",
    });
    row
}

fn counters(status: &CoreStatus) -> Value {
    let counters = &status.counters;
    json!({
        "lookups": counters.lookups,
        "requested": counters.requested,
        "hit": counters.hit,
        "miss": counters.miss,
        "stored": counters.stored_objects,
        "stored_bytes": counters.stored_bytes,
        "evicted": counters.evicted_objects,
        "dropped_stores": counters.dropped_stores,
        "ended_incomplete": counters.ended_incomplete,
        "discarded": counters.discarded_objects,
        "shortened": counters.shortened,
    })
}

fn connected(info: &SessionInfo, core: Option<&ClientStatus>) -> Value {
    let mut row = json!({
        "connected": true,
        "pid": info.pid,
        "name": info.name,
        "kind": client_kind(info.kind),
        "engine": hex(&info.engine_instance),
    });
    row["refused"] = json!(info.refused);
    row["ring"] = info.ring.as_deref().map_or(Value::Null, ring);
    add_core(&mut row, core);
    row["registered"] = info.registered.as_ref().map_or(Value::Null, registered);
    if let Some((_, domain)) = core.and_then(|core| core.registered) {
        row["registered"]["domain"] = json!(hex(domain.as_bytes()));
    }
    row
}

fn registered(registered: &Registered) -> Value {
    let Registered {
        request, chunk_size, ..
    } = registered;
    let groups: Vec<Value> = request
        .groups
        .iter()
        .map(|group| {
            json!({
                "group": group.group,
                "kind": group_kind(group.kind),
                "parts": group.parts,
                "part": group.part,
                "window_tokens": group.kind.window_tokens(),
                "chunk_bytes": chunk_bytes(group, *chunk_size, request.required_alignment),
            })
        })
        .collect();
    json!({
        "model": shown(&request.domain.model),
        "rank": request.rank,
        "world_size": request.world_size,
        "layers": request.layers,
        "blocks": request.blocks,
        "stores": request.stores,
        "copy_path": Some(&request.copy_path).filter(|name| !name.is_empty()),
        "chunk_size": chunk_size,
        "groups": groups,
    })
}

/// Bytes of a rank's part of a full chunk, or of a state. The core has accepted the numbers, so nothing overflows.
fn chunk_bytes(group: &GroupRegistration, chunk_size: u32, alignment: u64) -> u64 {
    match group.kind {
        ObjectKind::Recurrent => group.unit_bytes,
        _ => group
            .unit_bytes
            .saturating_mul(u64::from(chunk_size) / alignment.max(1)),
    }
}

fn orphan(core: &ClientStatus) -> Value {
    let mut row = json!({
        "connected": false,
        "number": null,
        "pid": null,
        "age_s": null,
        "idle_s": null,
        "name": core.info.name,
        "kind": match core.info.kind {
            ClientKind::Unspecified => "unspecified",
            ClientKind::Scheduler => "scheduler",
            ClientKind::Worker => "worker",
            ClientKind::Tool => "tool",
        },
        "engine": hex(&core.info.engine_instance),
        "registered": null,
        "refused": null,
        "ring": null,
    });
    add_core(&mut row, Some(core));
    row
}

/// What is known of the process, whether it has a connection or not.
fn add_known(
    row: &mut Value,
    server: &Server,
    known: Option<&Known>,
    core: Option<&ClientStatus>,
    turn: &mut Turn,
) {
    if let Some(known) = known {
        row["number"] = json!(known.number);
        row["pid"] = json!(known.pid);
        row["age_s"] = json!(known.since.elapsed().as_secs());
        row["idle_s"] = json!(known.heard.get().elapsed().as_secs());
    }
    row["process"] = json!(known.and_then(Known::process_word));
    let locked = core
        .filter(|core| core.attached)
        .map(|core| server.core().is_alive(core.id));
    row["lock_held"] = json!(locked.and_then(Result::ok));
    turn.spend(2 * SYSTEM_STEPS);
}

fn add_core(row: &mut Value, core: Option<&ClientStatus>) {
    row["slab"] = core.map_or(Value::Null, |core| json!(core.id.slab()));
    row["attached"] = json!(core.is_some_and(|core| core.attached));
    row["payload_path"] = json!(core.map_or("none", |core| payload_path(core.payload_path)));
    row["granted"] = json!(core.map_or(0, |core| core.granted));
    row["incomplete"] = json!(core.map_or(0, |core| core.incomplete));
    row["pins"] = json!(core.map_or(0, |core| core.pins));
    row["oldest_pin_s"] = json!(core.and_then(|core| core.oldest_pin).map(|age| age.as_secs()));
    row["pin_words"] = json!(core.map_or(0, |core| core.pin_words));
    row["kept"] = json!(core.map_or(0, |core| core.kept));
    let conditions = core.map(|core| core.conditions).unwrap_or_default();
    row["conditions"] = json!(conditions.iter().map(Condition::name).collect::<Vec<_>>());
    row["reported"] = core.map_or(Value::Null, |core| reported(&core.reported));
    row["tokens"] = core.map_or(Value::Null, |core| tokens(&core.reported.tokens));
}

fn reported(counters: &ClientCounters) -> Value {
    json!({
        "loads": counters.loads,
        "loaded_bytes": counters.loaded_bytes,
        "failed_loads": counters.failed_loads,
        "stale_loads": counters.stale_loads,
        "stores": counters.stores,
        "stored_bytes": counters.stored_bytes,
        "dropped_stores": counters.dropped_stores,
        "degraded_seconds": counters.degraded_seconds,
        "corrupt_loads": counters.corrupt_loads,
        "lookups": counters.lookups,
        "requested": counters.requested,
        "hit": counters.hit,
        "shortened": counters.shortened,
        "new_bytes": counters.new_bytes,
        "device_direct_bytes": counters.device.direct_bytes,
        "device_staged_bytes": counters.device.staged_bytes,
        "device_late_copies": counters.device.late_copies,
        "device_failed_copies": counters.device.failed_copies,
        "device_pool_pins": counters.device.pool_pins,
        "device_pool_pin_failures": counters.device.pool_pin_failures,
    })
}

fn tokens(tokens: &ReuseCounters) -> Value {
    json!({
        "requests": tokens.requests,
        "asked": tokens.asked,
        "held": tokens.held,
        "hit": tokens.hit,
        "hit_percent": percent(tokens.hit, tokens.asked),
        "loaded": tokens.loaded,
        "failed": tokens.failed,
        "preempted_asked": tokens.preempted_asked,
        "preempted_hit": tokens.preempted_hit,
    })
}

/// With one decimal; nothing of nothing.
fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (1000.0 * part as f64 / whole as f64).round() / 10.0)
}

/// The figures of each domain that anything was counted for.
fn models(status: &CoreStatus) -> Vec<Value> {
    let row = |reuse: &DomainReuse| {
        json!({
            "model": Some(&reuse.model).filter(|model| !model.is_empty()),
            "domain": reuse.domain.map(|domain| hex(domain.as_bytes())),
            "tokens": tokens(&reuse.tokens),
        })
    };
    status.reuse.iter().map(row).collect()
}

/// As much of a text as the document shows.
fn shown(text: &str) -> &str {
    let fits = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(fits);
    &text[..end.unwrap_or(0)]
}

/// Bytes stored per byte of KV that was computed for the first time; null where no client says what it computed.
fn amplification(counters: &ClientCounters) -> Option<f64> {
    let ratio = counters.stored_bytes as f64 / counters.new_bytes as f64;
    (counters.new_bytes > 0).then(|| (ratio * 1000.0).round() / 1000.0)
}

pub(super) fn payload_path(path: PayloadPath) -> &'static str {
    match path {
        PayloadPath::None => "none",
        PayloadPath::ShmDirect => "shm-direct",
        PayloadPath::Pinned => "pinned",
        PayloadPath::Cuda => "cuda",
        PayloadPath::ShmRing => "shm-ring",
    }
}
