//! Structs that grow at their end. Each begins with its size, as the caller's header has it.

#![allow(non_camel_case_types)] // the names are those of the header

use crate::values::*;

/// How a client behaves. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_client_options {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// kvasir_client_kind.
    pub kind: u32,
    /// Path of the server's socket.
    pub socket: *const std::ffi::c_char,
    /// Program and role, for the server's status.
    pub name: *const std::ffi::c_char,
    /// The same 16 bytes in all processes of one serving engine, others in every other.
    pub engine_instance: [u8; 16],
    /// The longest that one exchange with the server may take. 0: 1000.
    pub deadline_ms: u64,
    /// How often a refused or failed step of recovery is tried again. 0: 10000.
    pub heartbeat_ms: u64,
    /// Pool space held ahead for stores. 0: 64 MiB. KVASIR_GRANT_NONE: none.
    pub grant_bytes: u64,
    /// kvasir_maps: which way payload moves is part of it.
    pub maps: u32,
    /// KVASIR_NO_CHECKSUMS.
    pub flags: u32,
    /// With KVASIR_MAPS_RING: bytes of each of the ring's two lanes, one for stores and one for loads. 0: 8 MiB.
    pub ring_bytes: u64,
    /// Threads that share a large copy, the calling one among them. 0: as many as a measurement says is worth it.
    pub copy_threads: u32,
    /// 0.
    pub reserved: u32,
}

/// What a model needs of the chunk size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_negotiation {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// The least common multiple of the positive spans: kvasir_required_alignment.
    pub required_alignment: u64,
    /// The tokens of every KV cache group.
    pub spans: *const kvasir_span,
    /// How many.
    pub span_count: usize,
    /// What is preferred to the server's default, where that is `auto`. 0: none.
    pub preferred_base: u64,
    /// The size that an earlier life of the server gave. 0: none.
    pub previous_size: u64,
    /// What shares a chunk size with this model on a server with one for each. NULL: nothing is said.
    pub binding_domain: *const kvasir_key,
}

/// All that decides about the bytes of an object but its tokens. Engines of one domain share objects.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_domain {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// The model's name.
    pub model: *const std::ffi::c_char,
    /// The identity of its weights.
    pub weights_id: kvasir_bytes,
    /// The type of a KV element, such as bfloat16.
    pub kv_dtype: *const std::ffi::c_char,
    /// Whatever decides about the order of bytes in a page.
    pub fingerprint: kvasir_bytes,
    /// How the model is spread over ranks, such as tp=2.
    pub parallel_shape: *const std::ffi::c_char,
}

/// An object group as it is registered.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_group {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// kvasir_group_kind.
    pub kind: u32,
    /// Window or piece length in tokens, of the kinds that have one.
    pub window_tokens: u64,
    /// Bytes of this rank's part for each alignment of tokens; of a recurrent group, of one state.
    pub unit_bytes: u64,
    /// Its number.
    pub group: u16,
    /// How many parts an object has.
    pub parts: u16,
    /// The part that this rank holds.
    pub part: u16,
    /// 0.
    pub reserved: u16,
}

/// What one rank stores and loads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_registration {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// KVASIR_READS_ONLY.
    pub flags: u32,
    /// The domain of its objects.
    pub domain: *const kvasir_domain,
    /// Its number.
    pub rank: u32,
    /// How many there are.
    pub world_size: u32,
    /// As negotiated.
    pub required_alignment: u64,
    /// As negotiated.
    pub spans: *const kvasir_span,
    /// How many.
    pub span_count: usize,
    /// Its object groups.
    pub groups: *const kvasir_group,
    /// How many.
    pub group_count: usize,
    /// Number of blocks, for status.
    pub blocks: u64,
    /// Number of layers, for status.
    pub layers: u32,
    /// 0.
    pub reserved: u32,
}

/// A KV cache group: layers that share a block table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_kv_group {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// Tokens that one block id spans.
    pub tokens_per_block: u64,
    /// Its layers, in the order in which an object holds them.
    pub layers: *const kvasir_layer,
    /// How many.
    pub layer_count: usize,
}

/// The KV cache groups whose bytes make up the objects of an object group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_group_memory {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// The object group's number.
    pub group: u16,
    /// 0.
    pub reserved: u16,
    /// In ascending order.
    pub kv_groups: *const kvasir_kv_group,
    /// How many.
    pub kv_group_count: usize,
}

/// Where an engine's pages lie.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_memory {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// Number of block ids. Id 0 is the null block: it is neither read nor written.
    pub blocks: u64,
    /// The memory.
    pub regions: *const kvasir_region,
    /// How many.
    pub region_count: usize,
    /// The pages of each object group.
    pub groups: *const kvasir_group_memory,
    /// How many.
    pub group_count: usize,
}

