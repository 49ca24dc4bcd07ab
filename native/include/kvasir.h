/* Made from native/src by `cargo xtask codegen`; do not edit. */

/*
 * Kvasir: a KV cache that the inference engines of one machine share.
 *
 * The life of an engine:
 *
 *   kvasir_client_open      a client, which connects by itself and comes back by itself
 *   kvasir_negotiate        the tokens of a chunk
 *   kvasir_set_memory       where the KV pages lie
 *   kvasir_register         what they hold; gives the seed of the keys
 *   kvasir_chain_new        the keys of a prompt, from its tokens
 *   kvasir_lookup           the longest prefix that is there, pinned
 *   kvasir_load             its bytes, into the engine's pages
 *   kvasir_release          the pin
 *   kvasir_store            pages of what was computed, into the cache
 *   kvasir_client_close     no byte of the engine is touched from here on
 *
 * kvasir_join is the three calls behind the first in one, for ranks that are like most.
 *
 * native/examples/engine.c is a whole one. docs/c-api.md says how to build and link it.
 *
 * Errors. Every function that can fail returns a kvasir_code. Then it has changed nothing but what its comment says,
 * and kvasir_last_error has the numbers and a sentence that says what to do. That is kept for each thread. A server that is
 * away is an error of few functions. Lookups and loads go on from the memory that it shared, while kvasir_get_health says
 * readable; otherwise lookups miss, and loads answer 0 for each item. Stores answer so for each item in any case. No function
 * ends the process, and no panic leaves the library.
 *
 * Structs. Each struct that begins with struct_size may grow at its end. KVASIR_INIT makes it all zero and sets the size;
 * zero is always the default. An engine that was compiled with an older header works with a newer library. With an
 * older library it works too, as long as what that does not know is left zero. In an array all elements have the same size.
 * Other structs never change. Reserved fields are 0.
 *
 * Handles. kvasir_client and kvasir_chain are numbers and not addresses. One that was closed, made before a fork, never
 * given out, or is of another kind is an error.
 *
 * Pointers. A pointer is valid for what its comment and its count say until the call returns, and the memory that it names is
 * not written meanwhile by anybody else. NULL, misaligned and too short ones are errors where that can be seen. An
 * address at which there is no memory cannot be seen. Texts are UTF-8 and end in a zero byte. Nothing that is handed over is
 * kept after the call, but for the memory that pages lie in: kvasir_set_memory, kvasir_join.
 *
 * Threads. Any number of threads may use a client at the same time. A chain may be read by many threads, and
 * extended by one while no other thread uses it: otherwise the answer is KVASIR_CODE_BUSY. Closing a client waits for the
 * calls of other threads. There are no callbacks. A client has threads of its own. Those that share a large copy with its
 * caller block all signals. The others take signals as the thread does that opened the client or started its first lookup:
 * block there what they must not take.
 *
 * Time. Each answer of the server is waited for until the client's deadline; a store of many objects has several.
 *
 * Forks. After fork the parent's handles are of no use in the child: every call answers KVASIR_CODE_FORKED and touches
 * neither the parent nor its memory. The child may open clients of its own. A child that is made without the handlers of
 * pthread_atfork, such as by a bare clone, must not call this library. exec needs no care: all descriptors are closed by it.
 *
 * Signals. The library installs no handlers and raises no SIGPIPE. System calls that a signal interrupts go on. No
 * function may be called in a signal handler. One that interrupts a call of the same thread gets KVASIR_CODE_BUSY.
 */


#ifndef KVASIR_H
#define KVASIR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Makes the struct that a pointer names all zero, and sets its size. */
#define KVASIR_INIT(pointer) kvasir_init_((pointer), sizeof *(pointer))

static inline void kvasir_init_(void *structure, size_t size)
{
    uint32_t size_word = (uint32_t)size;
    memset(structure, 0, size);
    memcpy(structure, &size_word, sizeof size_word);
}


/**
 * The version of this interface: of the header when it is compiled, see kvasir_abi_version for the library.
 * It goes up when something is added.
 */
#define KVASIR_ABI_VERSION 2

/**
 * A flag of kvasir_client_options: bytes are neither summed nor compared.
 */
#define KVASIR_NO_CHECKSUMS 1

/**
 * A value of kvasir_client_options.grant_bytes: no space is held ahead.
 */
#define KVASIR_GRANT_NONE 18446744073709551615ull

/**
 * A flag of kvasir_registration: this rank only reads what a lower one stores.
 */
#define KVASIR_READS_ONLY 1

/**
 * A flag of kvasir_lookup_request: what is found is not pinned.
 */
#define KVASIR_LOOKUP_NO_PIN 1

/**
 * A flag of kvasir_answer: the server could not be asked, nor its memory read. A miss that says nothing about what it holds.
 */
#define KVASIR_ANSWER_DEGRADED 1

/**
 * A flag of kvasir_answer: there is more, but the pins of this client keep as much as they may.
 */
#define KVASIR_ANSWER_SHORTENED 2

/**
 * A flag of kvasir_store_item: this rank cannot store the object, and the others are told.
 */
#define KVASIR_STORE_SKIP 1

/**
 * What a call came to.
 */
