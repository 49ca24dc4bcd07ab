"""The peer's side of the questions that `cargo xtask bench --peer lmcache` asks two servers.

It starts an LMCache multiprocess server and drives it with LMCache's own client, as its connector does on a CPU: the client
asks where to write, copies, and says that it has. `benches/head_to_head.rs` asks Kvasir the same, and a figure has the same
name in both. Run by an interpreter that has LMCache: `lmcache_peer.py OUT.json [--quick]`.

What a figure is:
- A lookup is the lookup, the question for its result, and the release of what it locked.
- A store is prepare, copy and commit; a load is prepare, copy and commit after a lookup that is not timed.
- Chunks have 256 tokens, and 64 KiB, 1 MiB or 32 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

# No report to its makers, no banner, and one thread for copies as everywhere in this comparison.
QUIET = {
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}
os.environ.update(QUIET)

CHUNK, CHUNKS, POOL_GIB = 256, 16, 2
ARENA = 512 << 20
# What is stored before any of it is loaded. The peer evicts once a second from four fifths of its pool on, and drops what does
# not fit: so it is less than that, and the pool is emptied in time. No cache has as much.
BATCH_BYTES = 1400 << 20
WAIT_S = 300


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model whose chunks have so many bytes: keys and values, two bytes for each number."""

    name: str
    instance: int
    layers: int
    hidden: int

    @property
    def dims(self) -> tuple[int, int, int, int]:
        return 2, self.layers, CHUNK, self.hidden

    @property
    def bytes(self) -> int:
        return 4 * self.layers * CHUNK * self.hidden


TINY = Shape("tiny", 1, 1, 64)
SMALL = Shape("small", 2, 4, 256)
BIG = Shape("big", 3, 32, 1024)


@dataclasses.dataclass(frozen=True)
class Rounds:
    """How often things are done."""

    exchanges: int = 1000
    calls: int = 60
    copies: int = 9
    starts: int = 3
    seconds: float = 5.0


