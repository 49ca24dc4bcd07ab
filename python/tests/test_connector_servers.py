"""Several servers: what all have is a hit, every pin goes back to the server that gave it, and differences are refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from fakes import Client, Hit, Request, full, key, named, objects, packed, windowed
from kvasir import KeyChain, KvasirError
from kvasir.vllm import identity
from kvasir.vllm.servers import Servers, ServersHit, Miss, ServersDiffer
from kvasir.vllm.geometry import Geometry
from kvasir.vllm.meta import Load, LoadRun, RankReport
from kvasir.vllm.notes import Notes
from kvasir.vllm.scheduler import Scheduled, SchedulerRole
from kvasir.vllm.settings import Settings
from test_connector_scheduler import DOMAIN, TABLE

CHUNK = 64
CHAIN = KeyChain(bytes(32), CHUNK)


class Server(Client):
    """A client whose server can serve some prefixes, and may lose some between two questions."""

    def __init__(self, name: str, ends: Iterable[int], groups: int = 1) -> None:
        super().__init__(CHUNK)
        self.socket = name
        self.boot_id: bytes | None = name.encode()
        self.ends = set(ends)
        self.groups = groups
        self.present: int | None = None
        """Tokens up to which everything is there, if that is not up to the last end."""
        self.loses: list[set[int]] = []
        """Per answer: ends that are gone from then on."""
        self.slow = 0
        """Times that an answer is not there yet."""
        self.fails = False
        self.cancelled: list[int] = []
        self.size: int | KvasirError = CHUNK
        self.told: list[str] = []
        self._next = 0

    def lookup_result(self, ticket: int, wait_s: float = 0.0) -> Hit | None:  # type: ignore[override]
        if self.slow:
            self.slow -= 1
            return None
        if self.fails:
            raise KvasirError("lost")
        asked = self.asked[-1]
        best = max((end for end in self.ends if end <= asked["cap"]), default=0)
        present = [max(self.ends, default=0) if self.present is None else self.present] * self.groups
        hit = Hit(best, 0, self.objects(best), present)
        if asked["pin"] and best > asked["local"]:
            self._next += 1
            hit.pin = self._next
            self.pinned.add(hit.pin)
        if self.loses:
            self.ends -= self.loses.pop(0)
        return hit

    def objects(self, end: int) -> list[tuple[bytes, int, int, int]]:
        return [(key(chunk), 0, chunk, min(CHUNK, end - chunk * CHUNK)) for chunk in range(-(-end // CHUNK))]

    def lookup_cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)

    def negotiate(
        self, alignment: int, spans: Any, preferred_base: int, binding_domain: bytes | None = None
    ) -> int:
        if isinstance(self.size, KvasirError):
            raise self.size
        return self.size

    def warnings(self) -> list[str]:
        return self.told


def notes() -> Notes:
    return Notes(logging.getLogger("test.servers"), "scheduler")


def several(*ends: Sequence[int]) -> tuple[Servers, list[Server]]:
    servers = [Server(f"/{name}", own) for name, own in zip("abc", ends)]
    return Servers(servers, 1.0, notes()), servers  # type: ignore[arg-type]


def ask(asked: Servers, cap: int = 192, local: int = 0, pin: bool = True) -> ServersHit | Miss | None:
    return asked.lookup_result(asked.lookup_start(bytes(32), 1, CHAIN, 32, cap, local, pin))


def test_two_sockets_of_one_server_are_refused_and_not_used_later() -> None:
    one, (a, b) = several([64], [64])
    assert one.healthy and one.negotiate(32, [(0, 32)], 256) == CHUNK
    b.boot_id = a.boot_id
    with pytest.raises(ServersDiffer, match="/a and /b are one server"):
        one.negotiate(32, [(0, 32)], 256)
    assert not one.healthy and "one server" in one.state_text
    # None is there: that is another trouble.
    a.boot_id = b.boot_id = None
    assert one.healthy and one.negotiate(32, [(0, 32)], 256) == CHUNK


def test_the_shortest_hit_counts_and_longer_ones_are_looked_up_again_for_it() -> None:
    one, (a, b) = several([64, 128, 192], [64, 128])
    hit = ask(one)
    assert isinstance(hit, ServersHit) and hit.hit_tokens == 128
    assert [question["cap"] for question in a.asked] == [192, 128] and len(b.asked) == 1
    assert a.asked[1]["step"] == 32
    assert hit.runs == named(*a.objects(128)) and len(hit.runs_by_server) == 1
    assert (len(a.pinned), len(b.pinned)) == (1, 1), "what the longer hit had pinned is released"
    one.release([hit.pin])
    assert not a.pinned and not b.pinned


def test_a_server_that_cannot_serve_the_shortest_hit_shortens_it_for_all() -> None:
    # A window or a state is missing at 128 on the first server although it can serve 192.
    one, (a, b) = several([64, 192], [64, 128])
    hit = ask(one)
    assert isinstance(hit, ServersHit) and hit.hit_tokens == 64
    assert [question["cap"] for question in b.asked] == [192, 64]
    assert (len(a.pinned), len(b.pinned)) == (1, 1)


def test_after_three_rounds_it_is_a_miss_without_pins() -> None:
    one, (a, b) = several([32, 96, 160], [64, 128, 192])
    hit = ask(one)
    assert isinstance(hit, ServersHit) and hit.hit_tokens == 0 and hit.pin == ()
    assert len(a.asked) + len(b.asked) == 4
    assert not a.pinned and not b.pinned


def test_objects_that_vanish_between_two_rounds_shorten_the_hit() -> None:
    one, (a, b) = several([64, 128, 192], [64, 128])
    a.loses = [{128}]
    hit = ask(one)
    assert isinstance(hit, ServersHit) and hit.hit_tokens == 64
    assert (len(a.pinned), len(b.pinned)) == (1, 1)


def test_three_servers_agree_on_the_least() -> None:
    one, servers = several([64, 128, 192], [64, 128, 192], [64])
    hit = ask(one)
    assert isinstance(hit, ServersHit) and hit.hit_tokens == 64 and len(hit.pin) == 3
    assert [len(server.pinned) for server in servers] == [1, 1, 1]


def test_what_one_server_lacks_or_the_engine_has_itself_is_not_asked_again() -> None:
    for ends, local in (([], 0), ([64], 64), ([64], 100)):
        one, (a, b) = several([64, 128, 192], ends)
        hit = ask(one, local=local)
        assert isinstance(hit, ServersHit) and hit.hit_tokens <= local and hit.pin == ()
        assert len(a.asked) == 1 and not a.pinned and not b.pinned


def test_present_is_what_all_have() -> None:
    one, (a, b) = several([64, 128, 192], [64, 96])
    hit = ask(one, pin=False)
    # Nobody has asked the first whether it can serve 96 tokens.
    assert isinstance(hit, ServersHit) and (hit.hit_tokens, hit.present_tokens, hit.reach) == (0, [96], 192)
    assert len(a.asked) == len(b.asked) == 1, "a question without a pin loads nothing, so no length has to be agreed on"
    a.groups = 2  # a group that the second server has not heard of
    hit = ask(one, pin=False)
    assert isinstance(hit, ServersHit) and hit.present_tokens == [96, 0]


@pytest.mark.parametrize("pin", [False, True])
def test_a_gap_below_a_hit_is_no_presence(pin: bool) -> None:
    """A server that serves 192 tokens may have lost the windows and states before."""
    one, (a, b) = several([192], [192])
    b.present = 64
    hit = ask(one, pin=pin)
    assert isinstance(hit, ServersHit) and (hit.hit_tokens, hit.present_tokens, hit.reach) == (192, [64], 192)


@pytest.mark.parametrize("how", ["raises", "degraded"])
def test_a_server_that_cannot_be_asked_makes_it_a_miss_and_leaves_no_pin(how: str) -> None:
    one, (a, b) = several([64], [64])
    if how == "raises":
        b.fails = True
    else:
        b.lookup_result = lambda *_: Hit(degraded=True)  # type: ignore[method-assign]
    hit = ask(one)
    assert hit is not None and hit.degraded and hit.hit_tokens == 0
    assert not a.pinned


def test_an_answer_is_awaited_from_every_server_also_in_later_rounds() -> None:
    one, (a, b) = several([64, 128], [64])
    b.slow = 1
    ticket = one.lookup_start(bytes(32), 1, CHAIN, 32, 192, 0, True)
    assert one.lookup_result(ticket) is None and len(a.pinned) == 1
    a.slow = 1
    assert one.lookup_result(ticket) is None, "the first server is asked again"
    hit = one.lookup_result(ticket)
    assert hit is not None and hit.hit_tokens == 64 and len(a.pinned) == len(b.pinned) == 1


def test_a_lookup_given_up_leaves_no_pin_and_no_ticket() -> None:
    one, (a, b) = several([64, 128], [64])
    b.slow = 9
    ticket = one.lookup_start(bytes(32), 1, CHAIN, 32, 192, 0, True)
    assert one.lookup_result(ticket) is None and a.pinned
    one.lookup_cancel(ticket)
    one.lookup_cancel(ticket)
    assert not a.pinned and a.cancelled == [] and len(b.cancelled) == 1


def test_a_blocking_lookup_ends_with_the_deadline() -> None:
    one, (a, b) = several([64], [64])
    assert one.lookup(bytes(32), 1, CHAIN, 32, 192, 0, True).hit_tokens == 64
    b.slow = 1
    assert one.lookup(bytes(32), 1, CHAIN, 32, 192, 0, True).degraded
    assert (len(a.pinned), len(b.pinned)) == (1, 1), "those of the first lookup"


def refusal(kind: str) -> KvasirError:
    error = KvasirError("refused")
    error.kind = kind
    return error


def test_servers_with_chunk_sizes_of_their_own_are_refused() -> None:
    one, (_, b) = several([], [])
    assert one.negotiate(16, [(0, 16)], 256) == CHUNK
    b.size = 128
    with pytest.raises(ServersDiffer, match="/a with 64 tokens, /b with 128 tokens"):
        one.negotiate(16, [(0, 16)], 256)


def test_servers_that_are_away_are_told_from_servers_that_refuse() -> None:
    one, (a, b, c) = several([], [], [])
    a.size = refusal("Unavailable")
    with pytest.raises(KvasirError) as caught:
        one.negotiate(16, [(0, 16)], 256)
    assert caught.value.kind == "Unavailable"
    b.size = 128
    with pytest.raises(ServersDiffer, match="/b with 128 tokens, /c with 64"):
        one.negotiate(16, [(0, 16)], 256)
    c.size = refusal("IncompatibleChunkSize")
    with pytest.raises(KvasirError) as caught:
        one.negotiate(16, [(0, 16)], 256)
    assert caught.value.kind == "IncompatibleChunkSize"


def test_a_server_that_comes_later_with_another_size_keeps_the_cache_off(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine([64], [64], size=None)
    assert engine.role.matched(Request("r", range(100)), 0) == (0, False)
    engine.servers[1].chunk_size = 128
    assert engine.role.matched(Request("r", range(100)), 0) == (0, False)
    assert "/b with 128 tokens" in caplog.text and not engine.servers[0].asked
    engine.servers[1].chunk_size = CHUNK
    assert engine.role.matched(Request("r", range(100)), 0) == (64, True)


def test_state_and_warnings_name_the_server() -> None:
    one, (a, b) = several([], [])
    assert one.healthy and one.state_text == "healthy" and one.socket == "/a, /b"
    b.healthy, b.told = False, ["large chunks"]
    assert not one.healthy and one.state_text == "/b: as scripted"
    assert one.warnings() == ["/b: large chunks"]


def test_everything_that_ends_ends_at_every_server() -> None:
    one, (a, b) = several([], [])
    one.end_session(7)
    assert a.ended == b.ended == [7]
    a.clear = lambda: False  # type: ignore[method-assign]
    assert one.clear() is False and b.cleared == 1, "the others are cleared all the same"


class Engine:
    """A scheduler role over two servers."""

    def __init__(self, *ends: Sequence[int], geometry: Geometry | None = None, size: int | None = CHUNK) -> None:
        geometry = geometry or full()
        one, self.servers = several(*ends)
        for server in self.servers:
            server.groups = len(geometry.object_groups)
        self.servers[1].chunk_size = size
        self.role = SchedulerRole(geometry, Settings(("/a", "/b")), one, True, 16, notes(), ranks=2)
        self.role.set_ranks({(0, rank): RankReport(rank, DOMAIN) for rank in range(2)})

    @property
    def pinned(self) -> list[int]:
        return [len(server.pinned) for server in self.servers]


def test_the_scheduler_holds_a_pin_at_every_server_until_all_ranks_have_reported() -> None:
    engine, one = Engine([64, 128, 192], [64, 128]), Request("r", range(170))
    assert engine.role.matched(one, 0) == (128, True)
    engine.role.allocated(one, TABLE, 128)
    (load,) = engine.role.build_plan([], {}.get, {}).async_loads
    assert not load.broken and objects(load.runs)[1][3] == [[5, 6, 7, 8]] and not load.by_server
    assert engine.pinned == [1, 1]
    engine.role.on_output(["r"], [], None)
    assert engine.pinned == [0, 0]
    engine.role.finished("r")
    assert all(server.ended for server in engine.servers)


@pytest.mark.parametrize("stage", ["asked", "offered", "allocated", "planned"])
def test_a_request_that_ends_at_any_stage_leaves_no_pin_at_any_server(stage: str) -> None:
    engine, one = Engine([64, 128], [64]), Request("r", range(170))
    if stage == "asked":
        engine.servers[1].slow = 1
    assert engine.role.matched(one, 0) == ((None, False) if stage == "asked" else (64, True))
    if stage in ("allocated", "planned"):
        engine.role.allocated(one, TABLE, 64)
    if stage == "planned":
        engine.role.build_plan([], {}.get, {})
    engine.role.finished("r")
    assert engine.pinned == [0, 0]


def test_an_engine_that_takes_less_gets_a_hit_of_that_length_from_every_server() -> None:
    engine, one = Engine([64, 128], [64, 128], geometry=windowed(32)), Request("r", range(170))
    assert engine.role.matched(one, 0) == (128, True)
    engine.role.allocated(one, [TABLE[0], [0] * 11, [0] * 11], 64)
    assert engine.pinned == [1, 1]
    assert [server.asked[-1]["cap"] for server in engine.servers] == [64, 64]


def test_servers_that_name_other_objects_are_each_loaded_from_what_they_have() -> None:
    engine, one = Engine([32, 96], [32, 96]), Request("r", range(100))
    # The second server holds the last tokens as the front of a longer tail.
    engine.servers[1].objects = lambda end: [(key(0), 0, 0, 64), (key("longer"), 0, 1, 48)]  # type: ignore[method-assign]
    assert engine.role.matched(one, 0) == (96, True)
    engine.role.allocated(one, TABLE, 96)
    (load,) = engine.role.build_plan([], {}.get, {}).async_loads
    assert [[run.keys for run in load.of(server)] for server in range(2)] == [[key(0), key(1)], [key(0), key("longer")]]
    assert [objects(load.of(server))[1][2:] for server in range(2)] == [(32, [[5, 6]]), (48, [[5, 6, 0]])]


def test_a_load_without_differences_is_the_same_for_all() -> None:
    load = Load("r", 1, [LoadRun(key("k"), 0, 64, [packed(1)])])
    assert load.of(0) == load.of(3) == load.runs


def test_what_any_server_lacks_is_stored() -> None:
    engine, one = Engine([64, 128], [64]), Request("r", range(170))
    engine.role.matched(one, 0)
    stores = engine.role.build_plan([Scheduled("r", 0, 170, True)], {"r": TABLE}.get, {}).stores
    assert stores is not None and [(item[4][0][0], item[3]) for item in objects(stores.runs)] == [(5, 64), (9, 32)]


def test_nothing_is_asked_or_stored_while_a_server_is_away() -> None:
    engine, one = Engine([64], [64]), Request("r", range(170))
    engine.servers[1].healthy = False
    assert engine.role.matched(one, 0) == (0, False)
    assert engine.role.build_plan([Scheduled("r", 0, 170, True)], {"r": TABLE}.get, {}).stores is None
    assert not engine.servers[0].asked


def test_the_order_of_servers_belongs_to_the_shape() -> None:
    class Parallel:
        tensor_parallel_size, pipeline_parallel_size, decode_context_parallel_size = 2, 1, 1

    shapes = [identity.parallel_shape(Parallel, sockets) for sockets in (["/a"], ["/a", "/b"], ["/b", "/a"], ["/c"])]
    assert len(set(shapes)) == 3 and shapes[0] == shapes[3] == identity.parallel_shape(Parallel)


def test_how_tokens_are_dealt_to_context_parallel_ranks_belongs_to_the_shape() -> None:
    class Parallel:
        tensor_parallel_size, pipeline_parallel_size, decode_context_parallel_size = 2, 1, 2
        cp_kv_cache_interleave_size = 1

    class Dealt(Parallel):
        cp_kv_cache_interleave_size = 16

    assert identity.parallel_shape(Parallel) != identity.parallel_shape(Dealt)
