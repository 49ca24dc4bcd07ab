"""What the connector costs the engine's scheduler thread, as CPU time of that thread, under a scripted scheduler.

    python connector_budget.py [--json]

The connector is the real one, called through the hooks that the engine calls, and its server is a real one in a
process of its own. Everything in a hook counts: hashing, hand-over to the compiled module, sending, reading the
answer, planning, releasing. Waiting for the server does not, since it costs the thread no CPU time. Only vLLM itself is
a fake where it is not installed. Prints microseconds; no time is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import pickle
import platform
import random
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

import fakes  # noqa: E402
from scripted import HYBRID_SPECS, WINDOW_SPECS, Engine, Spared  # noqa: E402
from test_native import Server  # noqa: E402

CHUNK = 256
RUNNING = 64
LONG = 32_768
PROMPTS = 20
BUDGET = {
    "idle step": 20,
    "decode step, per request": 30,
    "32k tokens, first ask, miss": 400,
    "32k tokens, first ask, hit": 400,
    "32k tokens, asked again, miss": 40,
    "32k tokens, asked again, hit": 40,
    "step with a hit not taken": 30,
    **{
        f"{name}, {ask}, {answer}": us
        for name in ("full and a window", "full and a state", "full and no state", "two servers")
        for ask, us in (("first ask", 400), ("asked again", 40))
        for answer in ("miss", "hit")
    },
    **{f"{name}, decode step, per request": 30 for name in ("full and a window", "full and a state", "two servers")},
}
LOAD_PLAN = "32k tokens, plan of a load"
STORE_PLAN = "32k tokens, plan of its stores"
STEP = 8192
STEP_PLAN = "stores of a step of 8192 tokens"
PICKLED = ", pickled"
EMPTY = "empty plan"
SCALE = "for scale: sum() of 32k tokens"


class ConstantList(Sequence):  # type: ignore[type-arg]
    """A fake of the engine's read-only view of a request's tokens, which is no list: only its slices are."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def __getitem__(self, index: Any) -> Any:
        return self._tokens[index]

    def __len__(self) -> int:
        return len(self._tokens)


class Request(fakes.Request):
    """A request that holds its tokens as the engine does."""

    def __init__(self, number: int, length: int) -> None:
        draw = random.Random(number)
        super().__init__(str(number), ())
        # One list and one copy of it, as in the engine: what lies in the caches is part of what is measured.
        self.prompt_token_ids = [draw.randrange(1 << 17) for _ in range(length)]
        self.num_prompt_tokens = length
        self._tokens = self.prompt_token_ids.copy()
        self.all_token_ids = ConstantList(self._tokens)  # type: ignore[assignment]

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def generate(self) -> None:
        self._tokens.append(7)


def output(computed: dict[str, int], tables: dict[str, list[list[int]]]) -> Any:
    """The scheduler's output of a step that computes one token more of every request."""
    return types.SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(computed, 1),
        scheduled_spec_decode_tokens={},
        scheduled_new_reqs=[],
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=list(computed), num_computed_tokens=list(computed.values())),
        kv_connector_block_state=types.SimpleNamespace(get_block_ids=tables.get, boundary_state_offloads={}),
    )


REPORT = types.SimpleNamespace(finished_recving=None, failed_recving=None, kv_connector_worker_meta=None)


class Clock:
    """CPU time of this thread between `start` and `stop`."""

    def __init__(self) -> None:
        self.us: list[float] = []

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        started = time.thread_time_ns()
        yield
        self.us.append((time.thread_time_ns() - started) / 1e3)


def idle_step(engine: Engine) -> Clock:
    """A step with nothing scheduled and nothing waiting; a hundred per measurement, as one is near the clock's own cost."""
    clock, nothing = Clock(), output({}, {})
    for _ in range(100):
        with clock.measure():
            for _ in range(100):
                engine.scheduler.build_connector_meta(nothing)
                engine.scheduler.update_connector_output(REPORT)
    clock.us = [us / 100 for us in clock.us]
    return clock