enum kvasir_code
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
    /**
     * It did what it says.
     */
    KVASIR_CODE_OK = 0,
    /**
     * An argument is NULL, misaligned, out of its range, or contradicts another.
     */
    KVASIR_CODE_INVALID_ARGUMENT = 1,
    /**
     * A struct's size is of no version of this interface, or a field is set that this library does not know.
     */
    KVASIR_CODE_INVALID_STRUCT = 2,
    /**
     * A handle that this library has never given out, or one of another kind.
     */
    KVASIR_CODE_INVALID_HANDLE = 3,
    /**
     * A handle that was closed.
     */
    KVASIR_CODE_CLOSED = 4,
    /**
     * A handle that was made before a fork. In the child it is of no use: make a new one.
     */
    KVASIR_CODE_FORKED = 5,
    /**
     * Another thread is using the chain, or the call came from a signal handler that interrupted another one.
     */
    KVASIR_CODE_BUSY = 6,
    /**
     * An answer does not fit the room that was given for it. The numbers are what is needed and what was given.
     */
    KVASIR_CODE_BUFFER_TOO_SMALL = 7,
    /**
     * No server, one that is stopping, or none that answered in time. The client repairs itself: go on without the cache.
     */
    KVASIR_CODE_UNAVAILABLE = 8,
    /**
     * The server's own answer: see kvasir_error.server_code.
     */
    KVASIR_CODE_REFUSED = 9,
    /**
     * A server that restarted with another chunk size.
     */
    KVASIR_CODE_CHUNK_SIZE_CHANGED = 10,
    /**
     * Client and server derive different keys.
     */
    KVASIR_CODE_SEED_MISMATCH = 11,
    /**
     * A block id that the memory does not have.
     */
    KVASIR_CODE_BLOCK_OUT_OF_RANGE = 12,
    /**
     * A block list of the wrong length.
     */
    KVASIR_CODE_BLOCK_COUNT = 13,
    /**
     * Null blocks where an object cannot have them.
     */
    KVASIR_CODE_NULL_BLOCKS = 14,
    /**
     * An object group that was not registered or has no memory.
     */
    KVASIR_CODE_UNKNOWN_GROUP = 15,
    /**
     * Pages that do not lie in their memory, or do not add up to what was registered.
     */
    KVASIR_CODE_INVALID_LAYOUT = 16,
    /**
     * A store or load before kvasir_set_memory.
     */
    KVASIR_CODE_NO_MEMORY = 17,
    /**
     * A store or load before kvasir_register.
     */
    KVASIR_CODE_NO_REGISTRATION = 18,
    /**
     * More items than one call may have.
     */
    KVASIR_CODE_TOO_MANY_ITEMS = 19,
    /**
     * A pin that is not held.
     */
    KVASIR_CODE_UNKNOWN_PIN = 20,
    /**
     * A lookup ticket that was never given out or has ended.
     */
    KVASIR_CODE_UNKNOWN_TICKET = 21,
    /**
     * A defect in the library. The message says where.
     */
    KVASIR_CODE_INTERNAL = 22,
    /**
     * Weights that are not there, cannot be read, or change while they are read.
     */
    KVASIR_CODE_WEIGHTS_UNREADABLE = 23,
};
#ifndef __cplusplus
typedef int32_t kvasir_code;
#endif // __cplusplus

/**
 * What a process is for. A number that is none of these is an error.
 */
enum kvasir_client_kind
#ifdef __cplusplus
  : uint32_t
#endif // __cplusplus
 {
    /**
     * Decides what is loaded. Maps the index.
     */
    KVASIR_CLIENT_KIND_SCHEDULER = 1,
    /**
     * Owns KV memory: stores and loads. Maps the index and the pool.
     */
    KVASIR_CLIENT_KIND_WORKER = 2,
    /**
     * Anything else. Maps neither.
     */
    KVASIR_CLIENT_KIND_TOOL = 3,
};
#ifndef __cplusplus
typedef uint32_t kvasir_client_kind;
#endif // __cplusplus

/**
 * What a client maps of the server's memory.
 */
enum kvasir_maps
#ifdef __cplusplus
  : uint32_t
#endif // __cplusplus
 {
    /**
     * What its kind needs.
     */
    KVASIR_MAPS_BY_KIND = 0,
    /**
     * No index: every lookup is a message.
     */
    KVASIR_MAPS_NOTHING = 1,
    /**
     * The index: lookups need no message.
     */
    KVASIR_MAPS_INDEX = 2,
    /**
     * The pool too: stores and loads.
     */
    KVASIR_MAPS_POOL = 3,
    /**
     * A ring of its own, through which the server copies what is stored and loaded; neither index nor pool. Every lookup is
     * a message.
     */
    KVASIR_MAPS_RING = 4,
};
#ifndef __cplusplus
typedef uint32_t kvasir_maps;
#endif // __cplusplus

/**
 * What part of a prefix the objects of an object group stand for.
 */
enum kvasir_group_kind
#ifdef __cplusplus
  : uint32_t
#endif // __cplusplus
 {
    /**
     * The whole prefix is needed.
     */
    KVASIR_GROUP_KIND_FULL = 1,
    /**
     * The trailing window of window_tokens is needed.
     */
    KVASIR_GROUP_KIND_SLIDING_WINDOW = 2,
    /**
     * The aligned piece of window_tokens that holds the boundary is needed.
     */
    KVASIR_GROUP_KIND_CHUNKED_LOCAL = 3,
    /**
     * Only the state at the boundary is needed.
     */
    KVASIR_GROUP_KIND_RECURRENT = 4,
};
#ifndef __cplusplus
typedef uint32_t kvasir_group_kind;
#endif // __cplusplus

/**
 * What became of a part that was to be stored.
 */
enum kvasir_outcome
#ifdef __cplusplus
  : uint32_t
#endif // __cplusplus
 {
    /**
     * Visible now.
     */
    KVASIR_OUTCOME_PUBLISHED = 0,
    /**
     * Arrived; other ranks' parts are awaited.
     */
    KVASIR_OUTCOME_PART_ACCEPTED = 1,
    /**
     * The key exists already.
     */
    KVASIR_OUTCOME_EXISTS = 2,
    /**
     * The parent is not there: store again from the first missing chunk.
     */
    KVASIR_OUTCOME_NO_PARENT = 3,
    /**
     * Another rank cannot store the object.
     */
    KVASIR_OUTCOME_SKIPPED = 4,
    /**
     * No room in the pool or the index. Counted.
     */
    KVASIR_OUTCOME_DROPPED = 5,
    /**
     * No server, or none that answered: then it may be stored all the same. Counted.
     */
    KVASIR_OUTCOME_UNAVAILABLE = 6,
};
#ifndef __cplusplus
typedef uint32_t kvasir_outcome;
#endif // __cplusplus

/**
 * What a server says of itself.
 */
enum kvasir_server_health
#ifdef __cplusplus
  : uint32_t
#endif // __cplusplus
 {
    /**
     * There is no connection to one.
     */
    KVASIR_SERVER_HEALTH_NONE = 0,
    /**
     * Not ready yet.
     */
    KVASIR_SERVER_HEALTH_STARTING = 1,
    /**
     * Takes requests.
     */
    KVASIR_SERVER_HEALTH_SERVING = 2,
    /**
     * Answers what is under way and takes nothing new.
     */
    KVASIR_SERVER_HEALTH_DRAINING = 3,
    /**
     * Gone for good.
     */
    KVASIR_SERVER_HEALTH_STOPPED = 4,
};
#ifndef __cplusplus
typedef uint32_t kvasir_server_health;
#endif // __cplusplus