QUICK = Rounds(exchanges=100, calls=10, copies=3, starts=1, seconds=0.5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(log: Any) -> Iterator[tuple[str, int]]:
    """A server process: its address, as soon as somebody may connect, and its process."""
    port, http = free_port(), free_port()
    name = f"kvasirbench{os.getpid()}"
    program = pathlib.Path(sys.executable).with_name("lmcache")
    command = [
        program, "server", "--host", "127.0.0.1", "--port", str(port), "--http-port", str(http), "--shm-name", name,
        "--supported-transfer-mode", "engine_driven", "--l1-size-gb", str(POOL_GIB), "--eviction-policy", "LRU",
        "--chunk-size", str(CHUNK),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"tcp://127.0.0.1:{port}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def connect(url: str) -> Any:
    import zmq
    from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

    port = int(url.rsplit(":", 1)[1])
    end = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            break
        except OSError:
            assert time.monotonic() < end, "the peer does not listen"
            time.sleep(0.005)
    return RequestClientFactory.create(url, context=zmq.Context.instance())


def tokens(number: int, chunks: int) -> list[int]:
    return [(number * 7919 + i * 31 + (i >> 8)) % 128000 for i in range(chunks * CHUNK)]


def make_key(shape: Shape, toks: list[int], request: str, worker: int | None = None) -> Any:
    from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey

    return IPCCacheServerKey.from_token_ids(
        model_name=shape.name, world_size=1, worker_id=worker, token_ids=toks, start=0, end=len(toks), request_id=request
    )


def register(client: Any, shape: Shape) -> Any:
    from lmcache.v1.multiprocess.custom_types import RegisterEngineDrivenContextPayload

    payload = RegisterEngineDrivenContextPayload(
        instance_id=shape.instance, model_name=shape.name, world_size=1, block_size=16, num_layers=shape.layers,
        hidden_dim_size=shape.hidden, dtype_str="bfloat16", use_mla=False, num_physical_slots=CHUNK,
    )  # fmt: skip
    return client.register_kv_cache_engine_driven_context(payload).result(timeout=WAIT_S)


def find(client: Any, key: Any) -> int:
    """A lookup until its result is there: chunks that hit, and that are locked now."""
    client.lookup(key, 1).result(timeout=WAIT_S)
    while (hit := client.query_prefetch_status(key.request_id).result(timeout=WAIT_S)) is None:
        pass
    return hit


def timed(count: int, call: Callable[[int], None]) -> float:
    for i in range(count // 10 + 1):
        call(-1 - i)
    times = []
    for i in range(count):
        begin = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class Engine:
    """An engine process of the peer: stores and loads prompts by copies of its own."""

    def __init__(self, client: Any, shape: Shape, arena: int) -> None:
        import torch
        from lmcache.v1.distributed.api import MemoryLayoutDesc
        from lmcache.v1.multiprocess.transfer_context.base import EngineDrivenContextMetadata
        from lmcache.v1.multiprocess.transfer_context.shm import EngineDrivenContextShm

        torch.set_num_threads(1)
        self.client, self.shape, self.number = client, shape, 0
        answer = register(client, shape)
        assert answer.pool_size > 0, "the peer has no shared memory"
        layout = MemoryLayoutDesc(shapes=[torch.Size(shape.dims)], dtypes=[torch.bfloat16])
        metadata = EngineDrivenContextMetadata(layout_desc=layout, block_size=16, use_mla=False)
        self.context = EngineDrivenContextShm(metadata, client, float(WAIT_S), answer.shm_name, answer.pool_size)
        count = max(arena // shape.bytes, 2 * CHUNKS)
        self.own = torch.zeros((count, *shape.dims), dtype=torch.bfloat16)
        self.own.view(torch.int16).random_()
        self.other = torch.zeros_like(self.own)
        self.at = 0

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self.context.close()

    def next(self, chunks: int) -> tuple[list[int], Any]:
        """The next places of the engine's memory, and a key for them."""
        self.number += 1
        places = [(self.at + i) % len(self.own) for i in range(chunks)]
        self.at += chunks
        name = f"{self.shape.name}-{self.number}"
        return places, make_key(self.shape, tokens(self.number * 131 + self.shape.instance, chunks), name, worker=0)

    def store(self, places: list[int], key: Any) -> float:
        begin = time.perf_counter()
        views, written = self.context.prepare_store(key, self.shape.instance)
        for view, index in zip(views, written):
            view.copy_(self.own[places[index]])
        stored = self.context.commit_store(key, self.shape.instance, [])
        took = time.perf_counter() - begin
        assert stored and len(written) == len(places), f"{len(written)} of {len(places)} chunks were stored"
        return took

    def load(self, places: list[int], key: Any) -> float:
        import torch

        assert find(self.client, key.no_worker_id_version()) == len(places)
        begin = time.perf_counter()
        views = self.context.prepare_retrieve(key, self.shape.instance, len(places))
        for view, place in zip(views, places):
            self.other[place].copy_(view)
        self.context.commit_retrieve(key, self.shape.instance)
        took = time.perf_counter() - begin
        # As bits: among random ones are numbers that equal nothing.
        assert torch.equal(self.other[places[-1]].view(torch.int16), self.own[places[-1]].view(torch.int16)), "other bytes"
        return took

    def copy(self, places: list[int]) -> float:
        """The ceiling of both: as many bytes in the engine's own memory. Half of that away from what a store or load uses now,
        and one place on, so that no load finds there what it should bring."""
        count = len(self.own)
        pairs = [((place + count // 2 + 1) % count, (place + count // 2) % count) for place in places]
        begin = time.perf_counter()
        for target, source in pairs:
            self.other[target].copy_(self.own[source])
        return time.perf_counter() - begin

    def end(self, key: Any) -> None:
        self.client.end_session(key.request_id).result(timeout=WAIT_S)


def batches(calls: int, fits: int) -> list[int]:
    """How many calls each batch has.

    All of a batch is stored, then loaded, then copied. So no byte was touched just before, as no byte is by
    `benches/head_to_head.rs`: what a store has left in a cache would make its load, and the copy beside it, faster.
    """
    return [min(fits, calls - first) for first in range(0, calls, fits)]


class Report:
    """Figures by name."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []

    def figure(self, name: str, value: float, unit: str) -> None:
        self.figures.append({"name": name, "value": value, "unit": unit})
        print(f"{name}: {value:.3g} {unit}", flush=True)


def starts(rounds: Rounds, report: Report, log: Any) -> None:
    times = []
    for _ in range(rounds.starts):
        begin = time.perf_counter()
        with server(log) as (url, _):
            client = connect(url)
            client.noop().result(timeout=WAIT_S)
            times.append(time.perf_counter() - begin)
            client.close()
    report.figure("start", statistics.median(times) * 1e3, "ms")


def private_mib(process: int) -> float:
    """Resident memory without shared pages, which are the pool's."""
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1024


def control(rounds: Rounds, client: Any, report: Report) -> None:
    engine = Engine(client, TINY, 64 << 20)
    noop = timed(rounds.exchanges, lambda _: client.noop().result(timeout=WAIT_S))
    report.figure("noop", noop * 1e6, "us")
    toks = tokens(1, 128)
    places, _ = engine.next(128)
    stored = make_key(TINY, toks, "filled", worker=0)
    engine.store(places, stored)
    engine.end(stored)
    base = make_key(TINY, toks, "x")

    def ask(key: Any) -> float:
        begin = time.perf_counter()
        hit = find(client, key)
        client.free_lookup_locks(key, 1).result(timeout=WAIT_S)
        took = time.perf_counter() - begin
        assert hit == 128, f"{hit} of 128 chunks hit"
        engine.end(key)
        return took

    count = rounds.calls
    repeated = [ask(dataclasses.replace(base, request_id=f"r{i}")) for i in range(count)]
    report.figure("lookup_repeated", statistics.median(repeated) * 1e6, "us")
    hashing = []
    for i in range(count):
        begin = time.perf_counter()
        key = make_key(TINY, toks, f"h{i}")
        made = time.perf_counter() - begin
        hashing.append(made + ask(key))
    report.figure("lookup_hashing", statistics.median(hashing) * 1e6, "us")
    for chunks in (1, 128):
        stores, loads = [], []
        for _ in range(count):
            places, key = engine.next(chunks)
            stores.append(engine.store(places, key))
            loads.append(engine.load(places, key))
            engine.end(key)
        report.figure(f"store_{chunks}", statistics.median(stores) * 1e6, "us")
        report.figure(f"load_{chunks}", statistics.median(loads) * 1e6, "us")
    client.clear(False).result(timeout=WAIT_S)
    engine.close()


def throughput(rounds: Rounds, client: Any, name: str, shape: Shape, report: Report) -> None:
    engine = Engine(client, shape, ARENA)
    size = shape.bytes * CHUNKS
    fits = max(1, BATCH_BYTES // size)

    def empty() -> None:
        client.clear(False).result(timeout=WAIT_S)

    for _ in range(fits):  # every page of the pool that is used has been written once before anything is timed
        places, key = engine.next(CHUNKS)
        engine.store(places, key)
        engine.end(key)
    empty()
    stores, loads, copies = [], [], []
    calls = max(rounds.copies, rounds.copies * (64 << 20) // size)
    for batch in batches(calls, fits):
        prompts = [engine.next(CHUNKS) for _ in range(batch)]
        stores += [engine.store(places, key) for places, key in prompts]
        for places, key in prompts:
            loads.append(engine.load(places, key))
            engine.end(key)
        copies += [engine.copy(places) for places, _ in prompts]
        empty()
    for what, times in (("store", stores), ("load", loads), ("copy", copies)):
        report.figure(f"{what}_{name}", size / statistics.median(times) / 1e9, "GB/s")
    empty()
    engine.close()


def be_client(url: str, number: int, seconds: float, ready: Any, go: Any, rates: Any) -> None:
    client = connect(url)
    base, count = make_key(TINY, tokens(4, CHUNKS), "x"), 0

    def request(i: int) -> None:
        key = dataclasses.replace(base, request_id=f"c{number}-{i}")
        hit = find(client, key)
        assert hit == CHUNKS, f"{hit} of {CHUNKS} chunks hit"
        client.free_lookup_locks(key, 1).result(timeout=WAIT_S)
        client.end_session(key.request_id).result(timeout=WAIT_S)

    request(-1)
    ready.put(number)
    go.wait()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        request(count)
        count += 1
    rates.put(count / (time.perf_counter() - begin))
    client.close()


def four_clients(rounds: Rounds, url: str, client: Any, report: Report) -> None:
    engine = Engine(client, TINY, 1 << 20)
    places, _ = engine.next(CHUNKS)
    key = make_key(TINY, tokens(4, CHUNKS), "four", worker=0)
    engine.store(places, key)
    engine.end(key)
    spawn = multiprocessing.get_context("spawn")
    ready, rates, go = spawn.Queue(), spawn.Queue(), spawn.Event()
    clients = [spawn.Process(target=be_client, args=(url, i, rounds.seconds, ready, go, rates)) for i in range(4)]
    for process in clients:
        process.start()
    for _ in clients:
        ready.get(timeout=180)
    go.set()
    total = sum(rates.get(timeout=180) for _ in clients)
    for process in clients:
        process.join()
    report.figure("requests_of_4", total, "1/s")
    client.clear(False).result(timeout=WAIT_S)
    engine.close()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    rounds = QUICK if options.quick else Rounds()
    report = Report()
    began = int(time.time())
    with tempfile.TemporaryFile() as log:
        try:
            starts(rounds, report, log)
            with server(log) as (url, process):
                client = connect(url)
                client.noop().result(timeout=WAIT_S)
                time.sleep(2)
                report.figure("idle_memory", private_mib(process), "MiB")
                assert client.negotiate_chunk_size(16).result(timeout=WAIT_S) == CHUNK
                control(rounds, client, report)
                four_clients(rounds, url, client, report)
                throughput(rounds, client, "1MiB", SMALL, report)
                throughput(rounds, client, "32MiB", BIG, report)
                client.close()
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
    version = importlib.metadata.version("lmcache")
    document = {"bench": "lmcache", "version": version, "taken_unix_s": began, "figures": report.figures}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
