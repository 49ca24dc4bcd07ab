"""Types of the compiled half of the `kvasir` package.

Rules that hold for everything here:

* A server that is away, stopped or restarting is never an exception on the payload path. Stores answer
  `"unavailable"`. Lookups and loads go on from what the last server shared, while `Client.readable`; otherwise lookups
  answer a miss with `Hit.degraded` set, and loads answer `False`.
* Only `negotiate` and `register` raise `KvasirError` of kind `"Unavailable"`, and both are remembered: the client
  completes them by itself once the server answers. So for a server that is full, stopping or has failed.
* Mistakes of the caller raise: `KvasirError` (kinds below), or `ValueError`/`TypeError` for an argument of the wrong
  form. When a call raises, nothing was pinned by it, and after a mistake in an item nothing was copied or stored. A
  store that the server refused may have stored some of its objects, and a load that raises may have written blocks. All
  items of a call that raises count as failed loads or dropped stores.
* Every call that talks to the server or moves payload releases the GIL. It waits at most `deadline_s` for each answer;
  a store of many objects has several.
* All objects may be used from any thread.
"""

from collections.abc import Sequence
from typing import TypedDict, final

class KvasirError(Exception):
    """A typed refusal.

    `kind` is the server's error code (`"NotNegotiated"`, `"IncompatibleChunkSize"`, `"InvalidSpans"`,
    `"RegistrationConflict"`, ... as in schema/admin.fbs) or one of the client's own: `"Unavailable"` (no server, or
    it did not answer in time), `"ChunkSizeChanged"` (a restarted server bound another size), `"BlockOutOfRange"`,
    `"BlockCount"`, `"NullBlocks"`, `"SeedMismatch"`, `"UnknownPin"`, `"UnknownGroup"`, `"InvalidLayout"`,
    `"NoMemory"` (no `set_memory` yet), `"NoRegistration"`, `"TooManyItems"`, `"UnknownTicket"`, `"InvalidArgument"`, `"Panic"`. `numbers` holds the numbers of the message.
    """

    kind: str
    numbers: list[int]

class Domain(TypedDict):
    """What makes two objects comparable, in the order in which it is hashed."""

    model: str
    weights_id: bytes
    kv_dtype: str
    fingerprint: bytes
    parallel_shape: str

Group = tuple[int, str, int, int, int, int]
"""(object group, kind, parts, part, window_tokens, unit_bytes). kind: "full", "sliding_window", "chunked_local",
"recurrent". `parts`: distinct shards of the group over all ranks; `part`: the one this rank writes and reads.
`window_tokens`: the window or the attention chunk, else 0. `unit_bytes`: bytes of this rank's part for one required
alignment of tokens; of a recurrent group the bytes of one state."""

Layer = tuple[int, int, int, int]
"""(region, offset, block_stride, page_bytes): page of block b is at offset + b * block_stride in the region."""

KvGroupLayout = tuple[int, list[Layer]]
"""(tokens_per_block, layers in registered order) of one KV cache group."""

ObjectGroupLayout = tuple[int, list[KvGroupLayout]]
"""(object group, its KV cache groups in ascending order)."""

StoreRun = tuple[bytes, bytes | None, int, int, list[bytes]]
"""(keys, parent key of the first or None, object group, tokens of each, block ids: one packed list per KV cache group of the
object group): objects in consecutive chunks, each the parent of the next. 32 bytes per key. Each list (`pack_blocks`) holds
exactly tokens / tokens_per_block ids per object (recurrent: one). Id 0 is the null block: it contributes zero bytes. A run
whose list of lists is empty says that this rank cannot store the objects (`skipped`)."""

LoadRun = tuple[bytes, int, int, list[bytes]]
"""(keys, object group, tokens of each, block ids: one packed list per KV cache group). `tokens` is what `Hit.runs` said. A
list has as many ids for every object, which may be fewer than the object has blocks (only its front is wanted); id 0 is
skipped, so locally cached blocks are passed as 0. An id is written only if the whole object was read and the final check
held."""

