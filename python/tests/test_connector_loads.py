"""Which blocks a hit fills: never a null block, never one that the engine has, and all that it will count on."""

from fakes import full, hybrid, plain, group, windowed
from kvasir.vllm import loads

CHUNK = 64


def test_every_block_of_a_hit_is_filled_in_order() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8]]
    fill = loads.plan(full(), CHUNK, [(b"a", 0, 0, 64), (b"b", 0, 1, 48)], table, local=0, total=112)
    assert fill.items == [(b"a", 0, 64, [[1, 2, 3, 4]]), (b"b", 0, 48, [[5, 6, 7]])]
    assert fill.complete


def test_the_front_of_a_longer_object_stops_at_the_hit() -> None:
    fill = loads.plan(full(), CHUNK, [(b"a", 0, 0, 64)], [[1, 2, 3, 4]], local=0, total=48)
    assert fill.items == [(b"a", 0, 64, [[1, 2, 3]])]
    assert fill.complete


def test_blocks_that_the_engine_has_are_passed_as_null() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8]]
    fill = loads.plan(full(), CHUNK, [(b"a", 0, 0, 64), (b"b", 0, 1, 64)], table, local=96, total=128)
    assert fill.items == [(b"b", 0, 64, [[0, 0, 7, 8]])]
    assert fill.complete


def test_a_missing_object_is_noticed() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert not loads.plan(full(), CHUNK, [(b"a", 0, 0, 64)], table, local=0, total=128).complete
    assert not loads.plan(full(), CHUNK, [(b"a", 9, 0, 64)], table, local=0, total=64).complete
    assert not loads.plan(full(), CHUNK, [], table, local=0, total=64).complete


def test_a_window_group_fills_what_its_table_still_holds() -> None:
    table = [[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0, 11, 12], [0, 0, 0, 0, 0, 0, 13, 14]]
    objects = [(b"a", 0, 0, 64), (b"b", 0, 1, 64), (b"b", 1, 1, 64)]
    fill = loads.plan(windowed(), CHUNK, objects, table, local=0, total=128)
    assert fill.items[-1] == (b"b", 1, 64, [[0, 0, 11, 12], [0, 0, 13, 14]])
    assert fill.complete


def test_a_resume_inside_a_window_object_reads_its_front() -> None:
    table = [[1, 2, 3, 4, 5, 6], [0, 0, 0, 10, 11, 12], [0, 0, 0, 13, 14, 15]]
    objects = [(b"a", 0, 0, 64), (b"b", 0, 1, 64), (b"a", 1, 0, 64), (b"b", 1, 1, 64)]
    fill = loads.plan(windowed(48), CHUNK, objects, table, local=0, total=96)
    assert fill.items[-1] == (b"b", 1, 64, [[11, 12], [14, 15]])
    assert fill.complete


def test_only_the_state_at_the_boundary_is_loaded() -> None:
    table = [[1, 2, 3, 4], [0, 0, 0, 21], [0, 0, 0, 22]]
    objects = [(b"a", 0, 0, 64), (b"b", 0, 1, 64), (b"b", 1, 1, 64)]
    fill = loads.plan(hybrid(), CHUNK, objects, table, local=64, total=128)
    assert fill.items == [(b"b", 0, 64, [[3, 4]]), (b"b", 1, 64, [[21], [22]])]
    assert fill.complete


def test_a_state_of_another_boundary_is_no_substitute() -> None:
    table = [[1, 2, 3, 4], [0, 0, 0, 21], [0, 0, 0, 22]]
    objects = [(b"a", 0, 0, 64), (b"b", 0, 1, 64), (b"a", 1, 0, 64)]
    assert not loads.plan(hybrid(), CHUNK, objects, table, local=0, total=128).complete


def test_spans_that_differ_between_groups() -> None:
    geometry = plain(group(0, "full", [0], [32]), group(1, "sliding_window", [1], [16], 32), alignment=32)
    table = [[1, 2], [0, 0, 7, 8]]
    fill = loads.plan(geometry, CHUNK, [(b"a", 0, 0, 64), (b"a", 1, 0, 64)], table, local=0, total=64)
    assert fill.items == [(b"a", 0, 64, [[1, 2]]), (b"a", 1, 64, [[0, 0, 7, 8]])]
    assert fill.complete
