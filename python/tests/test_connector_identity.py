"""Which engines may share bytes."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

from kvasir.vllm import identity


def config(model: pathlib.Path | str, load_format: str = "auto", engine: str = "e", **fields: Any) -> Any:
    hf_config = types.SimpleNamespace(architectures=["Tiny"], _commit_hash=fields.pop("commit", None))
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
