//! The core as the server drives it.

mod domains;
mod dropped;
mod evict;
mod groups;
mod incomplete;
mod pieces;
mod pins;
mod random;
mod reads;
mod room;
mod shapes;
mod slices;
mod store;
mod tails;
mod turns;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::*;
use crate::geometry::ObjectKind;
use crate::index::pin_words::PinWords;
use crate::index::presence::{Limits, Presence, Source, TailPresence};
use crate::index::sweep::tests::plan;
use crate::index::{local, slab};
use crate::keys::ChunkKey;
use crate::object::*;
use crate::shm::lock::try_lock_byte;
use crate::shm::{Mapping, ReadWrite};

/// Asks for one part of objects.
pub(super) fn parts(domain_seed: ChunkKey, label: u64, part: u16, ids: &[ObjectId]) -> RetrieveRequest {
    RetrieveRequest {
        domain_seed,
        label,
        part,
        ids: ids.to_vec(),
    }
}

pub(super) const CHUNK: u32 = 64;
pub(super) const ALIGN: u64 = 16;
/// One frame per alignment: a chunk has four.
pub(super) const UNIT: u64 = FRAME_BYTES;

/// A client process as far as the core can tell.
pub(super) struct Peer {
    pub(super) id: ClientId,
    liveness: Option<OwnedFd>,
    slab: Arc<Mapping<ReadWrite>>,
    /// Its pins by the book. Not of use beside [`Peer::slab_pin`].
    pub(super) words: PinWords,
}

impl Peer {
    /// Pins a record the way a client does that reads the index itself.
    pub(super) fn slab_pin(&self, word: usize, record: Option<u32>) {
        let value = record.map_or(0, |r| u64::from(r) + 1);
        let high = word as u64 + 1;
        self.slab
            .store_words(slab::SLAB_HIGH_WATER, &[high.max(8)])
            .unwrap();
        self.slab
            .store_words(slab::SLAB_PINS + word * 8, &[value])
            .unwrap();
    }

    pub(super) fn die(&mut self) {
        self.liveness = None;
    }
}

pub(super) struct Rig {
    pub(super) core: Core,
    pub(super) seed: ChunkKey,
    /// What full chunks of windows are stored with.
    pub(super) held_from: u32,
}

pub(super) fn key(prompt: u32, chunk: u32, tokens: u32) -> ChunkKey {
    let mut bytes = Vec::new();
    for word in [prompt, chunk, tokens] {
        bytes.extend(word.to_le_bytes());
    }
    ChunkKey::from_bytes(*blake3::hash(&bytes).as_bytes())
}

/// Chunk `chunk` of a prompt, and the one before.
pub(super) fn chain(prompt: u32, chunk: u32) -> (ChunkKey, Option<ChunkKey>) {
    let parent = chunk.checked_sub(1).map(|c| key(prompt, c, CHUNK));
    (key(prompt, chunk, CHUNK), parent)
}

pub(super) fn group(group: u16, kind: ObjectKind, parts: u16, part: u16) -> GroupRegistration {
    GroupRegistration {
        group,
        kind,
        parts,
        part,
        unit_bytes: UNIT,
    }
}

impl Rig {
    /// A core with a pool of that many frames, all prefaulted. One client's pins may keep all of it.
    pub(super) fn new(frames: u64) -> Self {
        Self::with_pins_of(frames, 100)
    }

    /// The same, and one client's pins may keep that part of it.
    pub(super) fn with_pins_of(frames: u64, percent: u32) -> Self {
        let config = CoreConfig {
            pool_bytes: frames * FRAME_BYTES,
            max_pinned_percent_per_client: percent,
            ..CoreConfig::default()
        };
        let mut core = Core::create(config).unwrap();
        core.set_chunk_size(CHUNK).unwrap();
        core.prefaulted(frames * FRAME_BYTES).unwrap();
        core.prefault_ended();
        Self {
            core,
            seed: ChunkKey::from_bytes([9; 32]),
            held_from: 0,
        }
    }

    /// A client that holds its lock byte and has attached.
    pub(super) fn peer(&mut self, instance: u8) -> Peer {
        let info = ClientInfo {
            engine_instance: [instance; 16],
            kind: ClientKind::Worker,
            name: format!("peer of {instance}"),
        };
        let id = self.core.open_client(info).unwrap();
        let regions = self.core.regions(id).unwrap();
        assert!(try_lock_byte(regions.liveness.as_fd(), id.slab().into()).unwrap());
        self.core.attach(id).unwrap();
        let slab = Mapping::<ReadWrite>::map_foreign_at(
            regions.slabs.as_fd(),
            regions.slab_offset,
            regions.slab_bytes as usize,
        )
        .unwrap();
        let slab = Arc::new(slab);
        Peer {
            id,
            liveness: Some(regions.liveness),
            words: PinWords::new(Arc::clone(&slab), self.core.pool.frames()),
            slab,
        }
    }

