//! `Client` and `Hit`.

use std::time::Duration;

use kvasir::client::{self as native, ClientConfig, LookupAnswer, Maps, Pin, PromptTails, Ticket};
use kvasir::index::conditions::Condition;
use kvasir::index::counters::ReuseCounters;
use kvasir::object::{ClientKind, LookupRequest, PayloadPath};
use kvasir::wire::{Negotiate, RegisterKvCache};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::args::{DomainArg, GroupArg, Key, client_kind, object_group, object_id, spans};
use crate::errors::detached;
use crate::keys::{KeyChain, bytes};
use crate::memory::{LayoutArg, RegionArg, kv_memory};
use crate::runs::{LoadArg, NamedRun, StoreArg, load_requests, named_runs, per_run, store_requests};

/// One connection to a Kvasir server that repairs itself.
#[pyclass(module = "kvasir._native", frozen)]
pub(crate) struct Client {
    client: native::Client,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (socket, kind, name, engine_instance, deadline_s = 1.0, heartbeat_s = 10.0,
                        credit_bytes = 64 << 20, checksums = true, copy_threads = 0, payload_path = "direct"))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of the Python signature
    fn new(
        py: Python<'_>,
        socket: &str,
        kind: &str,
        name: &str,
        engine_instance: &[u8],
        deadline_s: f64,
        heartbeat_s: f64,
        credit_bytes: u64,
        checksums: bool,
        copy_threads: usize,
        payload_path: &str,
    ) -> PyResult<Self> {
        let instance: [u8; 16] = engine_instance.try_into().map_err(|_| {
            let given = engine_instance.len();
            PyValueError::new_err(format!("engine_instance has 16 bytes, this one has {given}"))
        })?;
        let mut config = ClientConfig::new(socket, client_kind(kind)?, name, instance);
        config.deadline = seconds("deadline_s", deadline_s)?;
        config.heartbeat = seconds("heartbeat_s", heartbeat_s)?;
        config.grant_bytes = credit_bytes;
        config.checksums = checksums;
        config.copy_threads = copy_threads;
        config.maps = match (payload_path, config.kind) {
            ("direct", _) => config.maps,
            ("ring", ClientKind::Worker) => Maps::Ring,
            ("ring", _) => Maps::Nothing,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "payload_path is {payload_path:?}; it has to be \"direct\" or \"ring\""
                )));
            }
        };
        let client = detached(py, || native::Client::new(config))?;
        Ok(Self { client })
    }

    #[getter]
    fn healthy(&self) -> bool {
        self.client.is_healthy()
    }

    #[getter]
    fn readable(&self) -> bool {
        self.client.is_readable()
    }

    #[getter]
    fn boot_id<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.client.boot_id().map(|id| PyBytes::new(py, &id))
    }

    #[getter]
    fn state_text(&self) -> String {
        self.client.state_text()
    }

    #[getter]
    fn chunk_size(&self) -> Option<u64> {
        self.client.chunk_size()
    }

    #[getter]
    fn domain_seed<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.client.domain_seed().map(|seed| bytes(py, &seed))
    }

    #[getter]
    fn socket(&self) -> String {
        self.client.config().socket.display().to_string()
    }

    #[pyo3(signature = (required_alignment, spans, preferred_base = 256, previous_size = 0, binding_domain = None))]
    fn negotiate(
        &self,
        py: Python<'_>,
        required_alignment: u64,
        spans: Vec<(u32, u64)>,
        preferred_base: u64,
        previous_size: u64,
        binding_domain: Option<&[u8]>,
    ) -> PyResult<u64> {
        let binding_domain = match binding_domain.map(<[u8; 32]>::try_from) {
            Some(Err(_)) => {
                let given = binding_domain.map_or(0, <[u8]>::len);
                return Err(PyValueError::new_err(format!(
                    "binding_domain has 32 bytes, this one has {given}"
                )));
            }
            Some(Ok(domain)) => Some(domain),
            None => None,
        };
        let request = Negotiate {
            required_alignment,
            spans: self::spans(spans),
            preferred_base,
            previous_size,
            binding_domain,
        };
        detached(py, || Ok(self.client.negotiate(request)?.chunk_size))
    }

    fn warnings(&self) -> Vec<String> {
        self.client.warnings()
    }

    #[pyo3(signature = (domain, rank, world_size, required_alignment, spans, groups, layers, blocks, stores = true))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of the Python signature
    fn register<'py>(
        &self,
        py: Python<'py>,
        domain: DomainArg,
        rank: u32,
        world_size: u32,
        required_alignment: u64,
        spans: Vec<(u32, u64)>,
        groups: Vec<GroupArg>,
        layers: u32,
        blocks: u64,
        stores: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let payload_path = match self.client.config().kind {
            ClientKind::Worker => PayloadPath::ShmDirect,
            _ => PayloadPath::None,
        };
        let request = RegisterKvCache {
            domain: domain.domain(),
            rank,
            world_size,
            required_alignment,
            spans: self::spans(spans),
            groups: groups.into_iter().map(object_group).collect::<PyResult<_>>()?,
            layers,
            blocks,
            payload_path,
            stores,
            copy_path: String::new(), // the client's own
        };
        let seed = detached(py, || self.client.register(request))?;
        Ok(bytes(py, &seed))
    }

    fn set_memory(
        &self,
        py: Python<'_>,
        regions: Vec<RegionArg>,
        layouts: Vec<LayoutArg>,
        num_blocks: u64,
    ) -> PyResult<()> {
        detached(py, || {
            self.client.set_memory(kv_memory(&regions, layouts, num_blocks)?);
            Ok(())
        })
    }

    #[pyo3(signature = (seed, session, chain, tail_step, max_tokens, local_tokens, pin = true))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of the Python signature
    fn lookup_start(
        &self,
        py: Python<'_>,
        seed: Key,
        session: u64,
        chain: &KeyChain,
        tail_step: u32,
        max_tokens: u64,
        local_tokens: u64,
        pin: bool,
    ) -> PyResult<u64> {
        let tails = chain.tails(tail_step)?;
        let question = question(seed, session, chain, &tails, (max_tokens, local_tokens), pin);
        let ticket = detached(py, || self.client.lookup_start(&question))?;
        Ok(ticket.0)
    }

    #[pyo3(signature = (ticket, wait_s = 0.0))]
    fn lookup_result(&self, py: Python<'_>, ticket: u64, wait_s: f64) -> PyResult<Option<Hit>> {
        let wait = seconds("wait_s", wait_s)?;
        let answer = detached(py, || self.client.lookup_poll(Ticket(ticket), wait))?;
        Ok(answer.map(Hit))
    }

    fn lookup_cancel(&self, py: Python<'_>, ticket: u64) -> PyResult<()> {
        detached(py, || {
            self.client.lookup_cancel(Ticket(ticket));
            Ok(())
        })
    }

    #[pyo3(signature = (seed, session, chain, tail_step, max_tokens, local_tokens, pin = true))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of the Python signature
    fn lookup(
        &self,
        py: Python<'_>,
        seed: Key,
        session: u64,
        chain: &KeyChain,
        tail_step: u32,
        max_tokens: u64,
        local_tokens: u64,
        pin: bool,
    ) -> PyResult<Hit> {
        let tails = chain.tails(tail_step)?;
        let question = question(seed, session, chain, &tails, (max_tokens, local_tokens), pin);
        detached(py, || self.client.lookup(&question)).map(Hit)
    }

    #[pyo3(signature = (part, runs, supersedes = Vec::new()))]
    fn store(
        &self,
        py: Python<'_>,
        part: u16,
        runs: Vec<StoreArg>,
        supersedes: Vec<(Key, u16)>,
    ) -> PyResult<Vec<Vec<&'static str>>> {
        let runs = runs.into_iter().map(|run| store_requests(part, run));
        let runs: Vec<Vec<_>> = runs.collect::<PyResult<_>>()?;
        let supersedes: Vec<_> = supersedes.into_iter().map(object_id).collect();
        let lengths: Vec<_> = runs.iter().map(Vec::len).collect();
        let requests: Vec<_> = runs.into_iter().flatten().collect();
        let outcomes = detached(py, || self.client.store(&requests, &supersedes))?;
        let names = outcomes.into_iter().map(native::StoreOutcome::name);
        Ok(per_run(&lengths, names))
    }

    fn present(&self, py: Python<'_>, part: u16, objects: Vec<(Key, u16)>) -> PyResult<Vec<bool>> {
        let ids: Vec<_> = objects.into_iter().map(object_id).collect();
        detached(py, || self.client.present(part, ids))
    }

    fn load(&self, py: Python<'_>, session: u64, part: u16, runs: Vec<LoadArg>) -> PyResult<Vec<Vec<bool>>> {
        let runs: Vec<Vec<_>> = runs.into_iter().map(load_requests).collect::<PyResult<_>>()?;
        let lengths: Vec<_> = runs.iter().map(Vec::len).collect();
        let requests: Vec<_> = runs.into_iter().flatten().collect();
        let loaded = detached(py, || self.client.load(session, part, &requests))?;
        Ok(per_run(&lengths, loaded.into_iter()))
    }

    fn release(&self, py: Python<'_>, pins: Vec<u128>) -> PyResult<()> {
        let pins: Vec<Pin> = pins.into_iter().filter_map(pin_of).collect();
        detached(py, || self.client.release(&pins))
    }

    fn end_session(&self, py: Python<'_>, session: u64) -> PyResult<()> {
        detached(py, || self.client.release_label(session))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || self.client.clear())
    }

    fn status_json(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || self.client.status())
    }

    fn count_failed_loads(&self, loads: u64) {
        self.client.count_failed_loads(loads);
    }

    #[pyo3(signature = (requests = 0, asked = 0, held = 0, hit = 0, preempted_asked = 0, preempted_hit = 0, loaded = 0, failed = 0))]
    #[allow(clippy::too_many_arguments)] // named in Python
    fn count_reuse(
        &self,
        requests: u64,
        asked: u64,
        held: u64,
        hit: u64,
        preempted_asked: u64,
        preempted_hit: u64,
        loaded: u64,
        failed: u64,
    ) {
        self.client.count_reuse(ReuseCounters {
            requests,
            asked,
            held,
            hit,
            preempted_asked,
            preempted_hit,
            loaded,
            failed,
        });
    }

    fn count_new_kv(&self, bytes: u64) {
        self.client.count_new_kv(bytes);
    }

    fn set_conditions(&self, py: Python<'_>, names: Vec<String>) -> PyResult<()> {
        let named = |name: &String| {
            Condition::named(name).ok_or_else(|| PyValueError::new_err(format!("{name:?} is no condition")))
        };
        let conditions = names.iter().map(named).collect::<PyResult<_>>()?;
        detached(py, || {
            self.client.set_conditions(conditions);
            Ok(())
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = detached(py, || Ok(self.client.stats()))?;
        let dict = PyDict::new(py);
        for (name, value) in [
            ("lookups", stats.lookups),
            ("direct_lookups", stats.direct_lookups),
            ("lookup_misses_degraded", stats.degraded_lookups),
            ("loads", stats.loads),
            ("loaded_bytes", stats.loaded_bytes),
            ("failed_loads", stats.failed_loads),
            ("stale_loads", stats.stale_loads),
            ("corrupt_loads", stats.corrupt_loads),
            ("stores", stats.stores),
            ("stored_bytes", stats.stored_bytes),
            ("dropped_stores", stats.dropped_stores),
            ("evicted_pins", stats.evicted_pins),
            ("reconnects", stats.reconnects),
            ("degraded_ms", stats.degraded_ms),
            ("credit_bytes", stats.granted_bytes),
            ("populated_bytes", stats.populated_bytes),
            ("unpopulated_bytes", stats.unpopulated_bytes),
            ("new_bytes", stats.new_bytes),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            self.client.close();
            Ok(())
        })
    }
}