@final
class KeyChain:
    """The keys of one prompt, hashed incrementally (docs/protocol.md, "Keys")."""

    def __init__(
        self,
        seed: bytes,
        chunk_size: int,
        mm_items: Sequence[tuple[bytes, int, int]] = (),
        lora: bytes | None = None,
        salt: bytes | None = None,
    ) -> None:
        """`mm_items`: (identifier, first token, tokens) of every multimodal item of the prompt."""

    def extend(self, tokens: object) -> None:
        """Appends tokens: a list or other sequence of int, `bytes` of u32 little-endian, or any buffer of 4 or 8
        byte integers (`array.array`, numpy). A token that does not fit u32 is a ValueError and nothing is appended."""

    def __len__(self) -> int:
        """Tokens so far."""

    @property
    def num_chunks(self) -> int:
        """Full chunks so far."""

    @property
    def chunk_size(self) -> int: ...
    def chunk_key(self, chunk: int) -> bytes:
        """Key of a full chunk. IndexError past the last."""

    def parent_key(self, chunk: int) -> bytes | None:
        """Key of the chunk before `chunk`, or None for chunk 0: the parent in a StoreRun that begins there."""

    def tail_key(self, chunk: int, tokens: int) -> bytes:
        """Key of the first `tokens` tokens of `chunk` (for chunk == num_chunks too). IndexError if they are not there."""

    def keys(self, first: int, end: int) -> bytes:
        """Keys of the full chunks from `first` up to `end`, 32 bytes each. IndexError past the last."""

@final
class Hit:
    """The answer to a lookup."""

    @property
    def hit_tokens(self) -> int: ...
    @property
    def pin(self) -> int:
        """To be given to `Client.release`, once; 0 when nothing was pinned."""

    @property
    def runs(self) -> list[tuple[bytes, int, int, int]]:
        """(keys, object group, first chunk, tokens of each): objects to load, those of one group and one length in
        consecutive chunks together. Of a state, chunk and tokens name only its end. Made anew by every access."""

    @property
    def present_tokens(self) -> list[int]:
        """Per object group of the domain, ascending: tokens up to which every object from token 0 on is present."""

    @property
    def degraded(self) -> bool:
        """True: the server could not be asked. Everything else is 0 or empty."""

    @property
    def shortened(self) -> bool:
        """True: there is more than was promised, since the pins of this client keep as much as they may."""

