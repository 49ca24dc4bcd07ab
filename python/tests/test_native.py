"""The compiled module against its stub, the golden keys, and a real server with engines in processes of their own."""

from __future__ import annotations

import array
import ast
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import kvasir
from fakes import packed
from kvasir import _native

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "keys" / "golden.json"
WATCHDOG_S = 120.0

BLOCK, CHUNK, PAGE, BLOCKS = 16, 64, 16 * 100, 32
DOMAIN = {
    "model": "test/model",
    "weights_id": b"\1" * 32,
    "kv_dtype": "bfloat16",
    "fingerprint": b"\2" * 32,
    "parallel_shape": "tp=1",
}
SPANS = [(0, BLOCK)]


def program() -> str:
    beside = pathlib.Path(sys.executable).with_name("kvasir")
    found = os.environ.get("KVASIR_BINARY") or (str(beside) if beside.exists() else shutil.which("kvasir"))
    assert found, "no kvasir program: set KVASIR_BINARY"
    return found


def eventually(what: str, holds) -> None:
    end = time.monotonic() + WATCHDOG_S
    while not holds():
        assert time.monotonic() < end, f"waited for {what} in vain"
        time.sleep(0.01)


class Server:
    def __init__(self, directory: str):
        self.socket = os.path.join(directory, "k.sock")
        self.log = os.path.join(directory, "log")
        self.process = None

    def start(self, *more: str, chunk_size: int | None = CHUNK, pool_size: str = "32MiB") -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}
        command = [program(), "serve", "--socket", self.socket, "--pool-size", pool_size]
        command += [*(() if chunk_size is None else ("--chunk-size", str(chunk_size))), *more]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
        with contextlib.closing(client(self.socket, "tool")) as tool:
            eventually("the server", lambda: tool.healthy)

            def prefaulted() -> bool:
                pool = json.loads(tool.status_json())["pool"]
                return pool["prefaulted"] == pool["total"]

            eventually("prefault", prefaulted)

    @contextlib.contextmanager
    def stopped(self):
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def client(socket: str, kind: str = "worker", instance: bytes = b"\1" * 16, **options) -> kvasir.Client:
    options.setdefault("deadline_s", 20.0)
    options.setdefault("heartbeat_s", 0.2)
    return kvasir.Client(socket, kind, "test", instance, credit_bytes=1 << 20, **options)


