"""The demo's own judgement, without engines: every promise that can be broken is noticed."""

from __future__ import annotations

import copy
import dataclasses

import pytest

import demo
import models
import process
import support
import weights

MODEL = dataclasses.replace(models.find("qwen3"), prompts=2)


def run_of(cached: int, token: int = 1, logprob: float = -0.5, wall_s: float = 0.1) -> dict:
    return {
        "token_ids": [token, 2],
        "logprobs": [logprob.hex(), (-1.0).hex()],
        "cached_tokens": cached,
        "finish_reason": "length",
        "wall_s": wall_s,
    }


def sound() -> dict[str, demo.Phase]:
    cached = {"cold": 0}
    return {name: demo.Phase(name, [run_of(cached.get(name, 3968)) for _ in range(2)]) for name in demo.PHASES}


def verdict(phases: dict[str, demo.Phase], model: models.Model = MODEL) -> list[str]:
    return demo.verdict(model, demo.report(model, 256, phases))


def test_the_document_has_exactly_the_promised_shape() -> None:
    document = demo.report(MODEL, 256, sound())
    assert list(document) == ["model", "chunk_size", "phases", "outputs_equal"]
    assert [phase["name"] for phase in document["phases"]] == list(demo.PHASES)
    for phase in document["phases"]:
        assert list(phase) == ["name", "wall_s", "prompt_tokens", "cached_tokens", "output_token_ids"]
    assert document["outputs_equal"] is True
    assert document["phases"][0]["output_token_ids"] == [[1, 2], [1, 2]]
    assert verdict(sound()) == []


def test_one_bit_of_one_log_probability_counts() -> None:
    for name in demo.WARM:
        phases = sound()
        phases[name].runs[1] = run_of(3968, logprob=-0.5000000000000001)
        assert verdict(phases) == ["tokens or log probabilities differ from the engine's own prefix cache"]


def test_another_token_counts() -> None:
    phases = sound()
    phases["warm_new_engine"].runs[0] = run_of(3968, token=9)
    assert len(verdict(phases)) == 1


def test_cold_output_is_not_the_yardstick() -> None:
    phases = sound()
    phases["cold"].runs[0] = run_of(0, token=9)
    assert verdict(phases) == []


def test_a_shorter_hit_than_the_engine_s_own_fails() -> None:
    phases = sound()
    phases["warm_same_engine"].runs = [run_of(3840), run_of(3840)]
    assert verdict(phases) == ["warm_same_engine: 3840 cached tokens, the engine's own cache has 3968"]


def test_a_cold_run_that_hits_fails() -> None:
    phases = sound()
    phases["cold"].runs = [run_of(32), run_of(32)]
    assert verdict(phases) == ["cold: 32 tokens were cached already"]


def test_prompts_of_a_phase_must_agree() -> None:
    phases = sound()
    phases["warm_new_engine"].runs[1] = run_of(3936)
    with pytest.raises(demo.DemoFailed, match=r"warm_new_engine: .*\[3936, 3968\]"):
        demo.report(MODEL, 256, phases)


def test_without_a_yardstick_there_is_no_success() -> None:
    phases = {name: demo.Phase(name, [run_of(0)] * 2) for name in demo.PHASES}
    assert any("no yardstick" in line for line in verdict(phases))


def test_models_without_comparable_output_still_have_to_hit() -> None:
    model = dataclasses.replace(MODEL, comparable=False)
    phases = sound()
    phases["own_prefix_cache"].runs = [run_of(0), run_of(0)]
    phases["warm_new_engine"].runs = [run_of(3968, token=9)] * 2
    assert verdict(phases, model) == []
    phases["warm_new_engine"].runs = [run_of(0)] * 2
    assert len(verdict(phases, model)) == 1


def test_the_median_is_reported() -> None:
    phase = demo.Phase("cold", [run_of(0, wall_s=seconds) for seconds in (9.0, 1.0, 2.0)])
    assert phase.report(4000)["wall_s"] == 2.0


def test_prompts_share_no_prefix() -> None:
    numbers = [*range(10), *demo.UNRELATED]
    prompts = [demo.prompt(number, 64) for number in numbers]
    assert prompts == [demo.prompt(number, 64) for number in numbers], "not reproducible"
    firsts = {tuple(tokens[:16]) for tokens in prompts}
    assert len(firsts) == len(numbers)


def test_weights_are_named_after_all_that_decides_them(tmp_path) -> None:
    names = {weights.model_dir(model, tmp_path) for model in models.MODELS.values()}
    assert len(names) == len(models.MODELS)
    changed = copy.deepcopy(models.find("qwen3"))
    changed.config["num_hidden_layers"] = 5
    assert weights.model_dir(changed, tmp_path) not in names
    assert weights.model_dir(dataclasses.replace(MODEL, gain=1.0), tmp_path) not in names


REFUSED = models.find("jamba")


def test_a_refusal_has_to_be_the_expected_one() -> None:
    row = demo.judge_refusal(REFUSED, f"generate: {REFUSED.refusal} (expected another)")
    assert (row.state, row.wrong) == (support.REFUSED, [])
    assert REFUSED.refusal in row.markdown()
    row = demo.judge_refusal(REFUSED, f"generate: {REFUSED.refusals_elsewhere[0]}")
    assert (row.state, row.wrong) == (support.REFUSED, [])
    row = demo.judge_refusal(REFUSED, "MemoryError")
    assert row.state == support.FAILED and "MemoryError" in row.reason


def test_a_refusal_that_does_not_come_is_noticed() -> None:
    row = demo.judge_refusal(REFUSED, "")
    assert row.state == support.FAILED and "runs this model now" in row.markdown()


def test_the_engine_s_reason_is_one_line() -> None:
    answer = "the engine did not start: ValidationError: 1 error for Config\n  Value error, bad [type=value_error, x=1]"
    error = process.EngineError(answer, "\n--- end of log\n...")
    assert error.reason == "the engine did not start: ValidationError: 1 error for Config Value error, bad"