/// One rank of an engine, for kvasir_join: what its KV cache means, and where it lies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_rank {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// The domain of its objects.
    pub domain: *const kvasir_domain,
    /// Its number. It holds the part of that number of every object.
    pub rank: u32,
    /// How many there are, and how many parts an object has.
    pub world_size: u32,
    /// What is preferred to the server's default, where that is `auto`. 0: none.
    pub preferred_base: u64,
    /// Where its pages lie.
    pub memory: *const kvasir_memory,
    /// One for each object group of the memory: its number, its kind, its window. All else follows from the rest and is 0.
    pub groups: *const kvasir_group,
    /// How many.
    pub group_count: usize,
}

/// What decides about the keys of a prompt but its tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_chain_options {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// Tokens of a chunk, as negotiated.
    pub chunk_size: u32,
    /// The domain's seed: kvasir_register, kvasir_domain_seed.
    pub seed: kvasir_key,
    /// Images and other inputs.
    pub mm_items: *const kvasir_mm_item,
    /// How many.
    pub mm_item_count: usize,
    /// The identity of the adapter's content.
    pub lora: kvasir_bytes,
    /// What separates tenants.
    pub salt: kvasir_bytes,
}

/// What a lookup asks. The prompt is a chain, or keys and tails.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_lookup_request {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// KVASIR_LOOKUP_NO_PIN.
    pub flags: u32,
    /// A number of the engine's own for the pin, such as its request: kvasir_release_label.
    pub label: u64,
    /// The prompt. Then seed, keys and tails stay zero.
    pub chain: kvasir_chain,
    /// With a chain: the tails to look for are those at every multiple of so many tokens. 0: none.
    pub tail_step: u32,
    /// 0.
    pub reserved: u32,
    /// Without a chain: the domain's seed.
    pub seed: kvasir_key,
    /// Without a chain: the keys of the full chunks.
    pub keys: *const kvasir_key,
    /// How many.
    pub key_count: usize,
    /// Without a chain: the tails.
    pub tails: *const kvasir_tail,
    /// How many.
    pub tail_count: usize,
    /// The hit is at most that long. 0: no limit.
    pub max_tokens: u64,
    /// So many tokens the engine has itself. They need not be loaded.
    pub local_tokens: u64,
}

/// The answer to a lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_answer {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// Out: KVASIR_ANSWER_DEGRADED, KVASIR_ANSWER_SHORTENED.
    pub flags: u32,
    /// Out: length of the hit in tokens.
    pub hit_tokens: u64,
    /// Out: what holds the objects, to be released once. Its id is 0 where nothing is held.
    pub pin: kvasir_pin,
    /// In: room for the objects to load. NULL: they are not wanted.
    pub found: *mut kvasir_found,
    /// In: how many fit. (chunks + 1) * object groups are always enough.
    pub found_capacity: usize,
    /// Out: how many there are.
    pub found_count: usize,
    /// In: room for the tokens up to which each object group has everything. NULL: they are not wanted.
    pub present_tokens: *mut u64,
    /// In: how many fit.
    pub present_capacity: usize,
    /// Out: how many there are.
    pub present_count: usize,
}

/// One part of one object to store.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_store_item {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// KVASIR_STORE_SKIP.
    pub flags: u32,
    /// The object's key.
    pub key: kvasir_key,
    /// The key of the chunk before. NULL: the first chunk of a prompt.
    pub parent: *const kvasir_key,
    /// The object group.
    pub group: u16,
    /// The part that this rank writes.
    pub part: u16,
    /// Tokens of the object.
    pub tokens: u32,
    /// Block ids, one list per KV cache group of the object group.
    pub lists: *const kvasir_block_list,
    /// How many.
    pub list_count: usize,
}

/// One object to load.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_load_item {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub flags: u32,
    /// The object's key.
    pub key: kvasir_key,
    /// The object group.
    pub group: u16,
    /// 0.
    pub reserved: u16,
    /// Tokens of the whole object, as the lookup said.
    pub tokens: u32,
    /// Block ids, one list per KV cache group. A list may end early, and null blocks are left alone.
    pub lists: *const kvasir_block_list,
    /// How many.
    pub list_count: usize,
}

