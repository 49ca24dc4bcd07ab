//! What does a lookup cost, by the server and by a client itself, and what do more object groups add to it?
//!
//! 128 chunks that are all present, answered, pinned and released again: through the core, and as a client does that
//! maps the index; with one full-attention group, and with six groups (full attention, three windows, chunked local,
//! recurrent) of which every chunk has an object. Then the ratios of the medians, taken alternately so that a
//! busy machine disturbs both sides alike; the goal is at most 3. Last: what a registration of the six groups costs.

use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use criterion::Criterion;
use kvasir::cache::{ClientId, ClientInfo, ClientRegions, Core, CoreConfig, Registration};
use kvasir::geometry::ObjectKind;
use kvasir::index::layout::IndexLayout;
use kvasir::index::local;
use kvasir::index::pin_words::PinWords;
use kvasir::index::reader::IndexReader;
use kvasir::keys::ChunkKey;
use kvasir::object::{
    CommitRequest, DomainShape, Extent, GroupRegistration, LookupRequest, ObjectId, PayloadPath, StoreItem,
    Tail, TailList,
};
use kvasir::shm::lock::try_lock_byte;
use kvasir::shm::{Mapping, ReadOnly};

use report::Report;

mod report;

const CHUNKS: u64 = 128;
const CHUNK_TOKENS: u32 = 256;
const ALIGNMENT: u64 = 32;
const FRAME: u64 = 65536;
const POOL: u64 = 2048 * FRAME;
const ONE: &[ObjectKind] = &[ObjectKind::Full];
const SIX: &[ObjectKind] = &[
    ObjectKind::Full,
    ObjectKind::Window { tokens: 128 },
    ObjectKind::Window { tokens: 512 },
    ObjectKind::Window { tokens: 1024 },
    ObjectKind::ChunkedLocal { tokens: 8192 },
    ObjectKind::Recurrent,
];

struct Cache {
    core: Core,
    client: ClientId,
    seed: ChunkKey,
    keys: Vec<ChunkKey>,
    /// As a connector names them, at every alignment of the prompt; none is there.
    tails: TailList,
    _liveness: OwnedFd,
    own: Own,
}

/// What a client maps to look up by itself.
struct Own {
    index: Mapping<ReadOnly>,
    layout: IndexLayout,
    pins: PinWords,
    shape: Option<DomainShape>,
}

impl Own {
    fn new(regions: &ClientRegions, frames: u32) -> Self {
        let index = Mapping::map_foreign(regions.index.as_fd(), regions.index_bytes as usize).expect("index");
        let slab = Mapping::map_foreign_at(
            regions.slabs.as_fd(),
            regions.slab_offset,
            regions.slab_bytes as usize,
        );
        Self {
            layout: IndexLayout::read(&index).expect("an index"),
            index,
            pins: PinWords::new(Arc::new(slab.expect("slab")), frames),
            shape: None,
        }
    }
}

impl Cache {
    /// A core in which every group has an object of every chunk, one frame each.
    fn filled(kinds: &[ObjectKind]) -> Self {
        let config = CoreConfig {
            pool_bytes: POOL,
            ..CoreConfig::default()
        };
        let mut core = Core::create(config).expect("core");
        core.set_chunk_size(CHUNK_TOKENS).expect("chunk size");
        core.prefaulted(POOL).expect("prefaulted");
        let client = core.open_client(ClientInfo::default()).expect("client");
        let regions = core.regions(client).expect("regions");
        assert!(try_lock_byte(regions.liveness.as_fd(), client.slab().into()).expect("lock"));
        core.attach(client).expect("attach");
        let own = Own::new(&regions, (POOL / FRAME) as u32);
        let seed = ChunkKey::from_bytes([7; 32]);
        let keys = (0..CHUNKS)
            .map(|i| ChunkKey::from_bytes(*blake3::hash(&i.to_le_bytes()).as_bytes()))
            .collect();
        let tails = (0..CHUNKS as u32).flat_map(|chunk| {
            (1..CHUNK_TOKENS / ALIGNMENT as u32).map(move |unit| Tail {
                key: ChunkKey::from_bytes(
                    *blake3::hash(&[chunk, unit].map(u32::to_le_bytes).concat()).as_bytes(),
                ),
                chunk,
                tokens: unit * ALIGNMENT as u32,
            })
        });
        let mut cache = Self {
            core,
            client,
            seed,
            keys,
            tails: TailList::new(tails.collect()),
            _liveness: regions.liveness,
            own,
        };
        cache.register(kinds);
        for (group, kind) in kinds.iter().enumerate() {
            cache.store(group as u16, *kind);
        }
        let request = LookupRequest {
            describe: true,
            pin: false,
            ..request(seed, &[], &NONE)
        };
        cache.own.shape = cache.core.lookup(client, &request).expect("lookup").shape;
        cache
    }

