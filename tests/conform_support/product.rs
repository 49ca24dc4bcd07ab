//! The product's own client on its way through the script of `kvasir conform`.

use std::path::Path;
use std::time::{Duration, Instant};

use kvasir::client::{
    Client, ClientConfig, ClientKind, Domain, GroupRegistration, GroupSpan, HostMemory, KvGroupPages,
    KvMemory, LayerPages, LoadRequest, LookupRequest, Negotiate, ObjectGroupPages, ObjectId, ObjectKind,
    PayloadPath, RegisterKvCache, StoreOutcome, StoreRequest, TailList,
};
use kvasir::keys::{Extras, KeyChain};

use super::token;

const BLOCK: u64 = 16;
const BLOCKS: u64 = 64;
const PAGE: u64 = 2048;
const CHUNKS: usize = 3;
const WATCHDOG: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WATCHDOG, "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Engine {
    client: Client,
    kv: HostMemory,
    chunk: u64,
}

impl Engine {
    fn chain(&self, number: u64) -> KeyChain {
        let tokens: Vec<u32> = (0..CHUNKS as u64 * self.chunk)
            .map(|i| token(number, i))
            .collect();
        let mut chain = KeyChain::new(
            self.client.domain_seed().unwrap(),
            self.chunk as u32,
            Extras::default(),
        )
        .unwrap();
        chain.extend(&tokens);
        chain
    }

    /// Blocks of chunk `chunk`, from block `first` on.
    fn blocks(&self, first: u64, chunk: usize) -> Vec<Vec<i64>> {
        let per_chunk = self.chunk / BLOCK;
        let from = first + chunk as u64 * per_chunk;
        vec![(from..from + per_chunk).map(|block| block as i64).collect()]
    }

    /// Stores a prompt from its blocks until all of it is there.
    fn store(&self, number: u64, first: u64) {
        eventually("a store", || {
            let chain = self.chain(number);
            let requests = chain.keys().iter().enumerate().map(|(chunk, key)| StoreRequest {
                id: ObjectId { key: *key, group: 0 },
                parent: chain.parent_of(chunk).filter(|_| chunk > 0),
                part: 0,
                tokens: self.chunk as u32,
                blocks: Some(self.blocks(first, chunk)),
            });
            let requests: Vec<StoreRequest> = requests.collect();
            let outcomes = self.client.store(&requests, &[]);
            outcomes.is_ok_and(|outcomes| {
                let there = |outcome| matches!(outcome, StoreOutcome::Published | StoreOutcome::Exists);
                outcomes.into_iter().all(there)
            })
        });
    }

    /// Looks a prompt up until all of it is a hit, and loads it into other blocks.
    fn load(&self, number: u64, into: u64) {
        let chain = self.chain(number);
        let label = 40 + number;
        eventually("a hit", || {
            let found = self.client.lookup(&LookupRequest {
                domain_seed: self.client.domain_seed().unwrap(),
                label,
                keys: chain.keys(),
                tails: &TailList::default(),
                max_tokens: u64::MAX,
                local_tokens: 0,
                pin: true,
                describe: false,
            });
            let Ok(found) = found else { return false };
            let all = found.hit_tokens == CHUNKS as u64 * self.chunk;
            let loaded = all && {
                let loads = chain.keys().iter().enumerate().map(|(chunk, key)| LoadRequest {
                    id: ObjectId { key: *key, group: 0 },
                    tokens: self.chunk as u32,
                    blocks: self.blocks(into, chunk),
                });
                let loaded = self.client.load(label, 0, &loads.collect::<Vec<_>>());
                loaded.is_ok_and(|loaded| loaded.iter().all(|one| *one))
            };
            let _ = self.client.release(found.pin.as_slice());
            loaded
        });
    }
}

/// The whole script.
pub fn go(socket: &Path) {
    let mut config = ClientConfig::new(socket, ClientKind::Worker, "product", [8; 16]);
    config.heartbeat = Duration::from_millis(50);
    config.deadline = Duration::from_secs(10);
    config.grant_bytes = 1 << 20;
    let client = Client::new(config).unwrap();
    eventually("the server", || client.is_healthy());
    let spans = vec![GroupSpan {
        group: 0,
        tokens: BLOCK,
    }];
    let negotiate = Negotiate {
        required_alignment: BLOCK,
        spans: spans.clone(),
        preferred_base: 0,
        previous_size: 0,
        binding_domain: None,
    };
    let chunk = client.negotiate(negotiate).unwrap().chunk_size;
    let kv = HostMemory::zeroed((BLOCKS * PAGE) as usize);
    let layer = LayerPages {
        region: 0,
        offset: 0,
        block_stride: PAGE,
        page_bytes: PAGE,
    };
    let pages = KvGroupPages {
        tokens_per_block: BLOCK,
        layers: vec![layer],
    };
    let groups = vec![ObjectGroupPages {
        group: 0,
        kv_groups: vec![pages],
    }];
    client.set_memory(KvMemory::new(vec![kv.clone()], groups, BLOCKS).unwrap());
    let register = RegisterKvCache {
        domain: Domain {
            model: "product".into(),
            weights_id: vec![5; 32],
            kv_dtype: "uint8".into(),
            fingerprint: vec![6; 32],
            parallel_shape: "tp=1".into(),
        },
        rank: 0,
        world_size: 1,
        required_alignment: BLOCK,
        spans,
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Full,
            parts: 1,
            part: 0,
            unit_bytes: PAGE,
        }],
        layers: 1,
        blocks: BLOCKS,
        payload_path: PayloadPath::ShmDirect,
        stores: true,
        copy_path: String::new(),
    };
    client.register(register).unwrap();
    let engine = Engine { client, kv, chunk };
    for block in 1..=12 {
        engine
            .kv
            .write(block * PAGE, &vec![block as u8; PAGE as usize])
            .unwrap();
    }
    engine.store(1, 1);
    engine.load(1, 20);
    let mut bytes = vec![0; PAGE as usize];
    engine.kv.read(20 * PAGE, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 1), "what was stored");
    engine.load(2, 40);
    let boot = engine.client.boot_id();
    engine.store(3, 40);
    eventually("another server", || {
        engine.client.is_healthy() && engine.client.boot_id() != boot
    });
    engine.store(1, 1);
    engine.load(1, 20);
    engine.client.close();
}