/// The answer to a lookup.
#[pyclass(module = "kvasir._native", frozen)]
pub(crate) struct Hit(LookupAnswer);

#[pymethods]
impl Hit {
    #[getter]
    fn hit_tokens(&self) -> u64 {
        self.0.hit_tokens
    }

    #[getter]
    fn pin(&self) -> u128 {
        self.0.pin.map_or(0, pin_number)
    }

    #[getter]
    fn runs<'py>(&self, py: Python<'py>) -> Vec<NamedRun<'py>> {
        named_runs(py, &self.0.loads)
    }

    #[getter]
    fn present_tokens(&self) -> Vec<u64> {
        self.0.present_tokens.clone()
    }

    #[getter]
    fn degraded(&self) -> bool {
        self.0.degraded
    }

    #[getter]
    fn shortened(&self) -> bool {
        self.0.shortened
    }

    fn __repr__(&self) -> String {
        format!(
            "Hit(hit_tokens={}, loads={}, pinned={}, degraded={})",
            self.0.hit_tokens,
            self.0.loads.len(),
            self.0.pin.is_some(),
            self.0.degraded
        )
    }
}

/// A pin as one number, so that a pin of an earlier connection is never taken for one of this.
fn pin_number(pin: Pin) -> u128 {
    u128::from(pin.connection) << 64 | u128::from(pin.id)
}

/// The pin of a number; nothing for 0, which is no pin.
fn pin_of(number: u128) -> Option<Pin> {
    (number != 0).then_some(Pin {
        connection: (number >> 64) as u64,
        id: number as u64,
    })
}

fn seconds(what: &str, value: f64) -> PyResult<Duration> {
    let limit = native::MAX_WAIT;
    match Duration::try_from_secs_f64(value) {
        Ok(time) if time <= limit => Ok(time),
        Ok(_) => Err(PyValueError::new_err(format!(
            "{what} is {value}, at most {} are allowed",
            limit.as_secs()
        ))),
        Err(error) => Err(PyValueError::new_err(format!("{what} is {value}: {error}"))),
    }
}

/// What a lookup asks about a prompt. `limits`: the hit is at most that long, and that much need not be loaded.
fn question<'a>(
    seed: Key,
    label: u64,
    chain: &'a KeyChain,
    tails: &'a PromptTails<'a>,
    limits: (u64, u64),
    pin: bool,
) -> LookupRequest<'a> {
    LookupRequest {
        domain_seed: seed.0,
        label,
        keys: chain.full(),
        tails,
        max_tokens: limits.0,
        local_tokens: limits.1,
        pin,
        describe: false,
    }
}
