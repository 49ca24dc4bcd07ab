//! The product's own server and client over words that loom follows: publish, evict and read, every interleaving with
//! two preemptions.
//!
//! Run with `LOOM_MAX_PREEMPTIONS=2 RUSTFLAGS="--cfg loom" cargo test --release --lib cache::loom_product`.
//!
//! Each model makes a core with a pool of one frame and a client with mappings of its own, stores an object, and follows the
//! words that both sides are about. A change of an order or a check in the code is a change of the model: `cargo xtask mutants`
//! makes such changes, and docs/proof.md says which test finds which.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::*;
use crate::geometry::ObjectKind;
use crate::index::epochs::{AT_BOOT, EpochReader, fence_after_copy, frame_at};
use crate::index::layout::IndexLayout;
use crate::index::local;
use crate::index::pin_words::PinWords;
use crate::index::reader::IndexReader;
use crate::index::record::{WORD_KEY, WORD_META};
use crate::index::slab::{SLAB_HIGH_WATER, SLAB_PINS};
use crate::keys::ChunkKey;
use crate::object::*;
use crate::pool::RecordState;
use crate::shm::lock::try_lock_byte;
use crate::shm::{Mapping, ReadOnly, ReadWrite};
use crate::sync::modelled::{Word, follow, forget, load};
use crate::sync::shared::Ordering;
use crate::sync::thread;

/// Tokens of an object here, which has one frame.
const TOKENS: u32 = 16;
const SEED: [u8; 32] = [9; 32];
/// What is written into a frame, and the checksum it is stored with.
const FIRST: u64 = 0xF1;
const SECOND: u64 = 0x52;

fn object(number: u8) -> ObjectId {
    // Its first words differ: they are the ones that are followed, and those that choose the bucket.
    let mut key = [7; 32];
    key[0] = number;
    ObjectId {
        key: ChunkKey::from_bytes(key),
        group: 0,
    }
}

/// The server's half.
struct Server {
    core: Core,
    worker: ClientId,
    pool: Mapping<ReadWrite>,
    record: u32,
    incarnation: u64,
}

/// The client's half: what it maps, and nothing of the core.
struct Reader {
    index: Mapping<ReadOnly>,
    epochs: EpochReader<ReadOnly>,
    words: PinWords,
    pool: Mapping<ReadWrite>,
    boot: u64,
    domain: u32,
    _liveness: OwnedFd,
}

/// What a reader took for an object.
struct Taken {
    incarnation: u64,
    /// Whether the last check passed.
    whole: bool,
    bytes: u64,
}

