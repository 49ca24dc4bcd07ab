//! One call for an engine that is like most: it agrees on the chunk size, says where its pages are, and registers.

use super::memory::{KvGroupPages, KvMemory, ObjectGroupPages};
use super::{Client, ClientError, Maps};
use crate::copy::HostMemory;
use crate::geometry::ObjectKind;
use crate::geometry::chunk::alignment;
use crate::keys::ChunkKey;
use crate::object::{GroupRegistration, GroupSpan, PayloadPath};
use crate::wire::{Domain, Negotiate, RegisterKvCache};

/// One rank of an engine: what its KV cache means, and where it is. Each rank of the engine holds a part of its own of
/// every object, as tensor parallel ones do, and stores it.
///
/// Ranks that share a part, and engines that name a binding domain, use [`Client::negotiate`], [`Client::set_memory`]
/// and [`Client::register`].
#[derive(Clone, Debug)]
pub struct Rank {
    /// All that decides about the bytes of a chunk beside its tokens.
    pub domain: Domain,
    /// Its number.
    pub rank: u16,
    /// How many ranks there are.
    pub world_size: u16,
    /// The chunk size that is wanted if nobody else has decided; it grows to a multiple of the blocks.
    pub preferred_chunk: u64,
    /// The memory that the pages are in.
    pub memory: Vec<HostMemory>,
    /// Where they are: each object group, and the part of a prefix that its objects stand for.
    pub groups: Vec<(ObjectKind, ObjectGroupPages)>,
    /// Block ids that there are.
    pub blocks: u64,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Tokens of a chunk.
    pub chunk_tokens: u64,
    /// The seed of the domain's keys.
    pub seed: ChunkKey,
}

impl Client {
    /// Negotiates, names the memory and registers, with what follows from a [`Rank`]. The same call again, with the same
    /// rank, is the same again.
    ///
    /// # Errors
    /// [`ClientError::InvalidArgument`] for a client through which no payload moves, such as a scheduler's. Those of
    /// [`KvMemory::new`], [`Client::negotiate`] and [`Client::register`]. [`ClientError::Unavailable`] while there is no
    /// server: the engine goes on without, and joins once [`Client::is_healthy`].
    pub fn join(&self, rank: Rank) -> Result<Joined, ClientError> {
        let maps = self.config().maps;
        if !matches!(maps, Maps::Pool | Maps::Ring) {
            return Err(ClientError::invalid(format!(
                "a client that maps {maps:?} can neither store nor load; a rank joins with one that maps the pool or has a ring"
            )));
        }
        let (negotiation, registration) = rank.requests()?;
        let pages = rank.groups.into_iter().map(|(_, pages)| pages);
        let memory = KvMemory::new(rank.memory, pages.collect(), rank.blocks)?;
        let chunk_tokens = self.negotiate(negotiation)?.chunk_size;
        self.set_memory(memory);
        let seed = self.register(registration)?;
        Ok(Joined { chunk_tokens, seed })
    }
}

impl Rank {
    /// The two messages that say this.
    fn requests(&self) -> Result<(Negotiate, RegisterKvCache), ClientError> {
        let kv_groups = || self.groups.iter().flat_map(|(_, pages)| &pages.kv_groups);
        let spans: Vec<GroupSpan> = (0..)
            .zip(kv_groups())
            .map(|(group, pages)| GroupSpan {
                group,
                tokens: pages.tokens_per_block,
            })
            .collect();
        for (_, pages) in &self.groups {
            if let Some(empty) = pages
                .kv_groups
                .iter()
                .position(|kv_group| kv_group.tokens_per_block == 0)
            {
                let group = pages.group;
                return Err(ClientError::layout(format!(
                    "object group {group}: KV cache group {empty} has 0 tokens per block"
                )));
            }
        }
        let tokens: Vec<u64> = spans.iter().map(|span| span.tokens).collect();
        let alignment = alignment(&tokens).map_err(ClientError::layout)?;
        let registrations = self.groups.iter().map(|(kind, pages)| {
            let unit_bytes = unit_bytes(*kind, &pages.kv_groups, alignment).ok_or_else(|| {
                let group = pages.group;
                ClientError::layout(format!(
                    "object group {group}: the bytes of {alignment} tokens exceed 64 bits"
                ))
            })?;
            Ok(GroupRegistration {
                group: pages.group,
                kind: *kind,
                parts: self.world_size,
                part: self.rank,
                unit_bytes,
            })
        });
        let registration = RegisterKvCache {
            domain: self.domain.clone(),
            rank: self.rank.into(),
            world_size: self.world_size.into(),
            required_alignment: alignment,
            spans: spans.clone(),
            groups: registrations.collect::<Result<_, ClientError>>()?,
            layers: kv_groups().map(|pages| pages.layers.len() as u32).sum(),
            blocks: self.blocks,
            payload_path: PayloadPath::ShmDirect,
            stores: true,
            copy_path: String::new(),
        };
        let negotiation = Negotiate {
            required_alignment: alignment,
            spans,
            preferred_base: self.preferred_chunk,
            previous_size: 0,
            binding_domain: None,
        };
        Ok((negotiation, registration))
    }
}

/// Bytes of a part per alignment, or of one state. `None`: more than a number holds.
fn unit_bytes(kind: ObjectKind, kv_groups: &[KvGroupPages], alignment: u64) -> Option<u64> {
    let mut total = 0_u64;
    for pages in kv_groups {
        let blocks = match kind {
            ObjectKind::Recurrent => 1,
            _ => alignment / pages.tokens_per_block,
        };
        for layer in &pages.layers {
            total = total.checked_add(layer.page_bytes.checked_mul(blocks)?)?;
        }
    }
    Some(total)
}
