//! What all connections share. One thread runs all of it; the core sits behind a lock only because a binding
//! listener has to be able to travel between threads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::{Notify, watch};

use super::bindings::{Bindings, lock};
use super::config::Config;
use super::dying::Dying;
use super::journal::Journal;
use super::leaving::{Ends, Orphan};
use super::offload::Offload;
use super::ring_desk::RingDesk;
use super::session::{Known, SessionInfo};
use super::{ServerError, limits};
use crate::cache::{ClientId, Core, CoreConfig};
use crate::control::{BootInfo, ControlRegion, Counter, Health};
use crate::keys::ChunkKey;
use crate::pool::Seen;
use crate::shm::process::random_id;
use crate::shm::{Mapping, ReadWrite};
use crate::sync::shared::Ordering;
use crate::wire::Encoder;

/// Replies of this size and more are rare; the memory for one is given back after it.
const ENCODER_BYTES_KEPT: usize = 256 << 10;

/// Copies of rings at a time: as many as two clients can keep busy, and no more of the machine.
const COPIES_AT_ONCE: usize = 2;

/// How often operators ended clients, and what became of these.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kicks {
    pub(super) let_go: u64,
    pub(super) killed: u64,
    pub(super) kept: u64,
}

/// The server's state.
pub(super) struct Server {
    pub(super) config: Config,
    pub(super) started: Instant,
    pub(super) pool_id: [u8; 16],
    pub(super) control: Arc<ControlRegion>,
    pub(super) bindings: Bindings,
    pub(super) journal: Journal,
    core: Arc<Mutex<Core>>,
    encoder: RefCell<Encoder>,
    /// Where long frames are read and written.
    pub(super) offload: Offload,
    /// Where rings and the pool are copied between.
    pub(super) copies: Offload,
    pub(super) rings: RingDesk,
    pub(super) pool_memory: Arc<Mapping<ReadWrite>>,
    /// Clients that are to be taken down.
    pub(super) ends: Ends,
    /// Processes of those that have a device.
    pub(super) dying: RefCell<Dying>,
    /// Connections that have said hello, by a number of their own.
    pub(super) sessions: RefCell<BTreeMap<u64, SessionInfo>>,
    next_session: Cell<u64>,
    /// Who the clients are, also those without a connection, until nothing is held for them.
    pub(super) holders: RefCell<BTreeMap<ClientId, Rc<Known>>>,
    /// Woken when a connection ends, and when nothing is held for a client any more.
    pub(super) left: Notify,
    /// What operators did to clients.
    pub(super) kicks: Cell<Kicks>,
    /// Woken when the first session begins.
    pub(super) session_began: Notify,
    /// Accepted connections, with and without a hello.
    connections: Cell<usize>,
    /// Woken when the last connection ends.
    pub(super) connections_ended: Notify,
    /// Clients without a connection whose lock byte was still held when it was last looked at.
    pub(super) orphans: RefCell<Vec<Orphan>>,
    /// Woken when an orphan is added.
    pub(super) orphan_added: Notify,
    /// Woken when the names of socket and lock should be looked at.
    pub(super) look_at_names: Notify,
    /// What the pool's present pages were when they were last looked at, and how many bytes of them there were.
    pub(super) seen: RefCell<Option<(Seen, u64)>>,
    draining: watch::Sender<bool>,
}

impl Server {
    /// Makes all regions; touches no page of the pool.
    pub(super) fn new(config: Config, started: Instant) -> Result<Rc<Self>, ServerError> {
        let memory = limits::memory(&config)?;
        limits::pool(config.pool_size.0, &memory)?;
        let pool_id = random_id()?;
        // A pool in anonymous memory lives as long as its server, so this is always its first boot.
        let boot = BootInfo::fresh(1)?;
        let core = Core::create(CoreConfig {
            pool_bytes: config.pool_size.0,
            boot_seq: boot.boot_seq,
            pool_id,
            memory,
            max_clients: config.max_clients as usize,
            ..CoreConfig::default()
        })?;
        let pool_memory = core.pool_memory();
        let rings = RingDesk::new(config.export.as_deref(), pool_memory.len() as u64)?;
        let core = Arc::new(Mutex::new(core));
        let control = Arc::new(ControlRegion::create(boot)?);
        let bindings = Bindings::new(&config, &control, &core)?;
        let server = Self {
            config,
            started,
            pool_id,
            control,
            bindings,
            journal: Journal::new(),
            core,
            encoder: RefCell::default(),
            offload: Offload::new(),
            copies: Offload::at_once(COPIES_AT_ONCE),
            rings,
            pool_memory,
            ends: Ends::default(),
            dying: RefCell::default(),
            sessions: RefCell::default(),
            next_session: Cell::new(1),
            holders: RefCell::default(),
            left: Notify::new(),
            kicks: Cell::default(),
            session_began: Notify::new(),
            connections: Cell::new(0),
            connections_ended: Notify::new(),
            orphans: RefCell::default(),
            orphan_added: Notify::new(),
            look_at_names: Notify::new(),
            seen: RefCell::default(),
            draining: watch::Sender::new(false),
        };
        server.publish_counters();
        Ok(Rc::new(server))
    }

