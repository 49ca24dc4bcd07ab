//! What a peer registers, as the core's registration.

use crate::cache::Registration;
use crate::keys::ChunkKey;
use crate::wire::RegisterKvCache;

/// The registration of a rank in the domain of a seed.
pub(super) fn registration(
    request: &RegisterKvCache,
    domain_seed: ChunkKey,
    chunk_size: u32,
) -> Registration {
    Registration {
        domain_seed,
        rank: request.rank,
        world_size: request.world_size,
        required_alignment: request.required_alignment,
        chunk_size,
        groups: request.groups.clone(),
        payload_path: request.payload_path,
        stores: request.stores,
    }
}
