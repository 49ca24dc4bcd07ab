"""Several servers behind the face of one: what the scheduler role asks where the ranks of an engine use different ones.

Every server holds the parts of its own ranks, so a prefix can be reused only where all of them have it. A lookup goes
to all; where they differ, those with more are asked again for what the shortest has, since windows and states belong
to one length only. An engine with a single server uses its client directly and nothing here.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any

from kvasir import Client, Hit, KeyChain, KvasirError
from kvasir.vllm.notes import Notes

# Times that a lookup asks until the servers agree; then it is a miss.
ROUNDS_MAX = 3

# (keys, object group, first chunk, tokens of each), as in `Hit.runs`
Named = tuple[bytes, int, int, int]

# Per server the pin that it gave; empty where nothing is pinned.
Pins = tuple[int, ...]


class ServersDiffer(ValueError):
    """The servers answer differently, or two are one, so no prefix could be reused from all of them."""


@dataclasses.dataclass(frozen=True)
class Miss:
    """The answer where there was none."""

    hit_tokens: int = 0
    pin: int = 0
    runs: tuple[()] = ()
    present_tokens: tuple[()] = ()
    degraded: bool = True
    shortened: bool = False


@dataclasses.dataclass(frozen=True)
class ServersHit:
    """The answers of all servers, as one."""

    hit_tokens: int
    pin: Pins
    hits: tuple[Hit, ...]
    """Of every server; none where there is nothing to load."""
    present_tokens: list[int]
    """The least of any server."""
    reach: int
    """Tokens beyond which no server has anything of what was asked about."""
    degraded: bool = False
    shortened: bool = False
    """A server has more than it promised, since pins keep as much as they may there."""

    @property
    def runs_by_server(self) -> Sequence[Sequence[Named]]:
        """A single entry where all name the same objects. Hits are asked for it once they are taken up, few of many."""
        named = [hit.runs for hit in self.hits] or [[]]
        return named[:1] if all(one == named[0] for one in named) else named

    @property
    def runs(self) -> Sequence[Named]:
        """What the first server names."""
        return self.runs_by_server[0]


# What a lookup may come back with, from one server or several.
Answer = Hit | ServersHit | Miss


def runs_by_server(hit: Answer) -> Sequence[Sequence[Named]]:
    """The objects that each server names; a single entry where all name the same, or where there is one server."""
    return hit.runs_by_server if isinstance(hit, ServersHit) else (hit.runs,)


def reach(hit: Answer) -> int:
    """Tokens beyond which there is nothing of what was asked about, on any server."""
    return hit.reach if isinstance(hit, ServersHit) else max(hit.hit_tokens, *hit.present_tokens, 0)


@dataclasses.dataclass
class _Asked:
    """A lookup at all servers."""

    question: tuple[bytes, int, KeyChain, int]
    local: int
    pin: bool
    tickets: list[int | None]
    """Per server; None where it has answered."""
    hits: list[Hit | Miss]
    rounds: int = 1


class Servers:
    """The clients of several servers."""

    def __init__(self, clients: Sequence[Client], deadline_s: float, notes: Notes) -> None:
        self._clients = list(clients)
        self._deadline_s = deadline_s
        self._notes = notes
        self._asked: dict[int, _Asked] = {}
        self._tickets = itertools.count(1)

    @property
    def socket(self) -> str:
        """The sockets of all."""
        return ", ".join(client.socket for client in self._clients)

    @property
    def healthy(self) -> bool:
        """Whether all are, and each is another: a prefix is whole only with the parts of every server."""
        return all(client.healthy for client in self._clients) and self._same() is None

    @property
    def readable(self) -> bool:
        """Whether hits can be promised: each is healthy, or what its last server shared is read on without it."""
        return all(client.readable for client in self._clients) and self._same() is None

    @property
    def state_text(self) -> str:
        """One line about those that are not healthy."""
        texts = [f"{client.socket}: {client.state_text}" for client in self._clients if not client.healthy]
        return "; ".join(texts) or self._same() or "healthy"

    @property
    def differ(self) -> bool:
        """Whether they cannot be used together."""
        sizes = {client.chunk_size for client in self._clients} - {None}
        return len(sizes) > 1 or self._same() is not None

    @property
    def chunk_size(self) -> int | None:
        """The chunk size once all have agreed to it; never, where they differ."""
        sizes = {client.socket: client.chunk_size for client in self._clients}
        if not all(sizes.values()):
            return None
        if len(set(sizes.values())) > 1:
            self._notes.warn("servers", f"not caching: {_difference(sizes)}")
            return None
        return self._clients[0].chunk_size

    def negotiate(
        self,
        alignment: int,
        spans: Sequence[tuple[int, int]],
        preferred_base: int,
        binding_domain: bytes | None = None,
    ) -> int:
        """Agrees on the chunk size with all. Raises `ServersDiffer`, and what `Client.negotiate` does.

        Servers that are away do not keep the others from being asked; those that answer are compared.
        """
        sizes: dict[str, int | None] = {}
        away: KvasirError | None = None
        for client in self._clients:
            try:
                sizes[client.socket] = client.negotiate(
                    alignment, spans, preferred_base, binding_domain=binding_domain
                )
            except KvasirError as error:
                if error.kind != "Unavailable":
                    raise
                away = error
        if len(set(sizes.values())) > 1:
            raise ServersDiffer(_difference(sizes))
        same = self._same()
        if same is not None:
            raise ServersDiffer(same)
        if away is not None:
            raise away
        (size,) = set(sizes.values())
        assert size is not None
        return size

    def _same(self) -> str | None:
        """What to say where two sockets lead to one server, whose objects would hold the parts of one rank for both."""
        found: dict[bytes, str] = {}
        for client in self._clients:
            boot_id = client.boot_id
            if boot_id is not None and found.setdefault(boot_id, client.socket) != client.socket:
                return (
                    f"{found[boot_id]} and {client.socket} are one server: ranks of both would store their parts as the same "
                    "ones. Name each server once, or start another"
                )
        return None

    def warnings(self) -> list[str]:
        """Warnings of the last negotiations."""
        return [f"{client.socket}: {text}" for client in self._clients for text in client.warnings()]

    # Lookups

    def lookup_start(
        self, seed: bytes, label: int, chain: KeyChain, tail_step: int,
        max_tokens: int, local_tokens: int, pin: bool = True,
    ) -> int:  # fmt: skip
        """Asks all servers at once."""
        question = (seed, label, chain, tail_step)
        tickets: list[int | None] = [
            client.lookup_start(*question, max_tokens, local_tokens, pin) for client in self._clients
        ]
        ticket = next(self._tickets)
        self._asked[ticket] = _Asked(question, local_tokens, pin, tickets, [Miss()] * len(tickets))
        return ticket

    def lookup_result(self, ticket: int, wait_s: float = 0.0) -> ServersHit | Miss | None:
        """The shortest hit, or None while any server has yet to answer."""
        asked = self._asked[ticket]
        end = time.monotonic() + wait_s
        while True:
            if not self._collect(asked, end):
                return None
            if not self._ask_longer_again(asked):
                break
        del self._asked[ticket]
        return self._combine(asked)

    def lookup_cancel(self, ticket: int) -> None:
        """Gives a lookup up at all servers; what has been pinned for it is released."""
        asked = self._asked.pop(ticket, None)
        if asked is None:
            return
        for client, one in zip(self._clients, asked.tickets):
            if one is not None:
                client.lookup_cancel(one)
        self._drop(asked)

    def lookup(self, *question: Any) -> ServersHit | Miss:
        """`lookup_start` and `lookup_result` in one; waits up to the deadline."""
        ticket = self.lookup_start(*question)
        hit = self.lookup_result(ticket, self._deadline_s)
        if hit is None:
            self.lookup_cancel(ticket)
            return Miss()
        return hit

    def _collect(self, asked: _Asked, end: float) -> bool:
        """Takes the answers that have come; whether none is awaited any more."""
        for index, client in enumerate(self._clients):
            ticket = asked.tickets[index]
            if ticket is None:
                continue
            hit: Hit | Miss | None
            try:
                hit = client.lookup_result(ticket, max(end - time.monotonic(), 0.0))
            except KvasirError:
                hit = Miss()  # refused, or lost with the connection that it was sent on
            if hit is not None:
                asked.tickets[index] = None
                asked.hits[index] = hit
        return all(ticket is None for ticket in asked.tickets)

    def _ask_longer_again(self, asked: _Asked) -> bool:
        """Asks servers whose hit is longer than another's again, for no more than that; whether there are any."""
        length = min(hit.hit_tokens for hit in asked.hits)
        if not asked.pin or length <= asked.local or asked.rounds >= ROUNDS_MAX:
            return False
        longer = [index for index, hit in enumerate(asked.hits) if hit.hit_tokens > length]
        for index in longer:
            client = self._clients[index]
            _release(client, asked.hits[index])
            # Should the engine end this lookup before the answer is there, nothing is released twice.
            asked.hits[index] = Miss()
            asked.tickets[index] = client.lookup_start(*asked.question, length, asked.local, True)
        asked.rounds += 1
        return bool(longer)

    def _combine(self, asked: _Asked) -> ServersHit | Miss:
        hits = asked.hits
        length = min(hit.hit_tokens for hit in hits)
        if any(hit.degraded for hit in hits):
            self._drop(asked)
            return Miss()
        present = [
            min(counts)
            for counts in itertools.zip_longest(*(hit.present_tokens for hit in hits), fillvalue=0)
        ]
        furthest = max(reach(hit) for hit in hits)
        agreed = all(hit.hit_tokens == length for hit in hits)
        shortened = any(hit.shortened for hit in hits)
        if not asked.pin or length <= asked.local or not agreed:
            self._drop(asked)
            return ServersHit(length if agreed else 0, (), (), present, furthest, shortened=shortened)
        pins = tuple(hit.pin for hit in hits)
        kept = pins if any(pins) else ()
        return ServersHit(length, kept, tuple(hits), present, furthest, shortened=shortened)  # type: ignore[arg-type]

    def _drop(self, asked: _Asked) -> None:
        for client, hit in zip(self._clients, asked.hits):
            _release(client, hit)
        asked.hits = [Miss()] * len(self._clients)

    # What a hit holds, and everything

    def release(self, pins: Sequence[Pins]) -> None:
        """Gives pins back, each to the server that gave it."""
        for index, client in enumerate(self._clients):
            own = [pin[index] for pin in pins if pin and pin[index]]
            if own:
                client.release(own)

    def end_session(self, label: int) -> None:
        """Drops every pin under a label."""
        for client in self._clients:
            client.end_session(label)

    def count_reuse(self, **tokens: int) -> None:
        """Counts tokens at every server: each has its parts of all of them."""
        for client in self._clients:
            client.count_reuse(**tokens)

    def set_conditions(self, names: Sequence[str]) -> None:
        """Says to every server what keeps the engine from caching."""
        for client in self._clients:
            client.set_conditions(names)

    def clear(self) -> bool:
        """Drops every unpinned object of every server. False: one of them is away."""
        return all([client.clear() for client in self._clients])

    def close(self) -> None:
        """Ends all connections."""
        for client in self._clients:
            client.close()


def _release(client: Client, hit: Hit | Miss) -> None:
    if hit.pin:
        client.release([hit.pin])


def _difference(sizes: dict[str, int | None]) -> str:
    answers = ", ".join(f"{socket} with {size} tokens" for socket, size in sizes.items())
    return f"the servers answer differently, with chunk sizes of their own: {answers}. Start them with one --chunk-size"
