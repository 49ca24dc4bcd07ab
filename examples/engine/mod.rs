//! A small engine for the examples: what every rank of it does before it stores or loads.
//!
//! Its KV cache is one tensor, `[layers, blocks, page]`: vLLM's is like that, with larger numbers.

#![allow(dead_code, unreachable_pub)] // each example uses its own part of this

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kvasir::client::{
    Client, ClientConfig, ClientKind, Domain, GroupRegistration, GroupSpan, HostMemory, KvGroupPages,
    KvMemory, LayerPages, LookupAnswer, LookupRequest, Negotiate, ObjectGroupPages, ObjectKind, PayloadPath,
    RegisterKvCache, Tail, TailList,
};
use kvasir::keys::{ChunkKey, DomainFields, Extras, KeyChain};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LAYERS: u64 = 2;
pub const BLOCKS: u64 = 256;
/// Tokens of one block of the engine's block table.
pub const BLOCK_TOKENS: u64 = 16;
/// Bytes of one block in one layer.
const PAGE: u64 = 4096;
/// Bytes of one block.
pub const BLOCK_BYTES: u64 = LAYERS * PAGE;

/// One rank: its connection and its share of the KV cache.
pub struct Engine {
    pub client: Client,
    pub kv: HostMemory,
    pub seed: ChunkKey,
    pub chunk_tokens: u64,
}

impl Engine {
    /// Connects rank `rank` of `world`, and tells the server what it holds.
    pub fn start(socket: &Path, rank: u32, world: u32) -> Result<Self> {
        let client = connect(socket, ClientKind::Worker)?;
        // First both sides agree on the size of a chunk: a multiple of the engine's blocks.
        let chunk_tokens = agree(&client)?;
        // Then the engine says where its pages are. `kv` and the client's handle name the same bytes.
        let kv = HostMemory::zeroed((BLOCKS * BLOCK_BYTES) as usize);
        let layer = |layer| LayerPages {
            region: 0,
            offset: layer * BLOCKS * PAGE,
            block_stride: PAGE,
            page_bytes: PAGE,
        };
        let pages = KvGroupPages {
            tokens_per_block: BLOCK_TOKENS,
            layers: (0..LAYERS).map(layer).collect(),
        };
        let groups = vec![ObjectGroupPages {
            group: 0,
            kv_groups: vec![pages],
        }];
        client.set_memory(KvMemory::new(vec![kv.clone()], groups, BLOCKS)?);
        // And what they hold. Each rank of a tensor parallel engine holds one part of every object.
        let domain = domain(world, chunk_tokens);
        let seed = client.register(RegisterKvCache {
            domain: Domain {
                model: domain.model,
                weights_id: domain.weights_id,
                kv_dtype: domain.kv_dtype,
                fingerprint: domain.fingerprint,
                parallel_shape: domain.parallel_shape,
            },
            rank,
            world_size: world,
            required_alignment: BLOCK_TOKENS,
            spans: spans(),
            groups: vec![GroupRegistration {
                group: 0,
                kind: ObjectKind::Full,
                parts: world as u16,
                part: rank as u16,
                unit_bytes: BLOCK_BYTES,
            }],
            layers: LAYERS as u32,
            blocks: BLOCKS,
            payload_path: PayloadPath::ShmDirect,
            stores: true,
            copy_path: String::new(),
        })?;
        Ok(Self {
            client,
            kv,
            seed,
            chunk_tokens,
        })
    }

    /// Waits until so much of the pool is held for stores. A new server makes its pool present bit by bit, and an
    /// engine would not wait: it would go on, and that store would be dropped.
    pub fn wait_for_room(&self, bytes: u64) {
        wait(|| self.client.reserve(bytes).is_ok_and(|held| held >= bytes));
    }

    /// Fills a block with bytes that follow from `content`.
    pub fn write_block(&self, block: u64, content: u64) -> Result<()> {
        let mix = |at: u64| (((content << 20) + at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        for layer in 0..LAYERS {
            let bytes: Vec<u8> = (layer * PAGE..(layer + 1) * PAGE).map(mix).collect();
            self.kv.write((layer * BLOCKS + block) * PAGE, &bytes)?;
        }
        Ok(())
    }

    /// The bytes of a block, layer by layer.
    pub fn read_block(&self, block: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        for (layer, page) in (0..LAYERS).zip(bytes.chunks_mut(PAGE as usize)) {
            self.kv.read((layer * BLOCKS + block) * PAGE, page)?;
        }
        Ok(bytes)
    }
}

/// Makes a client. A server that is away is no error: the client connects when there is one. Here that is waited for.
pub fn connect(socket: &Path, kind: ClientKind) -> Result<Client> {
    // All processes of one engine have the same 16 bytes.
    let mut config = ClientConfig::new(socket, kind, "example", [7; 16]);
    // Space that each rank holds ahead for its stores. The pools here are small.
    config.grant_bytes = 1 << 20;
    let client = Client::new(config)?;
    wait(|| client.is_healthy());
    Ok(client)
}

/// Agrees on the chunk size: the server's, or what it takes for this engine's blocks to fit.
pub fn agree(client: &Client) -> Result<u64> {
    let agreed = client.negotiate(Negotiate {
        required_alignment: BLOCK_TOKENS,
        spans: spans(),
        preferred_base: 256,
        previous_size: 0,
        binding_domain: None,
    })?;
    Ok(agreed.chunk_size)
}

fn spans() -> Vec<GroupSpan> {
    vec![GroupSpan {
        group: 0,
        tokens: BLOCK_TOKENS,
    }]
}

/// All that decides about the bytes of a chunk beside its tokens: engines of one domain share objects.
pub fn domain(world: u32, chunk_tokens: u64) -> DomainFields {
    DomainFields {
        model: "example/model".into(),
        weights_id: b"revision 1".to_vec(),
        kv_dtype: "bfloat16".into(),
        fingerprint: b"[layers, blocks, page]".to_vec(),
        parallel_shape: format!("tp={world}"),
        chunk_size: chunk_tokens,
    }
}

/// The names of a prompt's objects. They follow from the domain, by its seed, and from all tokens up to their ends.
pub fn keys(seed: ChunkKey, chunk_tokens: u64, tokens: &[u32]) -> Result<KeyChain> {
    let mut chain = KeyChain::new(seed, chunk_tokens as u32, Extras::default())?;
    chain.extend(tokens);
    Ok(chain)
}

/// Asks how much of a prompt is there: full chunks, and the tail that ends at any block of the last one. What is
/// found is pinned under the label `request`.
pub fn ask(client: &Client, seed: ChunkKey, chain: &KeyChain, request: u64) -> Result<LookupAnswer> {
    let chunk = chain.keys().len() as u32;
    let tails = chain.tail_keys(BLOCK_TOKENS as u32).into_iter();
    let tails = tails.map(|(tokens, key)| Tail { key, chunk, tokens });
    Ok(client.lookup(&LookupRequest {
        domain_seed: seed,
        label: request,
        keys: chain.keys(),
        tails: &TailList::new(tails.collect()),
        max_tokens: chain.len_tokens() as u64,
        local_tokens: 0,
        pin: true,
        describe: false,
    })?)
}

fn wait(holds: impl Fn() -> bool) {
    while !holds() {
        thread::sleep(Duration::from_millis(5));
    }
}
