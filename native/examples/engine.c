/*
 * An engine in C that puts the KV cache of a prompt into Kvasir and gets it back, byte for byte, and that lives through a
 * restart of the server.
 *
 *   cc -std=c11 engine.c $(pkg-config --cflags --libs kvasir) -o engine
 *   ./engine SOCKET         stores and loads once
 *   ./engine SOCKET 3       does so with this server and the next two, and computes while there is none
 *   ./engine SOCKET 3 ring  the same through a ring: it maps neither pool nor index, and the server copies
 *
 * Its KV cache is two tensors in host memory, [blocks, page], one per layer.
 */

#define _POSIX_C_SOURCE 200809L

#include <kvasir.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LAYERS = 2,
    BLOCKS = 256,
    BLOCK_TOKENS = 16,  /* tokens of one block id */
    PAGE_BYTES = 4096,  /* one layer's bytes of one block */
    CHUNKS = 3,         /* of the prompt; one block more is its tail */
    REQUEST = 1,        /* labels the pins of the request */
    WAIT_MS = 60000     /* longer than anything here takes */
};

struct engine {
    struct kvasir_client client;
    struct kvasir_key seed;
    uint32_t chunk_tokens;
    uint8_t *layers[LAYERS];
};

/* Ends the program with what the library has to say. */
static void fail(const char *what)
{
    struct kvasir_error error;
    KVASIR_INIT(&error);
    if (kvasir_last_error(&error) != KVASIR_CODE_OK)
        error.message = "";
    fprintf(stderr, "%s: %s (%s)\n", what, error.message, error.kind);
    exit(1);
}

static void check(kvasir_code code, const char *what)
{
    if (code != KVASIR_CODE_OK)
        fail(what);
}