/// A server that holds the first object, and a client of it. The words that both are about are followed from here on.
fn start() -> (Server, Reader) {
    let mut core = Core::create(CoreConfig {
        pool_bytes: FRAME_BYTES,
        max_pinned_percent_per_client: 100,
        ..CoreConfig::default()
    })
    .unwrap();
    core.set_chunk_size(TOKENS).unwrap();
    core.prefaulted(FRAME_BYTES).unwrap();
    core.prefault_ended();
    let worker = core.open_client(ClientInfo::default()).unwrap();
    let regions = core.regions(worker).unwrap();
    assert!(try_lock_byte(regions.liveness.as_fd(), worker.slab().into()).unwrap());
    core.attach(worker).unwrap();
    let registration = Registration {
        domain_seed: ChunkKey::from_bytes(SEED),
        rank: 0,
        world_size: 1,
        required_alignment: TOKENS.into(),
        chunk_size: TOKENS,
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Full,
            parts: 1,
            part: 0,
            unit_bytes: FRAME_BYTES,
        }],
        payload_path: PayloadPath::ShmDirect,
        stores: true,
    };
    let (domain, _) = core.register(worker, &registration).unwrap();
    let map = |fd: &OwnedFd, bytes: u64| Mapping::map_foreign(fd.as_fd(), bytes as usize).unwrap();
    let index: Mapping<ReadOnly> =
        Mapping::map_foreign(regions.index.as_fd(), regions.index_bytes as usize).unwrap();
    let epochs: Mapping<ReadOnly> =
        Mapping::map_foreign(regions.epochs.as_fd(), regions.epochs_bytes as usize).unwrap();
    let slab = Mapping::map_foreign_at(
        regions.slabs.as_fd(),
        regions.slab_offset,
        regions.slab_bytes as usize,
    );
    let slab: Arc<Mapping<ReadWrite>> = Arc::new(slab.unwrap());
    let mut server = Server {
        pool: map(&regions.pool, regions.pool_bytes),
        core,
        worker,
        record: 0,
        incarnation: 0,
    };
    assert!(server.put(&object(1), FIRST));
    let view = server.core.index.reader().lookup(&object(1)).unwrap();
    (server.record, server.incarnation) = (view.record, view.incarnation);

    let layout = IndexLayout::new(1);
    let record = layout.record_at(view.record);
    let pool: Mapping<ReadWrite> = map(&regions.pool, regions.pool_bytes);
    let (index_base, epochs_base) = (index.base().addr(), epochs.base().addr());
    let slab_base = server.core.slabs.base() + regions.slab_offset as usize;
    let both = |one: usize, other: usize, offset: usize| Word(vec![one + offset, other + offset]);
    let at_index = |offset: usize| {
        let value = index.load_only_u64(offset).unwrap().load_relaxed();
        (both(server.core.index.base(), index_base, offset), value)
    };
    let at_epochs = |offset: usize| {
        let value = epochs.load_only_u64(offset).unwrap().load_relaxed();
        (both(server.core.pool.epochs.base(), epochs_base, offset), value)
    };
    let at_slab = |offset: usize| (both(slab_base, slab.base().addr(), offset), 0);
    let [state, meta] = server.core.pool.directory.addresses(view.record);
    let at_pool = both(server.pool.base().addr(), pool.base().addr(), 0);
    let words = [
        at_index(layout.bucket_at(0)),
        at_index(layout.bucket_at(1)),
        at_index(record + 8 * WORD_META),
        at_index(record + 8 * WORD_KEY),
        // The body of one part: its bytes and runs, its checksum, its run.
        at_index(record + 8 * (SHARED_CHECKSUM)),
        at_epochs(frame_at(0)),
        at_epochs(AT_BOOT),
        at_slab(SLAB_HIGH_WATER),
        at_slab(SLAB_PINS),
        (at_pool, FIRST),
        (Word(vec![state]), RecordState::Live as u64),
        (Word(vec![meta]), server.incarnation),
    ];
    assert_eq!(words.len(), META + 1);
    let reader = Reader {
        words: PinWords::new(Arc::clone(&slab), 1),
        boot: epochs.load_only_u64(AT_BOOT).unwrap().load_relaxed(),
        epochs: EpochReader::new(epochs).unwrap(),
        index,
        pool,
        domain,
        _liveness: regions.liveness,
    };
    follow(&words);
    (server, reader)
}

/// Places of the directory's words of the record, in the list of those that are followed.
const STATE: usize = META - 1;
const META: usize = 11;

/// Word of a record with the checksum of its only part.
const SHARED_CHECKSUM: usize = crate::index::record::WORD_INLINE + 1;

impl Server {
    /// Stores an object, as a writer and the server do together. False: there is no space.
    fn put(&mut self, id: &ObjectId, value: u64) -> bool {
        let extents = self.core.grant(self.worker, FRAME_BYTES).unwrap();
        if extents.is_empty() {
            return false;
        }
        self.pool
            .atomic_u64(extents[0].frame as usize * FRAME_BYTES as usize)
            .unwrap()
            .store(value, Ordering::Relaxed);
        let request = CommitRequest {
            domain_seed: ChunkKey::from_bytes(SEED),
            items: vec![StoreItem {
                id: *id,
                parent: None,
                skipped: false,
                part: 0,
                tokens: TOKENS,
                held_from: 0,
                bytes: FRAME_BYTES,
                checksum: value,
                first_extent: 0,
                extent_count: 1,
            }],
            extents,
            supersedes: vec![],
            grant_bytes: 0,
        };
        let answer = self.core.commit(self.worker, &request).unwrap();
        assert_eq!(answer.outcomes, [CommitOutcome::Published]);
        true
    }

    /// Has the first object go, and stores another where it was.
    fn replace(&mut self, id: &ObjectId) {
        self.core.evict_one(self.record).unwrap();
        self.put(id, SECOND);
    }
}

