//! Sizes and offsets, as C compilers see them. No struct has padding.
//!
//! Made from native/include/kvasir.h by `cargo xtask codegen`; do not edit.

use std::mem::offset_of;

use crate::input::versioned;
use crate::options::*;
use crate::values::*;

// The size of each struct in the first version that had it.
versioned! {
    kvasir_chain_options: 88,
    kvasir_client_options: 72,
    kvasir_negotiation: 56,
    kvasir_domain: 64,
    kvasir_group: 32,
    kvasir_registration: 80,
    kvasir_kv_group: 32,
    kvasir_group_memory: 24,
    kvasir_memory: 48,
    kvasir_rank: 56,
    kvasir_lookup_request: 112,
    kvasir_answer: 80,
    kvasir_store_item: 72,
    kvasir_load_item: 64,
    kvasir_capabilities: 72,
    kvasir_error: 96,
    kvasir_health: 72,
    kvasir_stats: 152,
    kvasir_counters: 80,
    kvasir_reuse: 72,
}

const _: () = {
    assert!(size_of::<kvasir_key>() == 32 && align_of::<kvasir_key>() == 1);
    assert!(offset_of!(kvasir_key, bytes) == 0);
};

const _: () = {
    assert!(size_of::<kvasir_bytes>() == 16 && align_of::<kvasir_bytes>() == 8);
    assert!(offset_of!(kvasir_bytes, data) == 0);
    assert!(offset_of!(kvasir_bytes, size) == 8);
};

const _: () = {
    assert!(size_of::<kvasir_mm_item>() == 32 && align_of::<kvasir_mm_item>() == 8);
    assert!(offset_of!(kvasir_mm_item, identifier) == 0);
    assert!(offset_of!(kvasir_mm_item, start) == 16);
    assert!(offset_of!(kvasir_mm_item, length) == 24);
};

const _: () = {
    assert!(size_of::<kvasir_chain_options>() == 88 && align_of::<kvasir_chain_options>() == 8);
    assert!(offset_of!(kvasir_chain_options, struct_size) == 0);
    assert!(offset_of!(kvasir_chain_options, chunk_size) == 4);
    assert!(offset_of!(kvasir_chain_options, seed) == 8);
    assert!(offset_of!(kvasir_chain_options, mm_items) == 40);
    assert!(offset_of!(kvasir_chain_options, mm_item_count) == 48);
    assert!(offset_of!(kvasir_chain_options, lora) == 56);
    assert!(offset_of!(kvasir_chain_options, salt) == 72);
};

const _: () = {
    assert!(size_of::<kvasir_chain>() == 8 && align_of::<kvasir_chain>() == 8);
    assert!(offset_of!(kvasir_chain, id) == 0);
};

const _: () = {
    assert!(size_of::<kvasir_client_options>() == 88 && align_of::<kvasir_client_options>() == 8);
    assert!(offset_of!(kvasir_client_options, struct_size) == 0);
    assert!(offset_of!(kvasir_client_options, kind) == 4);
    assert!(offset_of!(kvasir_client_options, socket) == 8);
    assert!(offset_of!(kvasir_client_options, name) == 16);
    assert!(offset_of!(kvasir_client_options, engine_instance) == 24);
    assert!(offset_of!(kvasir_client_options, deadline_ms) == 40);
    assert!(offset_of!(kvasir_client_options, heartbeat_ms) == 48);
    assert!(offset_of!(kvasir_client_options, grant_bytes) == 56);
    assert!(offset_of!(kvasir_client_options, maps) == 64);
    assert!(offset_of!(kvasir_client_options, flags) == 68);
    assert!(offset_of!(kvasir_client_options, ring_bytes) == 72);
    assert!(offset_of!(kvasir_client_options, copy_threads) == 80);
    assert!(offset_of!(kvasir_client_options, reserved) == 84);
};

const _: () = {
    assert!(size_of::<kvasir_client>() == 8 && align_of::<kvasir_client>() == 8);
    assert!(offset_of!(kvasir_client, id) == 0);
};

const _: () = {
    assert!(size_of::<kvasir_span>() == 16 && align_of::<kvasir_span>() == 8);
    assert!(offset_of!(kvasir_span, group) == 0);
    assert!(offset_of!(kvasir_span, reserved) == 4);
    assert!(offset_of!(kvasir_span, tokens) == 8);
};