def decode_step(engine: Engine) -> Clock:
    """Steps of requests that decode, per request; chunk and tail ends come up as often as they do."""
    requests = [Request(number, 1000) for number in range(RUNNING)]
    groups = len(engine.geometry.spans)
    tables = {request.request_id: [list(range(1, 400)) for _ in range(groups)] for request in requests}
    for request in requests:
        engine.ask(request)  # type: ignore[arg-type]
    clock = Clock()
    for number in range(2 * CHUNK):
        for request in requests:
            request.generate()
        step = output({request.request_id: 1000 + number for request in requests}, tables)
        with clock.measure():
            engine.scheduler.build_connector_meta(step)
            engine.scheduler.update_connector_output(REPORT)
    for request in requests:
        engine.scheduler.request_finished_all_groups(request, ())
    # The mean: a step in which every request completes a tail is part of the cost of all of them.
    clock.us = [us / RUNNING for us in clock.us]
    return clock


def lookups(engine: Engine, first_number: int) -> tuple[Clock, Clock, Clock, list[int | None]]:
    """Asking about a long prompt for the first time, and again in later passes; and the steps between, which let go."""
    first, again, steps, hits = Clock(), Clock(), Clock(), []
    nothing = output({}, {})
    for number in range(first_number, first_number + PROMPTS):
        request = Request(number, LONG)
        with first.measure():
            hit, _ = engine.ask(request)  # type: ignore[arg-type]
        hits.append(hit)
        for _ in range(5):
            with steps.measure():
                engine.scheduler.build_connector_meta(nothing)
            with again.measure():
                engine.ask(request)  # type: ignore[arg-type]
        engine.scheduler.request_finished_all_groups(request, ())
    return first, again, steps, hits