static void pause_ms(long milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* The bytes of a page follow from the prompt, the layer and the block: no two pages are alike. */
static void fill(uint8_t *page, uint32_t prompt, uint32_t layer, uint32_t block)
{
    uint64_t state = ((uint64_t)prompt << 40) + ((uint64_t)layer << 32) + block + 1;
    for (size_t at = 0; at < PAGE_BYTES; at++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        page[at] = (uint8_t)(state >> 56);
    }
}

static uint8_t *page_of(struct engine *engine, uint32_t layer, uint32_t block)
{
    return engine->layers[layer] + (size_t)block * PAGE_BYTES;
}

/* Waits for a server, and returns what tells its run from any other. */
static void wait_for_server(struct engine *engine, const uint8_t *before, uint8_t *boot_id)
{
    struct kvasir_health health;
    for (int waited = 0; waited < WAIT_MS; waited += 5) {
        KVASIR_INIT(&health);
        check(kvasir_get_health(engine->client, &health), "health");
        int another = before == NULL || memcmp(before, health.boot_id, sizeof health.boot_id) != 0;
        if (health.healthy && another) {
            memcpy(boot_id, health.boot_id, sizeof health.boot_id);
            return;
        }
        pause_ms(5);
    }
    fprintf(stderr, "no server\n");
    exit(1);
}

/* What every rank of an engine does once. The server may come and go afterwards: the client repeats it. */
static void start(struct engine *engine, const char *socket, int by_ring)
{
    struct kvasir_client_options options;
    KVASIR_INIT(&options);
    options.kind = KVASIR_CLIENT_KIND_WORKER;
    options.socket = socket;
    options.name = "engine.c";
    memcpy(options.engine_instance, "engine in plain C", sizeof options.engine_instance);
    options.grant_bytes = 1 << 20; /* the pools here are small */
    options.copy_threads = 1;      /* copies as small as these are not shared */
    if (by_ring) {
        options.maps = KVASIR_MAPS_RING;
        options.ring_bytes = 1 << 20;
    }
    check(kvasir_client_open(&options, &engine->client), "open");
    uint8_t boot_id[16];
    wait_for_server(engine, NULL, boot_id);

    /* Where the pages lie. */
    struct kvasir_region regions[LAYERS];
    struct kvasir_layer layers[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        engine->layers[layer] = calloc(BLOCKS, PAGE_BYTES);
        if (engine->layers[layer] == NULL) {
            fprintf(stderr, "no memory\n");
            exit(1);
        }
        regions[layer].base = engine->layers[layer];
        regions[layer].bytes = (uint64_t)BLOCKS * PAGE_BYTES;
        layers[layer] = (struct kvasir_layer){layer, 0, 0, PAGE_BYTES, PAGE_BYTES};
    }
    struct kvasir_kv_group kv_group;
    KVASIR_INIT(&kv_group);
    kv_group.tokens_per_block = BLOCK_TOKENS;
    kv_group.layers = layers;
    kv_group.layer_count = LAYERS;
    struct kvasir_group_memory group_memory;
    KVASIR_INIT(&group_memory);
    group_memory.kv_groups = &kv_group;
    group_memory.kv_group_count = 1;
    struct kvasir_memory memory;
    KVASIR_INIT(&memory);
    memory.blocks = BLOCKS;
    memory.regions = regions;
    memory.region_count = LAYERS;
    memory.groups = &group_memory;
    memory.group_count = 1;

    /* And what they hold: all that decides about the bytes of a chunk besides its tokens. */
    struct kvasir_domain domain;
    KVASIR_INIT(&domain);
    domain.model = "example/model";
    domain.weights_id = (struct kvasir_bytes){(const uint8_t *)"revision 1", 10};
    domain.kv_dtype = "bfloat16";
    domain.fingerprint = (struct kvasir_bytes){(const uint8_t *)"[layer][block][page]", 20};
    domain.parallel_shape = "tp=1";
    struct kvasir_group group;
    KVASIR_INIT(&group);
    group.kind = KVASIR_GROUP_KIND_FULL;

    /* Both sides agree on the tokens of a chunk: a multiple of this engine's blocks. */
    struct kvasir_rank rank;
    KVASIR_INIT(&rank);
    rank.domain = &domain;
    rank.world_size = 1;
    rank.memory = &memory;
    rank.groups = &group;
    rank.group_count = 1;
    uint64_t chunk_tokens;
    check(kvasir_join(engine->client, &rank, &chunk_tokens, &engine->seed), "join");
    engine->chunk_tokens = (uint32_t)chunk_tokens;
}

/* The keys of a prompt of some chunks and one block. Its tokens follow from its number. */
static struct kvasir_chain prompt_chain(struct engine *engine, uint32_t prompt)
{
    struct kvasir_chain_options options;
    KVASIR_INIT(&options);
    options.seed = engine->seed;
    options.chunk_size = engine->chunk_tokens;
    struct kvasir_chain chain;
    check(kvasir_chain_new(&options, &chain), "chain");
    for (uint32_t at = 0; at < CHUNKS * engine->chunk_tokens + BLOCK_TOKENS; at++) {
        uint32_t token = prompt * 1000 + at;
        check(kvasir_chain_extend(chain, &token, 1), "extend");
    }
    return chain;
}

/* Looks a prompt up and pins what is there. Returns the number of objects to load. */
static size_t look_up(struct engine *engine, struct kvasir_chain chain, struct kvasir_found *found,
                      struct kvasir_answer *answer)
{
    struct kvasir_lookup_request request;
    KVASIR_INIT(&request);
    request.label = REQUEST;
    request.chain = chain;
    request.tail_step = BLOCK_TOKENS;
    KVASIR_INIT(answer);
    answer->found = found;
    answer->found_capacity = CHUNKS + 1;
    check(kvasir_lookup(engine->client, &request, answer), "lookup");
    return answer->found_count;
}

/* Stores the prompt whose KV cache lies in blocks 1, 2 and so on. Returns how many objects are there now. */
static size_t store(struct engine *engine, struct kvasir_chain chain)
{
    uint32_t chunk_blocks = engine->chunk_tokens / BLOCK_TOKENS;
    struct kvasir_key keys[CHUNKS + 1];
    check(kvasir_chain_keys(chain, 0, CHUNKS, keys), "keys");
    check(kvasir_chain_tail_key(chain, CHUNKS, BLOCK_TOKENS, &keys[CHUNKS]), "tail key");
    struct kvasir_store_item items[CHUNKS + 1];
    struct kvasir_block_list lists[CHUNKS + 1];
    uint32_t outcomes[CHUNKS + 1];
    int64_t ids[BLOCKS];
    for (int64_t block = 0; block < BLOCKS; block++)
        ids[block] = 1 + block;
    for (uint32_t chunk = 0; chunk <= CHUNKS; chunk++) {
        lists[chunk].ids = ids + (size_t)chunk * chunk_blocks;
        lists[chunk].count = chunk < CHUNKS ? chunk_blocks : 1;
        KVASIR_INIT(&items[chunk]);
        items[chunk].key = keys[chunk];
        items[chunk].parent = chunk > 0 ? &keys[chunk - 1] : NULL;
        items[chunk].tokens = chunk < CHUNKS ? engine->chunk_tokens : BLOCK_TOKENS;
        items[chunk].lists = &lists[chunk];
        items[chunk].list_count = 1;
    }
    check(kvasir_store(engine->client, items, CHUNKS + 1, NULL, 0, outcomes), "store");
    size_t there = 0;
    for (size_t chunk = 0; chunk <= CHUNKS; chunk++)
        there += outcomes[chunk] == KVASIR_OUTCOME_PUBLISHED || outcomes[chunk] == KVASIR_OUTCOME_EXISTS;
    return there;
}

/* Loads what was found into the blocks from `first` on. Returns how many objects came whole. */
static size_t load(struct engine *engine, const struct kvasir_found *found, size_t count, int64_t first)
{
    struct kvasir_load_item items[CHUNKS + 1];
    struct kvasir_block_list lists[CHUNKS + 1];
    uint8_t loaded[CHUNKS + 1];
    int64_t ids[BLOCKS];
    size_t used = 0, whole = 0;
    for (int64_t block = 0; block < BLOCKS; block++)
        ids[block] = first + block;
    for (size_t at = 0; at < count; at++) {
        lists[at].ids = ids + used;
        lists[at].count = found[at].tokens / BLOCK_TOKENS;
        used += lists[at].count;
        KVASIR_INIT(&items[at]);
        items[at].key = found[at].key;
        items[at].group = found[at].group;
        items[at].tokens = found[at].tokens;
        items[at].lists = &lists[at];
        items[at].list_count = 1;
    }
    check(kvasir_load(engine->client, REQUEST, 0, items, count, loaded), "load");
    for (size_t at = 0; at < count; at++)
        whole += loaded[at];
    return whole;
}

/* One prompt with one server: computed, stored, looked up, loaded into other blocks, compared. */
static void serve_prompt(struct engine *engine, uint32_t prompt)
{
    struct kvasir_chain chain = prompt_chain(engine, prompt);
    uint32_t tokens = CHUNKS * engine->chunk_tokens + BLOCK_TOKENS;
    uint32_t blocks = tokens / BLOCK_TOKENS;
    struct kvasir_found found[CHUNKS + 1];
    struct kvasir_answer answer;
    size_t before = look_up(engine, chain, found, &answer);
    check(kvasir_release(engine->client, &answer.pin, 1), "release");

    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t block = 1; block <= blocks; block++)
            fill(page_of(engine, layer, block), prompt, layer, block);
    /* A new server makes its pool present bit by bit. An engine would not wait for it: that store would be dropped. */
    uint64_t held = 0, needed = (uint64_t)blocks * LAYERS * PAGE_BYTES;
    for (int waited = 0; held < needed && waited < WAIT_MS; waited += 5) {
        if (waited > 0)
            pause_ms(5);
        check(kvasir_reserve(engine->client, needed, &held), "reserve");
    }
    size_t stored = store(engine, chain);

    size_t count = look_up(engine, chain, found, &answer);
    uint32_t first = BLOCKS - blocks;
    size_t loaded = load(engine, found, count, first);
    check(kvasir_release(engine->client, &answer.pin, 1), "release");
    check(kvasir_chain_free(chain), "free");
    printf("prompt %" PRIu32 ": found %zu, stored %zu, hit %" PRIu64 " of %" PRIu32 " tokens, loaded %zu\n", prompt,
           before, stored, answer.hit_tokens, tokens, loaded);
    if (before != 0 || stored != CHUNKS + 1 || loaded != CHUNKS + 1 || answer.hit_tokens != tokens) {
        fprintf(stderr, "that is not what was stored\n");
        exit(1);
    }
    uint8_t expected[PAGE_BYTES];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t block = 0; block < blocks; block++) {
            fill(expected, prompt, layer, 1 + block);
            if (memcmp(page_of(engine, layer, first + block), expected, PAGE_BYTES) != 0) {
                fprintf(stderr, "layer %" PRIu32 ", block %" PRIu32 ": other bytes\n", layer, block);
                exit(1);
            }
        }
    }
    printf("prompt %" PRIu32 ": every byte as it was stored\n", prompt);
    fflush(stdout);
}