const _: () = {
    assert!(size_of::<kvasir_negotiation>() == 56 && align_of::<kvasir_negotiation>() == 8);
    assert!(offset_of!(kvasir_negotiation, struct_size) == 0);
    assert!(offset_of!(kvasir_negotiation, flags) == 4);
    assert!(offset_of!(kvasir_negotiation, required_alignment) == 8);
    assert!(offset_of!(kvasir_negotiation, spans) == 16);
    assert!(offset_of!(kvasir_negotiation, span_count) == 24);
    assert!(offset_of!(kvasir_negotiation, preferred_base) == 32);
    assert!(offset_of!(kvasir_negotiation, previous_size) == 40);
    assert!(offset_of!(kvasir_negotiation, binding_domain) == 48);
};

const _: () = {
    assert!(size_of::<kvasir_domain>() == 64 && align_of::<kvasir_domain>() == 8);
    assert!(offset_of!(kvasir_domain, struct_size) == 0);
    assert!(offset_of!(kvasir_domain, flags) == 4);
    assert!(offset_of!(kvasir_domain, model) == 8);
    assert!(offset_of!(kvasir_domain, weights_id) == 16);
    assert!(offset_of!(kvasir_domain, kv_dtype) == 32);
    assert!(offset_of!(kvasir_domain, fingerprint) == 40);
    assert!(offset_of!(kvasir_domain, parallel_shape) == 56);
};

const _: () = {
    assert!(size_of::<kvasir_group>() == 32 && align_of::<kvasir_group>() == 8);
    assert!(offset_of!(kvasir_group, struct_size) == 0);
    assert!(offset_of!(kvasir_group, kind) == 4);
    assert!(offset_of!(kvasir_group, window_tokens) == 8);
    assert!(offset_of!(kvasir_group, unit_bytes) == 16);
    assert!(offset_of!(kvasir_group, group) == 24);
    assert!(offset_of!(kvasir_group, parts) == 26);
    assert!(offset_of!(kvasir_group, part) == 28);
    assert!(offset_of!(kvasir_group, reserved) == 30);
};

const _: () = {
    assert!(size_of::<kvasir_registration>() == 80 && align_of::<kvasir_registration>() == 8);
    assert!(offset_of!(kvasir_registration, struct_size) == 0);
    assert!(offset_of!(kvasir_registration, flags) == 4);
    assert!(offset_of!(kvasir_registration, domain) == 8);
    assert!(offset_of!(kvasir_registration, rank) == 16);
    assert!(offset_of!(kvasir_registration, world_size) == 20);
    assert!(offset_of!(kvasir_registration, required_alignment) == 24);
    assert!(offset_of!(kvasir_registration, spans) == 32);
    assert!(offset_of!(kvasir_registration, span_count) == 40);
    assert!(offset_of!(kvasir_registration, groups) == 48);
    assert!(offset_of!(kvasir_registration, group_count) == 56);
    assert!(offset_of!(kvasir_registration, blocks) == 64);
    assert!(offset_of!(kvasir_registration, layers) == 72);
    assert!(offset_of!(kvasir_registration, reserved) == 76);
};

const _: () = {
    assert!(size_of::<kvasir_region>() == 16 && align_of::<kvasir_region>() == 8);
    assert!(offset_of!(kvasir_region, base) == 0);
    assert!(offset_of!(kvasir_region, bytes) == 8);
};

const _: () = {
    assert!(size_of::<kvasir_layer>() == 32 && align_of::<kvasir_layer>() == 8);
    assert!(offset_of!(kvasir_layer, region) == 0);
    assert!(offset_of!(kvasir_layer, reserved) == 4);
    assert!(offset_of!(kvasir_layer, offset) == 8);
    assert!(offset_of!(kvasir_layer, block_stride) == 16);
    assert!(offset_of!(kvasir_layer, page_bytes) == 24);
};

const _: () = {
    assert!(size_of::<kvasir_kv_group>() == 32 && align_of::<kvasir_kv_group>() == 8);
    assert!(offset_of!(kvasir_kv_group, struct_size) == 0);
    assert!(offset_of!(kvasir_kv_group, flags) == 4);
    assert!(offset_of!(kvasir_kv_group, tokens_per_block) == 8);
    assert!(offset_of!(kvasir_kv_group, layers) == 16);
    assert!(offset_of!(kvasir_kv_group, layer_count) == 24);
};

