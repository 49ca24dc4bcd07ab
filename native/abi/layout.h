/* Made from native/include/kvasir.h by `cargo xtask codegen`; do not edit. */

#include <kvasir.h>

#ifdef __cplusplus
#define KVASIR_ASSERT(holds) static_assert(holds, #holds)
#else
#define KVASIR_ASSERT(holds) _Static_assert(holds, #holds)
#endif

KVASIR_ASSERT(sizeof(struct kvasir_key) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_key, bytes) == 0);

KVASIR_ASSERT(sizeof(struct kvasir_bytes) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_bytes, data) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_bytes, size) == 8);

KVASIR_ASSERT(sizeof(struct kvasir_mm_item) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_mm_item, identifier) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_mm_item, start) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_mm_item, length) == 24);

KVASIR_ASSERT(sizeof(struct kvasir_chain_options) == 88);
KVASIR_ASSERT(offsetof(struct kvasir_chain_options, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_chain_options, chunk_size) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_chain_options, seed) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_chain_options, mm_items) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_chain_options, mm_item_count) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_chain_options, lora) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_chain_options, salt) == 72);

KVASIR_ASSERT(sizeof(struct kvasir_chain) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_chain, id) == 0);

KVASIR_ASSERT(sizeof(struct kvasir_client_options) == 88);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, kind) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, socket) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, name) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, engine_instance) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, deadline_ms) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, heartbeat_ms) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, grant_bytes) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, maps) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, flags) == 68);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, ring_bytes) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, copy_threads) == 80);
KVASIR_ASSERT(offsetof(struct kvasir_client_options, reserved) == 84);

KVASIR_ASSERT(sizeof(struct kvasir_client) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_client, id) == 0);

KVASIR_ASSERT(sizeof(struct kvasir_span) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_span, group) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_span, reserved) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_span, tokens) == 8);

KVASIR_ASSERT(sizeof(struct kvasir_negotiation) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, required_alignment) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, spans) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, span_count) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, preferred_base) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, previous_size) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_negotiation, binding_domain) == 48);

KVASIR_ASSERT(sizeof(struct kvasir_domain) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_domain, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_domain, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_domain, model) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_domain, weights_id) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_domain, kv_dtype) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_domain, fingerprint) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_domain, parallel_shape) == 56);

KVASIR_ASSERT(sizeof(struct kvasir_group) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_group, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_group, kind) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_group, window_tokens) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_group, unit_bytes) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_group, group) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_group, parts) == 26);
KVASIR_ASSERT(offsetof(struct kvasir_group, part) == 28);
KVASIR_ASSERT(offsetof(struct kvasir_group, reserved) == 30);

KVASIR_ASSERT(sizeof(struct kvasir_registration) == 80);
KVASIR_ASSERT(offsetof(struct kvasir_registration, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_registration, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_registration, domain) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_registration, rank) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_registration, world_size) == 20);
KVASIR_ASSERT(offsetof(struct kvasir_registration, required_alignment) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_registration, spans) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_registration, span_count) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_registration, groups) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_registration, group_count) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_registration, blocks) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_registration, layers) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_registration, reserved) == 76);

KVASIR_ASSERT(sizeof(struct kvasir_region) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_region, base) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_region, bytes) == 8);

KVASIR_ASSERT(sizeof(struct kvasir_layer) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_layer, region) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_layer, reserved) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_layer, offset) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_layer, block_stride) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_layer, page_bytes) == 24);

KVASIR_ASSERT(sizeof(struct kvasir_kv_group) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_kv_group, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_kv_group, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_kv_group, tokens_per_block) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_kv_group, layers) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_kv_group, layer_count) == 24);

KVASIR_ASSERT(sizeof(struct kvasir_group_memory) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_group_memory, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_group_memory, group) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_group_memory, reserved) == 6);
KVASIR_ASSERT(offsetof(struct kvasir_group_memory, kv_groups) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_group_memory, kv_group_count) == 16);

KVASIR_ASSERT(sizeof(struct kvasir_memory) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_memory, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_memory, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_memory, blocks) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_memory, regions) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_memory, region_count) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_memory, groups) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_memory, group_count) == 40);

KVASIR_ASSERT(sizeof(struct kvasir_rank) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_rank, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_rank, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_rank, domain) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_rank, rank) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_rank, world_size) == 20);
KVASIR_ASSERT(offsetof(struct kvasir_rank, preferred_base) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_rank, memory) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_rank, groups) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_rank, group_count) == 48);

KVASIR_ASSERT(sizeof(struct kvasir_tail) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_tail, key) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_tail, chunk) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_tail, tokens) == 36);

KVASIR_ASSERT(sizeof(struct kvasir_lookup_request) == 112);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, label) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, chain) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, tail_step) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, reserved) == 28);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, seed) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, keys) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, key_count) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, tails) == 80);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, tail_count) == 88);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, max_tokens) == 96);
KVASIR_ASSERT(offsetof(struct kvasir_lookup_request, local_tokens) == 104);