/**
 * The server's codes that calls of this interface get. Any other keeps the number that the protocol gives it.
 */
enum kvasir_server_code
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
    /**
     * The server failed, not the request.
     */
    KVASIR_SERVER_CODE_INTERNAL = 0,
    /**
     * Client and server speak different versions.
     */
    KVASIR_SERVER_CODE_PROTOCOL_VERSION = 1,
    /**
     * The frame is not a valid message.
     */
    KVASIR_SERVER_CODE_MALFORMED = 2,
    /**
     * The frame is longer than allowed.
     */
    KVASIR_SERVER_CODE_FRAME_TOO_LARGE = 3,
    /**
     * The server does not know this kind of request.
     */
    KVASIR_SERVER_CODE_UNKNOWN_MESSAGE = 4,
    /**
     * The first frame is not a hello, or a second hello arrived.
     */
    KVASIR_SERVER_CODE_HELLO_EXPECTED = 5,
    /**
     * Descriptors arrived where none may.
     */
    KVASIR_SERVER_CODE_DESCRIPTORS = 6,
    /**
     * The peer's user may not connect.
     */
    KVASIR_SERVER_CODE_PERMISSION_DENIED = 7,
    /**
     * More of something than allowed.
     */
    KVASIR_SERVER_CODE_LIMIT_EXCEEDED = 8,
    /**
     * No chunk size is in force yet.
     */
    KVASIR_SERVER_CODE_NOT_NEGOTIATED = 9,
    /**
     * An alignment that no chunk size follows from.
     */
    KVASIR_SERVER_CODE_INVALID_ALIGNMENT = 10,
    /**
     * The chunk size does not suit the model.
     */
    KVASIR_SERVER_CODE_INCOMPATIBLE_CHUNK_SIZE = 11,
    /**
     * A part of the server could not take up the chunk size.
     */
    KVASIR_SERVER_CODE_BINDING_LISTENER_FAILED = 12,
    /**
     * Spans that cannot be cached with the chunk size.
     */
    KVASIR_SERVER_CODE_INVALID_SPANS = 13,
    /**
     * The request needs a registration first.
     */
    KVASIR_SERVER_CODE_NOT_REGISTERED = 14,
    /**
     * The registration contradicts another rank's or an earlier one.
     */
    KVASIR_SERVER_CODE_REGISTRATION_CONFLICT = 15,
    /**
     * An object group that does not exist or makes no sense.
     */
    KVASIR_SERVER_CODE_INVALID_GROUP = 16,
    /**
     * A part has another length than its registration gives.
     */
    KVASIR_SERVER_CODE_SIZE_MISMATCH = 17,
    /**
     * An extent is not in this client's grant.
     */
    KVASIR_SERVER_CODE_EXTENT_NOT_GRANTED = 18,
    /**
     * An extent is empty, outside the pool or named twice.
     */
    KVASIR_SERVER_CODE_INVALID_EXTENT = 19,
    /**
     * Not a pin of this connection.
     */
    KVASIR_SERVER_CODE_UNKNOWN_PIN = 20,
    /**
     * An object that can never fit the pool.
     */
    KVASIR_SERVER_CODE_OBJECT_TOO_LARGE = 21,
    /**
     * The client has not attached its slab.
     */
    KVASIR_SERVER_CODE_NOT_ATTACHED = 22,
    /**
     * The server is shutting down.
     */
    KVASIR_SERVER_CODE_DRAINING = 23,
    /**
     * A key that contradicts the request.
     */
    KVASIR_SERVER_CODE_INVALID_KEY = 24,
    /**
     * Any other field with a value that makes no sense.
     */
    KVASIR_SERVER_CODE_INVALID_ARGUMENT = 25,
    /**
     * The server has no descriptors or memory left for now; try again.
     */
    KVASIR_SERVER_CODE_EXHAUSTED = 26,
    /**
     * The client has broken its payload ring.
     */
    KVASIR_SERVER_CODE_RING_BROKEN = 27,
};
#ifndef __cplusplus
typedef int32_t kvasir_server_code;
#endif // __cplusplus

/**
 * What keeps an engine from caching and only the engine knows, as bits.
 */
enum kvasir_condition
#ifdef __cplusplus
  : uint64_t
#endif // __cplusplus
 {
    /**
     * Its weights are being read.
     */
    KVASIR_CONDITION_WEIGHTS_PENDING = 1,
    /**
     * Its weights could not be read, and that is tried again.
     */
    KVASIR_CONDITION_WEIGHTS_UNREADABLE = 2,
    /**
     * What its weights are will not be known as long as it runs.
     */
    KVASIR_CONDITION_WEIGHTS_UNKNOWN = 4,
    /**
     * Its workers cannot be served, or differ in what has to be equal.
     */
    KVASIR_CONDITION_WORKERS_REFUSED = 8,
    /**
     * The server's chunk size does not suit it.
     */
    KVASIR_CONDITION_CHUNK_REFUSED = 16,
    /**
     * A load that fails would fail its request, so nothing is loaded.
     */
    KVASIR_CONDITION_LOADS_FORBIDDEN = 32,
    /**
     * It is not known what one of its adapters is.
     */
    KVASIR_CONDITION_ADAPTER_UNKNOWN = 64,
    /**
     * It does not hash images and other media.
     */
    KVASIR_CONDITION_MEDIA_UNHASHED = 128,
    /**
     * Its servers differ, or are one.
     */
    KVASIR_CONDITION_SERVERS_DIFFER = 256,
    /**
     * Its steps end where recurrent state cannot be resumed.
     */
    KVASIR_CONDITION_STATES_UNREACHED = 512,
    /**
     * The engine's connector has kept an error of its own from the engine.
     */
    KVASIR_CONDITION_ERRORS_SPARED = 1024,
};
#ifndef __cplusplus
typedef uint64_t kvasir_condition;
#endif // __cplusplus

/**
 * 32 bytes: the key of a chunk or tail, the seed of a domain.
 */
typedef struct kvasir_key {
    /**
     * As they travel.
     */
    uint8_t bytes[32];
} kvasir_key;

