"""Counts what requests reuse, in tokens, so that the figures are those of the engine's own metrics.

The engine asks about a waiting request in every step, and counts it once, when it has blocks for it. So does this. The
loads of what it was promised end later, in the step itself or between steps, well or not.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvasir import Client
from kvasir.vllm.servers import Servers


@dataclasses.dataclass(slots=True)
class _InStep:
    """A load that its step waits for. The blocks that fail tell how much of it is good."""

    request_id: str
    local: int
    total: int
    blocks: Sequence[int]
    """Of the request, from its start up to `total`."""
    span: int
    """Tokens of a block."""

    def good(self, bad: Collection[int]) -> int:
        """Tokens before the first bad block, which is where the engine computes on."""
        for at in range(self.local // self.span, len(self.blocks)):
            if self.blocks[at] in bad:
                return max(at * self.span - self.local, 0)
        return self.total - self.local


class Tally:
    """One per scheduler role."""

    def __init__(self, client: Client | Servers, steps_under_way: int) -> None:
        self._client = client
        self._steps_under_way = steps_under_way
        self._between: dict[str, int] = {}
        """Tokens of loads between steps, by request."""
        self._step: list[_InStep] = []
        """Loads of the step that is being planned, and below of those that may be running, oldest first."""
        self._running: collections.deque[list[_InStep]] = collections.deque()

    def admitted(self, request: Any, local: int, external: int) -> None:
        """The engine has blocks for a request: it holds `local` tokens and counts on the load of `external` more."""
        if getattr(request, "num_computed_tokens", 0):
            return  # back from a load between steps, and counted before that
        preempted = getattr(request, "num_preemptions", 0) > 0
        # The engine's own hit may end inside a block, which a question about the rest of the request does not tell.
        stats = None if preempted else getattr(request, "prefill_stats", None)
        held = local if stats is None else stats.num_local_cached_tokens
        # An engine that says what cannot be is not counted as if it could.
        held = min(max(held, 0), request.num_tokens)
        asked = request.num_tokens - held
        hit = min(max(external, 0), asked)
        if preempted:
            self._client.count_reuse(preempted_asked=asked, preempted_hit=hit)
        else:
            self._client.count_reuse(requests=1, asked=asked, held=held, hit=hit)

    def loads_between_steps(self, request_id: str, tokens: int) -> None:
        """A load has been planned that ends with the report of every rank."""
        self._between[request_id] = self._between.get(request_id, 0) + tokens

    def loads_in_step(self, request_id: str, local: int, total: int, blocks: Sequence[int], span: int) -> None:
        """A load has been planned that the step waits for."""
        self._step.append(_InStep(request_id, local, total, blocks[: -(-total // span)], span))

    def withheld(self, request_id: str) -> None:
        """A load of the step that is being planned will not be run, since its request has ended."""
        for load in [load for load in self._step if load.request_id == request_id]:
            self._step.remove(load)
            self._client.count_reuse(failed=load.total - load.local)

    def next_step(self) -> None:
        """A step has been planned; those before what may be running are over."""
        self._running.append(self._step)
        self._step = []
        while len(self._running) > self._steps_under_way:
            for load in self._running.popleft():
                self._client.count_reuse(loaded=load.total - load.local)

    def ended(self, finished: Iterable[str], failed: Iterable[str], bad_blocks: Collection[int]) -> None:
        """Takes what the workers say after a step."""
        for request_id in failed:
            self._client.count_reuse(failed=self._between.pop(request_id, 0))
        for request_id in finished:
            self._client.count_reuse(loaded=self._between.pop(request_id, 0))
        if not bad_blocks:
            return
        for loads in self._running:
            for load in list(loads):
                good = load.good(bad_blocks)
                if good < load.total - load.local:
                    loads.remove(load)
                    self._client.count_reuse(loaded=good, failed=load.total - load.local - good)

    def gone(self, request_id: str) -> None:
        """A request has ended, and with it the step that loaded for it."""
        for loads in self._running:
            for load in [load for load in loads if load.request_id == request_id]:
                loads.remove(load)
                self._client.count_reuse(loaded=load.total - load.local)
