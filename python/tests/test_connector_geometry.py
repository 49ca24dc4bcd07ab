"""From the engine's specs to geometry; settings; which ranks hold which parts."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

import fakes
from kvasir.vllm import geometry, layout, worker
from kvasir.vllm.geometry import GeometryRefused
from kvasir.vllm.layout import LayoutRefused, Stage, combine
from kvasir.vllm.settings import Settings


def test_one_full_attention_group() -> None:
    resolved = geometry.resolve(fakes.kv_config(fakes.FullAttentionSpec(16)))
    assert resolved.single_full and resolved.alignment == 16 and resolved.recurrent is None
    (group,) = resolved.object_groups
    assert (group.kind, group.kv_groups, group.spans, group.unit_bytes) == ("full", (0,), (16,), 128)


def test_latent_attention_counts_as_full() -> None:
    assert geometry.resolve(fakes.kv_config(fakes.MLAAttentionSpec(16))).single_full


def test_groups_are_stored_by_what_a_resume_needs() -> None:
    window = fakes.SlidingWindowSpec(16, sliding_window=128)
    resolved = geometry.resolve(
        fakes.kv_config(window, window, fakes.MambaSpec(32), fakes.FullAttentionSpec(32), fakes.MambaSpec(32))
    )
    assert not resolved.single_full and resolved.alignment == 32
    found = [(group.index, group.kind, group.kv_groups, group.spans) for group in resolved.object_groups]
    assert found[0] == (0, "full", (3,), (32,))
    assert sorted(group[1:] for group in found[1:]) == [
        ("recurrent", (2, 4), (32, 32)),
        ("sliding_window", (0, 1), (16, 16)),
    ]
    assert resolved.recurrent is not None and resolved.recurrent.unit_bytes == 4 * 96


def test_a_window_alone_is_no_full_attention() -> None:
    resolved = geometry.resolve(fakes.kv_config(fakes.SlidingWindowSpec(16, sliding_window=64, extra_retained_tokens=2)))
    assert not resolved.single_full and resolved.full is None
    assert resolved.object_groups[0].window_tokens == 66


def test_chunked_local_keeps_its_chunk() -> None:
    resolved = geometry.resolve(fakes.kv_config(fakes.FullAttentionSpec(), fakes.ChunkedLocalAttentionSpec()))
    assert [(group.kind, group.window_tokens) for group in resolved.object_groups] == [("full", 0), ("chunked_local", 128)]


Full, Mamba = fakes.FullAttentionSpec, fakes.MambaSpec
RESET = "start it with --block-size"


@pytest.mark.parametrize(
    ("specs", "dcp", "block", "step_tokens", "every", "advice"),
    [
        # As the engine sizes its cache; reset; reset, and no harm done.
        ([Full(160), Mamba(160)], 1, 160, 4096, None, None),
        ([Full(160), Mamba(160)], 1, 128, 4096, 160, RESET),
        ([Full(32), Mamba(32)], 1, 128, 4096, None, None),
        # A state's boundary is of no use where a block of attention goes on beyond it.
        ([Full(256), Mamba(128)], 1, 128, 4096, 256, "start it with --max-num-batched-tokens 128"),
        ([Full(256), Mamba(128)], 1, 128, 256, 256, "start it with --max-num-batched-tokens 128"),
        ([Full(256), Mamba(128)], 1, 128, 255, None, None),
        ([Full(256), Mamba(128)], 1, 128, 100, None, None),
        ([Full(96), Mamba(128)], 1, 96, 4096, 384, "start it with --max-num-batched-tokens 96"),
        # Short steps do not help where the reset block ends nowhere with the others.
        ([Full(160), Mamba(160)], 1, 128, 128, 160, RESET),
        ([Full(16), Mamba(32)], 2, 16, 4096, 32, "start it with --max-num-batched-tokens 16"),
        ([Full(16), Mamba(32)], 2, 16, 16, None, None),
        # Scratch has no say, neither in what can be resumed nor in the engine's block.
        ([Full(8, prefix_cacheable=False), Full(256), Mamba(128)], 1, 128, 4096, 256, "--max-num-batched-tokens 128"),
        # Without state any prefix of whole blocks will do.
        ([Full(160)], 1, 128, 4096, None, None),
    ],
)
def test_steps_that_end_where_no_state_can_be_resumed_are_noticed(
    specs: list[Any], dcp: int, block: int, step_tokens: int, every: int | None, advice: str | None
) -> None:
    config = fakes.kv_config(*specs)
    text = geometry.unreached_states(config, geometry.resolve(config, dcp), block, step_tokens)
    assert (text is None) == (every is None)
    if text is not None:
        assert advice is not None and advice in text
        assert f"in blocks of {block} tokens but can resume recurrent state only every {every}:" in text


def test_collections_of_specs_are_taken_apart() -> None:
    layers = {"a": fakes.MLAAttentionSpec(16, 64), "b": fakes.MLAAttentionSpec(16, 32, tokens_per_state=Fraction(4))}
    resolved = geometry.resolve(fakes.kv_config(fakes.UniformTypeKVCacheSpecs(layers)))
    assert resolved.object_groups[0].unit_bytes == 96


def test_context_parallel_ranks_widen_the_span() -> None:
    resolved = geometry.resolve(fakes.kv_config(fakes.FullAttentionSpec(16), fakes.MambaSpec(32)), dcp=2)
    assert resolved.spans == ((0, 32), (1, 32))


def test_scratch_groups_are_left_out() -> None:
    scratch = fakes.FullAttentionSpec(16, prefix_cacheable=False)
    resolved = geometry.resolve(fakes.kv_config(fakes.FullAttentionSpec(16), scratch))
    assert resolved.spans == ((0, 16), (1, 0)) and not resolved.single_full


def test_every_refusal_is_in_one_error() -> None:
    config = fakes.kv_config(
        fakes.MambaSpec(32, mamba_cache_mode="none"), fakes.RSWASpec(16), fakes.FullAttentionSpec(16, non_causal=True)
    )
    with pytest.raises(GeometryRefused) as refused:
        geometry.resolve(config)
    text = str(refused.value)
    assert "reference_sliding_window" in text and "non-causally" in text and "snapshot" in text


def test_the_chunk_size_has_to_suit_groups_and_scheduler() -> None:
    resolved = geometry.resolve(fakes.kv_config(fakes.FullAttentionSpec(16), fakes.MambaSpec(160)))
    resolved.check_chunk(320, 160)
    with pytest.raises(GeometryRefused, match="256.*160"):
        resolved.check_chunk(256, None)
    with pytest.raises(GeometryRefused, match="320.*128"):
        resolved.check_chunk(320, 128)


def test_settings_have_defaults_and_refuse_what_they_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVASIR_SOCKET", raising=False)
    read = Settings.from_extra
    assert read({"kvasir.socket": "/a", "other.key": 1}) == Settings(("/a",))
    assert read({"kvasir.socket": ["/a", "/b"], "kvasir.store": "prompt"}) == Settings(("/a", "/b"), store="prompt")
    for value, threads in ((None, 0), ("auto", 0), (1, 1), (16, 16)):
        assert read({"kvasir.socket": "/a", "kvasir.copy_threads": value}).copy_threads == threads
    for wrong in (
        {"kvasir.sockets": "/a"}, {"kvasir.socket": ""}, {"kvasir.socket": []}, {"kvasir.socket": "/a", "kvasir.store": 1},
        {"kvasir.socket": "/a", "kvasir.deadline": 0}, {"kvasir.socket": "/a", "kvasir.deadline": float("nan")},
        {"kvasir.socket": "/a", "kvasir.heartbeat_interval": True}, {"kvasir.socket": "/a", "kvasir.preferred_base": 2.5},
        {"kvasir.socket": "/a", "kvasir.copy_threads": 0}, {"kvasir.socket": "/a", "kvasir.copy_threads": "all"},
        {"kvasir.socket": "/a", "kvasir.payload_path": "shm"},
        {"kvasir.socket": ["/a", ""]}, {"kvasir.socket": ["/a", "/a"]}, {"kvasir.socket": ["/a", 1]}, {},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"kvasir\."):
            read(wrong)
    assert read({"kvasir.socket": "/a", "kvasir.payload_path": "ring"}).payload_path == "ring"
    monkeypatch.setenv("KVASIR_SOCKET", "/b")
    assert read({}).sockets == ("/b",)
    roles = {role: (read({}, role).stores, read({}, role).loads) for role in ("kv_both", "kv_producer", "kv_consumer")}
    assert roles == {"kv_both": (True, True), "kv_producer": (True, False), "kv_consumer": (False, True)}
    for wrong in ("both", "", None):
        with pytest.raises(ValueError, match="kv_role.*kv_both, kv_producer, kv_consumer"):
            read({}, wrong)  # type: ignore[arg-type]  # what a configuration may hold


@pytest.mark.parametrize(
    ("tp", "pp", "replicas", "expected"),
    [
        (1, 1, 1, [(0, 1, True)]),
        (4, 1, 1, [(0, 4, True), (1, 4, True), (2, 4, True), (3, 4, True)]),
        (4, 1, 2, [(0, 2, True), (0, 2, False), (1, 2, True), (1, 2, False)]),
        (2, 1, 2, [(0, 1, True), (0, 1, False)]),
        (2, 2, 1, [(0, 4, True), (1, 4, True), (2, 4, True), (3, 4, True)]),
    ],
)
def test_ranks_with_the_same_bytes_are_one_part(tp: int, pp: int, replicas: int, expected: list[Any]) -> None:
    found = []
    for rank in range(tp * pp):
        parallel = types.SimpleNamespace(rank=rank, tensor_parallel_size=tp, pipeline_parallel_size=pp)
        (one,) = worker.rank_of(parallel, [shards(tp, replicas)]).groups
        found.append((one.part, one.parts, one.stores))
    assert found == expected


def shards(tp: int, replicas: int) -> list[int]:
    """Runs of as many ranks hold the same."""
    return [rank // replicas for rank in range(tp)]


def rank_of(rank: int, tp: int, pp: int, shards: Sequence[int], servers: int) -> worker.Rank:
    parallel = types.SimpleNamespace(rank=rank, tensor_parallel_size=tp, pipeline_parallel_size=pp)
    return worker.rank_of(parallel, [shards], servers)


@pytest.mark.parametrize(
    ("tp", "pp", "replicas", "servers", "expected"),
    [
        # (server, rank, ranks there, part, parts there, stores)
        (4, 1, 1, 2, [(0, 0, 2, 0, 2, True), (0, 1, 2, 1, 2, True), (1, 0, 2, 0, 2, True), (1, 1, 2, 1, 2, True)]),
        # Three ranks on two servers.
        (3, 1, 1, 2, [(0, 0, 2, 0, 2, True), (0, 1, 2, 1, 2, True), (1, 0, 1, 0, 1, True)]),
        # The same bytes everywhere: one copy per server, stored by the lowest rank there.
        (4, 1, 4, 2, [(0, 0, 2, 0, 1, True), (0, 1, 2, 0, 1, False), (1, 0, 2, 0, 1, True), (1, 1, 2, 0, 1, False)]),
        # Replicas that a server boundary cuts apart.
        (3, 1, 3, 2, [(0, 0, 2, 0, 1, True), (0, 1, 2, 0, 1, False), (1, 0, 1, 0, 1, True)]),
        # A pipeline stage per server.
        (2, 2, 2, 2, [(0, 0, 2, 0, 1, True), (0, 1, 2, 0, 1, False), (1, 0, 2, 0, 1, True), (1, 1, 2, 0, 1, False)]),
        (2, 2, 1, 1, [(0, 0, 4, 0, 4, True), (0, 1, 4, 1, 4, True), (0, 2, 4, 2, 4, True), (0, 3, 4, 3, 4, True)]),
    ],
)
def test_ranks_and_parts_count_per_server(
    tp: int, pp: int, replicas: int, servers: int, expected: list[tuple[int, ...]]
) -> None:
    ranks = [rank_of(rank, tp, pp, shards(tp, replicas), servers) for rank in range(tp * pp)]
    assert [(r.server, r.rank, r.world_size, *dataclasses.astuple(r.groups[0])) for r in ranks] == expected


LATENT = fakes.MLAAttentionSpec(16, max_tp_shards=1)
TWO_HEADS = fakes.FullAttentionSpec(16, max_tp_shards=2)
EIGHT_HEADS = fakes.FullAttentionSpec(16, max_tp_shards=8)
UNDECLARED = fakes.FullAttentionSpec(16)
# Of a draft model that does not take part in context parallelism.
DRAFT = fakes.MLAAttentionSpec(16, max_tp_shards=1, dcp_sharded=False)


@pytest.mark.parametrize(
    ("specs", "tp", "dcp", "expected"),
    [
        ([LATENT], 4, 1, (0, 0, 0, 0)),
        ([TWO_HEADS], 4, 1, (0, 0, 1, 1)),
        ([EIGHT_HEADS], 4, 1, (0, 1, 2, 3)),
        ([UNDECLARED], 2, 1, (0, 1)),
        ([LATENT, UNDECLARED], 2, 1, (0, 1)),
        ([LATENT, TWO_HEADS], 4, 1, (0, 0, 1, 1)),
        # Context-parallel ranks are neighbours: the same tokens are on every `dcp`-th rank.
        ([LATENT], 2, 2, (0, 1)),
        ([LATENT], 4, 2, (0, 1, 0, 1)),
        ([LATENT], 8, 4, (0, 1, 2, 3, 0, 1, 2, 3)),
        ([LATENT], 6, 3, (0, 1, 2, 0, 1, 2)),
        ([TWO_HEADS], 4, 2, (0, 1, 2, 3)),
        ([TWO_HEADS], 8, 2, (0, 1, 0, 1, 2, 3, 2, 3)),
        # Groups of four across the two heads' six ranks each: only 0 and 4, 1 and 5, 6 and 10, 7 and 11 agree in both.
        ([TWO_HEADS], 12, 4, (0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 4, 5)),
        ([UNDECLARED], 4, 2, (0, 1, 2, 3)),
        ([LATENT, DRAFT], 4, 2, (0, 1, 0, 1)),
        ([DRAFT], 4, 2, (0, 0, 0, 0)),
    ],
)
def test_which_ranks_hold_the_same_bytes(specs: list[Any], tp: int, dcp: int, expected: tuple[int, ...]) -> None:
    config = fakes.kv_config(*specs)
    assert geometry.shards(config, geometry.resolve(config, dcp), tp, dcp) == (expected,)


WINDOW = fakes.SlidingWindowSpec(16, sliding_window=32, max_tp_shards=1)
STATE = fakes.MambaSpec(16)


@pytest.mark.parametrize(
    ("specs", "tp", "dcp", "expected"),
    [
        ([LATENT, STATE], 2, 1, ((0, 0), (0, 1))),
        ([LATENT, STATE], 4, 2, ((0, 1, 0, 1), (0, 1, 2, 3))),
        ([LATENT, WINDOW], 2, 1, ((0, 0), (0, 0))),
        ([TWO_HEADS, WINDOW], 4, 1, ((0, 0, 1, 1), (0, 0, 1, 1))),  # a window is told apart as finely as full attention
        ([LATENT, WINDOW, STATE], 2, 1, ((0, 0), (0, 0), (0, 1))),
        ([WINDOW, STATE], 2, 1, ((0, 0), (0, 1))),  # nothing that they hang under
        # Ranks 0 and 1 hold the same of the window, but other tokens of full attention.
        ([LATENT, dataclasses.replace(WINDOW, max_tp_shards=2, dcp_sharded=False)], 4, 2, ((0, 1, 0, 1), (0, 1, 2, 3))),
    ],
)
def test_each_group_has_shards_of_its_own(
    specs: list[Any], tp: int, dcp: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    config = fakes.kv_config(*specs)
    resolved = geometry.resolve(config, dcp)
    assert [group.kv_groups for group in resolved.object_groups] == [(at,) for at in range(len(specs))]
    assert geometry.shards(config, resolved, tp, dcp) == expected


@pytest.mark.parametrize(
    ("pp", "servers", "expected"),
    [
        # (server, part, parts there, stores) of attention that is the same everywhere, and of states.
        (1, 1, [(0, (0, 1, True), (0, 4, True))] + [(0, (0, 1, False), (rank, 4, True)) for rank in (1, 2, 3)]),
        (1, 2, [(0, (0, 1, True), (0, 2, True)), (0, (0, 1, False), (1, 2, True)),
                (1, (0, 1, True), (0, 2, True)), (1, (0, 1, False), (1, 2, True))]),
        (2, 1, [(0, (rank // 4, 2, rank % 4 == 0), (rank, 8, True)) for rank in range(8)]),
    ],
)  # fmt: skip
def test_each_group_has_parts_of_its_own(pp: int, servers: int, expected: list[tuple[Any, ...]]) -> None:
    found = []
    for rank in range(4 * pp):
        parallel = types.SimpleNamespace(rank=rank, tensor_parallel_size=4, pipeline_parallel_size=pp)
        one = worker.rank_of(parallel, [(0, 0, 0, 0), (0, 1, 2, 3)], servers)
        found.append((one.server, *map(dataclasses.astuple, one.groups)))
    assert found == expected


def test_layers_of_a_collection_and_scratch_count_by_what_is_stored() -> None:
    layers = {"a": fakes.MLAAttentionSpec(16, 64, max_tp_shards=1), "b": fakes.MLAAttentionSpec(16, 32)}
    collection = fakes.UniformTypeKVCacheSpecs(layers)
    scratch = fakes.FullAttentionSpec(16, prefix_cacheable=False)
    for specs, expected in (([collection], (0, 1)), ([LATENT, scratch], (0, 0))):
        config = fakes.kv_config(*specs)
        assert geometry.shards(config, geometry.resolve(config), 2, 1) == (expected,)


@pytest.mark.parametrize(
    ("pp", "servers", "expected"),
    [
        # (server, part, parts there, stores)
        (1, 1, [(0, 0, 2, True), (0, 1, 2, True), (0, 0, 2, False), (0, 1, 2, False)]),
        (1, 2, [(0, 0, 2, True), (0, 1, 2, True), (1, 0, 2, True), (1, 1, 2, True)]),
        (1, 4, [(0, 0, 1, True), (1, 0, 1, True), (2, 0, 1, True), (3, 0, 1, True)]),
        (2, 1, [(0, 0, 4, True), (0, 1, 4, True), (0, 0, 4, False), (0, 1, 4, False)]
            + [(0, 2, 4, True), (0, 3, 4, True), (0, 2, 4, False), (0, 3, 4, False)]),
    ],
)  # fmt: skip
def test_the_lowest_rank_of_a_shard_stores_it(pp: int, servers: int, expected: list[tuple[int, ...]]) -> None:
    ranks = [rank_of(rank, 4, pp, (0, 1, 0, 1), servers) for rank in range(4 * pp)]
    assert [(r.server, *dataclasses.astuple(r.groups[0])) for r in ranks] == expected


def test_pipeline_stages_have_one_fingerprint_in_their_order() -> None:
    one, two = Stage(b"1" * 32, ((0, 0),)), Stage(b"2" * 32, ((0, 0),))
    assert combine([one]) == one.fingerprint
    assert len({combine([one, two]), combine([two, one]), one.fingerprint, two.fingerprint}) == 4
    assert combine([one, two]) == combine([Stage(b"1" * 32, ((0, 0),)), Stage(b"2" * 32, ((0, 0),))])
    with pytest.raises(LayoutRefused, match="stage 1 has refused"):
        combine([one, None])
    with pytest.raises(LayoutRefused, match=r"\[\(\(0, 0\),\), \(\(0, 1\),\)\]"):
        combine([one, Stage(b"2" * 32, ((0, 1),))])


def test_a_pipeline_stage_without_a_layer_of_some_group_is_refused() -> None:
    config = fakes.kv_config(fakes.FullAttentionSpec(), fakes.SlidingWindowSpec())
    config.kv_cache_groups[1].layer_names = []
    with pytest.raises(GeometryRefused, match="no layer of group 1"):
        geometry.resolve(config)


def tensor(offset: int, rows: int, row_bytes: int) -> Any:
    """A fake of a registered tensor in a storage of 4096 bytes."""
    storage = types.SimpleNamespace(data_ptr=lambda: 1 << 20, nbytes=lambda: 4096)
    return types.SimpleNamespace(
        device=types.SimpleNamespace(type="cpu"), shape=(rows,), untyped_storage=lambda: storage,
        data_ptr=lambda: (1 << 20) + offset, stride=lambda _: row_bytes, element_size=lambda: 1,
    )  # fmt: skip


def placed(tensors: list[Any], *declared: tuple[int, int]) -> layout.Layout:
    """8 blocks of two layers with pages of 64 bytes; `declared` has the byte and the stride of the first ones."""
    config = fakes.kv_config(fakes.FullAttentionSpec(16), num_blocks=8)
    names = config.kv_cache_groups[0].layer_names
    config.kv_cache_tensors = [
        types.SimpleNamespace(layers=[name], offset=offset, layer_stride=0, block_stride=stride)
        for name, (offset, stride) in zip(names, declared)
    ]
    return layout.place(dict(zip(names, tensors)), config, geometry.resolve(config))


def test_pages_lie_where_the_engine_declares_them_and_else_by_whole_rows() -> None:
    found = placed([tensor(0, 8, 64), tensor(1024, 32, 16)], (0, 128))
    assert found.regions == [(1 << 20, 4096)]
    assert found.groups == {0: [layout.Page(0, 0, 128, 64), layout.Page(0, 1024, 64, 64)]}
    assert found.kernel_blocks == {0: [16, 4]}
    # One layer between the pages of the other.
    placed([tensor(0, 8, 128), tensor(64, 8, 128)], (0, 128), (64, 128))


@pytest.mark.parametrize(
    ("second", "declared", "why"),
    [
        (tensor(1024, 8, 64), (1088, 64), r"layer layer\.0\.1 was declared at byte 1088 and registered at byte 1024"),
        (tensor(1024, 8, 64), (1024, 32), r"layer layer\.0\.1: a stride of 32 bytes is less than a page of 64"),
        (tensor(3648, 8, 64), (3648, 64), r"layer layer\.0\.1: 8 pages of 64 .* from byte 3648 do not fit region 0"),
        (tensor(32, 8, 128), (32, 128), r"layer layer\.0\.0 .* and layer layer\.0\.1 .* share bytes of region 0"),
        (tensor(1024, 33, 16), None, r"layer layer\.0\.1 has 33 pages for 8 blocks"),
    ],
)
def test_tensors_that_do_not_hold_their_pages_are_refused(
    second: Any, declared: tuple[int, int] | None, why: str
) -> None:
    with pytest.raises(LayoutRefused, match=f"KV cache group 0: {why}"):
        placed([tensor(0, 8, 128), second], (0, 128), *([] if declared is None else [declared]))