impl Reader {
    fn index(&self) -> IndexReader<'_, ReadOnly> {
        IndexReader::new(&self.index, IndexLayout::new(1))
    }

    /// As the client library loads an object, from its pin to its last check.
    fn load(&mut self, id: &ObjectId) -> Option<Taken> {
        let request = RetrieveRequest {
            domain_seed: ChunkKey::from_bytes(SEED),
            label: 1,
            part: 0,
            ids: vec![*id],
        };
        let reader = IndexReader::new(&self.index, IndexLayout::new(1));
        let (boot, epochs) = (self.boot, &self.epochs);
        let (answer, _) = local::retrieve(&reader, self.domain, 1, &request, &mut self.words, || {
            epochs.boot() == boot
        })
        .unwrap();
        let location = answer.locations[0];
        let taken = (location.incarnation != 0).then(|| {
            let extent = location.extents(&answer.extents)[0];
            self.copy(extent.frame, location.incarnation)
        });
        self.words.release(answer.pin);
        taken
    }

    /// Copies a frame, and checks that it was an incarnation's.
    fn copy(&self, frame: u32, incarnation: u64) -> Taken {
        let at = frame as usize * FRAME_BYTES as usize;
        let bytes = self.pool.atomic_u64(at).unwrap().load(Ordering::Relaxed);
        fence_after_copy();
        let whole = self.epochs.copy_was_whole(self.boot, frame, incarnation);
        Taken {
            incarnation,
            whole,
            bytes,
        }
    }
}

/// A thread of a model with a stack for a whole server: those of loom are for miniatures.
fn start_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    /// Of words.
    const STACK: usize = 1 << 17;
    thread::Builder::new().stack_size(STACK).spawn(run).unwrap()
}

/// Runs a reader beside a server that replaces the first object by another.
fn model(by: ObjectId, read: impl Fn(&mut Reader, u64) + Send + Sync + 'static) {
    let read = Arc::new(read);
    ::loom::model(move || {
        let read = Arc::clone(&read);
        let serving = start_thread(move || {
            let (mut server, mut reader) = start();
            let first = server.incarnation;
            let reading = start_thread(move || {
                read(&mut reader, first);
                reader
            });
            server.replace(&by);
            let reader = reading.join().unwrap();
            forget();
            drop((server, reader));
        });
        serving.join().unwrap();
    });
}

/// What a reader pinned and looked at again stays until it lets go.
#[test]
fn what_a_reader_pinned_is_whole() {
    model(object(2), |reader, first| {
        if let Some(taken) = reader.load(&object(1)) {
            assert_eq!(
                (taken.incarnation, taken.whole, taken.bytes),
                (first, true, FIRST)
            );
        }
    });
}

/// The same where the next object in the same record and frame has the same name.
#[test]
fn what_is_stored_again_is_the_one_or_the_other() {
    model(object(1), |reader, first| {
        if let Some(taken) = reader.load(&object(1)) {
            let bytes = if taken.incarnation == first { FIRST } else { SECOND };
            assert_eq!((taken.whole, taken.bytes), (true, bytes));
        }
    });
}

/// A pin that the server does not see: a server that is gone, or another one's. The last check alone is left.
#[test]
fn a_copy_without_a_pin_is_refused_or_right() {
    model(object(2), |reader, first| {
        let taken = reader.copy(0, first);
        assert!(
            !taken.whole || taken.bytes == FIRST,
            "{:#x} was accepted",
            taken.bytes
        );
    });
}

/// All fields of a view belong to the incarnation that it names.
#[test]
fn a_view_is_of_one_incarnation() {
    model(object(1), |reader, first| {
        if let Some(view) = reader.index().view(0, &object(1)) {
            let checksum = if view.incarnation == first { FIRST } else { SECOND };
            assert_eq!(view.inline[1], checksum);
        }
    });
}

/// What the next server finds in the directory, whenever this one is killed: a record that is live again has its own words.
#[test]
fn a_record_that_is_live_has_its_own_words() {
    model(object(2), |_, first| {
        let before = load(STATE, Ordering::Acquire);
        let now = load(STATE, Ordering::Acquire);
        let meta = load(META, Ordering::Relaxed);
        let live = RecordState::Live as u64;
        assert!(before == live || now != live || meta != first);
    });
}