/**
 * Bytes of any content. NULL is none; a pointer and no bytes is something that is empty.
 */
typedef struct kvasir_bytes {
    /**
     * The first.
     */
    const uint8_t *data;
    /**
     * How many.
     */
    size_t size;
} kvasir_bytes;

/**
 * An image or another input that fills tokens of a prompt.
 */
typedef struct kvasir_mm_item {
    /**
     * Its content's identity, as the engine computes it.
     */
    struct kvasir_bytes identifier;
    /**
     * Its first token, from the start of the prompt.
     */
    uint64_t start;
    /**
     * How many tokens it fills.
     */
    uint64_t length;
} kvasir_mm_item;

/**
 * What decides about the keys of a prompt but its tokens.
 */
typedef struct kvasir_chain_options {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * Tokens of a chunk, as negotiated.
     */
    uint32_t chunk_size;
    /**
     * The domain's seed: kvasir_register, kvasir_domain_seed.
     */
    struct kvasir_key seed;
    /**
     * Images and other inputs.
     */
    const struct kvasir_mm_item *mm_items;
    /**
     * How many.
     */
    size_t mm_item_count;
    /**
     * The identity of the adapter's content.
     */
    struct kvasir_bytes lora;
    /**
     * What separates tenants.
     */
    struct kvasir_bytes salt;
} kvasir_chain_options;

/**
 * The keys of one prompt. No address, as kvasir_client.
 */
typedef struct kvasir_chain {
    /**
     * For the library only.
     */
    uint64_t id;
} kvasir_chain;

/**
 * How a client behaves. Zeroes are the defaults.
 */
typedef struct kvasir_client_options {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * kvasir_client_kind.
     */
    uint32_t kind;
    /**
     * Path of the server's socket.
     */
    const char *socket;
    /**
     * Program and role, for the server's status.
     */
    const char *name;
    /**
     * The same 16 bytes in all processes of one serving engine, others in every other.
     */
    uint8_t engine_instance[16];
    /**
     * The longest that one exchange with the server may take. 0: 1000.
     */
    uint64_t deadline_ms;
    /**
     * How often a refused or failed step of recovery is tried again. 0: 10000.
     */
    uint64_t heartbeat_ms;
    /**
     * Pool space held ahead for stores. 0: 64 MiB. KVASIR_GRANT_NONE: none.
     */
    uint64_t grant_bytes;
    /**
     * kvasir_maps: which way payload moves is part of it.
     */
    uint32_t maps;
    /**
     * KVASIR_NO_CHECKSUMS.
     */
    uint32_t flags;
    /**
     * With KVASIR_MAPS_RING: bytes of each of the ring's two lanes, one for stores and one for loads. 0: 8 MiB.
     */
    uint64_t ring_bytes;
    /**
     * Threads that share a large copy, the calling one among them. 0: as many as a measurement says is worth it.
     */
    uint32_t copy_threads;
    /**
     * 0.
     */
    uint32_t reserved;
} kvasir_client_options;

/**
 * A client. No address: a handle that was closed is an error and nothing worse. All zeroes is none.
 */
typedef struct kvasir_client {
    /**
     * For the library only.
     */
    uint64_t id;
} kvasir_client;

/**
 * The tokens that one block id of a KV cache group spans. 0: a group that is never cached.
 */
typedef struct kvasir_span {
    /**
     * The group's index.
     */
    uint32_t group;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Tokens.
     */
    uint64_t tokens;
} kvasir_span;

/**
 * What a model needs of the chunk size.
 */
typedef struct kvasir_negotiation {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t flags;
    /**
     * The least common multiple of the positive spans: kvasir_required_alignment.
     */
    uint64_t required_alignment;
    /**
     * The tokens of every KV cache group.
     */
    const struct kvasir_span *spans;
    /**
     * How many.
     */
    size_t span_count;
    /**
     * What is preferred to the server's default, where that is `auto`. 0: none.
     */
    uint64_t preferred_base;
    /**
     * The size that an earlier life of the server gave. 0: none.
     */
    uint64_t previous_size;
    /**
     * What shares a chunk size with this model on a server with one for each. NULL: nothing is said.
     */
    const struct kvasir_key *binding_domain;
} kvasir_negotiation;

/**
 * All that decides about the bytes of an object but its tokens. Engines of one domain share objects.
 */
typedef struct kvasir_domain {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t flags;
    /**
     * The model's name.
     */
    const char *model;
    /**
     * The identity of its weights.
     */
    struct kvasir_bytes weights_id;
    /**
     * The type of a KV element, such as bfloat16.
     */
    const char *kv_dtype;
    /**
     * Whatever decides about the order of bytes in a page.
     */
    struct kvasir_bytes fingerprint;
    /**
     * How the model is spread over ranks, such as tp=2.
     */
    const char *parallel_shape;
} kvasir_domain;

/**
 * An object group as it is registered.
 */
typedef struct kvasir_group {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * kvasir_group_kind.
     */
    uint32_t kind;
    /**
     * Window or piece length in tokens, of the kinds that have one.
     */
    uint64_t window_tokens;
    /**
     * Bytes of this rank's part for each alignment of tokens; of a recurrent group, of one state.
     */
    uint64_t unit_bytes;
    /**
     * Its number.
     */
    uint16_t group;
    /**
     * How many parts an object has.
     */
    uint16_t parts;
    /**
     * The part that this rank holds.
     */
    uint16_t part;
    /**
     * 0.
     */
    uint16_t reserved;
} kvasir_group;

/**
 * What one rank stores and loads.
 */
typedef struct kvasir_registration {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * KVASIR_READS_ONLY.
     */
    uint32_t flags;
    /**
     * The domain of its objects.
     */
    const struct kvasir_domain *domain;
    /**
     * Its number.
     */
    uint32_t rank;
    /**
     * How many there are.
     */
    uint32_t world_size;
    /**
     * As negotiated.
     */
    uint64_t required_alignment;
    /**
     * As negotiated.
     */
    const struct kvasir_span *spans;
    /**
     * How many.
     */
    size_t span_count;
    /**
     * Its object groups.
     */
    const struct kvasir_group *groups;
    /**
     * How many.
     */
    size_t group_count;
    /**
     * Number of blocks, for status.
     */
    uint64_t blocks;
    /**
     * Number of layers, for status.
     */
    uint32_t layers;
    /**
     * 0.
     */
    uint32_t reserved;
} kvasir_registration;