const _: () = {
    assert!(size_of::<kvasir_group_memory>() == 24 && align_of::<kvasir_group_memory>() == 8);
    assert!(offset_of!(kvasir_group_memory, struct_size) == 0);
    assert!(offset_of!(kvasir_group_memory, group) == 4);
    assert!(offset_of!(kvasir_group_memory, reserved) == 6);
    assert!(offset_of!(kvasir_group_memory, kv_groups) == 8);
    assert!(offset_of!(kvasir_group_memory, kv_group_count) == 16);
};

const _: () = {
    assert!(size_of::<kvasir_memory>() == 48 && align_of::<kvasir_memory>() == 8);
    assert!(offset_of!(kvasir_memory, struct_size) == 0);
    assert!(offset_of!(kvasir_memory, flags) == 4);
    assert!(offset_of!(kvasir_memory, blocks) == 8);
    assert!(offset_of!(kvasir_memory, regions) == 16);
    assert!(offset_of!(kvasir_memory, region_count) == 24);
    assert!(offset_of!(kvasir_memory, groups) == 32);
    assert!(offset_of!(kvasir_memory, group_count) == 40);
};

const _: () = {
    assert!(size_of::<kvasir_rank>() == 56 && align_of::<kvasir_rank>() == 8);
    assert!(offset_of!(kvasir_rank, struct_size) == 0);
    assert!(offset_of!(kvasir_rank, flags) == 4);
    assert!(offset_of!(kvasir_rank, domain) == 8);
    assert!(offset_of!(kvasir_rank, rank) == 16);
    assert!(offset_of!(kvasir_rank, world_size) == 20);
    assert!(offset_of!(kvasir_rank, preferred_base) == 24);
    assert!(offset_of!(kvasir_rank, memory) == 32);
    assert!(offset_of!(kvasir_rank, groups) == 40);
    assert!(offset_of!(kvasir_rank, group_count) == 48);
};

const _: () = {
    assert!(size_of::<kvasir_tail>() == 40 && align_of::<kvasir_tail>() == 4);
    assert!(offset_of!(kvasir_tail, key) == 0);
    assert!(offset_of!(kvasir_tail, chunk) == 32);
    assert!(offset_of!(kvasir_tail, tokens) == 36);
};

const _: () = {
    assert!(size_of::<kvasir_lookup_request>() == 112 && align_of::<kvasir_lookup_request>() == 8);
    assert!(offset_of!(kvasir_lookup_request, struct_size) == 0);
    assert!(offset_of!(kvasir_lookup_request, flags) == 4);
    assert!(offset_of!(kvasir_lookup_request, label) == 8);
    assert!(offset_of!(kvasir_lookup_request, chain) == 16);
    assert!(offset_of!(kvasir_lookup_request, tail_step) == 24);
    assert!(offset_of!(kvasir_lookup_request, reserved) == 28);
    assert!(offset_of!(kvasir_lookup_request, seed) == 32);
    assert!(offset_of!(kvasir_lookup_request, keys) == 64);
    assert!(offset_of!(kvasir_lookup_request, key_count) == 72);
    assert!(offset_of!(kvasir_lookup_request, tails) == 80);
    assert!(offset_of!(kvasir_lookup_request, tail_count) == 88);
    assert!(offset_of!(kvasir_lookup_request, max_tokens) == 96);
    assert!(offset_of!(kvasir_lookup_request, local_tokens) == 104);
};

const _: () = {
    assert!(size_of::<kvasir_pin>() == 16 && align_of::<kvasir_pin>() == 8);
    assert!(offset_of!(kvasir_pin, connection) == 0);
    assert!(offset_of!(kvasir_pin, id) == 8);
};

const _: () = {
    assert!(size_of::<kvasir_found>() == 44 && align_of::<kvasir_found>() == 4);
    assert!(offset_of!(kvasir_found, key) == 0);
    assert!(offset_of!(kvasir_found, chunk) == 32);
    assert!(offset_of!(kvasir_found, tokens) == 36);
    assert!(offset_of!(kvasir_found, group) == 40);
    assert!(offset_of!(kvasir_found, reserved) == 42);
};

