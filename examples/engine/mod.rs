//! A small engine for the examples: what every rank of it does before it stores or loads.
//!
//! Its KV cache is one tensor, `[layers, blocks, page]`: vLLM's is like that, with larger numbers.

#![allow(dead_code, unreachable_pub)] // each example uses its own part of this

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kvasir::client::{
    Client, ClientConfig, ClientKind, Domain, GroupSpan, HostMemory, Joined, KvGroupPages, LayerPages,
    LookupAnswer, LookupRequest, Negotiate, ObjectGroupPages, ObjectKind, Rank, Tail, TailList,
};
use kvasir::keys::{ChunkKey, Extras, KeyChain};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LAYERS: u64 = 2;
pub const BLOCKS: u64 = 256;
/// Tokens of a chunk, if no other engine has decided.
const CHUNK_TOKENS: u64 = 256;
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
    pub fn start(socket: &Path, rank: u16, world: u16) -> Result<Self> {
        let client = connect(socket, ClientKind::Worker)?;
        // Both sides agree on the size of a chunk, a multiple of the engine's blocks. The engine says where its pages are,
        // and what they hold. `kv` and the client's handle name the same bytes.
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
        let pages = ObjectGroupPages {
            group: 0,
            kv_groups: vec![pages],
        };
        let Joined { chunk_tokens, seed } = client.join(Rank {
            domain: domain(world),
            rank,
            world_size: world,
            preferred_chunk: CHUNK_TOKENS,
            memory: vec![kv.clone()],
            groups: vec![(ObjectKind::Full, pages)],
            blocks: BLOCKS,
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

/// What a scheduler does, which has no KV cache to join with: it agrees on the chunk size as the ranks do, and computes the
/// seed that they are told.
pub fn agree(client: &Client, world: u16) -> Result<(u64, ChunkKey)> {
    let spans = vec![GroupSpan {
        group: 0,
        tokens: BLOCK_TOKENS,
    }];
    let agreed = client.negotiate(Negotiate {
        required_alignment: BLOCK_TOKENS,
        spans,
        preferred_base: CHUNK_TOKENS,
        previous_size: 0,
        binding_domain: None,
    })?;
    Ok((agreed.chunk_size, domain(world).seed(agreed.chunk_size)?))
}

/// All that decides about the bytes of a chunk beside its tokens: engines of one domain share objects.
fn domain(world: u16) -> Domain {
    Domain {
        model: "example/model".into(),
        weights_id: b"revision 1".to_vec(),
        kv_dtype: "bfloat16".into(),
        fingerprint: b"[layers, blocks, page]".to_vec(),
        parallel_shape: format!("tp={world}"),
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
