"""Asking the server how much of a prompt can be reused."""

from __future__ import annotations

import time

from kvasir import Client, KvasirError
from kvasir.vllm.fleet import Answer, Fleet, Miss
from kvasir.vllm.geometry import Geometry
from kvasir.vllm.requests import Pending, RequestState

# Tails named in one lookup of a model with recurrent state, which can resume at boundaries inside any chunk.
TAILS_MAX = 2048


class Lookups:
    """One lookup per request and ask, answered by the server without blocking the scheduler for long.

    A lookup names the full chunks, and tails at every length, which are the boundaries inside a chunk where a hit may
    end. Which chunk it will end in is not known before: named are those of the last chunk that it may reach and of the
    one where the full chunks ended when last asked; if they end elsewhere, a second round names those there.
    """

    def __init__(self, client: Client | Fleet, geometry: Geometry, wait_s: float) -> None:
        self._client = client
        self._geometry = geometry
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
            tails = self._tails(cap, state, chunk_size)
            pending = Pending(self._start(state, seed, chunk_size, tails, cap, local, pin), cap, local, pin)
            state.pending = pending
        hit = self._result(pending.ticket)
        if hit is None:
            return None
        if pending.first is None:
            tails = self._second_round(state, hit, chunk_size, cap)
            if tails:
                pending.first = hit
                # No chunk from the one where the full ones end is there.
                pending.ticket = self._start(state, seed, chunk_size, tails, cap, local, pin, tails[0][0])
                hit = self._result(pending.ticket)
                if hit is None:
                    return None
        state.pending = None
        if pending.first is None:
            return hit
        better, worse = (hit, pending.first) if hit.hit_tokens > pending.first.hit_tokens else (pending.first, hit)
        if worse.pin:
            self._client.release([worse.pin])
        return better

    def drop(self, state: RequestState) -> None:
        """Gives up what was asked for a request."""
        pending, state.pending = state.pending, None
        if pending is None:
            return
        self._client.lookup_cancel(pending.ticket)
        if pending.first is not None and pending.first.pin:
            self._client.release([pending.first.pin])

    def exact(
        self, state: RequestState, seed: bytes, chunk_size: int, total: int, local: int
    ) -> Answer | None:
        """A hit of exactly `total` tokens, pinned, or nothing. Waits for the server up to the deadline."""
        # Longer tails of the chunk can serve the boundary too; no other boundary counts.
        tails = self._chunk_tails(total // chunk_size, state.known_tokens, chunk_size) if total % chunk_size else []
        chain = state.chain_to(state.known_tokens, seed, chunk_size)
        keys = min(-(-total // chunk_size), chain.num_chunks)
        hit = self._client.lookup(seed, state.session, chain, keys, tails, total, local, True)
        if hit.hit_tokens == total:
            return hit
        if hit.pin:
            self._client.release([hit.pin])
        return None

    def _start(
        self, state: RequestState, seed: bytes, chunk_size: int, tails: list[tuple[int, int]], cap: int, local: int,
        pin: bool, keys: int | None = None,
    ) -> int:  # fmt: skip
        chain = state.chain_to(state.known_tokens, seed, chunk_size)
        keys = chain.num_chunks if keys is None else keys
        return self._client.lookup_start(seed, state.session, chain, keys, tails, cap, local, pin)

    def _result(self, ticket: int) -> Answer | None:
        started = time.monotonic()
        try:
            return self._client.lookup_result(ticket, max(self._budget_s, 0.0))
        except KvasirError:
            return Miss()  # refused, or lost with the connection that it was sent on
        finally:
            self._budget_s -= time.monotonic() - started

    def _chunk_tails(self, chunk: int, tokens: int, chunk_size: int) -> list[tuple[int, int]]:
        """Every tail of a chunk that a prompt of `tokens` tokens has."""
        step = self._geometry.alignment
        end = min(chunk_size - 1, tokens - chunk * chunk_size)
        return [(chunk, length) for length in range(step, end + 1, step)]

    def _tails(self, cap: int, state: RequestState, chunk_size: int) -> list[tuple[int, int]]:
        tokens = state.known_tokens
        # Of a prompt of whole chunks the last one too: a hit leaves a token to compute, so it ends inside.
        last = cap // chunk_size
        tails = self._chunk_tails(last, tokens, chunk_size)
        if self._geometry.recurrent is not None:
            # A state serves only its own end, which may be any boundary inside any chunk.
            chunk = last - 1
            while chunk >= 0 and len(tails) + chunk_size // self._geometry.alignment <= TAILS_MAX:
                tails += self._chunk_tails(chunk, tokens, chunk_size)
                chunk -= 1
        elif state.likely_end < last:
            tails += self._chunk_tails(state.likely_end, tokens, chunk_size)
        return tails

    def _second_round(self, state: RequestState, hit: Answer, chunk_size: int, cap: int) -> list[tuple[int, int]]:
        if hit.degraded or self._geometry.recurrent is not None:
            return []
        full = self._geometry.full
        reach = hit.present_tokens[full.index] if full is not None and hit.present_tokens else hit.hit_tokens
        chunk, named = reach // chunk_size, state.likely_end
        state.likely_end = chunk
        if hit.hit_tokens >= cap or chunk >= cap // chunk_size or chunk == named:
            return []
        return self._chunk_tails(chunk, state.known_tokens, chunk_size)