@final
class Client:
    """One connection to a Kvasir server that repairs itself."""

    def __init__(
        self,
        socket: str,
        kind: str,
        name: str,
        engine_instance: bytes,
        deadline_s: float = 1.0,
        heartbeat_s: float = 10.0,
        credit_bytes: int = 67108864,
        checksums: bool = True,
        copy_threads: int = 0,
        payload_path: str = "direct",
    ) -> None:
        """`kind`: "scheduler", "worker" or "tool". `engine_instance`: 16 bytes, the same in all processes of one
        engine. Tries to connect once, for at most `deadline_s`, and does not fail when the server is away or full, or when
        this process has no descriptor or thread to spare: the client then keeps trying in the background. `credit_bytes`: pool space held ahead for stores (workers).
        `checksums`: sum what is stored, and fail loads whose bytes are not those that were stored.
        `copy_threads`: threads of a large copy; 0: as many as a measurement says is worth it.
        `payload_path`: "direct" maps the pool (workers) and the index; "ring" maps neither: every lookup is a message, and
        a worker's bytes go through a ring of its own, which the server copies."""

    @property
    def healthy(self) -> bool:
        """Connected, and everything that was negotiated and registered holds with the server that runs now."""

    @property
    def readable(self) -> bool:
        """Lookups and loads work: it is healthy, or the last server is late or dead and what it shared is read without it.
        Stores are dropped then."""

    @property
    def boot_id(self) -> bytes | None:
        """What tells this server's run from any other; None while there is no server."""

    @property
    def state_text(self) -> str:
        """One line for a log: "healthy", or why not and what happens next."""

    @property
    def chunk_size(self) -> int | None:
        """The agreed chunk size; also set when a remembered `negotiate` was completed in the background."""

    @property
    def domain_seed(self) -> bytes | None:
        """The seed of the registered domain, once it is registered."""

    @property
    def socket(self) -> str: ...
    def negotiate(
        self,
        required_alignment: int,
        spans: Sequence[tuple[int, int]],
        preferred_base: int = 256,
        previous_size: int = 0,
        binding_domain: bytes | None = None,
    ) -> int:
        """Agrees on the chunk size. `spans`: (group index, tokens per block). `binding_domain`: 32 bytes that name what
        shares the size on a server with `--chunk-scope model`; other servers ignore it. Remembered and repeated with the same
        alignment after every reconnect; a server that then answers another size leaves the client degraded. Raises
        KvasirError; kind "Unavailable" when the server is away (and still remembered)."""

    def warnings(self) -> list[str]:
        """Warnings of the last negotiation, for the engine's log."""

    def register(
        self,
        domain: Domain,
        rank: int,
        world_size: int,
        required_alignment: int,
        spans: Sequence[tuple[int, int]],
        groups: Sequence[Group],
        layers: int,
        blocks: int,
        stores: bool = True,
    ) -> bytes:
        """Registers this rank's KV caches and returns the domain seed. Remembered and repeated after every
        reconnect. The payload path is "shm-direct" for workers, "none" otherwise. `stores=False`: this rank only reads
        parts that a lower rank stores."""

    def set_memory(
        self,
        regions: Sequence[tuple[int, int]],
        layouts: Sequence[ObjectGroupLayout],
        num_blocks: int,
    ) -> None:
        """Names the engine's KV memory: (address, bytes) per storage, and where pages lie. The caller keeps the memory
        alive and unmoved as long as this client may copy (until `close`)."""

    def lookup_start(
        self,
        seed: bytes,
        session: int,
        chain: KeyChain,
        tail_step: int,
        max_tokens: int,
        local_tokens: int,
        pin: bool = True,
    ) -> int:
        """Starts a lookup over the full chunks of `chain` and its tails at every multiple of `tail_step` tokens of a chunk,
        and returns its ticket. Never waits for the server, nor raises because of it; once the client knows the domain the
        answer is there when this returns."""

    def lookup_result(self, ticket: int, wait_s: float = 0.0) -> Hit | None:
        """None while pending. A Hit ends the ticket; an unknown or ended ticket is KvasirError "UnknownTicket"."""

    def lookup_cancel(self, ticket: int) -> None:
        """Gives a ticket up; what it pins is released. An unknown or ended ticket is ignored."""

    def lookup(
        self,
        seed: bytes,
        session: int,
        chain: KeyChain,
        tail_step: int,
        max_tokens: int,
        local_tokens: int,
        pin: bool = True,
    ) -> Hit:
        """lookup_start and lookup_result in one."""

    def store(
        self,
        part: int,
        runs: Sequence[StoreRun],
        supersedes: Sequence[tuple[bytes, int]] = (),
    ) -> list[list[str]]:
        """Gathers one part of each object from KV memory into the pool and publishes them, in one message or several;
        (key, object group) pairs in `supersedes` are tails that are now needless. Per run and object: "published", "part_accepted"
        (other ranks' parts are awaited), "exists", "no_parent" (store again from the first missing chunk), "skipped"
        (another rank cannot store it), "dropped" (no room, counted), "unavailable" (server away, or
        no answer: it may be stored all the same; counted). Blocks may be
        reused when it returns."""

    def present(self, part: int, objects: Sequence[tuple[bytes, int]]) -> list[bool]:
        """Per (key, object group): whether the server has the object now. False for all when it cannot be asked and the client
        is not readable. For stores of what may be there already: a store copies first and is then told that it was needless."""

    def load(self, session: int, part: int, runs: Sequence[LoadRun]) -> list[list[bool]]:
        """Pins, copies into KV memory, makes the final check and releases. Per run and object: True if all its bytes are
        the object's. After False the object's blocks hold anything and must be recomputed."""

    def release(self, pins: Sequence[int]) -> None:
        """Gives pins back. Pins of a server that has restarted since are ignored."""

    def end_session(self, session: int) -> None:
        """Drops every pin made under `session` by this client."""

    def clear(self) -> bool:
        """Drops every unpinned object of the server. False: the server is away."""

    def status_json(self) -> str:
        """The document of `kvasir status --json`. Raises KvasirError "Unavailable" when the server is away."""

    def count_failed_loads(self, loads: int) -> None:
        """Counts loads that were given up before any object was named, beside those that `load` counts itself."""

    def count_reuse(
        self,
        requests: int = 0,
        asked: int = 0,
        held: int = 0,
        hit: int = 0,
        preempted_asked: int = 0,
        preempted_hit: int = 0,
        loaded: int = 0,
        failed: int = 0,
    ) -> None:
        """Counts tokens of requests that the engine took up, or whose loads ended, beside what was counted before; the
        server's status shows them (docs/operations.md, "Tokens")."""

    def set_conditions(self, names: Sequence[str]) -> None:
        """Says what keeps the engine from caching, by the names of docs/operations.md, in place of what was said before. Status
        shows it beside this client, also of servers to come. ValueError for a name that there is none of."""

    def count_new_kv(self, bytes: int) -> None:
        """Counts KV that the engine has computed for the first time and that may be stored: what `stored_bytes` is compared with."""

    def stats(self) -> dict[str, int]:
        """This client's counters: lookups, direct_lookups (those that needed no message), lookup_misses_degraded,
        loads, loaded_bytes, failed_loads, stale_loads, corrupt_loads, stores, stored_bytes, dropped_stores, evicted_pins (that made
        room when pin words ran out), reconnects, degraded_ms, credit_bytes,
        populated_bytes and unpopulated_bytes (granted space whose pages were, or were not, mapped ahead of stores), new_bytes (`count_new_kv`)."""

    def close(self) -> None:
        """Ends the background thread and the connection. Later calls behave as if the server were away."""