const _: () = {
    assert!(size_of::<kvasir_answer>() == 80 && align_of::<kvasir_answer>() == 8);
    assert!(offset_of!(kvasir_answer, struct_size) == 0);
    assert!(offset_of!(kvasir_answer, flags) == 4);
    assert!(offset_of!(kvasir_answer, hit_tokens) == 8);
    assert!(offset_of!(kvasir_answer, pin) == 16);
    assert!(offset_of!(kvasir_answer, found) == 32);
    assert!(offset_of!(kvasir_answer, found_capacity) == 40);
    assert!(offset_of!(kvasir_answer, found_count) == 48);
    assert!(offset_of!(kvasir_answer, present_tokens) == 56);
    assert!(offset_of!(kvasir_answer, present_capacity) == 64);
    assert!(offset_of!(kvasir_answer, present_count) == 72);
};

const _: () = {
    assert!(size_of::<kvasir_object>() == 36 && align_of::<kvasir_object>() == 2);
    assert!(offset_of!(kvasir_object, key) == 0);
    assert!(offset_of!(kvasir_object, group) == 32);
    assert!(offset_of!(kvasir_object, reserved) == 34);
};

const _: () = {
    assert!(size_of::<kvasir_block_list>() == 16 && align_of::<kvasir_block_list>() == 8);
    assert!(offset_of!(kvasir_block_list, ids) == 0);
    assert!(offset_of!(kvasir_block_list, count) == 8);
};

const _: () = {
    assert!(size_of::<kvasir_store_item>() == 72 && align_of::<kvasir_store_item>() == 8);
    assert!(offset_of!(kvasir_store_item, struct_size) == 0);
    assert!(offset_of!(kvasir_store_item, flags) == 4);
    assert!(offset_of!(kvasir_store_item, key) == 8);
    assert!(offset_of!(kvasir_store_item, parent) == 40);
    assert!(offset_of!(kvasir_store_item, group) == 48);
    assert!(offset_of!(kvasir_store_item, part) == 50);
    assert!(offset_of!(kvasir_store_item, tokens) == 52);
    assert!(offset_of!(kvasir_store_item, lists) == 56);
    assert!(offset_of!(kvasir_store_item, list_count) == 64);
};

const _: () = {
    assert!(size_of::<kvasir_load_item>() == 64 && align_of::<kvasir_load_item>() == 8);
    assert!(offset_of!(kvasir_load_item, struct_size) == 0);
    assert!(offset_of!(kvasir_load_item, flags) == 4);
    assert!(offset_of!(kvasir_load_item, key) == 8);
    assert!(offset_of!(kvasir_load_item, group) == 40);
    assert!(offset_of!(kvasir_load_item, reserved) == 42);
    assert!(offset_of!(kvasir_load_item, tokens) == 44);
    assert!(offset_of!(kvasir_load_item, lists) == 48);
    assert!(offset_of!(kvasir_load_item, list_count) == 56);
};

const _: () = {
    assert!(size_of::<kvasir_capabilities>() == 72 && align_of::<kvasir_capabilities>() == 8);
    assert!(offset_of!(kvasir_capabilities, struct_size) == 0);
    assert!(offset_of!(kvasir_capabilities, abi_version) == 4);
    assert!(offset_of!(kvasir_capabilities, protocol_version) == 8);
    assert!(offset_of!(kvasir_capabilities, memory_version) == 12);
    assert!(offset_of!(kvasir_capabilities, items_max) == 16);
    assert!(offset_of!(kvasir_capabilities, keys_max) == 24);
    assert!(offset_of!(kvasir_capabilities, groups_max) == 32);
    assert!(offset_of!(kvasir_capabilities, domain_field_bytes_max) == 40);
    assert!(offset_of!(kvasir_capabilities, wait_ms_max) == 48);
    assert!(offset_of!(kvasir_capabilities, copy_path) == 56);
    assert!(offset_of!(kvasir_capabilities, version) == 64);
};

const _: () = {
    assert!(size_of::<kvasir_error>() == 96 && align_of::<kvasir_error>() == 8);
    assert!(offset_of!(kvasir_error, struct_size) == 0);
    assert!(offset_of!(kvasir_error, code) == 4);
    assert!(offset_of!(kvasir_error, server_code) == 8);
    assert!(offset_of!(kvasir_error, number_count) == 12);
    assert!(offset_of!(kvasir_error, numbers) == 16);
    assert!(offset_of!(kvasir_error, kind) == 80);
    assert!(offset_of!(kvasir_error, message) == 88);
};

