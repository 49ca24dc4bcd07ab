"""What the connector costs the engine's scheduler thread, as CPU time under a scripted engine.

    python connector_budget.py [--json]

Server and payload are left out: lookups are answered from memory at once. What is measured is this package: request
state, hashing (native), planning. Prints microseconds of CPU time per step; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import random
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

import fakes  # noqa: E402
from kvasir.vllm.meta import RankReport  # noqa: E402
from kvasir.vllm.notes import Notes  # noqa: E402
from kvasir.vllm.scheduler import Scheduled, SchedulerRole  # noqa: E402
from kvasir.vllm.settings import Settings  # noqa: E402

CHUNK = 256
REQUESTS = 64
LONG = 32_768


def role() -> tuple[SchedulerRole, fakes.Client]:
    """A scheduler role that is ready to serve."""
    client = fakes.Client(CHUNK)
    client.answers = [fakes.Hit(present_tokens=[0])]
    scheduler = SchedulerRole(
        fakes.full(16), Settings(("none",)), client, True, 16, Notes(logging.getLogger("bench"), "scheduler")  # type: ignore[arg-type]
    )
    domain: dict[str, str | bytes] = {
        "model": "m", "weights_id": b"w", "kv_dtype": "bfloat16", "fingerprint": bytes(32), "parallel_shape": "tp=1",
    }  # fmt: skip
    scheduler.set_ranks({(0, 0): RankReport(0, domain)})
    return scheduler, client


def cpu_us(count: int, run: Callable[[int], None]) -> float:
    """CPU microseconds of one run, over `count` of them."""
    started = time.process_time_ns()
    for number in range(count):
        run(number)
    return (time.process_time_ns() - started) / count / 1e3


def prompt(number: int, length: int) -> list[int]:
    """A reproducible prompt."""
    draw = random.Random(number)
    return [draw.randrange(1 << 17) for _ in range(length)]


def idle_step() -> float:
    """A step with nothing scheduled."""
    scheduler, _ = role()

    def step(_number: int) -> None:
        scheduler.build_plan((), {}.get, {})
        scheduler.on_output((), (), None)

    return cpu_us(20_000, step)


def decode_step() -> float:
    """A step of decoding, per request; chunk and tail ends come up as often as they do."""
    scheduler, _ = role()
    requests = [fakes.Request(str(number), prompt(number, 1000)) for number in range(REQUESTS)]
    table = [list(range(1, 400))]
    for request in requests:
        scheduler.matched(request, 0)

    def step(number: int) -> None:
        for request in requests:
            request.all_token_ids.append(number)
        steps = [Scheduled(one.request_id, 1000 + number, 1001 + number, True) for one in requests]
        scheduler.build_plan(steps, lambda _request_id: table, {})
        scheduler.on_output((), (), None)

    return cpu_us(2_000, step) / REQUESTS


def lookups() -> tuple[float, float]:
    """Asking about a long prompt for the first time, and again."""
    scheduler, client = role()
    requests = [fakes.Request(str(number), prompt(number, LONG)) for number in range(20)]

    def ask(number: int) -> None:
        scheduler.matched(requests[number], 0)
        client.asked.clear()

    first = cpu_us(len(requests), ask)
    return first, cpu_us(len(requests), ask)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    first, again = lookups()
    found = {
        "idle_step_us": idle_step(),
        "decode_step_per_request_us": decode_step(),
        "lookup_32k_first_us": first,
        "lookup_32k_again_us": again,
    }
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<28} {value:>10.1f}")


if __name__ == "__main__":
    main()
