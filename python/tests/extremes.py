"""Calls every Python-facing function with numbers, sizes and types that make no sense, one argument at a time.

Run as a program, since what is looked for ends the process: prints what was raised, by kind, and fails on anything but
an ordinary exception. Argument: the socket of a server that lives.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import json
import math
import resource
import sys
from collections.abc import Callable
from typing import Any

import kvasir
from kvasir import _native

ODD: tuple[Any, ...] = (
    -1, 0, 1, 2**16, 2**31, 2**32 - 1, 2**32, 2**33, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**127, 2**128, -(2**63), -(2**64),
    0.5, 1e19, 1.7e308, math.inf, -math.inf, math.nan, None, True, "", "\0", "\ud800", b"", b"\0" * 31, b"\0" * 32, b"\0" * 33,
    [], [-1], [2**64], [None], [[]], (), {}, object(), "x" * 4096,
)  # fmt: skip
EXPECTED = (ValueError, TypeError, OverflowError, IndexError, KeyError, OSError, kvasir.KvasirError)
GROUPS = json.dumps({
    "dcp": 1,
    "groups": [{"kind": "full_attention", "block_size": 16, "layers": [{"page_size_bytes": 64, "dtype": "bfloat16"}]}],
})  # fmt: skip
LAYOUT = {
    "layout": "LBNHC", "attention_backend": "CPU", "isa": "", "dcp": 1,
    "groups": [{
        "kind": "full_attention", "block_size": 16, "tokens_per_block": 16, "window": None,
        "layers": [{
            "page_size_bytes": 64, "dtype": "bfloat16", "tokens_per_state": [1, 1], "edited_by": None, "kernel_block_size": 16,
        }],
    }],
}  # fmt: skip
DOMAIN = {"model": "m", "weights_id": b"w" * 32, "kv_dtype": "bf16", "fingerprint": b"f" * 32, "parallel_shape": "tp=1"}
SEED = bytes(range(32))
raised: collections.Counter[str] = collections.Counter()


def attempt(what: str, call: Callable[[], Any]) -> None:
    print(what, file=sys.stderr)  # the last line names what ended the process
    try:
        call()
        raised["nothing"] += 1
    except EXPECTED as error:
        assert getattr(error, "kind", "") != "Panic", f"{what}: {error}"
        raised[type(error).__name__] += 1


def odd_ones(value: Any) -> list[Any]:
    """An argument with one thing in it changed: itself, or one inside of it."""
    found: list[Any] = list(ODD)
    if isinstance(value, (list, tuple)):
        for at, inner in enumerate(value):
            for odd in odd_ones(inner):
                found.append(type(value)([*value[:at], odd, *value[at + 1 :]]))
    elif isinstance(value, dict):
        found += [value | {name: odd} for name in value for odd in odd_ones(value[name])]
    return found


def walk(name: str, function: Callable[..., Any], *arguments: Any) -> None:
    attempt(name, lambda: function(*arguments))
    for at, value in enumerate(arguments):
        for odd in odd_ones(value):
            given = [*arguments[:at], odd, *arguments[at + 1 :]]
            attempt(f"{name}, argument {at}: {odd!r:.60}", lambda: function(*given))
    numbers = [at for at, value in enumerate(arguments) if isinstance(value, int) and not isinstance(value, bool)]
    for one, other in itertools.combinations(numbers, 2):
        for first, second in itertools.product((0, 1, 2**32 - 1, 2**63, 2**64 - 1), repeat=2):
            given = list(arguments)
            given[one], given[other] = first, second
            attempt(f"{name}, arguments {one} and {other}: {first}, {second}", lambda: function(*given))


def main(socket: str) -> None:
    # What asks for more than there is has to be refused before; here it would end the process.
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    def client(kind: str = "worker") -> kvasir.Client:
        return kvasir.Client(socket, kind, "extremes", bytes(16), 5.0, 1.0, 1 << 16)

    walk("pack_blocks", _native.pack_blocks, [1, 2, 3], 0, 3)
    walk("domain_seed", _native.domain_seed, DOMAIN, 64)
    walk("resolve_geometry", _native.resolve_geometry, GROUPS)
    walk("bind_geometry", _native.bind_geometry, GROUPS, 64)
    layers = [("a", 0, 0, 4, 64, 64, None), ("b", 0, 256, 8, 32, 64, (256, 128))]
    walk("place_pages", _native.place_pages, [1 << 20], 4, layers)
    for at in odd_ones(json.loads(GROUPS)):
        text = json.dumps(at, default=str)
        attempt(f"resolve_geometry {text:.200}", lambda: _native.resolve_geometry(text))
        attempt(f"bind_geometry {text:.200}", lambda: _native.bind_geometry(text, 2**64 - 1))
    for at in odd_ones(LAYOUT):
        text = json.dumps(at, default=str)
        attempt(f"layout_fingerprint {text:.200}", lambda: _native.layout_fingerprint(text))
    walk("weights_identity", _native.weights_identity, "/nonexistent", "")
    walk("testing_corrupt_pool", _native.testing_corrupt_pool, socket + ".none", 1, [b"\0"])

    def chain(*arguments: Any) -> None:
        made = kvasir.KeyChain(*arguments)
        made.extend(list(range(200)))
        made.keys(0, made.num_chunks), made.tail_key(made.num_chunks, 1)

    walk("KeyChain", chain, SEED, 64, [(b"image", 3, 5)], b"lora", b"salt")
    made = kvasir.KeyChain(SEED, 64, [(b"image", 3, 5)])
    walk("extend", made.extend, [1, 2, 3])
    made.extend(list(range(300)))
    for name in ("chunk_key", "parent_key"):
        walk(name, getattr(made, name), 1)
    walk("tail_key", made.tail_key, 1, 16)
    walk("keys", made.keys, 0, 2)

    def connect(*arguments: Any) -> None:
        one = kvasir.Client(*arguments)
        one.negotiate(16, [(0, 16)])
        one.close()

    walk("Client", connect, socket, "worker", "x", bytes(16), 1.0, 1.0, 1 << 16, True)
    memory = ctypes.create_string_buffer(16 * 64)
    region = (ctypes.addressof(memory), len(memory))
    with_memory = client()
    walk("set_memory", with_memory.set_memory, [region], [(0, [(16, [(0, 0, 64, 64)])])], 16)
    with_memory.close()
    asks = client()
    walk("negotiate", asks.negotiate, 16, [(0, 16)], 256, 0, bytes(32))
    asks.close()
    group = (0, "full", 1, 0, 0, 64)
    registers = client()
    registers.negotiate(16, [(0, 16)])
    walk("register", registers.register, DOMAIN, 0, 1, 16, [(0, 16)], [group], 1, 16, True)
    registers.close()

    worker = client()
    worker.set_memory([region], [(0, [(16, [(0, 0, 64, 64)])])], 16)
    size = worker.negotiate(16, [(0, 16)])
    seed = worker.register(DOMAIN, 0, 1, 16, [(0, 16)], [group], 1, 16)
    prompt = kvasir.KeyChain(seed, size)
    prompt.extend(list(range(4 * size)))
    key, blocks = prompt.chunk_key(0), _native.pack_blocks([1] * (size // 16), 0, size // 16)[0]
    walk("lookup", worker.lookup, seed, 1, prompt, 16, 2**20, 0, True)
    walk("lookup_start", worker.lookup_start, seed, 1, prompt, 16, 2**20, 0, True)
    walk("lookup_result", worker.lookup_result, 1, 0.0)
    walk("lookup_cancel", worker.lookup_cancel, 1)
    walk("store", worker.store, 0, [(key, None, 0, size, [blocks])], [(key, 0)])
    walk("present", worker.present, 0, [(key, 0)])
    walk("load", worker.load, 1, 0, [(key, 0, size, [blocks])])
    walk("release", worker.release, [1])
    walk("end_session", worker.end_session, 1)
    walk("count_failed_loads", worker.count_failed_loads, 1)
    # And it all still works.
    assert worker.store(0, [(prompt.chunk_key(1), key, 0, size, [blocks])])[0][0] in ("published", "exists", "no_parent")
    assert worker.healthy, worker.state_text
    worker.close()
    print(json.dumps(raised))


if __name__ == "__main__":
    main(sys.argv[1])
