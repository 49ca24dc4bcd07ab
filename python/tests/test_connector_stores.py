"""Which objects a step completes."""

import random

import pytest

from fakes import SEED, Request, full, group, hybrid, may_exist, objects, plain, windowed
from kvasir.vllm.geometry import Geometry
from kvasir.vllm.meta import Stores, block_ids
from kvasir.vllm.requests import RequestState
from kvasir.vllm.stores import States, StorePlanner, states_of_step

CHUNK = 64


class Planned:
    """One request and what its steps store."""

    def __init__(self, geometry: Geometry, tokens: int, prompt_only: bool = False) -> None:
        self.planner = StorePlanner(geometry, CHUNK, prompt_only)
        self.request = Request("r", range(tokens))
        self.state = RequestState(self.request, 1, len(geometry.object_groups))

    def step(self, table: list[list[int]], reached: int, states: States | None = None) -> Stores:
        out = Stores()
        self.planner.plan(self.state, SEED, table, reached, states or {}, out)
        assert len(out.owners) == len(out.runs)
        return out

    def key(self, chunk: int, tokens: int = CHUNK) -> bytes:
        assert self.state.chain is not None
        return self.state.chain.chunk_key(chunk) if tokens == CHUNK else self.state.chain.tail_key(chunk, tokens)

    def generate(self, count: int) -> None:
        self.request.all_token_ids += range(1000, 1000 + count)


def test_a_prompt_becomes_full_chunks_and_a_tail() -> None:
    run = Planned(full(), 170)
    out = run.step([list(range(1, 12))], 170)
    assert objects(out.runs) == [
        (run.key(0), None, 0, 64, [[1, 2, 3, 4]]),
        (run.key(1), run.key(0), 0, 64, [[5, 6, 7, 8]]),
        (run.key(2, 32), run.key(1), 0, 32, [[9, 10]]),
    ]
    assert out.owners == ["r", "r"] and not out.supersedes


def test_chunks_are_stored_in_the_step_that_completes_them_and_once() -> None:
    run = Planned(full(), 170)
    table = [list(range(1, 12))]
    assert [item[3] for item in objects(run.step(table, 60).runs)] == []
    assert [item[3] for item in objects(run.step(table, 130).runs)] == [64, 64]
    assert [item[3] for item in objects(run.step(table, 130).runs)] == []
    assert [item[3] for item in objects(run.step(table, 170).runs)] == [32]


def test_what_the_server_has_is_not_stored_again() -> None:
    run = Planned(full(), 170)
    run.state.covered = [128]
    assert [item[0] for item in objects(run.step([list(range(1, 12))], 170).runs)] == [run.key(2, 32)]
    run = Planned(full(), 170)
    run.state.covered = [160]
    assert objects(run.step([list(range(1, 12))], 170).runs) == []


def test_a_last_step_of_a_few_tokens_stores_the_tail_of_the_prompt() -> None:
    run = Planned(full(), 170)
    table = [list(range(1, 12))]
    assert [item[3] for item in objects(run.step(table, 160).runs)] == [64, 64]
    assert [item[3] for item in objects(run.step(table, 170).runs)] == [32]
    assert objects(run.step(table, 170).runs) == []


def test_generated_tokens_grow_a_tail_and_replace_it_but_never_the_prompts() -> None:
    run = Planned(full(8), 80)
    table = [list(range(1, 30))]
    assert [item[3] for item in objects(run.step(table, 80).runs)] == [64, 16]
    run.generate(114)
    # The prompt's own tail is longer than an eighth of the chunk, and as long as a quarter.
    assert objects(run.step(table, 95).runs) == []
    first = run.step(table, 96)
    assert [(item[0], item[3]) for item in objects(first.runs)] == [(run.key(1, 32), 32)]
    assert first.supersedes == []
    assert objects(run.step(table, 127).runs) == []
    done = run.step(table, 128)
    assert [(item[0], item[3]) for item in objects(done.runs)] == [(run.key(1), 64)]
    assert done.supersedes == [(run.key(1, 32), 0)]
    for reached, tokens, superseded in ((136, 8, []), (144, 16, [8]), (160, 32, [16]), (192, 64, [32])):
        out = run.step(table, reached)
        assert [(item[0], item[3]) for item in objects(out.runs)] == [(run.key(2, tokens), tokens)]
        assert out.supersedes == [(run.key(2, tokens), 0) for tokens in superseded]