/**
 * Memory that holds KV pages. It stays valid until kvasir_client_close has returned.
 */
typedef struct kvasir_region {
    /**
     * Its first byte.
     */
    uint8_t *base;
    /**
     * Its length in bytes.
     */
    uint64_t bytes;
} kvasir_region;

/**
 * One layer's pages: the page of block b is page_bytes bytes at offset + b * block_stride of its region.
 */
typedef struct kvasir_layer {
    /**
     * Index of the region.
     */
    uint32_t region;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Where the page of block 0 starts.
     */
    uint64_t offset;
    /**
     * From one block's page to the next one's.
     */
    uint64_t block_stride;
    /**
     * Bytes of a page, padding included.
     */
    uint64_t page_bytes;
} kvasir_layer;

/**
 * A KV cache group: layers that share a block table.
 */
typedef struct kvasir_kv_group {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t flags;
    /**
     * Tokens that one block id spans.
     */
    uint64_t tokens_per_block;
    /**
     * Its layers, in the order in which an object holds them.
     */
    const struct kvasir_layer *layers;
    /**
     * How many.
     */
    size_t layer_count;
} kvasir_kv_group;

/**
 * The KV cache groups whose bytes make up the objects of an object group.
 */
typedef struct kvasir_group_memory {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * The object group's number.
     */
    uint16_t group;
    /**
     * 0.
     */
    uint16_t reserved;
    /**
     * In ascending order.
     */
    const struct kvasir_kv_group *kv_groups;
    /**
     * How many.
     */
    size_t kv_group_count;
} kvasir_group_memory;

/**
 * Where an engine's pages lie.
 */
typedef struct kvasir_memory {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t flags;
    /**
     * Number of block ids. Id 0 is the null block: it is neither read nor written.
     */
    uint64_t blocks;
    /**
     * The memory.
     */
    const struct kvasir_region *regions;
    /**
     * How many.
     */
    size_t region_count;
    /**
     * The pages of each object group.
     */
    const struct kvasir_group_memory *groups;
    /**
     * How many.
     */
    size_t group_count;
} kvasir_memory;

/**
 * One rank of an engine, for kvasir_join: what its KV cache means, and where it lies.
 */
typedef struct kvasir_rank {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t flags;
    /**
     * The domain of its objects.
     */
    const struct kvasir_domain *domain;
    /**
     * Its number. It holds the part of that number of every object.
     */
    uint32_t rank;
    /**
     * How many there are, and how many parts an object has.
     */
    uint32_t world_size;
    /**
     * What is preferred to the server's default, where that is `auto`. 0: none.
     */
    uint64_t preferred_base;
    /**
     * Where its pages lie.
     */
    const struct kvasir_memory *memory;
    /**
     * One for each object group of the memory: its number, its kind, its window. All else follows from the rest and is 0.
     */
    const struct kvasir_group *groups;
    /**
     * How many.
     */
    size_t group_count;
} kvasir_rank;

/**
 * A tail of a prompt: the key of the first tokens of a chunk.
 */
typedef struct kvasir_tail {
    /**
     * Its key.
     */
    struct kvasir_key key;
    /**
     * The chunk's index.
     */
    uint32_t chunk;
    /**
     * Tokens of the tail.
     */
    uint32_t tokens;
} kvasir_tail;

/**
 * What a lookup asks. The prompt is a chain, or keys and tails.
 */
typedef struct kvasir_lookup_request {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * KVASIR_LOOKUP_NO_PIN.
     */
    uint32_t flags;
    /**
     * A number of the engine's own for the pin, such as its request: kvasir_release_label.
     */
    uint64_t label;
    /**
     * The prompt. Then seed, keys and tails stay zero.
     */
    struct kvasir_chain chain;
    /**
     * With a chain: the tails to look for are those at every multiple of so many tokens. 0: none.
     */
    uint32_t tail_step;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Without a chain: the domain's seed.
     */
    struct kvasir_key seed;
    /**
     * Without a chain: the keys of the full chunks.
     */
    const struct kvasir_key *keys;
    /**
     * How many.
     */
    size_t key_count;
    /**
     * Without a chain: the tails.
     */
    const struct kvasir_tail *tails;
    /**
     * How many.
     */
    size_t tail_count;
    /**
     * The hit is at most that long. 0: no limit.
     */
    uint64_t max_tokens;
    /**
     * So many tokens the engine has itself. They need not be loaded.
     */
    uint64_t local_tokens;
} kvasir_lookup_request;

/**
 * What keeps the objects of a hit from being evicted. It belongs to one connection. An id of 0 is none.
 */
typedef struct kvasir_pin {
    /**
     * The connection.
     */
    uint64_t connection;
    /**
     * Its number there.
     */
    uint64_t id;
} kvasir_pin;

/**
 * An object that a lookup found.
 */
typedef struct kvasir_found {
    /**
     * Its key.
     */
    struct kvasir_key key;
    /**
     * The index of its chunk.
     */
    uint32_t chunk;
    /**
     * Its tokens: those of a chunk, or of a tail.
     */
    uint32_t tokens;
    /**
     * Its object group.
     */
    uint16_t group;
    /**
     * 0.
     */
    uint16_t reserved;
} kvasir_found;

/**
 * The answer to a lookup.
 */
typedef struct kvasir_answer {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * Out: KVASIR_ANSWER_DEGRADED, KVASIR_ANSWER_SHORTENED.
     */
    uint32_t flags;
    /**
     * Out: length of the hit in tokens.
     */
    uint64_t hit_tokens;
    /**
     * Out: what holds the objects, to be released once. Its id is 0 where nothing is held.
     */
    struct kvasir_pin pin;
    /**
     * In: room for the objects to load. NULL: they are not wanted.
     */
    struct kvasir_found *found;
    /**
     * In: how many fit. (chunks + 1) * object groups are always enough.
     */
    size_t found_capacity;
    /**
     * Out: how many there are.
     */
    size_t found_count;
    /**
     * In: room for the tokens up to which each object group has everything. NULL: they are not wanted.
     */
    uint64_t *present_tokens;
    /**
     * In: how many fit.
     */
    size_t present_capacity;
    /**
     * Out: how many there are.
     */
    size_t present_count;
} kvasir_answer;

