"""Which blocks a hit fills: never a null block, never one that the engine has, and all that it will count on."""

import random

import pytest

from fakes import full, group, hybrid, key, named, objects, plain, windowed
from kvasir.vllm import loads
from kvasir.vllm.geometry import Geometry

CHUNK = 64
Objects = list[tuple[bytes, int, int, int]]


def test_every_block_of_a_hit_is_filled_in_order() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8]]
    fill = loads.plan(full(), CHUNK, named((key("a"), 0, 0, 64), (key("b"), 0, 1, 48)), table, local=0, total=112)
    assert objects(fill.runs) == [(key("a"), 0, 64, [[1, 2, 3, 4]]), (key("b"), 0, 48, [[5, 6, 7]])]
    assert fill.complete


def test_the_front_of_a_longer_object_stops_at_the_hit() -> None:
    fill = loads.plan(full(), CHUNK, named((key("a"), 0, 0, 64)), [[1, 2, 3, 4]], local=0, total=48)
    assert objects(fill.runs) == [(key("a"), 0, 64, [[1, 2, 3, 0]])]
    assert fill.complete


def test_blocks_that_the_engine_has_are_passed_as_null() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8]]
    fill = loads.plan(full(), CHUNK, named((key("a"), 0, 0, 64), (key("b"), 0, 1, 64)), table, local=96, total=128)
    assert objects(fill.runs) == [(key("b"), 0, 64, [[0, 0, 7, 8]])]
    assert fill.complete


def test_a_missing_object_is_noticed() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert not loads.plan(full(), CHUNK, named((key("a"), 0, 0, 64)), table, local=0, total=128).complete
    assert not loads.plan(full(), CHUNK, named((key("a"), 9, 0, 64)), table, local=0, total=64).complete
    assert not loads.plan(full(), CHUNK, named(), table, local=0, total=64).complete


def test_a_window_group_fills_what_its_table_still_holds() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0, 11, 12], [0, 0, 0, 0, 0, 0, 13, 14]]
    hit = [(key("a"), 0, 0, 64), (key("b"), 0, 1, 64), (key("b"), 1, 1, 64)]
    fill = loads.plan(windowed(), CHUNK, named(*hit), table, local=0, total=128)
    assert objects(fill.runs)[-1] == (key("b"), 1, 64, [[0, 0, 11, 12], [0, 0, 13, 14]])
    assert fill.complete


def test_a_resume_inside_a_window_object_reads_its_front() -> None:
    table = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 10, 11, 12], [0, 0, 0, 13, 14, 15]]
    hit = [(key("a"), 0, 0, 64), (key("b"), 0, 1, 64), (key("a"), 1, 0, 64), (key("b"), 1, 1, 64)]
    fill = loads.plan(windowed(48), CHUNK, named(*hit), table, local=0, total=96)
    assert objects(fill.runs)[-1] == (key("b"), 1, 64, [[11, 12, 0, 0], [14, 15, 0, 0]])
    assert fill.complete


def test_only_the_state_at_the_boundary_is_loaded() -> None:
    table = [[1, 2, 3, 4], [0, 0, 0, 21], [0, 0, 0, 22]]
    hit = [(key("a"), 0, 0, 64), (key("b"), 0, 1, 64), (key("b"), 1, 1, 64)]
    fill = loads.plan(hybrid(), CHUNK, named(*hit), table, local=64, total=128)
    assert objects(fill.runs) == [(key("b"), 0, 64, [[3, 4]]), (key("b"), 1, 64, [[21], [22]])]
    assert fill.complete


def test_a_state_of_another_boundary_is_no_substitute() -> None:
    table = [[1, 2, 3, 4], [0, 0, 0, 21], [0, 0, 0, 22]]
    hit = [(key("a"), 0, 0, 64), (key("b"), 0, 1, 64), (key("a"), 1, 0, 64)]
    assert not loads.plan(hybrid(), CHUNK, named(*hit), table, local=0, total=128).complete


def test_spans_that_differ_between_groups() -> None:
    geometry = plain(group(0, "full", [0], [32]), group(1, "sliding_window", [1], [16], 32), alignment=32)
    table = [[1, 2], [0, 0, 7, 8]]
    fill = loads.plan(geometry, CHUNK, named((key("a"), 0, 0, 64), (key("a"), 1, 0, 64)), table, local=0, total=64)
    assert objects(fill.runs) == [(key("a"), 0, 64, [[1, 2]]), (key("a"), 1, 64, [[0, 0, 7, 8]])]
    assert fill.complete


