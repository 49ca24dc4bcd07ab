"""Which objects a step completes: full chunks, tails and states. Pure planning over plain data.

A step's objects are planned when it is scheduled and copied when it has run, before any of its blocks can be reused.
Recurrent states exist only where a step ended, so they are stored in that very step or never.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from kvasir import KeyChain
from kvasir.vllm.geometry import FULL, Geometry, ObjectGroup
from kvasir.vllm.meta import Stores
from kvasir.vllm.requests import RequestState

# While tokens are generated the tail of the current chunk is stored at most this many times before the chunk is full,
# each copy superseding the one before. That bounds the extra bytes to about four times the generated ones.
TAILS_PER_CHUNK = 8

# Boundary in tokens -> {KV cache group: block that holds the state when the step is done}
States = dict[int, dict[int, int]]


def states_of_step(
    geometry: Geometry,
    table: Sequence[Sequence[int]],
    reached: int,
    handed: Iterable[tuple[int, int, int]],
    settled: bool,
) -> States:
    """The recurrent states that exist when a step is done.

    `handed`: (KV cache group, block, boundary) as the engine hands them over. Where it hands over nothing, the slot
    at which the step ends holds its state, provided `settled`: no token of the step can be taken back.
    """
    group = geometry.recurrent
    if group is None:
        return {}
    states: States = {}
    for kv_group, block, boundary in handed:
        if block and kv_group in group.kv_groups and boundary % geometry.alignment == 0:
            states.setdefault(boundary, {})[kv_group] = block
    if settled and reached and reached % geometry.alignment == 0:
        for kv_group, span in zip(group.kv_groups, group.spans):
            slot = reached // span - 1
            if slot < len(table[kv_group]) and table[kv_group][slot]:
                states.setdefault(reached, {}).setdefault(kv_group, table[kv_group][slot])
    # A boundary can be resumed only with every state.
    return {boundary: blocks for boundary, blocks in states.items() if len(blocks) == len(group.kv_groups)}


class StorePlanner:
    """Plans one request's objects of one step."""

    def __init__(self, geometry: Geometry, chunk_size: int, prompt_only: bool) -> None:
        self._geometry = geometry
        self._chunk_size = chunk_size
        self._prompt_only = prompt_only
        unit = geometry.alignment
        self._tail_step = unit * -(-chunk_size // (unit * TAILS_PER_CHUNK))
        self._attention = [group for group in geometry.object_groups if not group.recurrent]

    def limit(self, state: RequestState, reached: int) -> int:
        """Tokens of the request that may be stored after a step that reaches `reached`."""
        known = min(reached, state.known_tokens)
        return min(known, state.request.num_prompt_tokens) if self._prompt_only else known

    def is_up_to_date(self, state: RequestState, reached: int) -> bool:
        """Whether a step that reaches `reached` completes no chunk and no tail that was not planned before."""
        limit = self.limit(state, reached)
        if limit // self._geometry.alignment > state.unit:
            return False
        # The prompt may end without one more whole alignment, and has a tail all the same.
        return state.prompt_tail_done or limit < state.request.num_prompt_tokens

    def plan(
        self, state: RequestState, seed: bytes, table: Sequence[Sequence[int]], reached: int, states: States, out: Stores
    ) -> None:
        """Adds to `out` what this step completes."""
        if not states and self.is_up_to_date(state, reached):
            return
        limit = self.limit(state, reached)
        unit = limit // self._geometry.alignment
        state.unit = unit
        chain = state.chain_to(unit * self._geometry.alignment, seed, self._chunk_size)
        before = len(out.items)
        if limit // self._chunk_size > state.next_chunk:
            self._plan_chunks(state, chain, table, limit // self._chunk_size, out)
        if self._geometry.recurrent is not None:
            for boundary in sorted(states):
                if boundary <= limit:
                    self._plan_state(state, chain, table, boundary, states[boundary], out)
            state.prompt_tail_done = limit >= state.request.num_prompt_tokens
        else:
            self._plan_tail(state, chain, table, limit, out)
        out.owners += [state.request.request_id] * (len(out.items) - before)

    def _plan_chunks(
        self, state: RequestState, chain: KeyChain, table: Sequence[Sequence[int]], end: int, out: Stores
    ) -> None:
        """The full chunks before chunk `end` that were not planned before."""
        size = self._chunk_size
        firsts = [(group, self._first_to_store(state, group, table, end)) for group in self._attention]
        for chunk in range(min((first for _, first in firsts), default=end), end):
            for group, first in firsts:
                if chunk >= first and not _was_loaded(state, (chunk + 1) * size):
                    self._add(state, out, chain.chunk_key(chunk), chain, group, table, chunk, size)
        if state.grown is not None and state.grown[0] < end:
            self._supersede(chain.tail_key(*state.grown), out)
            state.grown = None
        state.next_chunk = end

    def _first_to_store(
        self, state: RequestState, group: ObjectGroup, table: Sequence[Sequence[int]], end: int
    ) -> int:
        """The first chunk not planned before that the server lacks and whose last block the engine still holds."""
        first = max(state.next_chunk, state.covered[group.index] // self._chunk_size)
        if group.kind == FULL:
            return first
        # The engine lets go of a window's blocks from the front: thousands of chunks may be gone, and one look each is
        # too much for a step.
        ids, per_chunk = table[group.kv_groups[0]], self._chunk_size // group.spans[0]
        end = min(end, len(ids) // per_chunk)
        return bisect.bisect_left(
            range(end), True, min(first, end), end, key=lambda chunk: ids[(chunk + 1) * per_chunk - 1] != 0
        )

    def _plan_tail(
        self, state: RequestState, chain: KeyChain, table: Sequence[Sequence[int]], limit: int, out: Stores
    ) -> None:
        """The partial last chunk: once where the prompt ends, then as generated tokens fill it up.

        A tail of generated tokens supersedes the one before it, never the prompt's: the same prompt may be asked
        again, and its next answer may be another.
        """
        prompt = state.request.num_prompt_tokens
        if limit < prompt:
            return
        growing, state.prompt_tail_done = state.prompt_tail_done, True
        chunk, tokens = divmod(limit if growing else prompt, self._chunk_size)
        tokens -= tokens % (self._tail_step if growing else self._geometry.alignment)
        if not tokens or state.tail_end >= chunk * self._chunk_size + tokens:
            return
        state.tail_end = chunk * self._chunk_size + tokens
        key = chain.tail_key(chunk, tokens)
        stored = False
        for group in self._attention:
            if state.tail_end > max(state.covered[group.index], state.served):
                stored |= self._add(state, out, key, chain, group, table, chunk, tokens)
        if growing and stored:
            if state.grown is not None and state.grown[0] == chunk:
                self._supersede(chain.tail_key(*state.grown), out)
            state.grown = (chunk, tokens)

    def _supersede(self, key: bytes, out: Stores) -> None:
        out.supersedes += [(key, group.index) for group in self._attention]

    def _plan_state(
        self,
        state: RequestState,
        chain: KeyChain,
        table: Sequence[Sequence[int]],
        boundary: int,
        blocks: dict[int, int],
        out: Stores,
    ) -> None:
        """A state, and where it lies inside a chunk also the attention tails that end there: both are needed to resume."""
        group = self._geometry.recurrent
        assert group is not None
        chunk, tokens = divmod(boundary, self._chunk_size)
        # States inside chunks are not among those that the server has counted.
        if _was_loaded(state, boundary) or not tokens and boundary <= state.covered[group.index]:
            return
        if tokens:
            key = chain.tail_key(chunk, tokens)
            for attention in self._attention:
                self._add(state, out, key, chain, attention, table, chunk, tokens)
        else:
            chunk, tokens = chunk - 1, self._chunk_size
            key = chain.chunk_key(chunk)
        ids = [[blocks[kv_group]] for kv_group in group.kv_groups]
        out.items.append((key, chain.parent_key(chunk), group.index, tokens, ids))
        if boundary <= state.reach:
            out.may_exist.append((key, group.index))

    def _add(
        self, state: RequestState, out: Stores, key: bytes, chain: KeyChain, group: ObjectGroup,
        table: Sequence[Sequence[int]], chunk: int, tokens: int,
    ) -> bool:  # fmt: skip
        """Adds one attention object; nothing if the engine no longer holds what it needs."""
        start = chunk * self._chunk_size
        ids = []
        for kv_group, span in zip(group.kv_groups, group.spans):
            part = list(table[kv_group][start // span : (start + tokens) // span])
            if len(part) != tokens // span:
                return False
            ids.append(part)
        if _holds_what_is_needed(group, ids, start, start + tokens):
            out.items.append((key, chain.parent_key(chunk), group.index, tokens, ids))
            if start + tokens <= state.reach:
                out.may_exist.append((key, group.index))
            return True
        return False


def _was_loaded(state: RequestState, end: int) -> bool:
    """Whether blocks up to `end` came from the server's objects."""
    return state.loaded[0] < end <= state.loaded[1]


def _holds_what_is_needed(group: ObjectGroup, ids: Sequence[Sequence[int]], start: int, end: int) -> bool:
    """Whether a request that resumes at `end` finds here every block that it can still see.

    Full attention sees all; a window its trailing tokens, so the engine may have let go of earlier blocks. The last
    block has to be there in any case: an object holds something.
    """
    first = max(min(group.seen_from(end), end - 1) - start, 0)
    return all(all(part[first // span :]) for span, part in zip(group.spans, ids))