def admission(engine: Engine, first_number: int) -> dict[str, Clock]:
    """What is done once per long prompt, or per step of it: planning the load of a hit, and the stores of a prefill.

    An engine of several processes also pickles the plan on the scheduler's thread, once for all workers.
    """
    found = {name + then: Clock() for name in (LOAD_PLAN, STORE_PLAN, STEP_PLAN) for then in ("", PICKLED)}
    found[EMPTY + PICKLED] = Clock()
    table = [[1 + at % 60 for at in range(LONG // 16)]]
    blocks = types.SimpleNamespace(get_block_ids=lambda: tuple(table))

    def stores(request: Request, computed: int, scheduled: int, name: str) -> None:
        step = output({request.request_id: computed}, {request.request_id: table})
        step.num_scheduled_tokens[request.request_id] = scheduled
        with found[name].measure():
            metadata = engine.scheduler.build_connector_meta(step)
        with found[name + PICKLED].measure():
            pickle.dumps(metadata, pickle.HIGHEST_PROTOCOL)
        assert metadata.plan.stores is not None and len(fakes.objects(metadata.plan.stores.runs)) == scheduled // CHUNK

    nothing = output({}, {})
    for number in range(first_number, first_number + PROMPTS):
        request = Request(number, LONG)
        hit, _ = engine.ask(request)  # type: ignore[arg-type]
        with found[LOAD_PLAN].measure():
            engine.scheduler.update_state_after_alloc(request, blocks, hit)
            metadata = engine.scheduler.build_connector_meta(nothing)
        with found[LOAD_PLAN + PICKLED].measure():
            pickle.dumps(metadata, pickle.HIGHEST_PROTOCOL)
        assert [load.broken for load in metadata.plan.sync_loads] == [False]
        engine.scheduler.request_finished_all_groups(request, ())
        metadata = engine.scheduler.build_connector_meta(nothing)
        with found[EMPTY + PICKLED].measure():
            pickle.dumps(metadata, pickle.HIGHEST_PROTOCOL)

        request = Request(10_000 + number, LONG)
        engine.ask(request)  # type: ignore[arg-type]
        stores(request, 0, LONG, STORE_PLAN)
        engine.scheduler.request_finished_all_groups(request, ())

        request = Request(20_000 + number, LONG)
        engine.ask(request)  # type: ignore[arg-type]
        for computed in range(0, LONG, STEP):
            stores(request, computed, STEP, STEP_PLAN)
        engine.scheduler.request_finished_all_groups(request, ())
    return found


def scale() -> Clock:
    """What the interpreter itself takes to read as many tokens, under the same load of the machine."""
    clock = Clock()
    for number in range(PROMPTS):
        request = Request(3000 + number, LONG)
        with clock.measure():
            sum(request.prompt_token_ids)
    return clock


def store(engine: Engine, first_number: int, ends: Sequence[int] = (LONG,)) -> None:
    """Puts the prompts into the server, in steps with these ends, so that they are hits."""
    for number in range(first_number, first_number + PROMPTS):
        request = Request(number, LONG)
        engine.ask(request)  # type: ignore[arg-type]
        # The bytes do not matter here, and any blocks do.
        engine.tables[request.request_id] = [
            [1 + at % 60 for at in range(LONG // span)] for _, span in engine.geometry.spans
        ]
        engine.computed[request.request_id] = 0
        for end in ends:
            engine.run(engine.plan({request.request_id: (request, end)}))  # type: ignore[dict-item]
            engine.computed[request.request_id] = end
        engine.scheduler.request_finished_all_groups(request, ())


def shapes(socket: str) -> dict[str, Clock]:
    """The same where full attention is not alone: a window beside it, and a state, which may lie at any boundary."""
    found = {}
    # A step may end where a state is wanted, a block before the end, or only at the end, behind every boundary to hit.
    cases = [
        ("full and a window", WINDOW_SPECS, (LONG,), LONG - 16),
        ("full and a state", HYBRID_SPECS, (LONG - 32, LONG), LONG - 32),
        ("full and no state", HYBRID_SPECS, (LONG,), 0),
    ]
    for at, (name, specs, ends, expected) in enumerate(cases):
        engine = Engine(socket, specs, f"engine {name}")
        first_number = 100_000 * (at + 1)
        first, again, _, hits = lookups(engine, first_number)
        assert hits == [0] * PROMPTS
        found[f"{name}, first ask, miss"], found[f"{name}, asked again, miss"] = first, again
        store(engine, first_number, ends)
        first, again, _, hits = lookups(engine, first_number)
        assert hits == [expected] * PROMPTS, hits
        found[f"{name}, first ask, hit"], found[f"{name}, asked again, hit"] = first, again
        if expected:
            found[f"{name}, decode step, per request"] = decode_step(engine)
        engine.close()
    return found


def two_servers(sockets: Sequence[str]) -> dict[str, Clock]:
    """Two ranks with a server each: every question goes to both."""
    engine = Engine(sockets, name="two servers", ranks=2)
    first, again, _, hits = lookups(engine, 400_000)
    assert hits == [0] * PROMPTS
    found = {"two servers, first ask, miss": first, "two servers, asked again, miss": again}
    store(engine, 400_000)
    first, again, _, hits = lookups(engine, 400_000)
    assert hits == [LONG - 16] * PROMPTS, hits
    found |= {"two servers, first ask, hit": first, "two servers, asked again, hit": again}
    found["two servers, decode step, per request"] = decode_step(engine)
    engine.close()
    return found


def measure() -> dict[str, Clock]:
    """Everything, with a server of its own."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other, Spared().watching():
        servers = [Server(directory), Server(other)]
        server = servers[0]
        for one in servers:
            one.start(chunk_size=CHUNK, pool_size="512MiB")
        try:
            engine = Engine(server.socket)
            found = {"idle step": idle_step(engine), "decode step, per request": decode_step(engine)}
            first, again, _, hits = lookups(engine, 1000)
            assert hits == [0] * PROMPTS
            found["32k tokens, first ask, miss"], found["32k tokens, asked again, miss"] = first, again
            store(engine, 2000)
            first, again, steps, hits = lookups(engine, 2000)
            assert all(hit and hit >= LONG - CHUNK for hit in hits), hits
            found["32k tokens, first ask, hit"], found["32k tokens, asked again, hit"] = first, again
            found["step with a hit not taken"] = steps
            found |= admission(engine, 2000)
            found |= shapes(server.socket)
            found |= two_servers([one.socket for one in servers])
            found[SCALE] = scale()
            engine.close()
        finally:
            for one in servers:
                one.kill()
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    found = measure()
    vllm = sys.modules["vllm"].__version__  # type: ignore[attr-defined]
    if options.json:
        print(json.dumps({name: statistics.fmean(clock.us) for name, clock in found.items()}))
        return
    print(f"Python {platform.python_version()}, vLLM {vllm}; us of CPU time of the scheduler thread")
    print(f"{'':<42}{'least':>9}{'median':>9}{'mean':>9}{'most':>9}{'budget':>9}")
    for name, clock in found.items():
        us = clock.us
        shown = (min(us), statistics.median(us), statistics.fmean(us), max(us))
        print(f"{name:<42}" + "".join(f"{value:>9.1f}" for value in shown) + f"{BUDGET.get(name, '-'):>9}")


if __name__ == "__main__":
    main()
