//! What every client maps that looks up by itself: index, epochs and its own slab; and the lock byte that keeps the slab
//! its own.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::regions::{Regions, length};
use super::stats::Stat;
use crate::client::ClientError;
use crate::geometry::ObjectKind;
use crate::index::conditions::Conditions;
use crate::index::epochs::EpochReader;
use crate::index::layout::IndexLayout;
use crate::index::local::{self, LocalAnswer, OtherDomain};
use crate::index::pin_words::PinWords;
use crate::index::reader::IndexReader;
use crate::index::slab::{SLAB_BYTES, SLAB_CONDITIONS};
use crate::keys::{ChunkKey, KeyHashing};
use crate::object::{DomainShape, GroupShape, LookupRequest, ObjectId, RetrieveAnswer, RetrieveRequest};
use crate::shm::atfork::ForkClosedFd;
use crate::shm::lock::try_lock_byte;
use crate::shm::{Mapping, ReadOnly, ReadWrite, ShmError};
use crate::sync::shared::{AtomicU64, Ordering};
use crate::wire::RegionKind;

/// Mappings go before the lock does.
#[derive(Debug)]
pub(crate) struct Attached {
    index: Mapping<ReadOnly>,
    layout: IndexLayout,
    epochs: EpochReader<ReadOnly>,
    slab: Arc<Mapping<ReadWrite>>,
    pins: Mutex<PinWords>,
    /// Pins that made room for others and are not counted yet.
    evicted: AtomicU64,
    /// Of domains in which all ranks have registered.
    shapes: Mutex<HashMap<ChunkKey, Arc<DomainShape>, KeyHashing>>,
    /// Boot sequence under which this connection lives.
    boot_seq: u64,
    _lock: ForkClosedFd,
}

impl Attached {
    pub(crate) fn open(regions: &mut Regions<'_>) -> Result<Self, ClientError> {
        let failed = |error: ShmError| ClientError::unavailable(error);
        let (at, fd) = regions.take(RegionKind::Index)?;
        let index = Mapping::<ReadOnly>::map_foreign_at(fd.as_fd(), at.offset, length(&at)?);
        let index = index.map_err(|error| ClientError::unavailable(format!("the index: {error}")))?;
        let layout = IndexLayout::read(&index)
            .ok_or_else(|| ClientError::unavailable("the index is not one that this version reads"))?;
        let (at, fd) = regions.take(RegionKind::Epochs)?;
        let epochs = Mapping::<ReadOnly>::map_foreign_at(fd.as_fd(), at.offset, length(&at)?);
        let epochs = EpochReader::new(epochs.map_err(failed)?).ok_or_else(|| {
            ClientError::unavailable("the epochs region is not one that this version reads")
        })?;
        if epochs.frames() != layout.frames() {
            let (epochs, frames) = (epochs.frames(), layout.frames());
            return Err(ClientError::unavailable(format!(
                "epochs of {epochs} frames beside an index of {frames}"
            )));
        }
        let (at, fd) = regions.take(RegionKind::PinSlab)?;
        let slab = Mapping::<ReadWrite>::map_foreign_at(fd.as_fd(), at.offset, length(&at)?);
        let slab = Arc::new(slab.map_err(failed)?);
        if slab.len() < SLAB_BYTES {
            let bytes = slab.len();
            return Err(ClientError::unavailable(format!("a pin slab of {bytes} bytes")));
        }
        let (at, fd) = regions.take(RegionKind::Liveness)?;
        let lock = ForkClosedFd::new(fd).map_err(failed)?;
        let held = lock
            .fd()
            .map(|fd| try_lock_byte(fd, at.offset))
            .transpose()
            .map_err(failed)?;
        if held != Some(true) {
            let byte = at.offset;
            return Err(ClientError::unavailable(format!(
                "byte {byte} of the liveness file is locked by another"
            )));
        }
        Ok(Self {
            pins: Mutex::new(PinWords::new(Arc::clone(&slab), layout.frames())),
            evicted: AtomicU64::new(0),
            shapes: Mutex::default(),
            boot_seq: regions.boot_seq(),
            index,
            layout,
            epochs,
            slab,
            _lock: lock,
        })
    }

    /// Frames of the pool.
    pub(crate) fn frames(&self) -> u64 {
        self.layout.frames().into()
    }

    /// The incarnation that owns a frame now; 0 for none.
    pub(crate) fn epoch(&self, frame: u32) -> u64 {
        self.epochs.epoch(frame)
    }

    /// Whether a copy that began in a frame was that of an incarnation. The last step of the read protocol.
    pub(crate) fn copy_was_whole(&self, first_frame: u32, incarnation: u64) -> bool {
        self.epochs
            .copy_was_whole(self.boot_seq, first_frame, incarnation)
    }

    pub(crate) fn boot_unchanged(&self) -> bool {
        self.epochs.boot() == self.boot_seq
    }

