"""From the objects of a hit to the engine's blocks to fill. Pure functions over plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kvasir.vllm.geometry import Geometry, ObjectGroup
from kvasir.vllm.meta import LoadItem


@dataclasses.dataclass
class Fill:
    """Items to load, in token order per object group."""

    items: list[LoadItem]
    complete: bool
    """Whether they fill every block that the engine will take as computed."""


def plan(
    geometry: Geometry,
    chunk_size: int,
    objects: Sequence[tuple[bytes, int, int, int]],
    table: Sequence[Sequence[int]],
    local: int,
    total: int,
) -> Fill:
    """Which blocks of `table` the objects of a hit of `total` tokens fill, `local` of which the engine has already.

    Null blocks and blocks that end at or below `local` are never written.
    """
    items: list[LoadItem] = []
    filled: dict[int, set[int]] = {}
    groups = {group.index: group for group in geometry.object_groups}
    for key, index, chunk, tokens in objects:
        group = groups.get(index)
        if group is None:
            return Fill([], complete=False)
        start = chunk * chunk_size
        ids = _state_ids(group, table, total) if group.recurrent else _block_ids(
            group, table, start, min(start + tokens, total), local
        )
        if group.recurrent and start + tokens != total or not any(any(part) for part in ids):
            continue
        for kv_group, part in zip(group.kv_groups, ids):
            filled.setdefault(kv_group, set()).update(part)
        items.append((key, index, tokens, ids))
    needed = blocks_to_fill(geometry, table, local, total)
    complete = all(filled.get(group, set()) >= blocks for group, blocks in needed.items())
    return Fill(items, complete and _has_blocks(geometry, table, local, total))


def _has_blocks(geometry: Geometry, table: Sequence[Sequence[int]], local: int, total: int) -> bool:
    """Whether there is a block for everything beyond `local` that a resume at `total` tokens can see.

    Where the table is short or null there is nowhere to load to, and what was not loaded must not pass for loaded.
    """
    for group in geometry.object_groups:
        for kv_group, span in zip(group.kv_groups, group.spans):
            end = total // span
            first = end - 1 if group.recurrent else max(local, group.seen_from(total)) // span
            ids = table[kv_group][first:end]
            if len(ids) < end - first or not all(ids):
                return False
    return True


def blocks_to_fill(
    geometry: Geometry, table: Sequence[Sequence[int]], local: int, total: int
) -> dict[int, set[int]]:
    """Per KV cache group: ids that the engine takes as computed once a load of up to `total` tokens is done."""
    needed = {}
    for group in geometry.object_groups:
        for kv_group, span in zip(group.kv_groups, group.spans):
            first = total // span - 1 if group.recurrent else local // span
            blocks = set(table[kv_group][first : total // span])
            blocks.discard(0)
            needed[kv_group] = blocks
    return needed


def _state_ids(group: ObjectGroup, table: Sequence[Sequence[int]], total: int) -> list[list[int]]:
    slots = [total // span - 1 for span in group.spans]
    return [
        [table[kv_group][slot] if slot < len(table[kv_group]) else 0] for kv_group, slot in zip(group.kv_groups, slots)
    ]


def _block_ids(
    group: ObjectGroup, table: Sequence[Sequence[int]], start: int, end: int, local: int
) -> list[list[int]]:
    ids = []
    for kv_group, span in zip(group.kv_groups, group.spans):
        first = start // span
        part = list(table[kv_group][first : max(end // span, first)])
        # Blocks that the engine has already are passed as null.
        known = min(max(local // span - first, 0), len(part))
        part[:known] = [0] * known
        ids.append(part)
    return ids