    /// The core. Never held across an await, and never while the binding negotiates.
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Encodes into `out` with the shared encoder.
    pub(super) fn encode<T>(&self, encode: impl FnOnce(&mut Encoder) -> T) -> T {
        let mut encoder = self.encoder.borrow_mut();
        let result = encode(&mut encoder);
        encoder.trim(ENCODER_BYTES_KEPT);
        result
    }

    /// Stores the core's totals where clients can read them.
    pub(super) fn publish_counters(&self) {
        let (counters, pool, growing) = {
            let core = self.core();
            let (counters, pool) = core.counters();
            (counters, pool, core.is_growing())
        };
        let values = [
            (Counter::RequestedUnits, counters.requested),
            (Counter::HitUnits, counters.hit),
            (Counter::MissUnits, counters.miss),
            (Counter::StoredObjects, counters.stored_objects),
            (Counter::EvictedObjects, counters.evicted_objects),
            (Counter::DroppedStores, counters.dropped_stores),
            (Counter::PoolBytesTotal, pool.total),
            (Counter::Prefaulted, pool.prefaulted),
            (Counter::Used, pool.used),
            (Counter::Granted, pool.granted),
            (Counter::Pinned, pool.pinned),
            (Counter::Quarantined, pool.quarantined),
            (
                Counter::PrefaultLeft,
                if growing { pool.total - pool.prefaulted } else { 0 },
            ),
        ];
        for (counter, value) in values {
            self.control.counter(counter).store(value, Ordering::Relaxed);
        }
    }

    /// Counts a connection from accept to end.
    pub(super) fn connection(self: &Rc<Self>) -> ConnectionCount {
        self.connections.set(self.connections.get() + 1);
        ConnectionCount(Rc::clone(self))
    }

    /// How many connections there are.
    pub(super) fn connections(&self) -> usize {
        self.connections.get()
    }

    /// Records a session; the number names it until [`Server::end_session`].
    pub(super) fn begin_session(&self, info: impl FnOnce(u64) -> SessionInfo) -> u64 {
        let number = self.next_session.get();
        let info = info(number);
        if let Some(client) = info.client {
            self.holders.borrow_mut().insert(client, Rc::clone(&info.known));
        }
        self.next_session.set(number + 1);
        let first = {
            let mut sessions = self.sessions.borrow_mut();
            self.journal.came(&info);
            sessions.insert(number, info);
            sessions.len() == 1
        };
        if first {
            self.control.beat();
            self.session_began.notify_one();
        }
        number
    }

    /// Forgets a session. What its client held is taken back in turns ([`super::ends`]), at the latest when the client is gone.
    pub(super) fn end_session(&self, number: u64) {
        let info = self.sessions.borrow_mut().remove(&number);
        if let Some(info) = info
            && let Some(client) = info.client
        {
            if info.has_device() {
                self.dying
                    .borrow_mut()
                    .add(client, info.pid, info.known.process.clone());
            }
            self.ends.add(client);
        }
        self.left.notify_waiters();
    }

    /// Forgets who a client was, now that nothing is held for it any more.
    pub(super) fn forget_holder(&self, client: ClientId) {
        self.holders.borrow_mut().remove(&client);
        self.dying.borrow_mut().remove(client);
        self.left.notify_waiters();
    }

    /// The model of a domain in which a rank is registered.
    pub(super) fn model_of(&self, domain: &ChunkKey) -> Option<String> {
        let sessions = self.sessions.borrow();
        let model = sessions.values().find_map(|info| info.model_of(domain));
        model.map(str::to_owned)
    }

    /// Whether the server is stopping.
    pub(super) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Tells every connection to finish.
    pub(super) fn drain(&self) {
        self.control.set_health(Health::Draining);
        self.draining.send_replace(true);
    }

    /// Changes once, when the server begins to stop.
    pub(super) fn watch_drain(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }
}

/// One connection, while it exists.
pub(super) struct ConnectionCount(Rc<Server>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        let left = self.0.connections.get() - 1;
        self.0.connections.set(left);
        if left == 0 {
            self.0.connections_ended.notify_one();
        }
    }
}
