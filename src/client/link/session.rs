//! What one connection gave: mappings, the lock byte, granted space.
//!
//! A session is shared by the client and by every copy in progress, and its lock byte is free only when the last of
//! them has let go. The server takes a client's grants and pins back only then, so a copy that outlives its
//! connection still writes into space that is its own.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::attached::Attached;
use super::connection::{CallError, Connection, Stream};
use super::granted::{Granted, Uses};
use super::missing::Missing;
use super::populate::{Populate, Populated, When};
use super::regions::{Regions, length};
use super::ring::RingSide;
use super::stats::Stat;
#[cfg(feature = "cuda")]
use crate::client::device::pinning::Pinning;
use crate::client::{ClientConfig, ClientError, Maps};
use crate::control::{ControlView, Counter};
use crate::copy::HostMemory;
use crate::index::conditions::Conditions;
use crate::index::epochs::fence_after_copy;
use crate::object::{Extent, ObjectId};
use crate::shm::atfork::forks_so_far;
use crate::shm::{Mapping, ReadWrite};
use crate::sync::shared::{AtomicBool, Ordering};
use crate::wire::{Hello, HelloReply, MAX_NAME_BYTES, PROTOCOL_VERSION, RegionKind, Reply, Request};

/// What stores and loads need beside what lookups do.
#[derive(Debug)]
pub(crate) struct PoolSide {
    /// Before the mapping, which it names.
    #[cfg(feature = "cuda")]
    pinning: Pinning,
    granted: Mutex<Granted>,
    uses: Uses,
    missing: Mutex<Missing>,
    frames: u64,
    frame_bytes: u64,
    way: Way,
}

/// How bytes come into the pool and out of it.
#[derive(Debug)]
enum Way {
    /// The pool is mapped.
    Direct {
        /// All of it, as a region of copy plans.
        memory: [HostMemory; 1],
        populate: Populate,
        /// Last: mappings go before its lock does.
        attached: Arc<Attached>,
    },
    /// The server copies.
    Ring(RingSide),
}

/// One connection's share of the server.
#[derive(Debug)]
pub(crate) struct Session {
    /// Counts the connections of a client, from 1.
    pub(crate) generation: u64,
    pub(crate) stream: Arc<Stream>,
    control: ControlView,
    pool: Option<PoolSide>,
    attached: Option<Arc<Attached>>,
    /// The connection has ended. What came over it is read on, as long as there is nothing newer.
    ended: AtomicBool,
}

impl Session {
    /// Says hello over a new connection, maps what came and locks this client's byte. `answered`: a server greeted it.
    pub(crate) fn open(
        config: &ClientConfig,
        mut connection: Connection,
        generation: u64,
        populated: &Arc<Populated>,
        answered: &mut bool,
        deadline: Instant,
    ) -> Result<(Connection, Self), ClientError> {
        let forks = forks_so_far().map_err(ClientError::unavailable)?;
        let reply = connection.call(&Request::Hello(hello(config)), deadline)?;
        let Reply::Hello(hello) = reply else {
            return Err(unexpected(&reply));
        };
        *answered = true;
        let mut regions = Regions {
            hello: &hello,
            descriptors: connection.take_descriptors(),
        };
        if regions.descriptors.len() != hello.regions.len() {
            return Err(ClientError::unavailable(format!(
                "the server announced {} regions and sent {} descriptors",
                hello.regions.len(),
                regions.descriptors.len()
            )));
        }
        let (_, control) = regions.take(RegionKind::Control)?;
        let control = ControlView::open(control.as_fd()).map_err(ClientError::unavailable)?;
        if control.boot().boot_id != hello.boot_id {
            return Err(ClientError::unavailable("the control region is another server's"));
        }
        let attached = (config.maps >= Maps::Index)
            .then(|| Attached::open(&mut regions).map(Arc::new))
            .transpose()?;
        let pool = attached
            .as_ref()
            .filter(|_| config.maps >= Maps::Pool)
            .map(|attached| PoolSide::open(&mut regions, attached, Arc::clone(populated)))
            .transpose()?;
        let pool = match config.maps {
            Maps::Ring => Some(PoolSide::by_ring(
                RingSide::open(&mut regions)?,
                &hello,
                &control,
            )?),
            _ => pool,
        };
        let stream = Arc::clone(connection.stream());
        // A child forked since the descriptors arrived has copies of them that nothing would close.
        if attached.is_some()
            && (forks.is_none() || forks != forks_so_far().map_err(ClientError::unavailable)?)
        {
            return Err(ClientError::unavailable("this process forked meanwhile"));
        }
        if attached.is_some() {
            match connection.call(&Request::Attach, deadline)? {
                Reply::Ack => {}
                reply => return Err(unexpected(&reply)),
            }
        }
        let session = Self {
            generation,
            stream,
            control,
            pool,
            attached,
            ended: AtomicBool::new(false),
        };
        Ok((connection, session))
    }

