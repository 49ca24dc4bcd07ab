"""What a request says of itself: that tokens do not describe it, what it wants of the cache, and what else is in its keys."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import pytest

from fakes import objects
from kvasir.vllm.scheduler import Scheduled
from test_connector_scheduler import TABLE, Engine, hit, request
from test_native import eventually


@pytest.mark.parametrize("fields", [{"prompt_embeds": object()}, {"resumable": True}, {"prompt_token_ids": None}])
def test_requests_that_tokens_do_not_describe_bypass_the_cache(fields: dict[str, Any]) -> None:
    engine, one = Engine(), request(**fields)
    engine.answer(hit(160))
    assert engine.role.matched(one, 0) == (0, False)
    assert engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE}).stores is None
    assert not engine.client.asked


def test_per_request_switches() -> None:
    engine = Engine()
    engine.answer(hit(64))
    assert engine.role.matched(request(kv_transfer_params={"no_load": True}), 0) == (0, False)
    stores = engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE}).stores
    assert stores is not None and len(objects(stores.runs)) == 2
    engine = Engine()
    engine.answer(hit(64))
    assert engine.role.matched(request(kv_transfer_params={"no_store": True}), 0) == (64, False)
    assert engine.plan(Scheduled("r", 64, 170, True), tables={"r": TABLE}).stores is None
    engine = Engine()
    engine.answer(hit(64))
    given = {"no_store": False, "no_load": None, "of another connector": "true"}
    assert engine.role.matched(request(kv_transfer_params=given), 0) == (64, False)
    assert engine.plan(Scheduled("r", 64, 170, True), tables={"r": TABLE}).stores is not None


@pytest.mark.parametrize("value", ["false", "true", "", 0, 1, [], [True]])
@pytest.mark.parametrize("switch", ["no_load", "no_store"])
def test_a_switch_that_is_neither_true_nor_false_is_not_given_and_said_once(
    switch: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    for name in ("first", "second"):
        one = request(name=name, kv_transfer_params={switch: value})
        for _ in range(2):
            engine.answer(hit(64))
            assert engine.role.matched(one, 0) == (64, False)
        stores = engine.plan(Scheduled(name, 64, 170, True), tables={name: TABLE}).stores
        assert stores is not None and objects(stores.runs)
    said = [record for record in caplog.records if switch in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert f"request first has kv_transfer_params with {switch} as {value!r}" in said[0].getMessage()


@pytest.mark.parametrize("params", ["no_store", ["no_store"], 1])
def test_params_that_are_no_mapping_are_not_given(params: Any) -> None:
    engine = Engine()
    engine.answer(hit(64))
    assert engine.role.matched(request(kv_transfer_params=params), 0) == (64, False)
    assert engine.plan(Scheduled("r", 64, 170, True), tables={"r": TABLE}).stores is not None


def test_extra_keys_separate_requests(tmp_path: pathlib.Path) -> None:
    class Position:
        offset, length = 3, 5

    class Feature:
        identifier, mm_position = "image", Position

    (tmp_path / "adapter_model.safetensors").write_bytes(b"a")

    class Lora:
        lora_name, lora_int_id, lora_path = "a", 1, str(tmp_path)

    engine = Engine(cache_dir=str(tmp_path / "digests"))
    keys = set()
    for number, fields in enumerate([{}, {"cache_salt": "s"}, {"lora_request": Lora}, {"mm_features": [Feature]}]):
        one = request(name=str(number), **fields)
        eventually("a chain", lambda: engine.role.matched(one, 0) and engine.role._states[str(number)].chain)
        chain = engine.role._states[str(number)].chain
        assert chain is not None
        keys.add(chain.chunk_key(1))
    assert len(keys) == 4


def test_media_that_the_engine_counts_bypass_the_cache() -> None:
    """What is called first in one engine is another picture than what is called first in the next."""

    class Position:
        offset, length = 3, 5

    class Feature:
        identifier, mm_position = "renderer0-mm-1-image-0", Position

    engine = Engine()
    engine.role._counts_media = True
    engine.answer(hit(160))
    assert engine.role.matched(request(mm_features=[Feature]), 0) == (0, False)
    assert engine.plan(Scheduled("r", 0, 170, True), tables={"r": TABLE}).stores is None
    assert not engine.client.asked
    assert engine.role.matched(request(name="text"), 0) == (160, False)