class Engine:
    """A worker with one full-attention group of two layers in ctypes memory."""

    def __init__(self, socket: str, instance: int, **options):
        self.client = client(socket, "worker", bytes([instance]) * 16, **options)
        self.memory = [(ctypes.c_ubyte * (BLOCKS * PAGE))() for _ in range(2)]
        regions = [(ctypes.addressof(memory), ctypes.sizeof(memory)) for memory in self.memory]
        layers = [(0, 0, PAGE, PAGE), (1, 0, PAGE, PAGE)]
        self.client.set_memory(regions, [(0, [(BLOCK, layers)])], BLOCKS)

    def register(self) -> bytes:
        assert self.client.negotiate(BLOCK, SPANS) == CHUNK
        groups = [(0, "full", 1, 0, 0, 2 * PAGE)]
        return self.client.register(DOMAIN, 0, 1, BLOCK, SPANS, groups, layers=2, blocks=BLOCKS)

    def fill(self, salt: int) -> None:
        for layer, memory in enumerate(self.memory):
            noise = bytes((i * 31 + i // 253 + layer * 7 + salt) % 256 for i in range(len(memory)))
            ctypes.memmove(memory, noise, len(noise))

    def block(self, block: int) -> bytes:
        return b"".join(bytes(memory[block * PAGE : (block + 1) * PAGE]) for memory in self.memory)


def prompt(seed: bytes, tokens: int, salt: int = 0) -> kvasir.KeyChain:
    chain = kvasir.KeyChain(seed, CHUNK)
    chain.extend([(i * 7919 + salt) % 50000 for i in range(tokens)])
    return chain


def chunk_run(chain: kvasir.KeyChain, chunk: int, blocks: list[int]):
    return (chain.chunk_key(chunk), chain.parent_key(chunk), 0, CHUNK, [packed(*blocks)])


def test_stub_and_module_have_the_same_names():
    stub = ast.parse(pathlib.Path(_native.__file__).with_name("_native.pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(_native, node.name)), node.name
        if isinstance(node, ast.ClassDef) and node.name != "Domain":
            defined = getattr(_native, node.name)
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name != "__init__":
                    assert hasattr(defined, member.name), f"{node.name}.{member.name}"
    public = {name for name in dir(_native.Client) if not name.startswith("_")}
    stubbed = next(node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "Client")
    assert public == {f.name for f in stubbed.body if isinstance(f, ast.FunctionDef) and f.name[0] != "_"}


def golden_cases():
    return json.loads(GOLDEN.read_text())["cases"]


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case["name"])
def test_golden_keys(case):
    domain = {
        "model": case["domain"]["model"],
        "weights_id": bytes.fromhex(case["domain"]["weights_id_hex"]),
        "kv_dtype": case["domain"]["kv_dtype"],
        "fingerprint": bytes.fromhex(case["domain"]["fingerprint_hex"]),
        "parallel_shape": case["domain"]["parallel_shape"],
    }
    size = case["domain"]["chunk_size"]
    seed = kvasir.domain_seed(domain, size)
    assert seed.hex() == case["seed"]
    spec = case["tokens"]
    tokens = [(i * spec["mul"] + spec["add"]) % spec["modulus"] for i in range(spec["count"])]
    items = [(bytes.fromhex(m["identifier_hex"]), m["start"], m["length"]) for m in case["mm_items"]]
    hexed = {name: case[name + "_hex"] for name in ("lora", "salt")}
    extras = {name: None if value is None else bytes.fromhex(value) for name, value in hexed.items()}
    chain = kvasir.KeyChain(seed, size, items, **extras)
    # In pieces and in every form in which tokens come.
    cut = [len(tokens) * i // 5 for i in range(6)]
    pieces = [tokens[a:b] for a, b in zip(cut, cut[1:])]
    chain.extend(pieces[0])
    chain.extend(array.array("I", pieces[1]))
    chain.extend(array.array("q", pieces[2]))
    chain.extend(array.array("I", pieces[3]).tobytes())
    chain.extend(tuple(pieces[4]))
    assert len(chain) == len(tokens)
    count = len(case["keys"])
    assert chain.num_chunks == count
    for first in range(count + 1):
        assert chain.keys(first, count).hex() == "".join(case["keys"][first:])
    for tail in case["tails"]:
        assert chain.tail_key(tail["chunk"], tail["tokens"]).hex() == tail["key"]


def test_block_ids_are_packed_as_they_are():
    ids = [1, 0, -5, (1 << 31) + 3, 7]
    assert kvasir.pack_blocks(ids, 0, 5) == (array.array("q", ids).tobytes(), [1])
    assert kvasir.pack_blocks(ids, 2, 5) == (array.array("q", ids[2:]).tobytes(), [])
    assert kvasir.pack_blocks(ids, 3, 7) == (array.array("q", [*ids[3:], 0, 0]).tobytes(), [2, 3])
    assert kvasir.pack_blocks(ids, 4, 4) == kvasir.pack_blocks(ids, 4, 3) == (b"", [])
    assert kvasir.pack_blocks(ids, 6, 8) == (bytes(16), [0, 1])
    for wrong in (["a"], [1.5], [None], None):
        with pytest.raises(TypeError):
            kvasir.pack_blocks(wrong, 0, 1)
    for wrong in (1 << 63, 1 << 64, -(1 << 70)):
        with pytest.raises(OverflowError):
            kvasir.pack_blocks([wrong], 0, 1)


def test_key_chain_refuses_what_it_cannot_hash():
    chain = kvasir.KeyChain(b"\0" * 32, 4)
    for tokens in ([-1], [1 << 32], array.array("q", [-5]), array.array("i", [-5]), b"abc", [1, 1 << 70]):
        with pytest.raises(ValueError):
            chain.extend(tokens)
    for tokens in (7, ["a"], [1.5], None):
        with pytest.raises(TypeError):
            chain.extend(tokens)
    assert len(chain) == 0
    chain.extend(range(5))
    assert len(chain) == 5 and chain.parent_key(0) is None and chain.parent_key(1) == chain.chunk_key(0)
    for wrong in (
        lambda: chain.chunk_key(1), lambda: chain.keys(0, 2), lambda: chain.keys(1, 0), lambda: chain.tail_key(1, 2),
        lambda: chain.tail_key(0, 0),
    ):  # fmt: skip
        with pytest.raises(IndexError):
            wrong()
    with pytest.raises(ValueError):
        kvasir.KeyChain(b"short", 4)
    with pytest.raises(kvasir.KvasirError) as caught:
        kvasir.KeyChain(b"\0" * 32, 0)
    assert caught.value.kind == "InvalidArgument"


def engine_process(body: str, socket: str, checksums: bool = True, path: str = "direct") -> dict:
    """Runs `body` in a Python process of its own and returns the JSON it prints last."""
    source = f"import sys; sys.path[:0] = {[str(pathlib.Path(__file__).parent)]!r}\n" + body
    command = [sys.executable, "-c", source, socket, str(checksums), path]
    search = os.pathsep.join([str(pathlib.Path(kvasir.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


WRITER = """
import json
from test_native import *
engine = Engine(sys.argv[1], 1, payload_path=sys.argv[3])
seed = engine.register()
engine.fill(5)
chain = prompt(seed, 2 * CHUNK + 40)
tail = chain.tail_key(2, 32)
runs = [(chain.keys(0, 2), None, 0, CHUNK, [packed(*range(1, 9))]), (tail, chain.chunk_key(1), 0, 32, [packed(9, 10)])]
outcomes = engine.client.store(0, runs)
print(json.dumps({"outcomes": outcomes, "seed": seed.hex(), "blocks": [engine.block(b).hex() for b in range(1, 11)],
                  "stats": engine.client.stats()}))
"""

READER = """
import json
from test_native import *
engine = Engine(sys.argv[1], 2, checksums=sys.argv[2] == "True", payload_path=sys.argv[3])
seed = engine.register()
engine.fill(99)
chain = prompt(seed, 2 * CHUNK + 40)
ticket = engine.client.lookup_start(seed, 7, chain, BLOCK, len(chain) - 1, 0)
hit = None
while hit is None:
    hit = engine.client.lookup_result(ticket, 1.0)
targets = [packed(*range(20, 28)), packed(28, 29)]
loaded = engine.client.load(7, 0, [(run[0], run[1], run[3], [ids]) for run, ids in zip(hit.runs, targets)])
engine.client.release([hit.pin])
places = [(len(keys), group, chunk, tokens) for keys, group, chunk, tokens in hit.runs]
print(json.dumps({"hit": hit.hit_tokens, "loaded": loaded, "runs": places, "present": hit.present_tokens, "seed": seed.hex(),
                  "blocks": [engine.block(b).hex() for b in range(20, 30)], "degraded": hit.degraded}))
"""


def test_store_in_one_process_and_load_in_another(server):
    wrote = engine_process(WRITER, server.socket)
    assert wrote["outcomes"] == [["published"] * 2, ["published"]]
    assert wrote["stats"]["stores"] == 3 and wrote["stats"]["stored_bytes"] == 10 * 2 * PAGE
    read = engine_process(READER, server.socket)
    assert (read["hit"], read["loaded"], read["degraded"]) == (2 * CHUNK + 32, [[True] * 2, [True]], False)
    assert read["runs"] == [[64, 0, 0, CHUNK], [32, 0, 2, 32]]
    assert read["seed"] == wrote["seed"]
    assert read["blocks"] == wrote["blocks"]

    # The negative control: with the pool's bytes changed, other bytes come back to a reader that does not check them.
    changed = _native.testing_corrupt_pool(server.socket, 7)
    assert changed > 0
    again = engine_process(READER, server.socket, checksums=False)
    assert again["loaded"] == [[True] * 2, [True]]
    assert all(a != b for a, b in zip(again["blocks"], wrote["blocks"]))
    # One that does loads nothing, and nobody after it is promised these objects.
    checked = engine_process(READER, server.socket)
    assert (checked["hit"], checked["loaded"]) == (2 * CHUNK + 32, [[False] * 2, [False]])
    assert engine_process(READER, server.socket)["hit"] == 0


@pytest.mark.parametrize(("writes", "reads"), [("ring", "ring"), ("ring", "direct"), ("direct", "ring")])
def test_rings_and_mapped_pools_hold_the_same(server, writes, reads):
    wrote = engine_process(WRITER, server.socket, path=writes)
    assert wrote["outcomes"] == [["published"] * 2, ["published"]]
    read = engine_process(READER, server.socket, path=reads)
    assert (read["hit"], read["loaded"], read["degraded"]) == (2 * CHUNK + 32, [[True] * 2, [True]], False)
    assert read["blocks"] == wrote["blocks"]
    assert engine_process(WRITER, server.socket, path=writes)["outcomes"] == [["exists"] * 2, ["exists"]]
    # Bytes that changed in the pool are noticed by whoever reads them, whichever way they come.
    assert _native.testing_corrupt_pool(server.socket, 7) > 0
    assert engine_process(READER, server.socket, path=reads)["loaded"] == [[False] * 2, [False]]
    assert engine_process(READER, server.socket, path=reads)["hit"] == 0


def test_mistakes_are_typed_and_copy_nothing(server):
    engine = Engine(server.socket, 1)
    chain = prompt(b"\0" * 32, CHUNK)
    run = chunk_run(chain, 0, [1, 2, 3, 4])

    def kind(call) -> str:
        with pytest.raises(kvasir.KvasirError) as caught:
            call()
        assert isinstance(caught.value.numbers, list)
        return caught.value.kind

    assert kind(lambda: engine.client.store(0, [run])) == "NoRegistration"
    assert kind(lambda: engine.client.negotiate(0, SPANS)) == "InvalidAlignment"
    assert kind(lambda: engine.client.negotiate(48, SPANS)) == "InvalidAlignment"
    engine.register()
    for bad in (-1, BLOCKS, 1 << 40):
        with pytest.raises(kvasir.KvasirError) as caught:
            engine.client.store(0, [run, chunk_run(chain, 0, [1, 2, 3, bad])])
        assert caught.value.kind == "BlockOutOfRange"
        assert caught.value.numbers == [1, bad, BLOCKS]
    assert kind(lambda: engine.client.store(0, [chunk_run(chain, 0, [1, 2])])) == "BlockCount"
    assert kind(lambda: engine.client.load(1, 0, [(run[0], 3, CHUNK, [packed(1)])])) == "UnknownGroup"
    assert kind(lambda: engine.client.lookup_result(12345)) == "UnknownTicket"
    assert kind(lambda: engine.client.release([(engine_pin(engine) & (1 << 64) - 1) + 999 | 1 << 64])) == "UnknownPin"
    regions = [(ctypes.addressof(engine.memory[0]), 10)]
    layouts = [(0, [(BLOCK, [(0, 0, PAGE, PAGE)])])]
    assert kind(lambda: engine.client.set_memory(regions, layouts, BLOCKS)) == "InvalidLayout"
    assert kind(lambda: engine.client.set_memory([(0, 100)], layouts, BLOCKS)) == "InvalidLayout"
    for wrong in (
        lambda: kvasir.Client(server.socket, "worker", "x", b"short"),
        lambda: kvasir.Client(server.socket, "king", "x", b"\0" * 16),
        lambda: kvasir.Client(server.socket, "worker", "x", b"\0" * 16, payload_path="pool"),
        lambda: kvasir.Client(server.socket, "tool", "x", b"\0" * 16, deadline_s=-1.0),
        lambda: engine.client.register(DOMAIN, 0, 1, BLOCK, SPANS, [(0, "odd", 1, 0, 0, 1)], 1, 1),
        lambda: engine.client.store(0, [(b"", None, 0, CHUNK, [packed(1, 2, 3, 4)])]),
        lambda: engine.client.store(0, [(b"short", None, 0, CHUNK, [packed(1, 2, 3, 4)])]),
        lambda: engine.client.store(0, [(bytes(64), None, 0, CHUNK, [packed(1, 2, 3)])]),
        lambda: engine.client.load(1, 0, [(bytes(64), 0, CHUNK, [packed(1, 2, 3)])]),
        lambda: engine.client.load(1, 0, [(bytes(32), 0, CHUNK, [b"odd"])]),
    ):
        with pytest.raises(ValueError):
            wrong()
    assert engine.client.healthy


def engine_pin(engine: Engine) -> int:
    chain = prompt(engine.client.domain_seed, CHUNK + 1)
    engine.client.store(0, [chunk_run(chain, 0, [1, 2, 3, 4])])
    hit = engine.client.lookup(engine.client.domain_seed, 1, chain, BLOCK, CHUNK, 0)
    assert hit.pin and hit.hit_tokens == CHUNK
    return hit.pin


def test_a_lost_server_is_a_miss_and_comes_back(server):
    engine = Engine(server.socket, 1)
    seed = engine.register()
    engine.fill(1)
    chain = prompt(seed, CHUNK + 1)
    assert engine.client.store(0, [chunk_run(chain, 0, [1, 2, 3, 4])]) == [["published"]]
    server.kill()
    # Of a domain that was not looked up in before, the index alone does not say enough.
    hit = engine.client.lookup(seed, 1, chain, BLOCK, CHUNK, 0)
    assert hit.degraded and hit.hit_tokens == 0 and hit.pin == 0 and hit.runs == []
    assert engine.client.store(0, [chunk_run(chain, 0, [1, 2, 3, 4])]) == [["unavailable"]]
    # The worker has registered, so what is there can be loaded all the same.
    assert engine.client.load(1, 0, [(chain.chunk_key(0), 0, CHUNK, [packed(5, 6, 7, 8)])]) == [[True]]
    assert engine.block(5) == engine.block(1)
    assert engine.client.present(0, [(chain.chunk_key(0), 0), (bytes(32), 0)]) == [True, False]
    assert engine.client.clear() is False
    engine.client.release([1])
    engine.client.end_session(1)
    with pytest.raises(kvasir.KvasirError) as caught:
        engine.client.status_json()
    assert caught.value.kind == "Unavailable"
    assert not engine.client.healthy and engine.client.readable and engine.client.state_text.startswith("degraded")
    server.start()
    eventually("recovery", lambda: engine.client.healthy)
    assert engine.client.present(0, [(chain.chunk_key(0), 0)]) == [False]
    assert engine.client.store(0, [chunk_run(chain, 0, [1, 2, 3, 4])]) == [["published"]]
    assert engine.client.present(0, [(chain.chunk_key(0), 0), (bytes(32), 0)]) == [True, False]
    assert engine.client.load(1, 0, [(chain.chunk_key(0), 0, CHUNK, [packed(5, 6, 7, 8)])]) == [[True]]
    assert engine.block(5) == engine.block(1)
    stats = engine.client.stats()
    assert stats["reconnects"] == 1 and stats["lookup_misses_degraded"] == 1 and stats["dropped_stores"] == 1


def test_a_server_may_come_after_its_client():
    with tempfile.TemporaryDirectory() as directory:
        server = Server(directory)
        engine = Engine(server.socket, 1, deadline_s=0.5)
        assert not engine.client.healthy and engine.client.chunk_size is None
        with pytest.raises(kvasir.KvasirError) as caught:
            engine.register()
        assert caught.value.kind == "Unavailable"
        server.start()
        try:
            eventually("the remembered negotiation", lambda: engine.client.chunk_size == CHUNK)
            engine.register()
            assert engine.client.healthy
        finally:
            server.kill()


def test_a_forked_child_does_not_hold_its_parents_place(server):
    """A child keeps neither the lock nor a use of the client; the parent carries on."""
    engine = Engine(server.socket, 1)
    engine.register()
    with contextlib.closing(client(server.socket, "tool")) as tool:
        read, write = os.pipe()
        # The second one is a word in this process's slab, which the child has not.
        pins = [engine_pin(engine), engine_pin(engine)]
        assert engine.client.stats()["direct_lookups"] == 2
        child = os.fork()
        if child == 0:
            try:
                engine.client.release(pins)
                engine.client.end_session(1)
                ok = not engine.client.healthy
                try:
                    engine.client.store(0, [])
                    ok = False
                except kvasir.KvasirError as error:
                    ok = ok and error.kind == "Unavailable"
                del engine
                os.write(write, b"1" if ok else b"0")
                signal.pause()
            finally:
                os._exit(1)  # whatever happened: the rest of the test run is the parent's
        os.close(write)  # of a child that ends before it writes the read below sees the end
        try:
            assert os.read(read, 1) == b"1"
            assert engine.client.healthy
            engine.client.release(pins)
            granted = lambda: json.loads(tool.status_json())["pool"]["granted"]  # noqa: E731
            assert granted() > 0
            engine.client.close()
            del engine
            # The child lives, but the space is back: its copy of the lock was closed.
            eventually("the space", lambda: granted() == 0)
        finally:
            os.close(read)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


GROUPS = {
    "groups": [
        {"kind": "full_attention", "block_size": 16,
         "layers": [{"name": "a", "page_size_bytes": 4096, "dtype": "bfloat16"}]},
        {"kind": "sliding_window", "block_size": 32, "window": 100,
         "layers": [{"page_size_bytes": 8192, "count": 2, "dtype": "bfloat16"}]},
    ]
}


def test_geometry():
    resolved = json.loads(kvasir.resolve_geometry(json.dumps(GROUPS)))
    assert resolved["required_alignment"] == 32 and resolved["spans"] == [16, 32]
    full, window = resolved["object_groups"]
    assert (full["kind"], full["kv_groups"], full["unit_bytes"]) == ("full", [0], 2 * 4096)
    assert (window["kind"], window["window_tokens"], window["unit_bytes"]) == ("sliding_window", 100, 2 * 8192)
    assert resolved["groups"][0]["layers"][0]["name"] == "a"
    bound = json.loads(kvasir.bind_geometry(json.dumps(GROUPS), 256))
    assert [group["blocks_per_chunk"] for group in bound["groups"]] == [16, 8]
    assert bound["object_groups"][0]["object_bytes"] == 16 * 4096
    for text, kind in (("{", "json"), ('{"groups": []}', "no_groups")):
        with pytest.raises(kvasir.KvasirError) as caught:
            kvasir.resolve_geometry(text)
        assert caught.value.kind == kind
    with pytest.raises(kvasir.KvasirError):
        kvasir.bind_geometry(json.dumps(GROUPS), 255)


def test_fingerprint_depends_on_every_field():
    layer = {"page_size_bytes": 4096, "dtype": "bfloat16", "tokens_per_state": [1, 1], "edited_by": None,
             "kernel_block_size": 16}
    group = {"kind": "full_attention", "block_size": 16, "tokens_per_block": 16, "window": None, "layers": [layer]}
    base = {"layout": "LBHNC", "attention_backend": "CPU_ATTN", "isa": "vec16", "dcp": 1, "groups": [group]}
    seen = {kvasir.layout_fingerprint(json.dumps(base))}
    for change in (
        {"layout": "LBNHC"}, {"attention_backend": "X"}, {"isa": ""}, {"dcp": 2},
        {"groups": [{**group, "window": 5}]},
        {"groups": [{**group, "layers": [{**layer, "kernel_block_size": 32}]}]},
        {"groups": [{**group, "layers": [{**layer, "tokens_per_state": None}]}]},
    ):
        seen.add(kvasir.layout_fingerprint(json.dumps({**base, **change})))
    assert len(seen) == 8 and all(len(fingerprint) == 32 for fingerprint in seen)
    with pytest.raises(kvasir.KvasirError):
        kvasir.layout_fingerprint(json.dumps({**base, "layout": ""}))
    with pytest.raises(ValueError):
        kvasir.layout_fingerprint("[]")


def test_weights_identity(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    first = kvasir.weights_identity(str(tmp_path))
    assert len(first) == 32 and first == kvasir.weights_identity(str(tmp_path))
    assert first != kvasir.weights_identity(str(tmp_path), "quantization=fp8")
    with pytest.raises(OSError):
        kvasir.weights_identity(str(tmp_path / "nowhere"))


def test_versions():
    assert kvasir.__version__ == kvasir.version()
    plain, _, summed = kvasir.copy_path().partition("+")
    assert plain in ("avx2-8x64", "avx2-4x512", "avx2-ahead8", "portable")
    assert summed.startswith(("avx2-ahead", "avx512-ahead", "neon-ahead")) or not summed


@pytest.mark.parametrize("name", ["portable", "avx2-4x512+avx2-ahead16", "avx2", "neon-ahead1+"])
@pytest.mark.parametrize("call", ["kvasir.copy_path()", "kvasir.Client('/nowhere/k.sock', 'tool', 'test', bytes(16), 0.1).close()"])
def test_the_environment_names_the_copy(name: str, call: str):
    """A name that there is not, or that this machine cannot follow, is refused where it would be used."""
    environment = dict(os.environ, KVASIR_COPY_PATH=name)
    command = [sys.executable, "-c", f"import kvasir; print({call})"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True)
    known = name == "portable" or (name.startswith("avx2-4x512+") and kvasir.copy_path() != "portable")
    assert (output.returncode == 0) == known, output.stderr
    if not known:
        assert f"environment variable KVASIR_COPY_PATH: no copy is called \"{name}\"" in output.stderr
    elif "copy_path" in call:
        assert output.stdout.strip() == name


def test_models_of_different_alignments_share_a_server_of_model_scope():
    with tempfile.TemporaryDirectory() as directory:
        server = Server(directory)
        server.start("--chunk-scope", "model")
        try:
            for domain, span in enumerate((544, 640, 256)):
                with contextlib.closing(client(server.socket)) as engine:
                    name = bytes([domain]) * 32
                    assert engine.negotiate(span, [(0, span)], binding_domain=name) == span
                    with pytest.raises(ValueError, match="32 bytes"):
                        engine.negotiate(span, [(0, span)], binding_domain=name[:16])
                    with pytest.raises(kvasir.KvasirError) as refused:
                        engine.negotiate(span, [(0, span)])
                    assert refused.value.kind == "InvalidArgument"
        finally:
            server.kill()
