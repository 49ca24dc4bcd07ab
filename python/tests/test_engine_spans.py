"""Groups whose blocks hold different numbers of tokens: each gets its own bytes back, at every boundary that all share."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator

import pytest

import fakes
from scripted import Engine, Request, Shape, Spared
from server_status import assert_nothing_held, counts, status
from test_native import Server

Full, Window, Mamba = fakes.FullAttentionSpec, fakes.SlidingWindowSpec, fakes.MambaSpec
MODELS = {
    "full 32 beside window 16": (Full(32, 1024), Window(16, 256, sliding_window=48)),
    "window 16 beside full 32": (Window(16, 256, sliding_window=48), Full(32, 1024)),
    "full 256 beside window 128": (Full(256, 2048), Window(128, 512, sliding_window=200)),
    "full 256 beside recurrent 128": (Full(256, 2048), Mamba(128, 640)),
    "three spans": (Full(32, 1024), Window(16, 256, sliding_window=40), Mamba(64, 384)),
}
SHAPES = {
    "one rank": Shape(),
    "context parallel": Shape(ranks=2, dcp=2),
    "pipeline of pairs": Shape(ranks=4, pp=2),
}


def spans_of(model: str, shape: Shape) -> list[int]:
    """Attention's blocks hold as many times the tokens as there are context-parallel ranks; states do not."""
    return [spec.block_size * (shape.dcp if spec.dcp_sharded else 1) for spec in MODELS[model]]


@pytest.fixture
def start(spared: Spared) -> Iterator[Callable[[str, Shape, str], tuple[Server, Engine]]]:
    """Starts engines at a server whose chunks are twice as long as the tokens on whose multiples a request can resume."""
    servers: dict[int, Server] = {}
    with contextlib.ExitStack() as stack:

        def engine(model: str, shape: Shape, name: str) -> tuple[Server, Engine]:
            size = 2 * math.lcm(*spans_of(model, shape))
            if size not in servers:
                server = servers[size] = Server(stack.enter_context(tempfile.TemporaryDirectory()))
                server.start(chunk_size=size)
                stack.callback(server.kill)
            one = Engine(servers[size].socket, MODELS[model], name, shape=shape)
            stack.callback(one.close)
            return servers[size], one

        yield engine


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model", MODELS)
def test_each_span_restores_its_own_bytes_at_every_boundary(
    start: Callable[[str, Shape, str], tuple[Server, Engine]], model: str, shape: str
) -> None:
    where = SHAPES[shape]
    server, writer = start(model, where, "writer")
    spans = spans_of(model, where)
    assert [span for _, span in writer.geometry.spans] == spans and len(set(spans)) > 1
    unit = math.lcm(*spans)
    chunk = 2 * unit
    assert writer.geometry.alignment == unit
    # Two chunks and a tail, in steps that end on every boundary.
    tokens = 2 * chunk + unit
    writer.prefill(Request("w", tokens + 5), steps=[*range(unit, tokens + 1, unit), tokens + 5])
    assert status(server)["incomplete"] == 0 < status(server)["objects"]

    for end in (chunk, 2 * chunk, tokens):
        _, reader = start(model, where, f"to {end}")
        request = Request("r", end + 1)
        assert reader.ask(request) == (end, True)
        reader.allocate(request, end, more=unit)
        before = reader.snapshot()
        assert not reader.holds(request, end)
        reader.step()
        assert reader.wait("r") == set() and reader.holds(request, end)
        for rank, memory in zip(reader.ranks, before):
            changed = {group: blocks for group, blocks in rank.changed(memory).items() if blocks}
            assert changed == reader.needed(request, end)
        # What it computes on from there is another step's for the next to find.
        reader.finish(request)
        assert_nothing_held(server)
    assert (counts(server)["failed_loads"], counts(server)["dropped_stores"]) == (0, 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model", MODELS)
def test_what_the_engine_has_itself_ends_inside_a_chunk(
    start: Callable[[str, Shape, str], tuple[Server, Engine]], model: str, shape: str
) -> None:
    """Its own blocks of every span stay as they are."""
    where = SHAPES[shape]
    unit = math.lcm(*spans_of(model, where))
    server, writer = start(model, where, "writer")
    end = 4 * unit
    writer.prefill(Request("w", end), steps=range(unit, end + 1, unit))
    _, reader = start(model, where, "reader")
    request, local = Request("r", end + 1), 3 * unit
    assert reader.ask(request, local) == (end - local, True)
    reader.allocate(request, end - local, local, more=unit)
    before = reader.snapshot()
    reader.step()
    assert reader.wait("r") == set()
    assert reader.changed(before) == reader.needed(request, end, local)
    writes = reader._writes(request, local, end)
    assert all(rank.has(writes) for rank in reader.ranks)
    reader.finish(request)
    assert_nothing_held(server)
    assert counts(server)["failed_loads"] == 0


@pytest.mark.parametrize(("step_tokens", "said"), [(8192, 1), (255, 0)])
def test_the_log_says_what_to_set_where_steps_end_between_boundaries(
    start: Callable[[str, Shape, str], tuple[Server, Engine]],
    caplog: pytest.LogCaptureFixture,
    step_tokens: int,
    said: int,
) -> None:
    """The engine's block is its shortest; what the role was started with may have been reset since."""
    _, engine = start("full 256 beside recurrent 128", Shape(), "engine")
    config = engine.scheduler._vllm_config
    config.cache_config.block_size = 128
    config.scheduler_config.max_num_batched_tokens = step_tokens
    for number in range(2):
        engine.scheduler.on_new_request(Request(str(number), 10))
    lines = [line for line in caplog.messages if "can resume recurrent state only every 256" in line]
    assert len(lines) == said
    assert all("start it with --max-num-batched-tokens 128" in line for line in lines)