/* Works without a cache until there is another server. */
static void compute_meanwhile(struct engine *engine, uint32_t prompt, const uint8_t *before, uint8_t *after)
{
    struct kvasir_chain chain = prompt_chain(engine, prompt);
    struct kvasir_found found[CHUNKS + 1];
    struct kvasir_answer answer;
    struct kvasir_health health;
    int misses = 0;
    printf("waiting for another server\n");
    fflush(stdout);
    for (int waited = 0; waited < WAIT_MS; waited += 5) {
        KVASIR_INIT(&health);
        check(kvasir_get_health(engine->client, &health), "health");
        if (!health.healthy) {
            /* Neither is an error: the lookup misses or is answered from memory, the stores are dropped. */
            size_t count = look_up(engine, chain, found, &answer);
            check(kvasir_release(engine->client, &answer.pin, 1), "release");
            size_t stored = store(engine, chain);
            if (count == 0 && stored == 0 && misses++ == 0) {
                printf("no server: computing without a cache\n");
                fflush(stdout);
            }
        } else if (memcmp(before, health.boot_id, sizeof health.boot_id) != 0) {
            break;
        }
        pause_ms(5);
    }
    wait_for_server(engine, before, after);
    check(kvasir_chain_free(chain), "free");
    printf("back with another server\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s SOCKET [SERVERS [ring]]\n", argv[0]);
        return 2;
    }
    int servers = argc > 2 ? atoi(argv[2]) : 1;
    struct engine engine = {0};
    start(&engine, argv[1], argc > 3 && strcmp(argv[3], "ring") == 0);
    uint8_t boot_id[16], next_boot_id[16];
    wait_for_server(&engine, NULL, boot_id);
    for (int server = 1; server <= servers; server++) {
        serve_prompt(&engine, (uint32_t)server);
        if (server < servers) {
            compute_meanwhile(&engine, 0, boot_id, next_boot_id);
            memcpy(boot_id, next_boot_id, sizeof boot_id);
        }
    }
    struct kvasir_stats stats;
    KVASIR_INIT(&stats);
    check(kvasir_get_stats(engine.client, &stats), "stats");
    printf("%" PRIu64 " reconnects, %" PRIu64 " corrupt loads\n", stats.reconnects, stats.corrupt_loads);
    check(kvasir_client_close(engine.client), "close");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        free(engine.layers[layer]);
    return 0;
}
