"""What the scheduler role counts of reuse: each request once, each load by how it ended."""

from __future__ import annotations

import types
from typing import Any

from fakes import Client, Request
from kvasir.vllm.servers import Servers
from kvasir.vllm.tally import Tally

SPAN = 16


def request(tokens: int, **fields: Any) -> Request:
    return Request("r", range(tokens), **({"num_computed_tokens": 0, "num_preemptions": 0} | fields))


def tally(steps_under_way: int = 1) -> tuple[Tally, dict[str, int]]:
    client = Client()
    return Tally(client, steps_under_way), client.tokens  # type: ignore[arg-type]


def test_a_request_counts_when_it_is_taken_up() -> None:
    one, tokens = tally()
    one.admitted(request(100), 32, 48)
    assert tokens == {"requests": 1, "asked": 68, "held": 32, "hit": 48}
    # Back from the load between steps: its tokens are computed by now.
    one.admitted(request(100, num_computed_tokens=80), 32, 0)
    assert tokens["requests"] == 1


def test_preempted_requests_are_counted_apart() -> None:
    one, tokens = tally()
    one.admitted(request(120, num_preemptions=1), 16, 96)
    assert tokens == {"preempted_asked": 104, "preempted_hit": 96}


def test_the_engine_s_own_figure_of_what_it_holds_is_taken() -> None:
    """Its hit may end inside a block; the question to the connector was about whole ones."""
    one, tokens = tally()
    one.admitted(request(100, prefill_stats=types.SimpleNamespace(num_local_cached_tokens=37)), 32, 0)
    assert (tokens["asked"], tokens["held"]) == (63, 37)


def test_what_cannot_be_is_bounded() -> None:
    for local, external, counted in ((-5, -1, (100, 0, 0)), (200, 50, (0, 100, 0)), (20, 1 << 70, (80, 20, 80))):
        one, tokens = tally()
        one.admitted(request(100), local, external)
        assert (tokens["asked"], tokens["held"], tokens["hit"]) == counted


def test_loads_between_steps_end_with_their_report() -> None:
    one, tokens = tally()
    for name, count in (("good", 64), ("bad", 48)):
        one.loads_between_steps(name, count)
    one.ended(["good", "bad", "another"], ["bad"], ())
    one.ended(["good"], [], ())
    assert (tokens["loaded"], tokens["failed"]) == (64, 48)


def test_a_load_in_its_step_is_good_up_to_the_first_bad_block() -> None:
    blocks = list(range(10, 20))
    for bad, good in ((set(), 80), ({99}, 80), ({12}, 80), ({13}, 0), ({15, 17}, 32), ({17}, 64)):
        one, tokens = tally()
        one.loads_in_step("r", 3 * SPAN, 8 * SPAN, blocks, SPAN)  # blocks 13 to 17
        one.next_step()
        one.ended((), (), bad)
        one.next_step()
        assert (tokens.get("loaded", 0), tokens.get("failed", 0)) == (good, 80 - good), bad


def test_a_front_that_ends_inside_a_block_is_not_loaded_twice() -> None:
    one, tokens = tally()
    one.loads_in_step("r", 3 * SPAN + 4, 5 * SPAN, [10, 11, 12, 13, 14], SPAN)
    one.next_step()
    one.ended((), (), {13})
    assert (tokens["loaded"], tokens["failed"]) == (0, 2 * SPAN - 4)


def test_each_load_counts_once_however_it_ends() -> None:
    one, tokens = tally(steps_under_way=2)
    one.loads_in_step("first", 0, 32, [1, 2], SPAN)
    one.next_step()
    one.loads_in_step("second", 0, 64, [3, 4, 5, 6], SPAN)
    one.loads_in_step("ended", 0, 16, [7], SPAN)
    one.withheld("ended")
    one.next_step()
    assert tokens == {"failed": 16}, "two steps may be running"
    one.ended((), (), {5})
    assert tokens == {"failed": 16 + 32, "loaded": 32}
    one.gone("first")
    one.gone("second")
    for _ in range(3):
        one.next_step()
    assert tokens == {"failed": 48, "loaded": 64}


def test_several_servers_all_count() -> None:
    clients = [Client(), Client()]
    Tally(Servers(clients, 1.0, None), 1).admitted(request(50), 0, 0)  # type: ignore[arg-type]
    assert [client.tokens["asked"] for client in clients] == [50, 50]