def domain_seed(domain: Domain, chunk_size: int) -> bytes:
    """The seed that `register` returns, computed locally."""

def weights_identity(dir: str, overrides: str = "") -> bytes:
    """32 bytes that name the weights of a model or an adapter: a directory, or a file. Reads all of it in this call and
    remembers nothing. OSError if it cannot be read."""

@final
class Weights:
    """What a `WeightsJob` has found out."""

    identity: bytes
    """32 bytes that depend on every byte of every file that an engine may load, and on `overrides`."""
    stamp: bytes
    """32 bytes; as long as `weights_stamp` says the same, the files are unchanged."""
    newest_change_ns: int
    """When one of the files was changed last (its ctime), in nanoseconds since 1970."""
    files: int
    bytes: int
    """Of all files."""
    bytes_read: int
    """Of those that were neither remembered nor named by the hub."""
    forgetful: str | None
    """Why nothing could be remembered, if so."""

@final
class WeightsJob:
    """Finds the identity of the weights at `path` in the background, with `threads` threads (0: half of the machine's,
    from 2 to 8). One process of a machine reads a model at a time, and the others wait for what it remembers.

    Digests are remembered per file in `cache_dir` (None: KVASIR_CACHE_DIR, or `kvasir` below the user's caches).
    Dropping the job ends it.
    """

    def __init__(self, path: str, overrides: str = "", cache_dir: str | None = None, threads: int = 0) -> None: ...
    def result(self) -> Weights | None:
        """None as long as it runs. OSError if there is no identity; never waits."""

    def cancel(self) -> None:
        """Ends it soon."""