/**
 * The name of an object.
 */
typedef struct kvasir_object {
    /**
     * Its key.
     */
    struct kvasir_key key;
    /**
     * Its object group.
     */
    uint16_t group;
    /**
     * 0.
     */
    uint16_t reserved;
} kvasir_object;

/**
 * Block ids of one KV cache group, in token order.
 */
typedef struct kvasir_block_list {
    /**
     * The first.
     */
    const int64_t *ids;
    /**
     * How many.
     */
    size_t count;
} kvasir_block_list;

/**
 * One part of one object to store.
 */
typedef struct kvasir_store_item {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * KVASIR_STORE_SKIP.
     */
    uint32_t flags;
    /**
     * The object's key.
     */
    struct kvasir_key key;
    /**
     * The key of the chunk before. NULL: the first chunk of a prompt.
     */
    const struct kvasir_key *parent;
    /**
     * The object group.
     */
    uint16_t group;
    /**
     * The part that this rank writes.
     */
    uint16_t part;
    /**
     * Tokens of the object.
     */
    uint32_t tokens;
    /**
     * Block ids, one list per KV cache group of the object group.
     */
    const struct kvasir_block_list *lists;
    /**
     * How many.
     */
    size_t list_count;
} kvasir_store_item;

/**
 * One object to load.
 */
typedef struct kvasir_load_item {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t flags;
    /**
     * The object's key.
     */
    struct kvasir_key key;
    /**
     * The object group.
     */
    uint16_t group;
    /**
     * 0.
     */
    uint16_t reserved;
    /**
     * Tokens of the whole object, as the lookup said.
     */
    uint32_t tokens;
    /**
     * Block ids, one list per KV cache group. A list may end early, and null blocks are left alone.
     */
    const struct kvasir_block_list *lists;
    /**
     * How many.
     */
    size_t list_count;
} kvasir_load_item;

/**
 * What this library is and can do.
 */
typedef struct kvasir_capabilities {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * The version of this interface.
     */
    uint32_t abi_version;
    /**
     * The version of the protocol.
     */
    uint32_t protocol_version;
    /**
     * The version of the shared memory's layout.
     */
    uint32_t memory_version;
    /**
     * Most items of one store, load or kvasir_present.
     */
    uint64_t items_max;
    /**
     * Most keys, and most tails, of a lookup without a chain.
     */
    uint64_t keys_max;
    /**
     * Most spans and object groups.
     */
    uint64_t groups_max;
    /**
     * Most bytes of a field of a domain.
     */
    uint64_t domain_field_bytes_max;
    /**
     * Longest deadline, heartbeat or wait.
     */
    uint64_t wait_ms_max;
    /**
     * Name of the copy that moves payload on this machine.
     */
    const char *copy_path;
    /**
     * The library's version.
     */
    const char *version;
} kvasir_capabilities;

/**
 * Why the last call of this thread failed. The texts stay valid until the next failing call of the thread.
 */
typedef struct kvasir_error {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * kvasir_code. KVASIR_CODE_OK: no call of this thread has failed.
     */
    int32_t code;
    /**
     * kvasir_server_code where code is KVASIR_CODE_REFUSED, otherwise -1.
     */
    int32_t server_code;
    /**
     * How many of the numbers are set.
     */
    uint32_t number_count;
    /**
     * The numbers of the message, in its order.
     */
    int64_t numbers[8];
    /**
     * A stable word for the kind of error.
     */
    const char *kind;
    /**
     * One sentence with the numbers, and what to do.
     */
    const char *message;
} kvasir_error;

/**
 * How a client stands with its server.
 */
typedef struct kvasir_health {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 1: connected, and all that was negotiated and registered holds.
     */
    uint32_t healthy;
    /**
     * 1: lookups and loads work: it is healthy, or what the last server shared is read without it.
     */
    uint32_t readable;
    /**
     * kvasir_server_health.
     */
    uint32_t server;
    /**
     * The chunk size agreed on. 0: none.
     */
    uint64_t chunk_size;
    /**
     * What tells this run of the server from any other. Zeroes: no server.
     */
    uint8_t boot_id[16];
    /**
     * The seed of the registered domain. Zeroes: none.
     */
    struct kvasir_key seed;
} kvasir_health;

/**
 * What a client did so far.
 */
typedef struct kvasir_stats {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Lookups, answered or not.
     */
    uint64_t lookups;
    /**
     * Lookups that were answered without a message.
     */
    uint64_t direct_lookups;
    /**
     * Lookups that missed because the server was away and its memory could not be read.
     */
    uint64_t degraded_lookups;
    /**
     * Objects read whole.
     */
    uint64_t loads;
    /**
     * Their bytes.
     */
    uint64_t loaded_bytes;
    /**
     * Objects that could not be read, stale and corrupt ones included.
     */
    uint64_t failed_loads;
    /**
     * Objects whose space was reused while they were read.
     */
    uint64_t stale_loads;
    /**
     * Objects whose bytes were not those that were stored.
     */
    uint64_t corrupt_loads;
    /**
     * Parts committed, whatever became of them.
     */
    uint64_t stores;
    /**
     * Their bytes.
     */
    uint64_t stored_bytes;
    /**
     * Parts dropped: no server, no space or no room in the index.
     */
    uint64_t dropped_stores;
    /**
     * Connections made after the first.
     */
    uint64_t reconnects;
    /**
     * Time without a usable server.
     */
    uint64_t degraded_ms;
    /**
     * Pins that made room for others when the client's pin words ran out.
     */
    uint64_t evicted_pins;
    /**
     * Pool space held for stores now.
     */
    uint64_t granted_bytes;
    /**
     * Granted space whose pages were entered into this process's page tables before a store.
     */
    uint64_t populated_bytes;
    /**
     * Granted space for which that was not done.
     */
    uint64_t unpopulated_bytes;
    /**
     * What kvasir_count_new_kv was told.
     */
    uint64_t new_bytes;
} kvasir_stats;

/**
 * The server's own counters, read from shared memory. Bytes are in whole frames.
 */