/// Why the last call of this thread failed. The texts stay valid until the next failing call of the thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_error {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// kvasir_code. KVASIR_CODE_OK: no call of this thread has failed.
    pub code: i32,
    /// kvasir_server_code where code is KVASIR_CODE_REFUSED, otherwise -1.
    pub server_code: i32,
    /// How many of the numbers are set.
    pub number_count: u32,
    /// The numbers of the message, in its order.
    pub numbers: [i64; 8],
    /// A stable word for the kind of error.
    pub kind: *const std::ffi::c_char,
    /// One sentence with the numbers, and what to do.
    pub message: *const std::ffi::c_char,
}

/// What this library is and can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_capabilities {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// The version of this interface.
    pub abi_version: u32,
    /// The version of the protocol.
    pub protocol_version: u32,
    /// The version of the shared memory's layout.
    pub memory_version: u32,
    /// Most items of one store, load or kvasir_present.
    pub items_max: u64,
    /// Most keys, and most tails, of a lookup without a chain.
    pub keys_max: u64,
    /// Most spans and object groups.
    pub groups_max: u64,
    /// Most bytes of a field of a domain.
    pub domain_field_bytes_max: u64,
    /// Longest deadline, heartbeat or wait.
    pub wait_ms_max: u64,
    /// Name of the copy that moves payload on this machine.
    pub copy_path: *const std::ffi::c_char,
    /// The library's version.
    pub version: *const std::ffi::c_char,
}

/// How a client stands with its server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_health {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 1: connected, and all that was negotiated and registered holds.
    pub healthy: u32,
    /// 1: lookups and loads work: it is healthy, or what the last server shared is read without it.
    pub readable: u32,
    /// kvasir_server_health.
    pub server: u32,
    /// The chunk size agreed on. 0: none.
    pub chunk_size: u64,
    /// What tells this run of the server from any other. Zeroes: no server.
    pub boot_id: [u8; 16],
    /// The seed of the registered domain. Zeroes: none.
    pub seed: kvasir_key,
}

/// What a client did so far.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_stats {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Lookups, answered or not.
    pub lookups: u64,
    /// Lookups that were answered without a message.
    pub direct_lookups: u64,
    /// Lookups that missed because the server was away and its memory could not be read.
    pub degraded_lookups: u64,
    /// Objects read whole.
    pub loads: u64,
    /// Their bytes.
    pub loaded_bytes: u64,
    /// Objects that could not be read, stale and corrupt ones included.
    pub failed_loads: u64,
    /// Objects whose space was reused while they were read.
    pub stale_loads: u64,
    /// Objects whose bytes were not those that were stored.
    pub corrupt_loads: u64,
    /// Parts committed, whatever became of them.
    pub stores: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Parts dropped: no server, no space or no room in the index.
    pub dropped_stores: u64,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Time without a usable server.
    pub degraded_ms: u64,
    /// Pins that made room for others when the client's pin words ran out.
    pub evicted_pins: u64,
    /// Pool space held for stores now.
    pub granted_bytes: u64,
    /// Granted space whose pages were entered into this process's page tables before a store.
    pub populated_bytes: u64,
    /// Granted space for which that was not done.
    pub unpopulated_bytes: u64,
    /// What kvasir_count_new_kv was told.
    pub new_bytes: u64,
}

/// Tokens of requests that an engine took up, as the server's status shows them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_reuse {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Requests taken up, those not counted that were preempted before.
    pub requests: u64,
    /// Their tokens that the engine did not hold itself.
    pub asked: u64,
    /// Their tokens that it did.
    pub held: u64,
    /// Of those asked for, what the engine was promised and counted on.
    pub hit: u64,
    /// As asked, of requests that were preempted before.
    pub preempted_asked: u64,
    /// As hit, of requests that were preempted before.
    pub preempted_hit: u64,
    /// Of all hits, tokens whose load has ended well.
    pub loaded: u64,
    /// Tokens whose load failed, or was given up.
    pub failed: u64,
}

/// The server's own counters, read from shared memory. Bytes are in whole frames.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvasir_counters {
    /// Set by KVASIR_INIT.
    pub struct_size: u32,
    /// 1: read from a server. 0: there is none, and all else is 0.
    pub connected: u32,
    /// Objects published.
    pub stored_objects: u64,
    /// Objects evicted.
    pub evicted_objects: u64,
    /// Stores that were given up because there was no room.
    pub dropped_stores: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes that have memory behind them.
    pub prefaulted_bytes: u64,
    /// Bytes held by objects.
    pub used_bytes: u64,
    /// Bytes granted to writers.
    pub granted_bytes: u64,
    /// Bytes of objects that readers hold.
    pub pinned_bytes: u64,
    /// Bytes held back until their writer is known to be gone.
    pub quarantined_bytes: u64,
}
