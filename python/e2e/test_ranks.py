"""Several ranks: tensor-parallel workers are processes of their own and clients of their own, of one server or of two.

The engine's workers are forked from a process that has imported it already, so that a start takes seconds; apart from
that they are what the engine makes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

import demo
import models
import process

from conftest import Bench
from kinds import PROMPT_TOKENS, errors, once, small

TWO = {"tensor_parallel_size": 2}
SETTLE_S = 30.0
START_S = 600.0  # for the engine's modules and its process groups; a watchdog


def ranks(status: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The clients that are workers, by rank."""
    return {c["registered"]["rank"]: c for c in status["clients"] if c["kind"] == "worker" and c["registered"]}


def check_books(server: process.Server, limbo: int = 0) -> dict[str, Any]:
    """Every byte of the pool is in exactly one class, and nothing is half there.

    `limbo`: objects that were discarded while they were read. They stay until space is needed.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        status = server.status()
        # The document is written client by client, and a client may give space back in between.
        granted = sum(client["granted"] for client in status["clients"])
        if status["pool"]["granted"] == granted or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    pool = status["pool"]
    assert pool["granted"] == granted
    assert pool["free"] + pool["used"] + pool["granted"] + pool["quarantined"] == pool["total"]
    assert (status["incomplete"], status["limbo"], pool["quarantined"], pool["pinned"]) == (0, limbo, 0, 0)
    return status


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3.5"])
def test_two_ranks_get_the_prefix_back(bench: Bench, name: str) -> None:
    """The demo's phases, the second engine a new process with new workers."""
    model, server = small(name), bench.server()
    phases = demo.run_model(model, bench.starter(model, server, settings=TWO), server, demo.Progress(6))
    assert demo.verdict(model, demo.report(model, server.chunk_size(), phases)) == []
    check_books(server)


def test_bytes_that_ranks_have_in_common_are_stored_once(bench: Bench) -> None:
    """Latent attention is the same on all ranks: the first stores it, both load it."""
    server = bench.server()
    engine = bench.engine(small("deepseek-v2"), server, settings=TWO)
    tokens = demo.prompt(1, PROMPT_TOKENS)
    assert once(engine, tokens)["cached_tokens"] == 0
    server.settle()
    engine.reset_prefix_cache()
    span = models.find("deepseek-v2").block_size
    assert span is not None
    assert once(engine, tokens)["cached_tokens"] == (PROMPT_TOKENS - 1) // span * span
    first, second = (client["reported"] for _, client in sorted(ranks(server.status()).items()))
    assert (first["stores"] > 0, second["stores"]) == (True, 0)
    assert first["loaded_bytes"] == second["loaded_bytes"] == first["stored_bytes"]


