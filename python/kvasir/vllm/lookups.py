"""Asking the server how much of a prompt can be reused."""

from __future__ import annotations

import time

from kvasir import Client, KvasirError
from kvasir.vllm.servers import Answer, Servers, Miss
from kvasir.vllm.geometry import Geometry
from kvasir.vllm.requests import Pending, RequestState


class Lookups:
    """One lookup per request and ask, which never keeps the scheduler waiting for long.

    It asks about the full chunks of a prompt and about its tails at every boundary inside a chunk where a hit may end. As a
    rule the answer is there at once: the client looks into the server's index itself.
    """

    def __init__(self, client: Client | Servers, geometry: Geometry, wait_s: float) -> None:
        self._client = client
        self._step = geometry.alignment
        self._wait_s = wait_s
        self._budget_s = wait_s

    def new_step(self) -> None:
        """Every scheduling pass may wait once for the server, however many requests it asks about."""
        self._budget_s = self._wait_s

    def poll(
        self, state: RequestState, seed: bytes, chunk_size: int, cap: int, local: int, pin: bool
    ) -> Answer | None:
        """The answer for this request, or None while it is awaited. The caller owns the answer's pin."""
        pending = state.pending
        if pending and (pending.cap != cap or pending.local > local or (pin and not pending.pin)):
            self.drop(state)
            pending = None
        if pending is None:
            chain = state.chain_to(state.known_tokens, seed, chunk_size)
            ticket = self._client.lookup_start(seed, state.label, chain, self._step, cap, local, pin)
            pending = state.pending = Pending(ticket, cap, local, pin)
        hit = self._result(pending.ticket)
        if hit is not None:
            state.pending = None
        return hit

    def drop(self, state: RequestState) -> None:
        """Gives up what was asked for a request."""
        pending, state.pending = state.pending, None
        if pending is not None:
            self._client.lookup_cancel(pending.ticket)

    def exact(
        self, state: RequestState, seed: bytes, chunk_size: int, total: int, local: int
    ) -> Answer | None:
        """A hit of exactly `total` tokens, pinned, or nothing. May wait for the server up to the deadline."""
        chain = state.chain_to(state.known_tokens, seed, chunk_size)
        hit = self._client.lookup(seed, state.label, chain, self._step, total, local, True)
        if hit.hit_tokens == total:
            return hit
        if hit.pin:
            self._client.release([hit.pin])
        return None

    def _result(self, ticket: int) -> Answer | None:
        started = time.monotonic()
        try:
            return self._client.lookup_result(ticket, max(self._budget_s, 0.0))
        except KvasirError:
            return Miss()  # refused, or lost with the connection that it was sent on
        finally:
            self._budget_s -= time.monotonic() - started