const _: () = {
    assert!(size_of::<kvasir_health>() == 72 && align_of::<kvasir_health>() == 8);
    assert!(offset_of!(kvasir_health, struct_size) == 0);
    assert!(offset_of!(kvasir_health, healthy) == 4);
    assert!(offset_of!(kvasir_health, readable) == 8);
    assert!(offset_of!(kvasir_health, server) == 12);
    assert!(offset_of!(kvasir_health, chunk_size) == 16);
    assert!(offset_of!(kvasir_health, boot_id) == 24);
    assert!(offset_of!(kvasir_health, seed) == 40);
};

const _: () = {
    assert!(size_of::<kvasir_stats>() == 152 && align_of::<kvasir_stats>() == 8);
    assert!(offset_of!(kvasir_stats, struct_size) == 0);
    assert!(offset_of!(kvasir_stats, reserved) == 4);
    assert!(offset_of!(kvasir_stats, lookups) == 8);
    assert!(offset_of!(kvasir_stats, direct_lookups) == 16);
    assert!(offset_of!(kvasir_stats, degraded_lookups) == 24);
    assert!(offset_of!(kvasir_stats, loads) == 32);
    assert!(offset_of!(kvasir_stats, loaded_bytes) == 40);
    assert!(offset_of!(kvasir_stats, failed_loads) == 48);
    assert!(offset_of!(kvasir_stats, stale_loads) == 56);
    assert!(offset_of!(kvasir_stats, corrupt_loads) == 64);
    assert!(offset_of!(kvasir_stats, stores) == 72);
    assert!(offset_of!(kvasir_stats, stored_bytes) == 80);
    assert!(offset_of!(kvasir_stats, dropped_stores) == 88);
    assert!(offset_of!(kvasir_stats, reconnects) == 96);
    assert!(offset_of!(kvasir_stats, degraded_ms) == 104);
    assert!(offset_of!(kvasir_stats, evicted_pins) == 112);
    assert!(offset_of!(kvasir_stats, granted_bytes) == 120);
    assert!(offset_of!(kvasir_stats, populated_bytes) == 128);
    assert!(offset_of!(kvasir_stats, unpopulated_bytes) == 136);
    assert!(offset_of!(kvasir_stats, new_bytes) == 144);
};

const _: () = {
    assert!(size_of::<kvasir_counters>() == 80 && align_of::<kvasir_counters>() == 8);
    assert!(offset_of!(kvasir_counters, struct_size) == 0);
    assert!(offset_of!(kvasir_counters, connected) == 4);
    assert!(offset_of!(kvasir_counters, stored_objects) == 8);
    assert!(offset_of!(kvasir_counters, evicted_objects) == 16);
    assert!(offset_of!(kvasir_counters, dropped_stores) == 24);
    assert!(offset_of!(kvasir_counters, pool_bytes) == 32);
    assert!(offset_of!(kvasir_counters, prefaulted_bytes) == 40);
    assert!(offset_of!(kvasir_counters, used_bytes) == 48);
    assert!(offset_of!(kvasir_counters, granted_bytes) == 56);
    assert!(offset_of!(kvasir_counters, pinned_bytes) == 64);
    assert!(offset_of!(kvasir_counters, quarantined_bytes) == 72);
};

const _: () = {
    assert!(size_of::<kvasir_reuse>() == 72 && align_of::<kvasir_reuse>() == 8);
    assert!(offset_of!(kvasir_reuse, struct_size) == 0);
    assert!(offset_of!(kvasir_reuse, reserved) == 4);
    assert!(offset_of!(kvasir_reuse, requests) == 8);
    assert!(offset_of!(kvasir_reuse, asked) == 16);
    assert!(offset_of!(kvasir_reuse, held) == 24);
    assert!(offset_of!(kvasir_reuse, hit) == 32);
    assert!(offset_of!(kvasir_reuse, preempted_asked) == 40);
    assert!(offset_of!(kvasir_reuse, preempted_hit) == 48);
    assert!(offset_of!(kvasir_reuse, loaded) == 56);
    assert!(offset_of!(kvasir_reuse, failed) == 64);
};
