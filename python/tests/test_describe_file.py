"""The description that a running engine writes: whole or not at all, and never in the engine's way."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace

import pytest

from kvasir.vllm import describe
from kvasir.vllm.settings import Settings


def test_a_description_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text("old")
    describe.write(str(path), {"device": "cpu", "groups": []})
    assert json.loads(path.read_text()) == {"device": "cpu", "groups": []}
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_description_that_cannot_be_written_leaves_the_older_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text("old")

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(RuntimeError):
        describe.write(str(path), {"device": Unprintable()})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError):
        describe.write(str(tmp_path / "missing" / "engine.json"), {})


def test_the_transfer_configuration_is_what_was_given() -> None:
    config = SimpleNamespace(
        kv_connector="KvasirConnector",
        kv_connector_module_path="kvasir.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"kvasir.socket": "/run/k.sock"},
        engine_id="made up",
        kv_port=14579,
    )
    found = describe._transfer(config)
    assert found is not None and "engine_id" not in found and "kv_port" not in found
    assert found["kv_connector_extra_config"] == {"kvasir.socket": "/run/k.sock"}
    assert describe._transfer(None) is None
    assert describe._transfer(SimpleNamespace(kv_connector=None)) is None


def test_a_size_may_be_text() -> None:
    socket = {"kvasir.socket": "/run/k.sock"}
    for value, size in ((1 << 20, 1 << 20), ("64MiB", 64 << 20), ("1.5GB", 1_500_000_000), ("4g", 4 << 30)):
        assert Settings.from_extra(socket | {"kvasir.credit_bytes": value}).credit_bytes == size
    for wrong in ("64X", "0", "", 0, 1.5, True, "8000000TiB"):
        with pytest.raises(ValueError, match="kvasir.credit_bytes"):
            Settings.from_extra(socket | {"kvasir.credit_bytes": wrong})


def test_the_setting_is_a_path_or_nothing() -> None:
    socket = {"kvasir.socket": "/run/k.sock"}
    assert Settings.from_extra(socket).describe_file is None
    assert Settings.from_extra(socket | {"kvasir.describe_file": "/tmp/e.json"}).describe_file == "/tmp/e.json"
    for wrong in ("", 7, True):
        with pytest.raises(ValueError, match="kvasir.describe_file"):
            Settings.from_extra(socket | {"kvasir.describe_file": wrong})
