"""Which of consecutive chunks have something to copy, and the blocks of those. Pure functions over plain data.

A whole prompt may be planned in one step of the engine, so what a run of chunks costs must not depend on their number as
long as no block of it is null. That is the rule: null are blocks that the engine has let go of, and those are few.
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
    """None of them is null, except for those that were asked to be."""


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

    Blocks that end at or below `local` or begin beyond `total`, and those that the table does not have, are null. A chunk
    without null blocks is always wanted.
    """
    if not chunks:
        return []
    packed, whole = [], True
    for kv_group, span in zip(group.kv_groups, group.spans):
        first = chunks.start * chunk_size // span
        count = ((len(chunks) - 1) * chunk_size + tokens) // span
        start = min(max(first, local // span), first + count)
        ids, complete = pack_blocks(table[kv_group], start, min(first + count, total // span))
        packed.append((NULL * (start - first) + ids).ljust(len(NULL) * count, b"\0"))
        whole = whole and complete and len(ids) > 0
    if whole:
        return [Run(chunks, packed, True)]

    def part(first: int, last: int) -> list[bytes]:
        each = [len(ids) // len(chunks) for ids in packed]
        return [
            ids[size * (first - chunks.start) : size * (last + 1 - chunks.start)] for ids, size in zip(packed, each)
        ]

    def is_wanted(chunk: int) -> bool:
        return wanted(chunk, [block_ids(ids) for ids in part(chunk, chunk)])

    runs = [list(run) for wanted_ones, run in itertools.groupby(chunks, is_wanted) if wanted_ones]
    return [Run(range(run[0], run[-1] + 1), part(run[0], run[-1]), False) for run in runs]
