"""Two real servers, and an engine's ranks dealt to them: each keeps the parts of its own, and a hit is what both have."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import tempfile
import types
from collections.abc import Iterator

import pytest

import fakes
from fakes import Request
from kvasir.vllm import geometry, identity, worker
from kvasir.vllm.servers import Servers, ServersDiffer
from kvasir.vllm.layout import Layout, Page
from kvasir.vllm.meta import RankReport, StepPlan
from kvasir.vllm.notes import Notes
from kvasir.vllm.scheduler import Scheduled, SchedulerRole
from kvasir.vllm.settings import Settings
from test_native import BLOCKS, CHUNK, Server, client, eventually

PAGE = 512
RANKS = 4
GEOMETRY = geometry.resolve(fakes.kv_config(fakes.FullAttentionSpec(16, page_size_bytes=PAGE)))
NOTES = Notes(logging.getLogger("test.servers"), "test")
TOKENS = 3 * CHUNK + 20
TABLE = [list(range(1, 14))]


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(2):
            server = Server(stack.enter_context(tempfile.TemporaryDirectory()))
            server.start()
            stack.callback(server.kill)
            started.append(server)
        yield started


class Engine:
    """A scheduler and four ranks in one process, each with its connections; runs of `replicas` hold the same bytes."""

    def __init__(self, instance: int, sockets: list[str], replicas: int = 1) -> None:
        own = bytes([instance]) * 16
        self.several = Servers([client(socket, "scheduler", own) for socket in sockets], 20.0, NOTES)
        spans = list(GEOMETRY.spans)
        assert self.several.negotiate(GEOMETRY.alignment, spans, 256) == CHUNK
        self.ranks, self.memory, self.places = [], [], []
        reports = {}
        for number in range(RANKS):
            parallel = types.SimpleNamespace(
                rank=number, tensor_parallel_size=RANKS, pipeline_parallel_size=1, decode_context_parallel_size=1
            )
            rank = worker.rank_of(parallel, [[rank // replicas for rank in range(RANKS)]], len(sockets))
            one = client(sockets[rank.server], "worker", own)
            one.negotiate(GEOMETRY.alignment, spans, 256)
            role = worker.WorkerRole(GEOMETRY, one, rank, NOTES)
            memory = (ctypes.c_ubyte * (2 * BLOCKS * PAGE))()
            pages = [Page(0, layer * BLOCKS * PAGE, PAGE, PAGE) for layer in range(2)]
            place = Layout([(ctypes.addressof(memory), len(memory))], BLOCKS, {0: pages}, {})
            domain = {
                "model": "m", "weights_id": b"w", "kv_dtype": "bfloat16", "fingerprint": bytes(32),
                "parallel_shape": identity.parallel_shape(parallel, sockets),
            }  # fmt: skip
            role.register({}, place, domain)
            reports[(0, number)] = RankReport(number, domain)
            self.ranks.append(role)
            self.memory.append(memory)
            self.places.append(rank)
        settings = Settings(tuple(sockets), lookup_wait=20.0)
        self.role = SchedulerRole(GEOMETRY, settings, self.several, True, 16, NOTES, ranks=RANKS)
        self.role.set_ranks(reports)

    def fill(self) -> None:
        """Bytes that differ between ranks that hold different shards, blocks and layers."""
        for rank, memory in zip(self.places, self.memory):
            shard = rank.server * 16 + rank.groups[0].part
            for at in range(0, len(memory), PAGE):
                page = bytes((shard * 37 + at // PAGE * 11 + byte // 7) % 251 + 1 for byte in range(PAGE))
                ctypes.memmove(ctypes.addressof(memory) + at, page, PAGE)

    def block(self, rank: int, block: int) -> bytes:
        memory = bytes(self.memory[rank])
        return b"".join(memory[at * PAGE : (at + 1) * PAGE] for at in (block, BLOCKS + block))

    def step(self, plan: StepPlan) -> set[str]:
        """Runs a step on all ranks; the requests whose load failed on any."""
        failed: set[str] = set()
        for role in self.ranks:
            role.start_loads(plan)
            done: set[str] = set()
            while len(done) < len(plan.async_loads):
                results = role.take_results()
                done |= results.done
                failed |= results.failed
            role.save(plan.stores)
            assert role.take_report() is None
        self.role.on_output([load.request_id for load in plan.async_loads], failed, None)
        return failed

    def compute(self, name: str, tokens: int = TOKENS) -> None:
        """A request that finds nothing: computes and stores everything."""
        one = Request(name, range(tokens))
        assert self.role.matched(one, 0) == (0, False)
        self.step(self.role.build_plan([Scheduled(name, 0, tokens, True)], {name: TABLE}.get, {}))
        self.role.finished(name)

    def reuse(self, name: str, tokens: int, table: list[list[int]]) -> set[str]:
        """A request that finds `tokens` tokens and loads them into `table`."""
        one = Request(name, range(TOKENS))
        assert self.role.matched(one, 0) == (tokens, True)
        self.role.allocated(one, table, tokens)
        failed = self.step(self.role.build_plan([], {}.get, {}))
        self.role.finished(name)
        return failed

    def close(self) -> None:
        for role in self.ranks:
            role.close()
        self.role.close()


def status(server: Server) -> dict:
    with contextlib.closing(client(server.socket, "tool")) as tool:
        return json.loads(tool.status_json())


def nothing_pinned(servers: list[Server]) -> None:
    for server in servers:
        assert [row for row in status(server)["clients"] if row["pins"] or row["pin_words"]] == []


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_ranks_on_two_servers_restore_each_its_own_bytes(servers: list[Server], replicas: int) -> None:
    sockets = [server.socket for server in servers]
    with contextlib.closing(Engine(1, sockets, replicas)) as first, contextlib.closing(
        Engine(2, sockets, replicas)
    ) as second:
        first.fill()
        first.compute("writes")
        # Three chunks and the tail of 16; a shard that several ranks of a server hold is stored there once.
        shards = len({(rank.server, rank.groups[0].part) for rank in first.places})
        stored = sum(status(server)["counters"]["stored_bytes"] for server in servers)
        assert stored == shards * 13 * 2 * PAGE
        assert [rank.groups[0].stores for rank in first.places] == (
            [True] * 4 if replicas == 1 else [True, False, True, False]
        )
        table = [list(range(18, 31))]
        assert not second.reuse("reads", TOKENS - 4, table)
        for number in range(RANKS):
            for source, target in zip(TABLE[0], table[0]):
                assert second.block(number, target) == first.block(number, source), (number, source)
        nothing_pinned(servers)


def test_the_shorter_server_bounds_the_hit_and_what_it_lacks_is_stored_again(servers: list[Server]) -> None:
    sockets = [server.socket for server in servers]
    with contextlib.closing(Engine(1, sockets)) as first, contextlib.closing(Engine(2, sockets)) as second:
        first.fill()
        first.compute("short", 2 * CHUNK)
        # The second server loses everything, and gets back only what a step of one chunk stores.
        assert first.ranks[2]._client.clear()
        one = Request("again", range(CHUNK))
        first.role.matched(one, 0)
        first.step(first.role.build_plan([Scheduled("again", 0, CHUNK, True)], {"again": TABLE}.get, {}))
        table = [list(range(18, 31))]
        assert not second.reuse("reads", CHUNK, table)
        for number in range(RANKS):
            assert second.block(number, 21) == first.block(number, 4)
            assert second.block(number, 22) == bytes(2 * PAGE), "nothing beyond the shorter hit is written"
        nothing_pinned(servers)


def test_a_lost_server_ends_stores_and_no_hits_until_it_is_back(servers: list[Server]) -> None:
    sockets = [server.socket for server in servers]
    with contextlib.closing(Engine(1, sockets)) as engine:
        engine.fill()
        engine.compute("writes")
        servers[1].kill()
        eventually("the loss", lambda: not engine.several.healthy)
        one = Request("lost", range(TOKENS))
        assert engine.role.matched(one, 0) == (TOKENS - 4, True), "the dead server's pool is read on"
        stores = engine.role.build_plan([Scheduled("lost", 0, TOKENS, True)], {"lost": TABLE}.get, {}).stores
        assert stores is None or stores.runs == []
        engine.role.finished("lost")
        assert sockets[1] in engine.several.state_text and sockets[0] not in engine.several.state_text
        servers[1].start()
        eventually("recovery", lambda: engine.several.healthy and all(role._client.healthy for role in engine.ranks))
        # The first server still has everything, the second nothing: a miss that is stored where it lacks.
        engine.compute("refills")
        assert not engine.reuse("reads", TOKENS - 4, TABLE)
        nothing_pinned(servers)


def test_an_engine_that_names_the_servers_in_another_order_shares_nothing(servers: list[Server]) -> None:
    sockets = [server.socket for server in servers]
    with contextlib.closing(Engine(1, sockets)) as one, contextlib.closing(Engine(2, sockets[::-1])) as other:
        one.fill()
        one.compute("writes")
        other.compute("finds nothing")


def test_servers_with_other_chunk_sizes_are_refused(servers: list[Server]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        other = Server(directory)
        other.start(chunk_size=2 * CHUNK)
        try:
            asked = Servers([client(server.socket, "scheduler") for server in (servers[0], other)], 20.0, NOTES)
            with contextlib.closing(asked), pytest.raises(ServersDiffer, match=f"{CHUNK} tokens.*{2 * CHUNK} tokens"):
                asked.negotiate(16, [(0, 16)], 256)
        finally:
            other.kill()