    /// The pool's side, for clients that map it.
    pub(crate) fn pool(&self) -> Result<&PoolSide, ClientError> {
        let missing = "this client does not map the pool: only workers store and load";
        self.pool.as_ref().ok_or_else(|| ClientError::invalid(missing))
    }

    /// Whether the server that this session belongs to still runs the pool, as far as memory shows.
    pub(crate) fn is_current(&self) -> bool {
        self.attached
            .as_ref()
            .is_none_or(|attached| attached.boot_unchanged())
    }

    /// Whether there is something to read without the server.
    pub(crate) fn is_readable(&self) -> bool {
        self.attached.is_some() && self.is_current()
    }

    /// The connection has ended, from either side. Nobody looks at the slab any more, as far as this client knows.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.stream.hang_up();
    }

    /// Whether [`Session::end`] was called.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What lookups without a message need, for clients that map it.
    pub(crate) fn attached(&self) -> Option<&Attached> {
        self.attached.as_deref()
    }

    /// The server's control region.
    pub(crate) fn control(&self) -> &ControlView {
        &self.control
    }

    /// Whether the server has made all of the pool present.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_all_present(&self) -> bool {
        let bytes = self
            .pool
            .as_ref()
            .map_or(0, |pool| pool.frames * pool.frame_bytes);
        self.control.counter(Counter::Prefaulted) >= bytes
    }

    /// Bytes of pool space held for stores.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.pool
            .as_ref()
            .map_or(0, |pool| pool.granted().frames() * pool.frame_bytes)
    }

    /// Whether nothing was stored since the last time this was asked.
    pub(crate) fn was_idle(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.uses.none_since_last())
    }

    /// Says in the slab, where there is one, what keeps this client from caching.
    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        if let Some(attached) = &self.attached {
            attached.set_conditions(conditions);
        }
    }

    /// Counts in the statistics words of the slab, where there is one.
    pub(crate) fn count(&self, stat: Stat, count: u64) {
        if let Some(attached) = &self.attached {
            attached.count(stat, count);
        }
    }
}

impl PoolSide {
    fn open(
        regions: &mut Regions<'_>,
        attached: &Arc<Attached>,
        populated: Arc<Populated>,
    ) -> Result<Self, ClientError> {
        let (at, fd) = regions.take(RegionKind::Pool)?;
        let pool = Mapping::<ReadWrite>::map_foreign_at(fd.as_fd(), at.offset, length(&at)?);
        let pool = Arc::new(pool.map_err(ClientError::unavailable)?);
        let frame_bytes = u64::from(regions.hello.frame_bytes);
        let frames = attached.frames();
        if frame_bytes == 0 || frames.checked_mul(frame_bytes) != Some(at.bytes) {
            let bytes = at.bytes;
            return Err(ClientError::unavailable(format!(
                "a pool of {bytes} bytes for {frames} frames of {frame_bytes}"
            )));
        }
        let way = Way::Direct {
            populate: Populate::new(Arc::clone(&pool), frames, frame_bytes, populated),
            memory: [HostMemory::mapped(pool)],
            attached: Arc::clone(attached),
        };
        Ok(Self::new(frames, frame_bytes, way))
    }

    /// The pool as a client knows it that maps none of it.
    fn by_ring(ring: RingSide, hello: &HelloReply, control: &ControlView) -> Result<Self, ClientError> {
        let frame_bytes = u64::from(hello.frame_bytes);
        let bytes = control.counter(Counter::PoolBytesTotal);
        match bytes.checked_div(frame_bytes) {
            Some(frames) => Ok(Self::new(frames, frame_bytes, Way::Ring(ring))),
            None => Err(ClientError::unavailable("frames of 0 bytes")),
        }
    }

    fn new(frames: u64, frame_bytes: u64, way: Way) -> Self {
        Self {
            #[cfg(feature = "cuda")]
            pinning: Pinning::default(),
            granted: Mutex::default(),
            uses: Uses::default(),
            missing: Mutex::default(),
            frames,
            frame_bytes,
            way,
        }
    }