typedef struct kvasir_counters {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 1: read from a server. 0: there is none, and all else is 0.
     */
    uint32_t connected;
    /**
     * Objects published.
     */
    uint64_t stored_objects;
    /**
     * Objects evicted.
     */
    uint64_t evicted_objects;
    /**
     * Stores that were given up because there was no room.
     */
    uint64_t dropped_stores;
    /**
     * Bytes of the pool.
     */
    uint64_t pool_bytes;
    /**
     * Bytes that have memory behind them.
     */
    uint64_t prefaulted_bytes;
    /**
     * Bytes held by objects.
     */
    uint64_t used_bytes;
    /**
     * Bytes granted to writers.
     */
    uint64_t granted_bytes;
    /**
     * Bytes of objects that readers hold.
     */
    uint64_t pinned_bytes;
    /**
     * Bytes held back until their writer is known to be gone.
     */
    uint64_t quarantined_bytes;
} kvasir_counters;

/**
 * Tokens of requests that an engine took up, as the server's status shows them.
 */
typedef struct kvasir_reuse {
    /**
     * Set by KVASIR_INIT.
     */
    uint32_t struct_size;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Requests taken up, those not counted that were preempted before.
     */
    uint64_t requests;
    /**
     * Their tokens that the engine did not hold itself.
     */
    uint64_t asked;
    /**
     * Their tokens that it did.
     */
    uint64_t held;
    /**
     * Of those asked for, what the engine was promised and counted on.
     */
    uint64_t hit;
    /**
     * As asked, of requests that were preempted before.
     */
    uint64_t preempted_asked;
    /**
     * As hit, of requests that were preempted before.
     */
    uint64_t preempted_hit;
    /**
     * Of all hits, tokens whose load has ended well.
     */
    uint64_t loaded;
    /**
     * Tokens whose load failed, or was given up.
     */
    uint64_t failed;
} kvasir_reuse;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes the key chain of a prompt without tokens.
 */
kvasir_code kvasir_chain_new(const struct kvasir_chain_options *options,
                             struct kvasir_chain *chain);

/**
 * Forgets a chain.
 */
kvasir_code kvasir_chain_free(struct kvasir_chain chain);

/**
 * Appends tokens and computes the keys of the chunks that they complete. One thread at a time: while another one uses the
 * chain in any way the answer is KVASIR_CODE_BUSY.
 */
kvasir_code kvasir_chain_extend(struct kvasir_chain chain,
                                const uint32_t *tokens,
                                size_t token_count);

/**
 * How many tokens and full chunks a chain has. Either pointer may be NULL.
 */
kvasir_code kvasir_chain_size(struct kvasir_chain chain, size_t *tokens, size_t *chunks);

/**
 * The keys of full chunks, from the first on as many as there is room for. Chunks that are not there are an error.
 */
kvasir_code kvasir_chain_keys(struct kvasir_chain chain,
                              size_t first,
                              size_t count,
                              struct kvasir_key *keys);

/**
 * The key of the first tokens of a chunk, whether or not the chunk is full.
 */
kvasir_code kvasir_chain_tail_key(struct kvasir_chain chain,
                                  size_t chunk,
                                  uint32_t tokens,
                                  struct kvasir_key *key);

/**
 * Makes a client and tries once to connect, for at most the deadline. A server that is away is no error: the client connects
 * as soon as there is one. Any number of threads may use it.
 */
kvasir_code kvasir_client_open(const struct kvasir_client_options *options,
                               struct kvasir_client *client);

/**
 * Ends the connection and waits for the calls that other threads have in the client. When it returns, nothing reads or
 * writes the memory that the pages lie in any more.
 */
kvasir_code kvasir_client_close(struct kvasir_client client);

/**
 * The least common multiple of the positive spans: what every boundary of this model is a multiple of.
 */
kvasir_code kvasir_required_alignment(const struct kvasir_span *spans,
                                      size_t span_count,
                                      uint64_t *alignment);

/**
 * Agrees with the server on the tokens of a chunk: a multiple of the required alignment. Remembered, and asked again of
 * every server to come.
 */
kvasir_code kvasir_negotiate(struct kvasir_client client,
                             const struct kvasir_negotiation *request,
                             uint64_t *chunk_size);

/**
 * What the last negotiation had to say to the engine's log, a line each. For the buffer see kvasir_state_text.
 */
kvasir_code kvasir_warnings(struct kvasir_client client,
                            char *buffer,
                            size_t capacity,
                            size_t *length);

/**
 * Registers what this rank stores and loads, and gives the seed of its keys. Remembered as kvasir_negotiate is.
 */
kvasir_code kvasir_register(struct kvasir_client client,
                            const struct kvasir_registration *registration,
                            struct kvasir_key *seed);

/**
 * The seed that kvasir_register gives, without a server. For schedulers, which register nothing.
 */
kvasir_code kvasir_domain_seed(const struct kvasir_domain *domain,
                               uint64_t chunk_size,
                               struct kvasir_key *seed);

/**
 * Negotiates, says where the pages lie and registers, with what follows from a rank: kvasir_negotiate, kvasir_set_memory and
 * kvasir_register in one call, for a rank that stores a part of its own. The same call again is the same again. A server
 * that is away is KVASIR_CODE_UNAVAILABLE: the engine computes without a cache, and calls again.
 */
kvasir_code kvasir_join(struct kvasir_client client,
                        const struct kvasir_rank *rank,
                        uint64_t *chunk_size,
                        struct kvasir_key *seed);

/**
 * Asks for the longest prefix that every object group can serve, and pins what it promises. Without a server the
 * answer comes from the memory that the last one shared, while the client is readable, and otherwise it is a miss that
 * has KVASIR_ANSWER_DEGRADED.
 * Where the answer does not fit nothing is pinned.
 */
kvasir_code kvasir_lookup(struct kvasir_client client,
                          const struct kvasir_lookup_request *request,
                          struct kvasir_answer *answer);

/**
 * Starts a lookup and never waits for the server. The ticket is for kvasir_lookup_poll or kvasir_lookup_cancel.
 */
kvasir_code kvasir_lookup_start(struct kvasir_client client,
                                const struct kvasir_lookup_request *request,
                                uint64_t *ticket);

/**
 * The answer to a lookup that was started, waited for at most so long. ready is 1 when it is there, which ends the ticket, also
 * where the answer does not fit; then nothing is pinned. Otherwise ready is 0.
 */