    pub(super) fn register(
        &mut self,
        peer: &Peer,
        rank: u32,
        world: u32,
        groups: &[GroupRegistration],
    ) -> Result<(), CoreError> {
        let registration = Registration {
            domain_seed: self.seed,
            rank,
            world_size: world,
            required_alignment: ALIGN,
            chunk_size: CHUNK,
            groups: groups.to_vec(),
            payload_path: PayloadPath::ShmDirect,
            stores: true,
        };
        self.core.register(peer.id, &registration).map(drop)
    }

    /// A client registered as the only rank of a model with these groups.
    pub(super) fn engine(&mut self, instance: u8, kinds: &[ObjectKind]) -> Peer {
        let peer = self.peer(instance);
        let groups: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(i, kind)| group(i as u16, *kind, 1, 0))
            .collect();
        self.register(&peer, 0, 1, &groups).unwrap();
        peer
    }

    pub(super) fn commit(
        &mut self,
        peer: &Peer,
        items: &[StoreItem],
        extents: &[Extent],
    ) -> Result<CommitAnswer, CoreError> {
        self.core.commit(
            peer.id,
            &CommitRequest {
                domain_seed: self.seed,
                items: items.to_vec(),
                extents: extents.to_vec(),
                supersedes: vec![],
                grant_bytes: 0,
            },
        )
    }

    /// Stores one part of one object into space granted for it; nothing when there is no space.
    pub(super) fn try_put(
        &mut self,
        peer: &Peer,
        id: ObjectId,
        parent: Option<ChunkKey>,
        tokens: u32,
        part: u16,
        bytes: u64,
    ) -> Option<CommitOutcome> {
        let extents = self.core.grant(peer.id, bytes).unwrap();
        if crate::object::count_frames(&extents) < frames_for(bytes) {
            self.core.abort(peer.id, &extents).unwrap();
            return None;
        }
        let item = StoreItem {
            id,
            parent,
            skipped: false,
            part,
            tokens,
            held_from: if id.group == 1 && tokens == CHUNK {
                self.held_from
            } else {
                0
            },
            bytes,
            checksum: 0,
            first_extent: 0,
            extent_count: extents.len() as u32,
        };
        Some(self.commit(peer, &[item], &extents).unwrap().outcomes[0])
    }

    pub(super) fn put(
        &mut self,
        peer: &Peer,
        key: ChunkKey,
        group: u16,
        parent: Option<ChunkKey>,
        tokens: u32,
    ) -> CommitOutcome {
        let bytes = UNIT * u64::from(tokens) / ALIGN;
        self.try_put(peer, ObjectId { key, group }, parent, tokens, 0, bytes)
            .expect("space for one object")
    }

    /// Stores chunks `0..chunks` of a prompt in group 0.
    pub(super) fn put_chain(&mut self, peer: &Peer, prompt: u32, chunks: u32) {
        for c in 0..chunks {
            let (key, parent) = chain(prompt, c);
            assert_eq!(self.put(peer, key, 0, parent, CHUNK), CommitOutcome::Published);
        }
    }

    pub(super) fn lookup(&mut self, peer: &Peer, prompt: u32, chunks: u32, tails: &[Tail]) -> LookupAnswer {
        self.lookup_at(peer, prompt, chunks, tails, u64::MAX, 0)
    }

    pub(super) fn lookup_at(
        &mut self,
        peer: &Peer,
        prompt: u32,
        chunks: u32,
        tails: &[Tail],
        max_tokens: u64,
        local_tokens: u64,
    ) -> LookupAnswer {
        let keys: Vec<_> = (0..chunks).map(|c| key(prompt, c, CHUNK)).collect();
        let request = LookupRequest {
            domain_seed: self.seed,
            label: u64::from(prompt),
            keys: &keys,
            tails: &TailList::new(tails.to_vec()),
            max_tokens,
            local_tokens,
            pin: true,
            describe: false,
        };
        self.core.lookup(peer.id, &request).unwrap()
    }

    /// The same by the client itself, with pins in its slab that may keep anything.
    pub(super) fn look_up_direct(
        &self,
        peer: &mut Peer,
        prompt: u32,
        chunks: u32,
        tails: &[Tail],
        max_tokens: u64,
    ) -> LookupAnswer {
        let keys: Vec<_> = (0..chunks).map(|c| key(prompt, c, CHUNK)).collect();
        let request = LookupRequest {
            domain_seed: self.seed,
            label: 0,
            keys: &keys,
            tails: &TailList::new(tails.to_vec()),
            max_tokens,
            local_tokens: 0,
            pin: true,
            describe: false,
        };
        let (number, domain) = self.core.registry.find(&self.seed).unwrap();
        let shape = domain.shape(number, u64::MAX);
        let reader = self.core.index.reader();
        let found = local::lookup(&reader, &shape, &request, &mut peer.words, || true);
        found.unwrap().answer
    }

    /// The longest hit of a prompt, from everything that is there of it.
    pub(super) fn longest(&self, prompt: u32, chunks: u32, tails: &[Tail], max_tokens: u64) -> u64 {
        let (number, domain) = self.core.registry.find(&self.seed).unwrap();
        let shape = domain.shape(number, u64::MAX);
        let reader = self.core.index.reader();
        let mut presence = Presence::default();
        let mut note = |source: Source, key, tokens| {
            let mut groups = 0;
            for group in &shape.groups {
                let id = ObjectId {
                    key,
                    group: group.group,
                };
                let Some(view) = reader.lookup(&id).filter(|view| view.tokens == tokens) else {
                    continue;
                };
                groups |= group.bit;
                if view.held_from > 0 {
                    presence.holes.insert((source, group.bit), view.held_from);
                }
            }
            groups
        };
        let mut whole: Vec<u32> = (0..chunks)
            .map(|chunk| note(Source::Chunk(chunk), key(prompt, chunk, CHUNK), CHUNK))
            .collect();
        let tails: Vec<TailPresence> = (0..)
            .zip(tails)
            .map(|(at, tail)| TailPresence {
                chunk: tail.chunk,
                tokens: tail.tokens,
                groups: note(Source::Tail(at), tail.key, tail.tokens),
            })
            .collect();
        if let Some(anchor) = shape.anchor() {
            // Behind the first chunk that full attention lacks there is nothing.
            let full = whole.iter().take_while(|groups| *groups & anchor.bit != 0);
            whole.truncate(full.count());
        }
        (presence.chunks, presence.tails) = (whole, tails);
        let limits = Limits {
            chunk_size: CHUNK.into(),
            max_tokens,
            local_tokens: 0,
        };
        plan(&shape.groups, &presence, &limits).hit_tokens
    }

    /// What a client finds itself of one part of each, with nothing pinned afterwards.
    pub(super) fn retrieve_direct(&self, peer: &mut Peer, part: u16, ids: &[ObjectId]) -> RetrieveAnswer {
        let (domain, request) = (
            self.core.registry.find(&self.seed).unwrap().0,
            parts(self.seed, 0, part, ids),
        );
        let reader = self.core.index.reader();
        let (found, shortened) =
            local::retrieve(&reader, domain, u64::MAX, &request, &mut peer.words, || true).unwrap();
        assert!(!shortened);
        peer.words.release(found.pin);
        found
    }

    pub(super) fn release(&mut self, peer: &Peer, pin: u64) {
        if pin != 0 {
            self.core.release(peer.id, &[pin]).unwrap();
        }
    }

    /// Chunks of a prompt that are there, without touching anything.
    pub(super) fn resident(&self, prompt: u32, chunks: u32) -> Vec<u32> {
        let reader = self.core.index.reader();
        let id = |c| ObjectId {
            key: key(prompt, c, CHUNK),
            group: 0,
        };
        (0..chunks).filter(|c| reader.probe(&id(*c)).is_some()).collect()
    }

    pub(super) fn record(&self, key: ChunkKey, group: u16) -> Option<u32> {
        self.core.index.reader().probe(&ObjectId { key, group })
    }

    pub(super) fn audit(&self) {
        self.core.audit().unwrap();
        let pool = self.core.status().pool;
        assert_eq!(
            pool.free + pool.used + pool.granted + pool.quarantined,
            pool.total
        );
    }
}

pub(super) fn tail(prompt: u32, chunk: u32, tokens: u32) -> Tail {
    Tail {
        key: key(prompt, chunk, tokens),
        chunk,
        tokens,
    }
}