def remembered_weights(path: str, overrides: str = "", cache_dir: str | None = None) -> Weights | None:
    """The same at once, if no file has to be read for it."""

def weights_stamp(path: str) -> tuple[bytes, int]:
    """The files at `path` as they are now: `Weights.stamp` and `Weights.newest_change_ns`. Looks at inodes only."""

def weights_shape(path: str, overrides: str = "") -> bytes:
    """32 bytes of the names and sizes of the weights at `path`: at once, the same for equal weights, and for some that
    are not."""

def resolve_geometry(json: str) -> str:
    """Resolves the engine's groups, given as the input document of `kvasir plan groups`, into the JSON
    {"required_alignment", "spans": [per group], "has_recurrent", "warnings": [str], "groups": [{"kind", "block_size",
    "tokens_per_block", "bytes_per_block", "recurrent", "cacheable", "window", "layers": [{"name", "count",
    "page_size_bytes", "dtype", "slots_per_block", "compress_ratio", "shared"}]}], "object_groups": [{"group", "kind",
    "window_tokens", "kv_groups": [index], "unit_bytes"}]}. All refusals are collected in one KvasirError whose
    kind is the geometry error's (`"unsupported"`, `"invalid"`, ...) and whose message lists every offending group."""

def bind_geometry(json: str, chunk_size: int) -> str:
    """The same input bound to a chunk size: {"chunk_size", "warnings", "groups": [{"blocks_per_chunk", "object_bytes",
    "window_chunks"}], "object_groups": [{"group", "object_bytes", "window_chunks"}]}."""

def place_pages(
    regions: Sequence[int],
    num_blocks: int,
    layers: Sequence[tuple[str, int, int, int, int, int, tuple[int, int] | None]],
) -> list[tuple[tuple[int, int, int, int], int | None]]:
    """Where the pages of one KV cache group lie, checked as `Client.set_memory` checks them. `regions` are the bytes of each
    storage. A layer is (name, region, byte of its first tensor, rows of that tensor, bytes from row to row, bytes of a page,
    the declared (byte of block 0, bytes from block to block) or None). The answer has per layer (region, offset, block
    stride, page bytes), and how many rows are a block (None: not a whole number). KvasirError of kind `"InvalidLayout"` names
    the layers."""

def layout_fingerprint(json: str) -> bytes:
    """32 bytes over everything that decides the order of bytes inside a page: {"layout", "attention_backend", "isa",
    "dcp", "groups": [{"kind", "block_size", "tokens_per_block", "window": int|null, "layers": [{"page_size_bytes",
    "dtype", "tokens_per_state": [num, den]|null, "edited_by": str|null, "kernel_block_size": int|null}]}]}."""

def pack_blocks(ids: list[int], first: int, end: int) -> tuple[bytes, list[int]]:
    """Block ids `ids[first:end]`, 8 bytes each in the machine's order (`array.array("q")`), null where the list is
    shorter; and which of them, counted from `first`, are null."""

def parse_size(text: str) -> int:
    """Bytes of a size as `kvasir serve --pool-size` reads it (`"64MiB"`, `"1.5GB"`). ValueError if it is none."""

def copy_path() -> str:
    """Which host copy this machine was found to do best, such as "avx2-4x512+avx2-ahead8" (without sums, with sums) or "portable".
    ValueError if the environment's KVASIR_COPY_PATH names one that it does not have."""

def version() -> str: ...
def testing_corrupt_pool(socket: str, seed: int | None = None, starts: list[bytes] | None = None) -> int:
    """TEST HOOK. Damages all live objects of the server at `socket` and returns how many bytes changed; with `starts`
    only frames that begin with one of these. With a `seed` every byte becomes deterministic noise in which no bf16, fp16
    or fp32 exponent is all ones; without one a single bit of every frame is flipped. For negative controls: after it, an
    engine that loads without checksums must produce other output, and one with checksums must not load. Only possible
    for the server's own user, who may map the pool anyway (docs, threat model)."""
