"""Which of consecutive chunks have something to copy, and the blocks of those. Pure functions over plain data.

A whole prompt may be planned in one step of the engine, so only chunks with a null block, one that the engine has let go
of, are looked at one by one. Those are few: the first of a step of a model with windows, as a rule.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvasir import pack_blocks
from kvasir.vllm.geometry import ObjectGroup
from kvasir.vllm.meta import block_ids

Table = Sequence[list[int]]
"""Block ids in token order, per KV cache group."""

Lists = Sequence[Sequence[int]]
"""Block ids of one object, per KV cache group of its object group."""

NULL = bytes(8)
"""The packed id of the null block."""


class Run(NamedTuple):
    """Consecutive chunks and their blocks."""

    chunks: range
    blocks: list[bytes]
    """Per KV cache group, packed."""
    whole: bool
    """None of them is null, except for what lies outside the tokens that were asked for."""


def cut(
    group: ObjectGroup,
    table: Table,
    chunk_size: int,
    chunks: range,
    tokens: int,
    wanted: Callable[[int, Lists], bool],
    local: int = 0,
    total: int = sys.maxsize,
) -> list[Run]:
    """The runs of those `chunks` that are `wanted`, each with an object of `tokens` tokens.

    Blocks that end at or below `local` or begin beyond `total`, and those that the table does not have, become null. Only
    chunks where others are null are asked about; every chunk has to reach beyond `local` and begin before `total`.
    """
    if not chunks:
        return []
    packed: list[bytes] = []
    holed: set[int] = set()
    for kv_group, span in zip(group.kv_groups, group.spans):
        first = chunks.start * chunk_size // span
        count = ((len(chunks) - 1) * chunk_size + tokens) // span
        start = max(first, local // span)
        ids, nulls = pack_blocks(table[kv_group], start, min(first + count, total // span))
        packed.append((NULL * (start - first) + ids).ljust(len(NULL) * count, b"\0"))
        if nulls:
            each = count // len(chunks)
            holed |= {chunks.start + (start - first + at) // each for at in nulls}
    if not holed:
        return [Run(chunks, packed, True)]

    def part(first: int, end: int) -> list[bytes]:
        at, upto = first - chunks.start, end - chunks.start
        return [ids[len(ids) // len(chunks) * at : len(ids) // len(chunks) * upto] for ids in packed]

    lost = [
        chunk for chunk in sorted(holed) if not wanted(chunk, [block_ids(ids) for ids in part(chunk, chunk + 1)])
    ]
    between = [range(one + 1, other) for one, other in itertools.pairwise([chunks.start - 1, *lost, chunks.stop])]
    return [Run(own, part(own.start, own.stop), holed.isdisjoint(own)) for own in between if own]