KVASIR_ASSERT(sizeof(struct kvasir_pin) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_pin, connection) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_pin, id) == 8);

KVASIR_ASSERT(sizeof(struct kvasir_found) == 44);
KVASIR_ASSERT(offsetof(struct kvasir_found, key) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_found, chunk) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_found, tokens) == 36);
KVASIR_ASSERT(offsetof(struct kvasir_found, group) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_found, reserved) == 42);

KVASIR_ASSERT(sizeof(struct kvasir_answer) == 80);
KVASIR_ASSERT(offsetof(struct kvasir_answer, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_answer, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_answer, hit_tokens) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_answer, pin) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_answer, found) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_answer, found_capacity) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_answer, found_count) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_answer, present_tokens) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_answer, present_capacity) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_answer, present_count) == 72);

KVASIR_ASSERT(sizeof(struct kvasir_object) == 36);
KVASIR_ASSERT(offsetof(struct kvasir_object, key) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_object, group) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_object, reserved) == 34);

KVASIR_ASSERT(sizeof(struct kvasir_block_list) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_block_list, ids) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_block_list, count) == 8);

KVASIR_ASSERT(sizeof(struct kvasir_store_item) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, key) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, parent) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, group) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, part) == 50);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, tokens) == 52);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, lists) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_store_item, list_count) == 64);

KVASIR_ASSERT(sizeof(struct kvasir_load_item) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, flags) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, key) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, group) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, reserved) == 42);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, tokens) == 44);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, lists) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_load_item, list_count) == 56);

KVASIR_ASSERT(sizeof(struct kvasir_capabilities) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, abi_version) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, protocol_version) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, memory_version) == 12);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, items_max) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, keys_max) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, groups_max) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, domain_field_bytes_max) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, wait_ms_max) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, copy_path) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_capabilities, version) == 64);

KVASIR_ASSERT(sizeof(struct kvasir_error) == 96);
KVASIR_ASSERT(offsetof(struct kvasir_error, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_error, code) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_error, server_code) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_error, number_count) == 12);
KVASIR_ASSERT(offsetof(struct kvasir_error, numbers) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_error, kind) == 80);
KVASIR_ASSERT(offsetof(struct kvasir_error, message) == 88);

KVASIR_ASSERT(sizeof(struct kvasir_health) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_health, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_health, healthy) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_health, readable) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_health, server) == 12);
KVASIR_ASSERT(offsetof(struct kvasir_health, chunk_size) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_health, boot_id) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_health, seed) == 40);

KVASIR_ASSERT(sizeof(struct kvasir_stats) == 152);
KVASIR_ASSERT(offsetof(struct kvasir_stats, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_stats, reserved) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_stats, lookups) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_stats, direct_lookups) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_stats, degraded_lookups) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_stats, loads) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_stats, loaded_bytes) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_stats, failed_loads) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_stats, stale_loads) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_stats, corrupt_loads) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_stats, stores) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_stats, stored_bytes) == 80);
KVASIR_ASSERT(offsetof(struct kvasir_stats, dropped_stores) == 88);
KVASIR_ASSERT(offsetof(struct kvasir_stats, reconnects) == 96);
KVASIR_ASSERT(offsetof(struct kvasir_stats, degraded_ms) == 104);
KVASIR_ASSERT(offsetof(struct kvasir_stats, evicted_pins) == 112);
KVASIR_ASSERT(offsetof(struct kvasir_stats, granted_bytes) == 120);
KVASIR_ASSERT(offsetof(struct kvasir_stats, populated_bytes) == 128);
KVASIR_ASSERT(offsetof(struct kvasir_stats, unpopulated_bytes) == 136);
KVASIR_ASSERT(offsetof(struct kvasir_stats, new_bytes) == 144);

KVASIR_ASSERT(sizeof(struct kvasir_counters) == 80);
KVASIR_ASSERT(offsetof(struct kvasir_counters, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_counters, connected) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_counters, stored_objects) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_counters, evicted_objects) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_counters, dropped_stores) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_counters, pool_bytes) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_counters, prefaulted_bytes) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_counters, used_bytes) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_counters, granted_bytes) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_counters, pinned_bytes) == 64);
KVASIR_ASSERT(offsetof(struct kvasir_counters, quarantined_bytes) == 72);

KVASIR_ASSERT(sizeof(struct kvasir_reuse) == 72);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, struct_size) == 0);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, reserved) == 4);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, requests) == 8);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, asked) == 16);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, held) == 24);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, hit) == 32);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, preempted_asked) == 40);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, preempted_hit) == 48);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, loaded) == 56);
KVASIR_ASSERT(offsetof(struct kvasir_reuse, failed) == 64);
