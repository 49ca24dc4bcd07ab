"""Which objects a step completes: full chunks, tails and states. Pure planning over plain data.

A step's objects are planned when it is scheduled and copied when it has run, before any of its blocks can be reused.
Recurrent states exist only where a step ended, so they are stored in that very step or never.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable

from kvasir import KeyChain, pack_blocks
from kvasir.vllm.geometry import FULL, Geometry, ObjectGroup
from kvasir.vllm.meta import StoreRun, Stores
from kvasir.vllm.requests import RequestState
from kvasir.vllm.runs import Lists, Table, cut

# While tokens are generated the tail of the current chunk is stored when it is an eighth, a quarter and a half of the
# chunk, each copy superseding the one before. Together they hold less than the chunk, so what is generated is written
# less than twice.
TAIL_PARTS = (8, 4, 2)

# Boundary in tokens -> {KV cache group: block that holds the state when the step is done}
States = dict[int, dict[int, int]]


def states_of_step(
    geometry: Geometry,
    table: Table,
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
        self._tail_lengths = sorted({chunk_size // (unit * part) * unit for part in TAIL_PARTS} - {0})
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
        self, state: RequestState, seed: bytes, table: Table, reached: int, states: States, out: Stores
    ) -> None:
        """Adds to `out` what this step completes."""
        if not states and self.is_up_to_date(state, reached):
            return
        limit = self.limit(state, reached)
        unit = limit // self._geometry.alignment
        state.unit = unit
        out.new_tokens += state.count_new(limit)
        chain = state.chain_to(unit * self._geometry.alignment, seed, self._chunk_size)
        before = len(out.runs)
        self._plan_chunks(state, chain, table, range(state.next_chunk, limit // self._chunk_size), out)
        if self._geometry.recurrent is not None:
            for boundary in sorted(states):
                if boundary <= limit:
                    self._plan_state(state, chain, table, boundary, states[boundary], out)
            state.prompt_tail_done = limit >= state.request.num_prompt_tokens
        else:
            self._plan_tail(state, chain, table, limit, out)
        out.owners += [state.request.request_id] * (len(out.runs) - before)

    def _plan_chunks(
        self, state: RequestState, chain: KeyChain, table: Table, chunks: range, out: Stores
    ) -> None:
        """Full chunks, none of which was planned before."""
        if not chunks:
            return
        size = self._chunk_size
        loaded = range(state.loaded[0] // size, state.loaded[1] // size)
        for group in self._attention:
            first = self._first_to_store(state, group, table, chunks)
            for part in _split(range(first, chunks.stop), loaded.start, loaded.stop, state.reach // size):
                # What was loaded came from the server's objects.
                if part.start not in loaded:
                    self._add(state, out, chain, group, table, part, size)
        if state.grown is not None and state.grown[0] < chunks.stop:
            self._supersede(chain.tail_key(*state.grown), out)
            state.grown = None
        state.next_chunk = chunks.stop

    def _first_to_store(self, state: RequestState, group: ObjectGroup, table: Table, chunks: range) -> int:
        """The first of these chunks that the server lacks and whose last block the engine still holds."""
        first = max(chunks.start, state.covered[group.index] // self._chunk_size)
        if group.kind == FULL:
            return first
        # The engine lets go of a window's blocks from the front: thousands of chunks may be gone, and one look each is
        # too much for a step.
        ids, per_chunk = table[group.kv_groups[0]], self._chunk_size // group.spans[0]
        end = min(chunks.stop, len(ids) // per_chunk)
        return bisect.bisect_left(
            range(end), True, min(first, end), end, key=lambda chunk: ids[(chunk + 1) * per_chunk - 1] != 0
        )

    def _plan_tail(
        self, state: RequestState, chain: KeyChain, table: Table, limit: int, out: Stores
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
        tokens = self._grown_length(tokens) if growing else tokens - tokens % self._geometry.alignment
        if not tokens or state.tail_end >= chunk * self._chunk_size + tokens:
            return
        state.tail_end = chunk * self._chunk_size + tokens
        stored = False
        for group in self._attention:
            if state.tail_end > max(state.covered[group.index], state.served):
                stored |= self._add(state, out, chain, group, table, range(chunk, chunk + 1), tokens)
        if growing and stored:
            self._grow(state, chain, chunk, tokens, out)

    def _grown_length(self, tokens: int) -> int:
        """How much of a chunk is stored as a tail when so many of its tokens are there, the last of them generated."""
        return max((length for length in self._tail_lengths if length <= tokens), default=0)

    def _grow(self, state: RequestState, chain: KeyChain, chunk: int, tokens: int, out: Stores) -> None:
        """A longer tail of generated tokens makes the one before needless."""
        if state.grown is not None and state.grown[0] == chunk:
            self._supersede(chain.tail_key(*state.grown), out)
        state.grown = (chunk, tokens)

    def _supersede(self, key: bytes, out: Stores) -> None:
        out.supersedes += [(key, group.index) for group in self._attention]

    def _plan_state(
        self,
        state: RequestState,
        chain: KeyChain,
        table: Table,
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
            growing = boundary > state.request.num_prompt_tokens
            # Between two lengths of tails the state alone: attention comes with the next tail, or with the chunk.
            if not growing or chunk * self._chunk_size + self._grown_length(tokens) > state.tail_end:
                state.tail_end = boundary
                stored = [
                    self._add(state, out, chain, attention, table, range(chunk, chunk + 1), tokens)
                    for attention in self._attention
                ]
                if any(stored) and growing:
                    # The states stay: the front of a longer tail, or of the whole chunk, serves them.
                    self._grow(state, chain, chunk, tokens, out)
        else:
            chunk, tokens = chunk - 1, self._chunk_size
            key = chain.chunk_key(chunk)
        ids = [pack_blocks([blocks[kv_group]], 0, 1)[0] for kv_group in group.kv_groups]
        out.add(StoreRun(key, chain.parent_key(chunk), group.index, tokens, ids), boundary <= state.reach)

    def _add(
        self, state: RequestState, out: Stores, chain: KeyChain, group: ObjectGroup, table: Table, chunks: range,
        tokens: int,
    ) -> bool:  # fmt: skip
        """Adds attention objects of `tokens` tokens, but for those of which the engine no longer holds what they need.

        More than one only of whole chunks, and only all on one side of what the server had. Whether it added any.
        """
        size = self._chunk_size

        def held(chunk: int, ids: Lists) -> bool:
            return _holds_what_is_needed(group, ids, chunk * size, chunk * size + tokens)

        runs = cut(group, table, size, chunks, tokens, held)
        for run in runs:
            first, end = run.chunks.start, run.chunks.stop
            keys = chain.keys(first, end) if tokens == size else chain.tail_key(first, tokens)
            one = StoreRun(keys, chain.parent_key(first), group.index, tokens, run.blocks)
            out.add(one, first * size + tokens <= state.reach)
        return bool(runs)


def _split(chunks: range, *edges: int) -> Iterable[range]:
    """These chunks, taken apart where another part begins."""
    inside = sorted([edge for edge in edges if chunks.start < edge < chunks.stop])
    if not inside:
        return (chunks,)
    return itertools.starmap(range, itertools.pairwise([chunks.start, *inside, chunks.stop]))


def _was_loaded(state: RequestState, end: int) -> bool:
    """Whether blocks up to `end` came from the server's objects."""
    return state.loaded[0] < end <= state.loaded[1]


def _holds_what_is_needed(group: ObjectGroup, ids: Lists, start: int, end: int) -> bool:
    """Whether a request that resumes at `end` finds here every block that it can still see.

    Full attention sees all; a window its trailing tokens, so the engine may have let go of earlier blocks. The last
    block has to be there in any case: an object holds something.
    """
    first = max(min(group.seen_from(end), end - 1) - start, 0)
    return all(all(part[first // span :]) for span, part in zip(group.spans, ids))