    /// Counts in a statistics word.
    pub(crate) fn count(&self, stat: Stat, count: u64) {
        if let Some(offset) = stat.slab_offset()
            && let Ok(word) = self.slab.atomic_u64(offset)
        {
            word.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Says what keeps this client from caching.
    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        if let Ok(word) = self.slab.atomic_u64(SLAB_CONDITIONS) {
            word.store(conditions.to_word(), Ordering::Relaxed);
        }
    }

    /// Remembers what a domain looks like.
    ///
    /// # Errors
    /// The shape, when there can be no such domain.
    pub(crate) fn learn(&self, seed: ChunkKey, shape: DomainShape) -> Result<(), DomainShape> {
        if !is_usable(&shape) {
            return Err(shape);
        }
        self.shapes().insert(seed, Arc::new(shape));
        Ok(())
    }

    /// Whether any lookup could be answered from memory.
    pub(crate) fn knows_domains(&self) -> bool {
        !self.shapes().is_empty()
    }

    /// Answers a lookup from memory; nothing where the server has to be asked.
    pub(crate) fn lookup(&self, request: &LookupRequest<'_>) -> Option<LocalAnswer> {
        let shape = Arc::clone(self.shapes().get(&request.domain_seed)?);
        let reader = IndexReader::new(&self.index, self.layout);
        let is_current = || self.boot_unchanged();
        let mut pins = self.pins();
        let found = local::lookup(&reader, &shape, request, &mut pins, is_current);
        self.note_evicted(&mut pins);
        match found {
            Ok(found) => Some(found),
            Err(OtherDomain) => {
                self.shapes().remove(&request.domain_seed);
                None
            }
        }
    }

    /// Pins objects for reading, from memory. Nothing where the server has to be asked.
    pub(crate) fn retrieve(
        &self,
        domain: u32,
        kept_frames_max: u64,
        request: &RetrieveRequest,
    ) -> Option<(RetrieveAnswer, bool)> {
        let reader = IndexReader::new(&self.index, self.layout);
        let mut pins = self.pins();
        let found = local::retrieve(&reader, domain, kept_frames_max, request, &mut pins, || {
            self.boot_unchanged()
        });
        self.note_evicted(&mut pins);
        found
    }

    /// Which objects of a domain are there now, by their records; of any domain where its number is not known. A hint: they
    /// may go at any time.
    pub(crate) fn find(&self, domain: Option<u32>, id: &ObjectId) -> Option<u32> {
        if !self.boot_unchanged() {
            return None;
        }
        let view = IndexReader::new(&self.index, self.layout).lookup(id)?;
        domain
            .is_none_or(|domain| view.domain == domain)
            .then_some(view.record)
    }

    /// Says that records were of use. The later are the more recent.
    pub(crate) fn touch(&self, records: &[u32]) {
        self.pins().touch(records);
    }

    /// Takes pins back: all of them or, where one is not held or is named twice, none.
    pub(crate) fn release(&self, pins: &[u64]) -> Result<(), ClientError> {
        let mut held = self.pins();
        let mut seen = HashSet::new();
        for &pin in pins {
            let known = held.is_held(pin) || held.is_evicted(pin);
            if !known || !seen.insert(pin) {
                return Err(ClientError::UnknownPin { pin });
            }
        }
        pins.iter().for_each(|pin| held.release(*pin));
        Ok(())
    }

    /// How many pins have made room for others since this was last asked.
    pub(crate) fn take_evicted(&self) -> u64 {
        match self.evicted.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.evicted.swap(0, Ordering::Relaxed),
        }
    }

    fn note_evicted(&self, pins: &mut PinWords) {
        let evicted = pins.take_evicted();
        if evicted > 0 {
            self.evicted.fetch_add(evicted, Ordering::Relaxed);
        }
    }

    /// Takes all pins of a label back.
    pub(crate) fn release_label(&self, label: u64) {
        self.pins().release_label(label);
    }

    fn shapes(&self) -> MutexGuard<'_, HashMap<ChunkKey, Arc<DomainShape>, KeyHashing>> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pins(&self) -> MutexGuard<'_, PinWords> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the numbers of a shape make sense.
fn is_usable(shape: &DomainShape) -> bool {
    let groups = &shape.groups;
    let sound = |group: &GroupShape| {
        let windowed = matches!(
            group.kind,
            ObjectKind::Window { .. } | ObjectKind::ChunkedLocal { .. }
        );
        group.bit.is_power_of_two() && (!windowed || group.kind.window_tokens() > 0)
    };
    let bits = groups.iter().fold(0_u32, |bits, group| bits | group.bit);
    let anchor = |anchor: u16| {
        let full = |group: &GroupShape| group.group == anchor && group.kind == ObjectKind::Full;
        groups.iter().any(full)
    };
    !groups.is_empty()
        && groups.iter().all(sound)
        && groups.is_sorted_by(|one, next| one.group < next.group)
        && bits.count_ones() as usize == groups.len()
        && shape.anchor.is_none_or(anchor)
        && shape.alignment > 0
        && shape.chunk_size > 0
        && u64::from(shape.chunk_size).is_multiple_of(shape.alignment)
}