def test_a_local_prefix_ends_inside_a_run() -> None:
    table = [list(range(1, 17))]
    hit = named(*((key(chunk), 0, chunk, 64) for chunk in range(4)))
    assert len(hit) == 1
    fill = loads.plan(full(), CHUNK, hit, table, local=96, total=256)
    (run,) = fill.runs
    assert run.keys == key(1) + key(2) + key(3) and fill.complete
    assert [item[3][0] for item in objects([run])] == [[0, 0, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    assert run.blocks_of([0]) == {7, 8} and run.blocks_of(range(3)) == set(range(7, 17))


def test_a_run_stops_at_the_hit() -> None:
    hit = named(*((key(chunk), 0, chunk, 64) for chunk in range(4)))
    fill = loads.plan(full(), CHUNK, hit, [list(range(1, 17))], local=0, total=80)
    assert objects(fill.runs) == [(key(0), 0, 64, [[1, 2, 3, 4]]), (key(1), 0, 64, [[5, 0, 0, 0]])] and fill.complete


def test_null_blocks_split_a_run_only_where_a_whole_object_has_none_to_fill() -> None:
    # One group of the window has let go of more than the other.
    table = [list(range(1, 17)), [0] * 6 + [27, 28, *[0] * 6, 35, 36], [0] * 14 + [45, 46]]
    hit = named(*((key(chunk), group, chunk, 64) for group in (0, 1) for chunk in range(4)))
    fill = loads.plan(windowed(), CHUNK, hit, table, local=0, total=256)
    assert fill.complete and [(run.keys, run.group) for run in fill.runs] == [
        (hit[0][0], 0), (key(1), 1), (key(3), 1),
    ]  # fmt: skip
    assert [item[3] for item in objects(fill.runs[1:])] == [
        [[0, 0, 27, 28], [0, 0, 0, 0]], [[0, 0, 35, 36], [0, 0, 45, 46]],
    ]  # fmt: skip


def test_parts_of_several_chunks_are_no_run() -> None:
    hit = [(key(0) + key(1), 0, 0, 48)]
    assert loads.plan(full(), CHUNK, hit, [list(range(1, 9))], local=0, total=112).complete is False


GEOMETRIES = {
    "full": full(),
    "window": windowed(48),
    "long window": windowed(160),
    "local": plain(group(0, "full", [0], [16]), group(1, "chunked_local", [1], [16], 96), alignment=16),
    "recurrent": hybrid(),
    "spans": plain(group(0, "full", [0, 2], [32, 16]), group(1, "sliding_window", [1], [16], 40), alignment=32),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_runs_fill_what_their_objects_would_fill_one_by_one(name: str) -> None:
    """Whatever is named, null or short, against the rule for a single object and the sets of blocks that it comes to."""
    geometry, draw, complete = GEOMETRIES[name], random.Random(name), 0
    for _ in range(3000):
        total = draw.randrange(1, 320 // geometry.alignment) * geometry.alignment
        local = draw.randrange(total // geometry.alignment) * geometry.alignment if draw.random() < 0.5 else 0
        table = [
            [(draw.random() >= null) * (1000 * kv_group + at + 1) for at in range(total // span - (draw.random() < 0.05))]
            for kv_group, span in geometry.spans
            for null in [draw.choice([0, 0, 0, 0.05, 0.7])]
        ]
        hit = [
            (key(f"{one.index} {chunk}"), one.index, chunk, draw.choice([CHUNK, min(CHUNK, total - chunk * CHUNK)]))
            for one in geometry.object_groups
            for missing in [draw.choice([0, 0, 0, 0.1])]
            for chunk in range(-(-total // CHUNK))
            if draw.random() >= missing
        ]
        expected = one_by_one(geometry, hit, table, local, total)
        fill = loads.plan(geometry, CHUNK, named(*hit), table, local, total)
        assert fill.complete == expected[1], (hit, table, local, total)
        filled = [item for item in objects(fill.runs) if any(map(any, item[3]))]
        assert filled == expected[0], (hit, table, local, total)
        complete += fill.complete
    assert 300 < complete < 2700


def one_by_one(
    geometry: Geometry, hit: Objects, table: list[list[int]], local: int, total: int
) -> tuple[list[tuple[bytes, int, int, list[list[int]]]], bool]:
    """What is to be loaded, and whether it is all that the engine counts on."""
    groups = {one.index: one for one in geometry.object_groups}
    items, filled = [], set()
    for name, index, chunk, tokens in hit:
        members = list(zip(groups[index].kv_groups, groups[index].spans))
        start, ids = chunk * CHUNK, []
        for kv_group, span in members:
            slots, first = range(start // span, (start + tokens) // span), local // span
            if groups[index].recurrent:
                slots, first = range(total // span - 1, total // span), 0
            end = min(total // span, len(table[kv_group]))
            ids.append([table[kv_group][slot] if first <= slot < end else 0 for slot in slots])
        if any(map(any, ids)) and not (groups[index].recurrent and start + tokens != total):
            items.append((name, index, tokens, ids))
            filled |= {(kv_group, block) for (kv_group, _), part in zip(members, ids) for block in part}
    for one in geometry.object_groups:
        for kv_group, span in zip(one.kv_groups, one.spans):
            last = total // span
            counted_on = table[kv_group][last - 1 if one.recurrent else local // span : last]
            seen = range(last - 1 if one.recurrent else max(local, one.seen_from(total)) // span, last)
            if any(block and (kv_group, block) not in filled for block in counted_on):
                return items, False
            if any(slot >= len(table[kv_group]) or not table[kv_group][slot] for slot in seen):
                return items, False
    return items, True
