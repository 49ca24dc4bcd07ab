"""From the objects of a hit to the engine's blocks to fill. Pure functions over plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kvasir import pack_blocks
from kvasir.vllm.servers import Named
from kvasir.vllm.geometry import Geometry, ObjectGroup
from kvasir.vllm.meta import KEY_BYTES, LoadRun
from kvasir.vllm.runs import Lists, Table, cut

# (first token, end, whether all of their blocks are there and none is null) of objects to load
_Piece = tuple[int, int, bool]


@dataclasses.dataclass
class Fill:
    """Runs to load, in token order per object group."""

    runs: list[LoadRun]
    complete: bool
    """Whether they fill every block that the engine will take as computed."""


def plan(
    geometry: Geometry, chunk_size: int, named: Sequence[Named], table: Table, local: int, total: int
) -> Fill:
    """Which blocks of `table` the objects of a hit of `total` tokens fill, `local` of which the engine has already.

    Null blocks and blocks that end at or below `local` are never written.
    """
    groups = {group.index: group for group in geometry.object_groups}
    runs: list[LoadRun] = []
    pieces: dict[int, list[_Piece]] = {index: [] for index in groups}
    for keys, index, chunk, tokens in named:
        group = groups.get(index)
        count = len(keys) // KEY_BYTES
        if group is None:
            return Fill([], complete=False)
        end = (chunk + count - 1) * chunk_size + tokens
        if group.recurrent:
            if end == total:
                runs.append(LoadRun(keys[-KEY_BYTES:], index, tokens, _state_blocks(group, table, total)))
                pieces[index].append((0, total, False))
            continue
        if count > 1 and tokens != chunk_size:
            return Fill([], complete=False)  # parts of chunks leave gaps between them
        if end <= local:
            continue
        chunks = range(max(chunk, local // chunk_size), min(chunk + count, -(-total // chunk_size)))
        for run in cut(group, table, chunk_size, chunks, tokens, _has_any, local, total):
            first, last = run.chunks[0], run.chunks[-1]
            own = keys[KEY_BYTES * (first - chunk) : KEY_BYTES * (last + 1 - chunk)]
            runs.append(LoadRun(own, index, tokens, run.blocks))
            pieces[index].append((first * chunk_size, min(last * chunk_size + tokens, total), run.whole))
    complete = all(_fills(group, pieces[group.index], table, local, total) for group in geometry.object_groups)
    return Fill(runs, complete)


def _fills(group: ObjectGroup, pieces: Sequence[_Piece], table: Table, local: int, total: int) -> bool:
    """Whether every block that a resume at `total` tokens can see is there and filled, and every other that is there too.

    Where the table is short or null there is nowhere to load to, and what was not loaded must not pass for loaded.
    """
    for kv_group, span in zip(group.kv_groups, group.spans):
        ids, end = table[kv_group], total // span
        filled, seen = _first_blocks(group, span, local, total)
        if seen < end and len(ids) < end:
            return False
        for start, stop, whole in [*pieces, (total, total, True)]:
            first, last = start // span, stop // span
            if first > max(filled, seen) or any(ids[filled:first]):
                return False
            if not whole and not all(ids[max(first, seen) : last]):
                return False
            filled = max(filled, last)
    return True


def _first_blocks(group: ObjectGroup, span: int, local: int, total: int) -> tuple[int, int]:
    """The first block that the engine takes as computed by a load, and the first that a resume at `total` tokens sees."""
    if group.recurrent:
        return total // span - 1, total // span - 1
    return local // span, max(local, group.seen_from(total)) // span


def blocks_to_fill(geometry: Geometry, table: Table, local: int, total: int) -> list[int]:
    """Blocks that the engine takes as computed once a load of up to `total` tokens is done."""
    blocks: set[int] = set()
    for group in geometry.object_groups:
        for kv_group, span in zip(group.kv_groups, group.spans):
            first, _ = _first_blocks(group, span, local, total)
            blocks.update(table[kv_group][first : total // span])
    return sorted(blocks - {0})


def _has_any(_chunk: int, lists: Lists) -> bool:
    return any(any(ids) for ids in lists)


def _state_blocks(group: ObjectGroup, table: Table, total: int) -> list[bytes]:
    blocks = [(table[kv_group], total // span - 1) for kv_group, span in zip(group.kv_groups, group.spans)]
    return [pack_blocks(ids, slot, slot + 1)[0] for ids, slot in blocks]