def test_prompts_only_leaves_generated_tokens_out() -> None:
    run = Planned(full(), 100, prompt_only=True)
    table = [list(range(1, 12))]
    run.generate(60)
    assert [item[3] for item in objects(run.step(table, 100).runs)] == [64, 32]
    assert objects(run.step(table, 150).runs) == []


@pytest.mark.parametrize("chunk_size", [64, 256, 576, 1024, 1088])
def test_generated_tokens_are_stored_less_than_twice(chunk_size: int) -> None:
    planner = StorePlanner(full(), chunk_size, False)
    request = Request("r", range(16))
    state = RequestState(request, 1, 1)
    request.all_token_ids += range(4 * chunk_size)
    table = [list(range(1, 300))]
    stored = 0
    ends = []
    for reached in range(16, 4 * chunk_size + 1):
        out = Stores()
        planner.plan(state, SEED, table, reached, {}, out)
        stored += sum(item[3] for item in objects(out.runs))
        ends += [reached for item in objects(out.runs) if item[3] < chunk_size]
    assert stored < 2 * 4 * chunk_size + 16
    # An answer that ends anywhere is there for more than a third of its last chunk, if it has an eighth of one.
    assert all(any(end <= reached < 3 * end for end in (e % chunk_size for e in ends)) for reached in range(max(chunk_size // 8, 16), chunk_size))


def test_new_tokens_are_counted_once_however_often_they_are_computed() -> None:
    run = Planned(full(), 170)
    table = [list(range(1, 20))]
    run.state.furthest = 32  # what the request began with
    assert [run.step(table, reached).new_tokens for reached in (64, 130, 130)] == [32, 66, 0]
    run.state.compute_anew()
    assert [run.step(table, reached).new_tokens for reached in (64, 130, 170)] == [0, 0, 40]
    run.generate(30)
    run.state.compute_anew()
    assert [run.step(table, reached).new_tokens for reached in (170, 192)] == [0, 22]


def test_a_chunk_that_the_engine_let_go_of_is_left_out() -> None:
    run = Planned(full(), 128)
    out = run.step([[1, 0, 3, 4, 5, 6, 7, 8]], 128)
    assert [item[0] for item in objects(out.runs)] == [run.key(1)]


def test_window_objects_need_what_their_end_can_see() -> None:
    run = Planned(windowed(32), 128)
    # Group 1 has let go of all but the window, group 2 of one block too many for the first chunk's end.
    table = [list(range(1, 9)), [0, 0, 3, 4, 5, 6, 7, 8], [0, 0, 0, 4, 5, 6, 7, 8]]
    out = run.step(table, 128)
    stored = {(item[0], item[2]) for item in objects(out.runs)}
    assert stored == {(run.key(0), 0), (run.key(1), 0), (run.key(1), 1)}

    run = Planned(windowed(32), 128)
    table[2][2] = 9
    stored = {(item[0], item[2]): item[4] for item in objects(run.step(table, 128).runs)}
    assert stored[run.key(0), 1] == [[0, 0, 3, 4], [0, 0, 9, 4]]


def windows(out: Stores) -> list[bytes]:
    return [item[0] for item in objects(out.runs) if item[2] == 1]


def test_windows_below_a_hit_are_stored_where_they_are_lacking() -> None:
    run = Planned(windowed(32), 320)
    # Windows up to 64 and at 256 are there, others may be; full attention is there up to 256.
    run.state.covered, run.state.served, run.state.reach = [256, 64], 256, 256
    table = [list(range(1, 21)), [0] * 6 + list(range(7, 21)), [0] * 6 + list(range(7, 21))]
    out = run.step(table, 320)
    assert windows(out) == [run.key(chunk) for chunk in (1, 2, 3, 4)]
    assert [item[0] for item in objects(out.runs) if item[2] == 0] == [run.key(4)]
    assert may_exist(out) == [(run.key(chunk), 1) for chunk in (1, 2, 3)]


def test_anything_may_be_there_until_that_is_known() -> None:
    run = Planned(windowed(32), 128)
    out = run.step([list(range(1, 9))] * 3, 128)
    assert may_exist(out) == [(item[0], item[2]) for item in objects(out.runs)] and len(objects(out.runs)) == 4
    run = Planned(windowed(32), 128)
    run.state.reach = 64
    out = run.step([list(range(1, 9))] * 3, 128)
    assert may_exist(out) == [(run.key(0), 0), (run.key(0), 1)] and len(objects(out.runs)) == 4


def test_what_was_loaded_is_there_and_what_was_there_before_may_not_be() -> None:
    run = Planned(windowed(32), 320)
    run.state.covered, run.state.served, run.state.reach, run.state.loaded = [256, 0], 256, 256, (128, 256)
    out = run.step([list(range(1, 21))] * 3, 320)
    assert windows(out) == [run.key(chunk) for chunk in (0, 1, 4)]
    assert may_exist(out) == [(run.key(0), 1), (run.key(1), 1)]


class Counted(list):  # type: ignore[type-arg]
    """A block list that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        self.looks += 1
        return super().__getitem__(at)


def test_thousands_of_chunks_whose_windows_are_gone_are_not_looked_at_one_by_one() -> None:
    chunks = 4000
    run = Planned(windowed(32), chunks * CHUNK + 64)
    run.state.covered, run.state.served, run.state.reach = [chunks * CHUNK, 0], chunks * CHUNK, chunks * CHUNK
    gone, held = [0] * (chunks * 4 - 2), list(range(1, 7))
    table = [Counted([1] * (chunks * 4 + 4)), Counted(gone + held), Counted(gone + held)]
    out = run.step(table, (chunks + 1) * CHUNK)
    assert windows(out) == [run.key(chunks - 1), run.key(chunks)]
    assert sum(ids.looks for ids in table) < 40


def test_states_inside_chunks_are_not_covered_by_those_at_their_ends() -> None:
    run = Planned(hybrid(), 200)
    run.state.covered, run.state.served, run.state.reach = [192, 192], 192, 192
    table = [list(range(1, 8)), [0] * 7, [0] * 7]
    out = run.step(table, 192, {64: {1: 31, 2: 32}, 96: {1: 33, 2: 34}})
    assert [(item[0], item[2]) for item in objects(out.runs)] == [(run.key(1, 32), 0), (run.key(1, 32), 1)]
    assert may_exist(out) == [(run.key(1, 32), 0), (run.key(1, 32), 1)]
    run.state.loaded = (0, 192)
    assert run.step(table, 192, {96: {1: 33, 2: 34}}).runs == []


def test_a_chunked_local_end_that_sees_nothing_stores_what_is_left() -> None:
    geometry = plain(group(0, "full", [0], [16]), group(1, "chunked_local", [1], [16], 64), alignment=16)
    run = Planned(geometry, 64)
    assert {item[2] for item in objects(run.step([[1, 2, 3, 4], [0, 0, 0, 8]], 64).runs)} == {0, 1}
    run = Planned(geometry, 64)
    assert {item[2] for item in objects(run.step([[1, 2, 3, 4], [0, 0, 0, 0]], 64).runs)} == {0}


def test_states_are_stored_where_the_engine_hands_them_over() -> None:
    run = Planned(hybrid(), 200)
    table = [list(range(1, 8)), [0] * 7, [0] * 7]
    states = states_of_step(hybrid(), table, 192, [(1, 31, 64), (2, 32, 64), (1, 33, 96), (2, 34, 96)], settled=True)
    assert states == {64: {1: 31, 2: 32}, 96: {1: 33, 2: 34}}
    out = run.step(table, 192, states)
    assert [(item[0], item[2], item[3], item[4]) for item in objects(out.runs)] == [
        (run.key(0), 0, 64, [[1, 2]]),
        (run.key(1), 0, 64, [[3, 4]]),
        (run.key(2), 0, 64, [[5, 6]]),
        (run.key(0), 1, 64, [[31], [32]]),
        (run.key(1, 32), 0, 32, [[3]]),
        (run.key(1, 32), 1, 32, [[33], [34]]),
    ]


def test_a_boundary_without_every_state_is_none() -> None:
    table = [[1, 2], [0, 0], [0, 0]]
    assert states_of_step(hybrid(), table, 64, [(1, 31, 64)], settled=True) == {}
    assert states_of_step(hybrid(), table, 64, [(1, 31, 60), (2, 32, 60)], settled=True) == {}
    # Group 0 keeps no states, and there is no group 9.
    assert states_of_step(hybrid(), table, 64, [(0, 31, 64), (9, 32, 64)], settled=False) == {}


def test_the_slot_where_a_step_ends_holds_its_state() -> None:
    table = [[1, 2], [0, 41], [0, 42]]
    assert states_of_step(hybrid(), table, 64, [], settled=True) == {64: {1: 41, 2: 42}}
    assert states_of_step(hybrid(), table, 63, [], settled=True) == {}
    assert states_of_step(hybrid(), table, 64, [], settled=False) == {}
    # The engine's own word comes first.
    assert states_of_step(hybrid(), table, 64, [(1, 7, 64), (2, 8, 64)], settled=True) == {64: {1: 7, 2: 8}}


def test_generated_tails_beside_states_are_replaced_and_the_states_stay() -> None:
    geometry = plain(group(0, "full", [0], [16]), group(1, "recurrent", [1], [16]), alignment=16)
    run = Planned(geometry, 80)
    rows = [list(range(1, 17)), list(range(101, 117))]
    # The prompt ends inside chunk 1, on a boundary.
    prompt = run.step(rows, 80, {80: {1: 105}})
    assert [(item[0], item[2]) for item in objects(prompt.runs)][-2:] == [(run.key(1, 16), 0), (run.key(1, 16), 1)]
    run.generate(60)
    first = run.step(rows, 96, {96: {1: 106}})
    assert [(item[0], item[2]) for item in objects(first.runs)] == [(run.key(1, 32), 0), (run.key(1, 32), 1)]
    assert (prompt.supersedes, first.supersedes) == ([], [])
    # Between the lengths of tails the state alone.
    second = run.step(rows, 112, {112: {1: 107}})
    assert [(item[0], item[2]) for item in objects(second.runs)] == [(run.key(1, 48), 1)]
    assert second.supersedes == []
    done = run.step(rows, 128, {128: {1: 108}})
    assert [(item[0], item[2]) for item in objects(done.runs)] == [(run.key(1), 0), (run.key(1), 1)]
    assert done.supersedes == [(run.key(1, 32), 0)]


def test_a_hybrid_stores_no_tail_that_nothing_can_resume_from() -> None:
    run = Planned(hybrid(), 100)
    table = [[1, 2, 3, 4], [0] * 4, [0] * 4]
    assert [(item[2], item[3]) for item in objects(run.step(table, 100).runs)] == [(0, 64)]


def test_the_chunks_of_a_step_are_one_run_of_each_object_group() -> None:
    run = Planned(windowed(32), 640)
    out = run.step([list(range(1, 41)), list(range(101, 141)), list(range(201, 241))], 640)
    keys = b"".join(run.key(chunk) for chunk in range(10))
    assert [(one.keys, one.parent, one.group) for one in out.runs] == [(keys, None, 0), (keys, None, 1)]
    assert [list(block_ids(ids)) for ids in out.runs[1].blocks] == [list(range(101, 141)), list(range(201, 241))]
    assert out.owners == ["r", "r"]


def test_a_gap_splits_a_run() -> None:
    run = Planned(full(), 320)
    table = [list(range(1, 21))]
    table[0][5] = table[0][15] = 0
    out = run.step(table, 320)
    assert [item[:2] for item in objects(out.runs)] == [
        (run.key(0), None), (run.key(2), run.key(1)), (run.key(4), run.key(3)),
    ]  # fmt: skip
    assert len(out.runs) == 3 and out.owners == ["r"] * 3
    run = Planned(full(), 320)
    out = run.step([[1, 2, 3, 4, 0, *range(6, 21)]], 320)
    assert [(len(one.keys) // 32, one.parent) for one in out.runs] == [(1, None), (3, run.key(1))]


def test_a_table_that_ends_early_ends_the_run() -> None:
    run = Planned(full(), 320)
    assert [item[0] for item in objects(run.step([list(range(1, 16))], 320).runs)] == [run.key(chunk) for chunk in range(3)]


def test_nulls_before_the_window_leave_a_run_whole() -> None:
    run = Planned(windowed(32), 256)
    table = [list(range(1, 17)), [0, 0, *range(103, 117)], [0, 0, 203, 204, 0, *range(206, 217)]]
    out = run.step(table, 256)
    assert [(len(one.keys) // 32, one.group) for one in out.runs] == [(4, 0), (4, 1)]
    assert objects(out.runs)[5][4] == [[105, 106, 107, 108], [0, 206, 207, 208]]


def test_what_the_server_has_may_end_inside_a_run_and_elsewhere_in_every_group() -> None:
    run = Planned(windowed(32), 256)
    run.state.covered = [128, 200]
    rows = [list(range(1, 17)), list(range(101, 117)), list(range(201, 217))]
    out = run.step(rows, 256)
    assert [(item[0], item[1], item[2]) for item in objects(out.runs)] == [
        (run.key(2), run.key(1), 0), (run.key(3), run.key(2), 0), (run.key(3), run.key(2), 1),
    ]  # fmt: skip


def test_a_grown_tail_is_superseded_by_a_run_over_its_chunk() -> None:
    run = Planned(full(8), 80)
    table = [list(range(1, 60))]
    run.step(table, 80)
    run.generate(200)
    run.step(table, 96)
    out = run.step(table, 256)
    assert [item[0] for item in objects(out.runs)] == [run.key(1), run.key(2), run.key(3)]
    assert out.supersedes == [(run.key(1, 32), 0)]


@pytest.mark.parametrize("name", ["window", "local", "spans"])
def test_runs_hold_the_objects_that_would_be_stored_one_by_one(name: str) -> None:
    geometry = {
        "window": windowed(48),
        "local": plain(group(0, "full", [0], [16]), group(1, "chunked_local", [1], [16], 96), alignment=16),
        "spans": plain(group(0, "full", [0, 2], [32, 16]), group(1, "sliding_window", [1], [16], 40), alignment=32),
    }[name]
    draw = random.Random(name)
    windows = {member for one in geometry.object_groups if one.kind != "full" for member in one.kv_groups}
    for _ in range(1000):
        tokens = draw.randrange(CHUNK, 5 * CHUNK)
        reached = sorted(draw.sample(range(tokens), 2)) + [tokens]
        table = [
            [
                # The engine lets go of a window's blocks from the front.
                (at >= gone if kv_group in windows else draw.random() >= null) * (1000 * kv_group + at + 1)
                for at in range(tokens // span + 1)
            ]
            for kv_group, span in geometry.spans
            for null, gone in [(draw.choice([0, 0.05, 0.5]), draw.randrange(tokens // span))]
        ]
        run = Planned(geometry, tokens)
        found = [item for end in reached for item in objects(run.step(table, end).runs)]
        tail = tokens % CHUNK - tokens % CHUNK % geometry.alignment
        expected = []
        for one in geometry.object_groups:
            for chunk, size in [*((chunk, CHUNK) for chunk in range(tokens // CHUNK)), (tokens // CHUNK, tail)]:
                start, end = chunk * CHUNK, chunk * CHUNK + size
                ids = [table[kv][start // span : end // span] for kv, span in zip(one.kv_groups, one.spans)]
                needed = [
                    part[max(min(one.seen_from(end), end - 1) - start, 0) // span :] for part, span in zip(ids, one.spans)
                ]
                if size and all(map(all, needed)):
                    parent = run.key(chunk - 1) if chunk else None
                    expected.append((run.key(chunk, size), parent, one.index, size, ids))
        assert sorted(found, key=str) == sorted(expected, key=str)