kvasir_code kvasir_lookup_poll(struct kvasir_client client,
                               uint64_t ticket,
                               uint64_t wait_ms,
                               uint32_t *ready,
                               struct kvasir_answer *answer);

/**
 * Gives a lookup up. What it pinned, or will pin, is released. A ticket that has ended is ignored.
 */
kvasir_code kvasir_lookup_cancel(struct kvasir_client client, uint64_t ticket);

/**
 * Gives pins back. Those of earlier connections have ended with them and are ignored, as are pins whose id is 0.
 */
kvasir_code kvasir_release(struct kvasir_client client,
                           const struct kvasir_pin *pins,
                           size_t pin_count);

/**
 * Drops every pin that this client made under a label.
 */
kvasir_code kvasir_release_label(struct kvasir_client client, uint64_t label);

/**
 * Per object whether the server has this part of it now: 1 or 0. For stores of what may be there already. Where the
 * server cannot be asked and the client is not readable, it has nothing.
 */
kvasir_code kvasir_present(struct kvasir_client client,
                           uint16_t part,
                           const struct kvasir_object *objects,
                           size_t object_count,
                           uint8_t *present);

/**
 * Says where the pages of this rank lie, for stores and loads. In place of what was said before, whose memory is used
 * until the calls that began before have ended.
 */
kvasir_code kvasir_set_memory(struct kvasir_client client,
                              const struct kvasir_memory *memory);

/**
 * Copies parts of objects out of KV memory into the pool and publishes them. outcomes gets a kvasir_outcome for each item. A
 * missing server or missing room is an outcome. After an error that names an argument nothing was stored; after
 * KVASIR_CODE_REFUSED what other messages of the call brought may be stored, and outcomes is not written. The blocks may be
 * used again when this returns. superseded names tails that are needless afterwards.
 */
kvasir_code kvasir_store(struct kvasir_client client,
                         const struct kvasir_store_item *items,
                         size_t item_count,
                         const struct kvasir_object *superseded,
                         size_t superseded_count,
                         uint32_t *outcomes);

/**
 * Copies one part of each object into KV memory. loaded gets 1 for each object whose bytes were its own to the end, and
 * otherwise 0: then its blocks hold anything. An object that is missing is a 0, as is
 * a missing server while the client is not readable; after an error the blocks may hold anything. What is loaded is pinned under the
 * label meanwhile.
 */
kvasir_code kvasir_load(struct kvasir_client client,
                        uint64_t label,
                        uint16_t part,
                        const struct kvasir_load_item *items,
                        size_t item_count,
                        uint8_t *loaded);

/**
 * Asks for pool space ahead of stores. held gets how many bytes are held now, which may be less.
 */
kvasir_code kvasir_reserve(struct kvasir_client client, uint64_t bytes, uint64_t *held);

/**
 * Gives the space that is held for stores back.
 */
kvasir_code kvasir_give_back(struct kvasir_client client);

/**
 * Drops every object of the server that nobody reads. done is 0 where it could not be asked.
 */
kvasir_code kvasir_clear(struct kvasir_client client, uint32_t *done);

/**
 * The version of this interface that the library has: KVASIR_ABI_VERSION of its header.
 */
uint32_t kvasir_abi_version(void);

/**
 * What this library is and can do. Needs no server. KVASIR_CODE_INVALID_ARGUMENT where the environment's KVASIR_COPY_PATH names a
 * copy that this machine does not have.
 */
kvasir_code kvasir_get_capabilities(struct kvasir_capabilities *capabilities);

/**
 * Why the last failing call of this thread failed. Itself it changes nothing of that, unless its argument is wrong.
 */
kvasir_code kvasir_last_error(struct kvasir_error *error);

/**
 * The message of kvasir_last_error. Never NULL; empty where no call of this thread has failed.
 */
const char *kvasir_last_error_message(void);

/**
 * How the client stands with its server. No message is sent.
 */
kvasir_code kvasir_get_health(struct kvasir_client client, struct kvasir_health *health);

/**
 * "healthy", or why not and what happens next.
 *
 * length gets the length of the text, without the zero byte at its end. Where that does not fit the capacity the answer is
 * KVASIR_CODE_BUFFER_TOO_SMALL. A buffer of NULL with a capacity of 0 asks for the length.
 */
kvasir_code kvasir_state_text(struct kvasir_client client,
                              char *buffer,
                              size_t capacity,
                              size_t *length);

/**
 * The server's status document, as `kvasir status --json` prints it. For the buffer see kvasir_state_text. Each call asks the
 * server, and the text may have grown when it is asked again.
 */
kvasir_code kvasir_status_json(struct kvasir_client client,
                               char *buffer,
                               size_t capacity,
                               size_t *length);

/**
 * What this client did so far, over all its connections.
 */
kvasir_code kvasir_get_stats(struct kvasir_client client, struct kvasir_stats *stats);

/**
 * The server's counters. No message is sent; several of them may not add up.
 */
kvasir_code kvasir_get_counters(struct kvasir_client client, struct kvasir_counters *counters);

/**
 * Counts tokens of requests that the engine took up or whose loads ended, on top of what was counted before.
 */
kvasir_code kvasir_count_reuse(struct kvasir_client client,
                               const struct kvasir_reuse *tokens);

/**
 * Counts loads that were given up before any object was named.
 */
kvasir_code kvasir_count_failed_loads(struct kvasir_client client, uint64_t loads);

/**
 * Counts bytes of KV that the engine has computed for the first time and that may be stored.
 */
kvasir_code kvasir_count_new_kv(struct kvasir_client client, uint64_t bytes);

/**
 * Says what keeps the engine from caching, in place of what was said before: bits of kvasir_condition. Status shows it.
 */
kvasir_code kvasir_set_conditions(struct kvasir_client client,
                                  uint64_t conditions);

/**
 * The identity of a model's or an adapter's files, by every byte of them: for kvasir_domain.weights_id, and for
 * kvasir_chain_options.lora. Takes as long as reading them, so call it on a thread of its own.
 *
 * overrides says what the engine's flags change about the model, in any stable form; NULL is nothing. What was read is
 * remembered for each file in cache_dir; NULL is the user's cache directory.
 */
kvasir_code kvasir_identify_weights(const char *path,
                                    const char *overrides,
                                    const char *cache_dir,
                                    struct kvasir_key *identity);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVASIR_H */