# The groups that the engine makes of its ranks, and what the connector takes them to hold.
PLACES = """
import json, os, sys, torch
from kvasir.vllm import geometry
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec

world, dcp, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
said = os.open(sys.argv[4], os.O_APPEND | os.O_WRONLY)
spec = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype=torch.bfloat16, max_tp_shards=1)
config = KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
(held,) = geometry.shards(config, geometry.resolve(config, dcp), world, dcp)
with set_current_vllm_config(VllmConfig()):
    children = []
    for rank in range(world):
        child = os.fork()
        if child:
            children.append(child)
            continue
        parallel_state.init_distributed_environment(world, rank, "file://" + meet, rank, "gloo")
        parallel_state.initialize_model_parallel(world, decode_context_model_parallel_size=dcp, backend="gloo")
        tp, share = parallel_state.get_tp_group().rank_in_group, parallel_state.get_dcp_group().rank_in_group
        os.write(said, json.dumps([tp, share, held[rank]]).encode() + b"\\n")
        os._exit(0)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_the_engine_deals_tokens_to_context_parallel_ranks_as_assumed(tmp_path: pathlib.Path) -> None:
    """Ranks with the same share of the tokens are those that are taken to hold the same latent attention."""
    world, dcp, said = 4, 2, tmp_path / "places"
    said.touch()
    command = [sys.executable, "-c", PLACES, str(world), str(dcp), str(tmp_path / "meet"), str(said)]
    engine = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    try:
        assert engine.wait(START_S) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()
    places = sorted(json.loads(line) for line in said.read_text().splitlines())
    assert places == [[0, 0, 0], [1, 1, 1], [2, 0, 0], [3, 1, 1]]


def test_a_server_for_each_rank(bench: Bench) -> None:
    """Hits from both; one of them killed: what it held is read on; started again: the new one is stored into and read."""
    servers = [bench.server(socket="kvasir0.sock"), bench.server(socket="kvasir1.sock")]
    sockets = {"kvasir.socket": [str(server.socket_path) for server in servers]}
    engine = bench.engine(
        small("qwen3"), servers[0], settings=TWO, connector={"kv_connector_extra_config": sockets}
    )
    tokens = demo.prompt(1, PROMPT_TOKENS)
    once(engine, tokens)
    own = once(engine, tokens)
    settle(servers)
    engine.reset_prefix_cache()
    assert once(engine, tokens) == own
    held = [server.status() for server in servers]
    assert [[client["pid"] for client in ranks(status).values()] for status in held] == [
        [client["pid"]] for status in held for client in ranks(status).values()
    ], "a server has other ranks than its own"
    assert held[0]["objects"] == held[1]["objects"] > 0
    assert held[0]["pool"]["used"] == held[1]["pool"]["used"]

    servers[1].kill()
    engine.reset_prefix_cache()
    assert once(engine, tokens) == own

    servers[1] = bench.server(socket="kvasir1.sock")
    wait_for_hits(engine, servers, tokens, own)
    settle(servers)
    for server in servers:
        check_books(server)
    assert not [line for line in errors(engine.log) if "Traceback" in line]


@pytest.mark.parametrize("place", ["one server", "a server each"])
def test_damaged_parts_are_never_used(bench: Bench, place: str) -> None:
    """The parts of both ranks at one server, or of the second rank at its own: one failure for the engine."""
    from kvasir import _native

    servers = [bench.server(socket=f"kvasir{at}.sock") for at in range(1 if place == "one server" else 2)]
    sockets = {"kvasir.socket": [str(server.socket_path) for server in servers], "kvasir.deadline": 20.0}
    engine = bench.engine(
        small("gpt-oss"), servers[0], settings=TWO, connector={"kv_connector_extra_config": sockets}
    )
    counters = ("loads", "failed_loads", "stale_loads", "dropped_stores")
    tokens = demo.prompt(1, PROMPT_TOKENS)
    cold = once(engine, tokens)
    own = once(engine, tokens)
    settle(servers)
    engine.reset_prefix_cache()
    assert once(engine, tokens) == own
    settle(servers)
    loads = servers[-1].reported("loads")[0]
    named = loads // (3 - len(servers))  # the ranks of that server
    assert named > 0 and [server.reported(*counters) for server in servers] == [(loads, 0, 0, 0)] * len(servers)

    damaged = servers[-1]
    assert _native.testing_corrupt_pool(str(damaged.socket_path)) > 0
    engine.reset_prefix_cache()
    result = once(engine, tokens)
    assert (result["token_ids"], result["logprobs"]) == (cold["token_ids"], cold["logprobs"])
    settle(servers)
    assert damaged.reported(*counters) == (loads, loads, 0, 0)
    assert damaged.status()["counters"]["discarded"] == named
    (corrupt,) = damaged.reported("corrupt_loads")
    if len(servers) == 1:
        # What one rank has found damaged may be gone already when the other looks for it.
        assert named <= corrupt <= 2 * named
    else:
        assert corrupt == named
        assert servers[0].reported("corrupt_loads", *counters) == (0, 2 * loads, 0, 0, 0)

    engine.reset_prefix_cache()
    assert once(engine, tokens) == own
    settle(servers)
    assert damaged.reported(*counters) == (2 * loads, loads, 0, 0)
    for server in servers:
        check_books(server, limbo=named if server is damaged else 0)
    assert errors(engine.log) == []


def settle(servers: list[process.Server]) -> None:
    for server in servers:
        server.settle()


def wait_for_hits(
    engine: process.Engine, servers: list[process.Server], tokens: list[int], expected: dict[str, Any]
) -> None:
    """Until the engine is served by both servers again; whatever it puts out meanwhile has to be right."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        engine.reset_prefix_cache()
        result = once(engine, tokens)
        assert result["token_ids"] == expected["token_ids"]
        if result == expected and all(server.status()["objects"] > 0 for server in servers):
            return
        settle(servers)
        time.sleep(0.1)
    pytest.fail("the engine did not use the restarted server within 60 s")


@pytest.mark.parametrize("during", [False, True], ids=["before-its-part", "while-it-stores"])
def test_a_rank_that_dies_leaves_no_half_record(bench: Bench, during: bool) -> None:
    model, server = small("qwen3"), bench.server()
    witness = bench.place / "witness.json"
    fault = {"rank": 1, "witness": str(witness), "during": during}
    engine = bench.engine(model, server, settings=TWO, store_fault=fault)
    tokens = demo.prompt(1, PROMPT_TOKENS)
    with pytest.raises(process.HarnessError):
        once(engine, tokens)  # an engine that loses a worker ends
    engine.kill()
    if not during:
        assert json.loads(witness.read_text())["incomplete"] > 0, "no part of the other rank was there yet"

    deadline = time.monotonic() + SETTLE_S
    while (status := server.status())["clients"] and time.monotonic() < deadline:
        time.sleep(0.02)
    status = check_books(server)
    assert status["clients"] == []
    if not during:
        assert (status["objects"], status["counters"]["ended_incomplete"] > 0) == (0, True)

    # What the dead engine left is no obstacle to the next one.
    engine = bench.engine(model, server, settings=TWO)
    once(engine, tokens)
    own = once(engine, tokens)
    server.settle()
    engine.reset_prefix_cache()
    assert once(engine, tokens) == own
    check_books(server)