    /// The pool as the regions of a copy plan's side; none where it is not mapped.
    pub(crate) fn memory(&self) -> &[HostMemory] {
        match &self.way {
            Way::Direct { memory, .. } => memory,
            Way::Ring(_) => &[],
        }
    }

    /// The pool for copies that may outlive the session: its lock is held as long as one of them runs.
    #[cfg(feature = "cuda")]
    pub(crate) fn lasting_memory(&self) -> Option<HostMemory> {
        match &self.way {
            Way::Direct { memory, attached, .. } => {
                let attached: Arc<dyn Send + Sync> = Arc::clone(attached) as _;
                Some(memory[0].clone().keeping(attached))
            }
            Way::Ring(_) => None,
        }
    }

    /// The pool's registration with a driver.
    #[cfg(feature = "cuda")]
    pub(crate) fn pinning(&self) -> &Pinning {
        &self.pinning
    }

    /// The ring of a client that has one.
    pub(crate) fn ring(&self) -> Option<&RingSide> {
        match &self.way {
            Way::Direct { .. } => None,
            Way::Ring(ring) => Some(ring),
        }
    }

    /// Epochs and index of the same connection, where they are mapped.
    pub(crate) fn attached(&self) -> Option<&Attached> {
        match &self.way {
            Way::Direct { attached, .. } => Some(attached),
            Way::Ring(_) => None,
        }
    }

    /// Whether what hangs under an object cannot be stored, as far as is known. `alone`: nobody else stores parts of it.
    pub(crate) fn lacks(&self, domain: Option<u32>, id: &ObjectId, alone: bool) -> bool {
        // Without the index only what was found out so far is known.
        (alone && self.attached().is_some() || self.missing().contains(id))
            && self
                .attached()
                .is_none_or(|attached| attached.find(domain, id).is_none())
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// The NUMA node of the pool, of which so many bytes are present.
    pub(crate) fn node(&self, present: u64) -> Option<u32> {
        match &self.way {
            Way::Direct { populate, .. } => populate.node(present),
            Way::Ring(_) => None,
        }
    }

    pub(crate) fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    pub(crate) fn granted(&self) -> MutexGuard<'_, Granted> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a store begins or ends.
    pub(crate) fn note_use(&self) {
        self.uses.note();
    }

    /// What could not be stored.
    pub(crate) fn missing(&self) -> MutexGuard<'_, Missing> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the server granted, as far as it lies in the pool.
    pub(crate) fn gain(&self, granted: Vec<Extent>, when: When) {
        let granted: Vec<Extent> = granted.into_iter().filter(|extent| self.holds(extent)).collect();
        if let Way::Direct { populate, .. } = &self.way {
            granted.iter().for_each(|extent| populate.extent(extent, when));
        }
        self.granted().add(granted);
    }

    /// Whether an extent is not empty and inside the pool.
    pub(crate) fn holds(&self, extent: &Extent) -> bool {
        extent.count > 0 && u64::from(extent.frame) + u64::from(extent.count) <= self.frames
    }

    /// The last step of the read protocol, after the copy: whether all of it was the incarnation's bytes. Call
    /// [`Self::fence_after_copy`] once before the first of these.
    pub(crate) fn copy_was_whole(&self, first_frame: u32, incarnation: u64) -> bool {
        // What came through a ring the server has copied under a pin that it kept meanwhile.
        self.attached()
            .is_none_or(|attached| attached.copy_was_whole(first_frame, incarnation))
    }

    /// Orders the reads of a copy before the loads of [`Self::copy_was_whole`].
    pub(crate) fn fence_after_copy(&self) {
        fence_after_copy();
    }
}

fn hello(config: &ClientConfig) -> Hello {
    let mut name = config.name.clone();
    while name.len() > MAX_NAME_BYTES {
        name.pop();
    }
    Hello {
        protocol_version: PROTOCOL_VERSION,
        features: 0,
        kind: config.kind,
        name,
        engine_instance: config.engine_instance,
        wants_pool: config.maps >= Maps::Index,
        ring_bytes: if config.maps == Maps::Ring {
            config.ring_bytes
        } else {
            0
        },
        named: false,
    }
}

/// A reply of the wrong kind: the connection cannot be trusted any more.
pub(crate) fn unexpected(reply: &Reply) -> ClientError {
    let text = format!("{reply:?}");
    let kind = text
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or_default();
    CallError::Broken(format!(
        "the server's reply is of the kind {kind}, which does not answer the request"
    ))
    .into()
}