    fn register(&mut self, kinds: &[ObjectKind]) {
        let groups = kinds.iter().enumerate().map(|(group, kind)| GroupRegistration {
            group: group as u16,
            kind: *kind,
            parts: 1,
            part: 0,
            unit_bytes: 1024,
        });
        let registration = Registration {
            domain_seed: self.seed,
            rank: 0,
            world_size: 1,
            required_alignment: ALIGNMENT,
            chunk_size: CHUNK_TOKENS,
            groups: groups.collect(),
            payload_path: PayloadPath::ShmDirect,
            stores: true,
        };
        self.core.register(self.client, &registration).expect("register");
    }

    fn store(&mut self, group: u16, kind: ObjectKind) {
        let granted = self.core.grant(self.client, CHUNKS * FRAME).expect("grant");
        let extents: Vec<Extent> = granted
            .iter()
            .flat_map(|e| e.frames())
            .map(|f| Extent::new(f, 1))
            .collect();
        let units = if kind == ObjectKind::Recurrent {
            1
        } else {
            u64::from(CHUNK_TOKENS) / ALIGNMENT
        };
        let items: Vec<StoreItem> = (0..self.keys.len())
            .map(|i| StoreItem {
                id: ObjectId {
                    key: self.keys[i],
                    group,
                },
                parent: i.checked_sub(1).map(|p| self.keys[p]),
                skipped: false,
                part: 0,
                tokens: CHUNK_TOKENS,
                held_from: 0,
                bytes: units * 1024,
                checksum: 0,
                first_extent: i as u32,
                extent_count: 1,
            })
            .collect();
        let request = CommitRequest {
            domain_seed: self.seed,
            items: items.to_vec(),
            extents: extents.to_vec(),
            supersedes: vec![],
            grant_bytes: 0,
        };
        self.core.commit(self.client, &request).expect("commit");
    }

    fn lookup(&mut self) -> u64 {
        let request = request(self.seed, &self.keys, &self.tails);
        let answer = self.core.lookup(self.client, black_box(&request));
        let answer = answer.expect("lookup");
        self.core.release(self.client, &[answer.pin]).expect("release");
        answer.hit_tokens
    }

    fn look_up_direct(&mut self) -> u64 {
        let request = request(self.seed, &self.keys, &self.tails);
        let own = &mut self.own;
        let reader = IndexReader::new(&own.index, own.layout);
        let shape = own.shape.as_ref().expect("a complete domain");
        let found = local::lookup(&reader, shape, black_box(&request), &mut own.pins, || true);
        let answer = found.expect("lookup").answer;
        own.pins.release(answer.pin);
        answer.hit_tokens
    }
}

static NONE: LazyLock<TailList> = LazyLock::new(TailList::default);

fn request<'a>(domain_seed: ChunkKey, keys: &'a [ChunkKey], tails: &'a TailList) -> LookupRequest<'a> {
    LookupRequest {
        domain_seed,
        label: 1,
        keys,
        tails,
        max_tokens: u64::MAX,
        local_tokens: 0,
        pin: true,
        describe: false,
    }
}

type Lookup = fn(&mut Cache) -> u64;

fn timed(cache: &mut Cache, lookup: Lookup) -> Duration {
    let start = Instant::now();
    black_box(lookup(cache));
    start.elapsed()
}

fn ratio(who: &str, lookup: Lookup, [one, six]: [&mut Cache; 2], report: &mut Report) {
    let (mut of_one, mut of_six) = (Vec::new(), Vec::new());
    for _ in 0..1001 {
        of_one.push(timed(one, lookup));
        of_six.push(timed(six, lookup));
    }
    let (of_one, of_six) = (report::median(of_one), report::median(of_six));
    report.figure(format!("128 chunks by the {who}/1 group"), of_one * 1e6, "us");
    report.figure(format!("128 chunks by the {who}/6 groups"), of_six * 1e6, "us");
    let ratio = report.ratio(
        format!("128 chunks by the {who}/6 groups of 1 group"),
        of_six,
        of_one,
    );
    println!(
        "lookup of 128 chunks by the {who}: 1 group {:.1} us, 6 groups {:.1} us, ratio {ratio:.2} (goal: at most 3)",
        of_one * 1e6,
        of_six * 1e6
    );
}

fn main() {
    let (mut one, mut six) = (Cache::filled(ONE), Cache::filled(SIX));
    let ways: [(&str, Lookup); 2] = [("server", Cache::lookup), ("client", Cache::look_up_direct)];
    let mut criterion = Criterion::default().configure_from_args();
    let mut report = Report::new("lookup");
    for (who, lookup) in ways {
        for cache in [&mut one, &mut six] {
            assert_eq!(lookup(cache), CHUNKS * u64::from(CHUNK_TOKENS));
        }
        let mut group = criterion.benchmark_group(format!("lookup/128_chunks/{who}"));
        group.bench_function("1_group", |b| b.iter(|| lookup(&mut one)));
        group.bench_function("6_groups", |b| b.iter(|| lookup(&mut six)));
        group.finish();
        if report.is_wanted() {
            ratio(who, lookup, [&mut one, &mut six], &mut report);
        }
    }
    // The server keeps object groups; layers reach it as a count, so 61 cost what one does.
    criterion.bench_function("registration/6_groups", |b| b.iter(|| six.register(SIX)));
    criterion.final_summary();
    report.finish();
}
