"""The support table, without engines: what a row says, and that the one in the documentation says it of these models."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

import demo
import model
import models
import models_attention
import support

from test_demo import MODEL, sound

PAGE = pathlib.Path(__file__).parents[2] / "docs/vllm.md"
# The table was printed on such a machine.
AMX = True
ROWS = models.rows(AMX)
# Their groups have blocks as long as was asked for. Others' are the engine's choice.
PLAIN = {one.name for one in models_attention.attention_models(AMX)}


def test_a_row_says_what_was_found() -> None:
    document = demo.report(MODEL, 256, sound())
    row = support.Row(MODEL, document, demo.verdict(MODEL, document))
    assert row.state == support.EQUAL
    assert cells_of(row.markdown())[4:] == ["`--block-size 32`", "4000", "256", "3968", "3968", "equal"]
    assert row.report()["result"] == document
    broken = support.Row(MODEL, document, ["other output"])
    assert "FAILED: other output" in broken.markdown()
    hits = dataclasses.replace(MODEL, comparable=False, note="as the engine is")
    assert "| - | 3968 | hits only: as the engine is |" in support.Row(hits, document).markdown()


def test_the_flags_are_what_the_engine_is_given() -> None:
    common = {"max_model_len": model.MAX_MODEL_LEN, "max_num_batched_tokens": model.STEP_TOKENS, "dtype": model.DTYPE}
    for one in ROWS:
        words = one.flags.split()
        flags = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2])}
        given = {name: str(value) for name, value in (common | one.engine_settings).items()}
        # How many blocks there are follows from the prompts; dummy weights are for those that never compute.
        without = {"num_gpu_blocks_override", "load_format"}
        assert {name: value for name, value in given.items() if name not in without} == (
            {name: str(value) for name, value in common.items()} | flags
        )


def cells_of(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def documented() -> list[list[str]]:
    """The rows of the table in the documentation."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(support.head().splitlines()[0])
    assert lines[first + 1] == support.head().splitlines()[1]
    after = [line.startswith("|") for line in lines[first:]].index(False)
    return [cells_of(line) for line in lines[first + 2 : first + after]]


def contradictions(one: models.Model, cells: list[str]) -> list[str]:
    """Everything in a row that a run of the demo with this model would not have printed."""
    if len(cells) != len(support.COLUMNS):
        return [f"{len(cells)} cells instead of {len(support.COLUMNS)}"]
    about = support.about(one)
    wrong = [f"{cell!r} instead of {want!r}" for cell, want in zip(cells, about) if cell != want]
    (prompt, chunk, own, hit), state = cells[len(about) : -1], cells[-1]
    row = support.Row(one)
    if one.refusal is not None:
        if {prompt, chunk, own, hit} != {"-"}:
            wrong.append("numbers of a model that the engine refuses")
        if not state.startswith(f"{support.REFUSED}: ") or one.refusal not in state:
            wrong.append(f"{state!r} without {one.refusal!r}")
        return wrong
    if state != (f"{row.state}: {one.note}" if one.note else row.state):
        wrong.append(f"{state!r} instead of {row.state!r} and {one.note!r}")
    if prompt != str(one.prompt_tokens):
        wrong.append(f"a prompt of {prompt} tokens instead of {one.prompt_tokens}")
    if own != (hit if one.comparable else "-"):
        wrong.append(f"an own hit of {own} beside one of {hit}")
    if not (chunk.isdecimal() and hit.isdecimal() and 0 < int(hit) < one.prompt_tokens):
        return [*wrong, f"a hit of {hit} tokens in chunks of {chunk}"]
    if one.name in PLAIN:
        assert one.block_size is not None
        whole = (one.prompt_tokens - 1) // one.block_size * one.block_size
        if int(hit) != whole or int(chunk) % one.block_size:
            wrong.append(f"a hit of {hit} tokens in chunks of {chunk}, all whole blocks are {whole}")
    return wrong


def test_the_documentation_has_these_rows_and_no_others() -> None:
    rows = documented()
    assert [cells[1] for cells in rows] == [f"`{one.name}`" for one in ROWS]
    wrong = {one.name: contradictions(one, cells) for one, cells in zip(ROWS, rows, strict=True)}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_the_documentation_says_what_all_rows_have_in_common() -> None:
    flags = f"--max-model-len {model.MAX_MODEL_LEN} --max-num-batched-tokens {model.STEP_TOKENS} --dtype {model.DTYPE}"
    assert f"`{flags}`" in PAGE.read_text()
    prompts = {one.prompts for one in ROWS}
    assert prompts == {5} and "go through the phases of the demo with 5 prompts" in PAGE.read_text()


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "falcon-h1", "deepseek-v2-no-amx", "jamba"])
def test_every_cell_of_a_row_counts(name: str) -> None:
    (one,) = [row for row in ROWS if row.name == name]
    (cells,) = [row for row in documented() if row[1] == f"`{name}`"]
    assert contradictions(one, cells) == []
    for at, column in enumerate(support.COLUMNS):
        if column == "chunk" and one.refusal is None and name not in PLAIN:
            continue  # the engine's choice
        changed = "7" if cells[at].isdecimal() else f"{cells[at][:5]} other"
        assert contradictions(one, [*cells[:at], changed, *cells[at + 1 :]]), column
