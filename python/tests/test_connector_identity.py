"""Which engines may share bytes."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

from kvasir.vllm import identity


def config(model: pathlib.Path | str, load_format: str = "auto", engine: str = "e", **fields: Any) -> Any:
    hf_config = types.SimpleNamespace(
        architectures=["Tiny"], _commit_hash=fields.pop("commit", None), **fields.pop("hf", {})
    )
    model_config = types.SimpleNamespace(
        model=str(model), dtype="torch.bfloat16", quantization=None, hf_overrides={}, hf_config=hf_config
    )
    model_config.__dict__.update(fields)
    return types.SimpleNamespace(
        model_config=model_config,
        load_config=types.SimpleNamespace(load_format=load_format),
        kv_transfer_config=types.SimpleNamespace(engine_id=engine),
        cache_config=types.SimpleNamespace(cache_dtype="auto"),
    )


def weights(directory: pathlib.Path, content: bytes = b"w") -> pathlib.Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(content)
    return directory


def test_the_same_files_elsewhere_are_the_same_model(tmp_path: pathlib.Path) -> None:
    one, other = config(weights(tmp_path / "a")), config(weights(tmp_path / "b"))
    assert identity.model_name(one.model_config) == identity.model_name(other.model_config)
    assert identity.weights_id(one, None) == identity.weights_id(other, None)
    changed = config(weights(tmp_path / "c", b"v"))
    assert identity.weights_id(changed, None) != identity.weights_id(one, None)


def test_flags_that_change_values_count(tmp_path: pathlib.Path) -> None:
    place = weights(tmp_path / "a")
    base = config(place)
    for fields in ({"dtype": "torch.float16"}, {"quantization": "fp8"}, {"hf_overrides": {"rope_theta": 2}}):
        other = config(place, **fields)
        assert identity.model_name(other.model_config) != identity.model_name(base.model_config)
        assert identity.weights_id(other, None) != identity.weights_id(base, None)


def test_whatever_an_engine_loads_counts(tmp_path: pathlib.Path) -> None:
    """Siblings of weights: other formats, shards in subdirectories, quantization, code, draft models."""
    seen = set()

    def differs(one: Any) -> None:
        found = identity.weights_id(one, None)
        assert found not in seen
        seen.add(found)

    place = weights(tmp_path / "a")
    differs(config(place))
    for number, (name, content) in enumerate(
        (("pytorch_model.bin", b"b"), ("hf_quant_config.json", b"{}"), ("modeling_own.py", b""), ("encoder/w.pt", b"e"),
         ("model.safetensors.index.json", b"{}"), ("params.json", b"{}"))
    ):  # fmt: skip
        other = weights(tmp_path / str(number))
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_bytes(content)
        differs(config(other))
    for fields in ({"disable_sliding_window": True}, {"quantization_config": {"linear": "fp8"}}, {"config_format": "mistral"}):
        differs(config(place, **fields))
    differs(config(place, load_format="pt"))
    sharded = config(place, load_format="sharded_state")
    differs(sharded)
    sharded.load_config.model_loader_extra_config = {"pattern": "rank-{rank}.safetensors"}
    differs(sharded)
    fast = config(place)
    fast.load_config.model_loader_extra_config = {"enable_multithread_load": True, "num_threads": 4}
    assert identity.weights_id(fast, None) == identity.weights_id(config(place), None)
    for content in (b"1", b"2"):
        drafted = config(place)
        draft = weights(tmp_path / f"draft-{content.decode()}", content)
        drafted.speculative_config = types.SimpleNamespace(draft_model_config=config(draft).model_config)
        differs(drafted)
    multi = config(place)
    multi.speculative_config = types.SimpleNamespace(draft_model_config=config(place).model_config)
    assert identity.weights_id(multi, None) == identity.weights_id(config(place), None)


def test_a_model_in_one_file_goes_by_its_content(tmp_path: pathlib.Path) -> None:
    for name, content in (("a.gguf", b"1"), ("b.gguf", b"1"), ("c.gguf", b"2")):
        (tmp_path / name).write_bytes(content)
    one, same, other = (config(tmp_path / name) for name in ("a.gguf", "b.gguf", "c.gguf"))
    assert identity.weights_id(one, None) == identity.weights_id(same, None) != identity.weights_id(other, None)
    assert identity.model_name(one.model_config) == identity.model_name(same.model_config)


@pytest.mark.parametrize("load_format", ["tensorizer", "ipc_cache", "modelexpress", "own_plugin"])
def test_weights_from_elsewhere_need_a_name(tmp_path: pathlib.Path, load_format: str) -> None:
    for one in (config(weights(tmp_path / "a"), load_format), config("acme/tiny", load_format, commit="abc")):
        with pytest.raises(OSError, match=r"kvasir\.weights_id"):
            identity.weights_id(one, None)
        assert identity.weights_id(one, "mine") == b"mine"
    streamed = config(tmp_path / "a", model_weights="s3://bucket/model")
    with pytest.raises(OSError, match="s3://bucket/model"):
        identity.weights_id(streamed, None)


def test_the_outline_is_the_same_for_equal_weights_and_reads_nothing(tmp_path: pathlib.Path) -> None:
    one, same, other = (
        config(weights(tmp_path / name, content)) for name, content in (("a", b"1"), ("b", b"2"), ("c", b"333"))
    )
    outlines = [identity.weights_outline(each, None) for each in (one, same, other)]
    assert outlines[0] == outlines[1] != outlines[2]
    hub = config("acme/tiny", commit="abc")
    assert identity.weights_outline(hub, None) == identity.weights_id(hub, None)


def test_hub_models_go_by_their_commit_and_need_one() -> None:
    assert identity.weights_id(config("acme/tiny", commit="abc"), None) == b"acme/tiny@abc"
    with pytest.raises(OSError, match=r"kvasir\.weights_id"):
        identity.weights_id(config("acme/tiny"), None)
    assert identity.weights_id(config("acme/tiny"), "mine") == b"mine"


def test_dummy_weights_belong_to_their_engine_alone() -> None:
    one, other = config("acme/tiny", "dummy"), config("acme/tiny", "dummy", engine="f")
    assert identity.weights_id(one, None) != identity.weights_id(other, None)
    assert identity.weights_id(one, None) == identity.weights_id(config("acme/tiny", "dummy"), None)
    assert len(identity.engine_instance(one)) == 16


def test_auto_is_the_models_own_type() -> None:
    assert identity.kv_dtype(config("acme/tiny")) == "bfloat16"


LONG_ROPE = {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}


@pytest.mark.parametrize(
    "hf",
    [
        LONG_ROPE,
        {"rope_scaling": {"type": "dynamic", "factor": 2}},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}},
        {"text_config": LONG_ROPE},
    ],
)
def test_the_longest_context_counts_where_it_can_turn_keys(tmp_path: pathlib.Path, hf: dict[str, Any]) -> None:
    for model, given in ((weights(tmp_path / "a"), {}), ("acme/tiny", {"commit": "abc"})):
        short, long = (config(model, hf=hf, max_model_len=length, **given) for length in (4096, 8192))
        assert identity.model_name(short.model_config) != identity.model_name(long.model_config)
        again = config(model, hf=hf, max_model_len=4096, **given)
        assert identity.model_name(short.model_config) == identity.model_name(again.model_config)
    short, long = (config(tmp_path / "a", hf=hf, max_model_len=length) for length in (4096, 8192))
    assert identity.weights_id(short, None) != identity.weights_id(long, None)


def test_the_trained_context_counts() -> None:
    names = {
        identity.model_name(config("acme/tiny", hf=hf, max_model_len=4096).model_config)
        for hf in (
            LONG_ROPE,
            {"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 2048},
            {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 2048}},
        )
    }
    assert len(names) == 2, names


def test_a_plain_rotation_or_a_fitted_length_is_shared() -> None:
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    one, other = (config("acme/tiny", hf=plain, max_model_len=length).model_config for length in (4096, 8192))
    assert identity.model_name(one) == identity.model_name(other)
    fitted = [
        config("acme/tiny", hf=LONG_ROPE, max_model_len=length, original_max_model_len=-1).model_config
        for length in (9000, 8000)
    ]
    assert identity.model_name(fitted[0]) == identity.model_name(fitted[1])


def test_a_configuration_from_elsewhere_counts_by_its_content(tmp_path: pathlib.Path) -> None:
    place = weights(tmp_path / "a")
    base = config(place, hf={"rope_theta": 1, "_name_or_path": "here"})
    same, moved, changed = (
        config(place, hf={"rope_theta": theta, "_name_or_path": path}, hf_config_path=path)
        for theta, path in ((1, "acme/config"), (1, "acme/copy"), (2, "acme/config"))
    )
    assert identity.model_name(same.model_config) == identity.model_name(moved.model_config)
    for one, other in ((base, same), (same, changed)):
        assert identity.model_name(one.model_config) != identity.model_name(other.model_config)
        assert identity.weights_id(one, None) != identity.weights_id(other, None)


def test_the_commit_of_another_repository_says_nothing_about_the_weights() -> None:
    with pytest.raises(OSError, match=r"kvasir\.weights_id"):
        identity.weights_id(config("acme/tiny", commit="abc", hf_config_path="acme/config"), None)
    pinned = config("acme/tiny", commit="abc", hf_config_path="acme/config", revision="0" * 40)
    assert identity.weights_id(pinned, None) == b"acme/tiny@" + b"0" * 40
    beside = config("acme/tiny", commit="abc", hf_config_path="acme/tiny")
    assert identity.weights_id(beside, None) == b"acme/tiny@abc"


def test_ranks_that_share_other_groups_are_of_another_shape() -> None:
    parallel = types.SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1, decode_context_parallel_size=1)
    own, same = (0, 1), (0, 0)

    def shape(*shards: tuple[int, ...]) -> str:
        return identity.parallel_shape(parallel, (), shards)

    # One number per rank says it where all groups agree, and none where nothing is shared.
    assert shape(own) == shape(own, own) == identity.parallel_shape(parallel)
    assert shape(same) == shape(same, same) and shape(same).endswith(",shards=0.0")
    assert shape(same, own).endswith(",shards=0.0/0.1") and shape(own, same).endswith(",shards=0.1/0.0")
