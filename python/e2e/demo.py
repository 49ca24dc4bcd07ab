"""The main job, shown: a vLLM engine gets back from Kvasir what another engine process computed.

Per model, with at least five prompts of one length, one at a time:

    engine 1   cold               nothing is cached anywhere; the engine stores what it computes
               own_prefix_cache   the same prompt again at once: the engine's own cache serves it
               warm_same_engine   the engine's own cache reset, so Kvasir serves it
    engine 2   warm_new_engine    a new process that has only seen an unrelated prompt: Kvasir serves it

`own_prefix_cache` is the yardstick, and it is taken right after `cold`, when the engine still holds the very
bytes that it computed. Taken after a warm run it would reuse the blocks that Kvasir restored, and restored garbage
would compare equal to itself. The warm runs have to reach the yardstick's number of cached tokens and its tokens and log probabilities, bit for
bit. (`cold` is not the yardstick: some recurrent models round differently when the prompt is split otherwise.)

    python demo.py --kvasir BINARY [--model NAME | --all-models] [--json FILE]

Runs in the environment that holds vLLM and the `kvasir` package.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

import models
import process
import support
import weights

OUTPUT_TOKENS = 8
PHASES = ("cold", "warm_same_engine", "own_prefix_cache", "warm_new_engine")
WARM = ("warm_same_engine", "warm_new_engine")

# Numbers of the prompts that only warm an engine up. Each engine has its own, or the second engine would
# find the first one's in the cache and measure nothing new.
UNRELATED = (1_000_001, 1_000_002)


class DemoFailed(RuntimeError):
    """A run broke a promise of the demo."""


@dataclasses.dataclass
class Phase:
    """The runs of one phase, one entry per prompt."""

    name: str
    runs: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def wall_s(self) -> float:
        """Median over the prompts."""
        return statistics.median(run["wall_s"] for run in self.runs)

    @property
    def cached_tokens(self) -> int:
        """The same for every prompt, or the demo has failed."""
        counts = {run["cached_tokens"] for run in self.runs}
        if len(counts) != 1:
            raise DemoFailed(f"{self.name}: cached tokens differ among prompts: {sorted(counts)}")
        return counts.pop()

    def outputs(self) -> list[tuple[list[int], list[str]]]:
        """Tokens and log probabilities per prompt."""
        return [(run["token_ids"], run["logprobs"]) for run in self.runs]

    def report(self, prompt_tokens: int) -> dict[str, Any]:
        """The phase as it stands in the JSON file."""
        return {
            "name": self.name,
            "wall_s": self.wall_s,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_token_ids": [run["token_ids"] for run in self.runs],
        }


class Progress:
    """One line that says what happens now: overwritten on a terminal, appended elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._tty = sys.stderr.isatty()
        self._started = time.monotonic()

    def step(self, what: str) -> None:
        """Announces the next step."""
        self._done += 1
        elapsed = time.monotonic() - self._started
        text = f"[{self._done:>2}/{self._total}] {elapsed:5.1f} s  {what}"
        if self._tty:
            sys.stderr.write(f"\r\033[K{text}")
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Ends the line."""
        if self._tty:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def prompt(number: int, length: int) -> list[int]:
    """A reproducible prompt that shares no prefix with one of another number."""
    draw = random.Random(number)
    return [draw.randrange(5, models.VOCABULARY) for _ in range(length)]


def run_once(engine: process.Engine, tokens: list[int]) -> dict[str, Any]:
    """One prompt through the engine."""
    reply = engine.generate([tokens], OUTPUT_TOKENS)
    return reply["outputs"][0] | {"wall_s": reply["wall_s"]}


def steps(model: models.Model) -> int:
    """How often `examine` announces a step."""
    return 6 if model.refusal is None else 2


def run_model(
    model: models.Model,
    start_engine: Callable[[int], process.Engine],
    server: process.Server,
    progress: Progress,
) -> dict[str, Phase]:
    """All phases of one model against a running server. `start_engine(n)` starts the n-th engine process."""
    phases = {name: Phase(name) for name in PHASES}
    prompts = [prompt(number, model.prompt_tokens) for number in range(model.prompts)]

    progress.step(f"{model.name}: engine 1 starts")
    with process.running(start_engine(0)) as engine:
        if engine.prefix_cache != model.comparable:
            # Without one, it would be Kvasir that serves the yardstick.
            raise DemoFailed(
                f"the engine has its own prefix cache {'on' if engine.prefix_cache else 'off'}, against what is known of "
                "this model"
            )
        progress.step(f"{model.name}: cold and own prefix cache")
        run_once(engine, prompt(UNRELATED[0], model.prompt_tokens))
        server.settle()
        for tokens in prompts:
            phases["cold"].runs.append(run_once(engine, tokens))
            server.settle()
            phases["own_prefix_cache"].runs.append(run_once(engine, tokens))
            server.settle()
        progress.step(f"{model.name}: warm from Kvasir, same engine")
        for tokens in prompts:
            engine.reset_prefix_cache()
            phases["warm_same_engine"].runs.append(run_once(engine, tokens))
            server.settle()

    progress.step(f"{model.name}: engine 2 starts")
    with process.running(start_engine(1)) as engine:
        progress.step(f"{model.name}: warm from Kvasir, new engine")
        run_once(engine, prompt(UNRELATED[1], model.prompt_tokens))
        server.settle()
        for tokens in prompts:
            phases["warm_new_engine"].runs.append(run_once(engine, tokens))
            server.settle()
    return phases


def outputs_equal(phases: dict[str, Phase]) -> bool:
    """Whether both warm runs gave the yardstick's tokens and log probabilities, bit for bit."""
    expected = phases["own_prefix_cache"].outputs()
    return all(phases[name].outputs() == expected for name in WARM)


def report(model: models.Model, chunk_size: int, phases: dict[str, Phase]) -> dict[str, Any]:
    """The JSON document of one model."""
    return {
        "model": model.name,
        "chunk_size": chunk_size,
        "phases": [phases[name].report(model.prompt_tokens) for name in PHASES],
        "outputs_equal": outputs_equal(phases),
    }


def verdict(model: models.Model, document: dict[str, Any]) -> list[str]:
    """What is wrong with a result; nothing when it is as promised."""
    phases = {phase["name"]: phase for phase in document["phases"]}
    own = phases["own_prefix_cache"]["cached_tokens"]
    wrong = []
    if phases["cold"]["cached_tokens"] != 0:
        wrong.append(f"cold: {phases['cold']['cached_tokens']} tokens were cached already")
    if not model.comparable:
        # The engine has no cache of its own to compare with, but it is known what every whole block amounts to.
        assert model.block_size is not None
        own = (model.prompt_tokens - 1) // model.block_size * model.block_size
        for name in WARM:
            if phases[name]["cached_tokens"] != own:
                wrong.append(f"{name}: {phases[name]['cached_tokens']} cached tokens, all whole blocks are {own}")
        return wrong
    if own == 0:
        wrong.append("own_prefix_cache: the engine's own cache served nothing, so there is no yardstick")
    for name in WARM:
        if phases[name]["cached_tokens"] != own:
            wrong.append(f"{name}: {phases[name]['cached_tokens']} cached tokens, the engine's own cache has {own}")
    if not document["outputs_equal"]:
        wrong.append("tokens or log probabilities differ from the engine's own prefix cache")
    return wrong


def print_table(document: dict[str, Any]) -> None:
    """The phases of one model for people."""
    own = next(phase["wall_s"] for phase in document["phases"] if phase["name"] == "own_prefix_cache")
    print(f"\n{document['model']}, chunk of {document['chunk_size']} tokens, median of "
          f"{len(document['phases'][0]['output_token_ids'])} prompts")
    print(f"  {'phase':<18} {'wall':>10} {'vs own':>8} {'prompt':>8} {'cached':>8}")
    for phase in document["phases"]:
        print(
            f"  {phase['name']:<18} {phase['wall_s'] * 1e3:>7.1f} ms {phase['wall_s'] / own:>7.2f}x "
            f"{phase['prompt_tokens']:>8} {phase['cached_tokens']:>8}"
        )
    print(f"  outputs equal (tokens and log probabilities, bit for bit): {document['outputs_equal']}")


def demonstrate(
    model: models.Model, options: argparse.Namespace, place: pathlib.Path, progress: Progress
) -> dict[str, Any]:
    """One model on a server of its own; returns its document."""
    directory = weights.ensure(model, options.cache)
    server = process.Server(
        options.kvasir, place / "kvasir.sock", place / "server.log", "--pool-size", options.pool_size
    )
    with process.running(server):
        config = {
            "model": str(directory),
            "settings": model.engine_settings,
            "connector": process.connector_config(server.socket_path),
        }

        def start_engine(number: int) -> process.Engine:
            return process.Engine.fresh(config, place / f"engine-{number + 1}.log")

        phases = run_model(model, start_engine, server, progress)
        return report(model, server.chunk_size(), phases)


def refusal_of(start_engine: Callable[[], process.Engine], model: models.Model) -> str:
    """The engine's own message when it is asked to start and run the model; empty if it does both."""
    try:
        with process.running(start_engine()) as engine:
            run_once(engine, prompt(0, model.prompt_tokens))
    except process.EngineError as error:
        return error.reason
    return ""


def judge_refusal(model: models.Model, reason: str) -> support.Row:
    """Whether the engine refuses a model as expected."""
    assert model.refusal is not None
    if not reason:
        return support.Row(model, wrong=["the engine runs this model now: give it a row that says how"])
    if not any(expected in reason for expected in (model.refusal, *model.refusals_elsewhere)):
        return support.Row(model, wrong=[f"the engine refuses for another reason than {model.refusal!r}: {reason}"])
    return support.Row(model, refusal=reason)


def examine(
    model: models.Model, options: argparse.Namespace, work: pathlib.Path, progress: Progress
) -> support.Row:
    """Everything about one model."""
    place = work / model.name
    place.mkdir()
    try:
        progress.step(f"{model.name}: weights")
        if model.refusal is None:
            document = demonstrate(model, options, place, progress)
            return support.Row(model, document, verdict(model, document))
        config = {
            "model": str(weights.ensure(model, options.cache)),
            "settings": model.engine_settings,
            "connector": None,
        }
        progress.step(f"{model.name}: an engine that is expected to refuse")
        # In one process: of another, only that it died would arrive here.
        reason = refusal_of(lambda: process.Engine.fresh(config, place / "engine.log", in_process=True), model)
        return judge_refusal(model, reason)
    except (process.HarnessError, DemoFailed) as error:
        print(f"\n{error}", file=sys.stderr)
        return support.Row(model, wrong=[str(error).splitlines()[0]])
    finally:
        progress.end()


def run_one(options: argparse.Namespace, work: pathlib.Path) -> int:
    """The demo of one model."""
    model = models.find(options.model)
    row = examine(model, options, work, Progress(steps(model)))
    if row.document is not None:
        print_table(row.document)
    elif row.refusal:
        print(f"{model.architecture}: {row.state}, as expected: {row.refusal}")
    if options.json:
        write_json(options.json, row.document or row.report())
        print(f"  written: {options.json}")
    for line in row.wrong:
        print(f"  FAILED: {line}")
    return 1 if row.wrong else 0


def run_all(options: argparse.Namespace, work: pathlib.Path) -> int:
    """Every model; prints the support table."""
    rows: list[support.Row] = []
    progress = Progress(sum(map(steps, models.MODELS.values())))
    print(support.head(), flush=True)
    for model in models.MODELS.values():
        rows.append(examine(model, options, work, progress))
        print(rows[-1].markdown(), flush=True)
        if options.json:
            # After every model: the run takes long, and what it has found is worth having.
            write_json(options.json, [row.report() for row in rows])
    kept = sum(not row.wrong for row in rows)
    print(f"\n{kept} of {len(rows)} models as promised")
    return 0 if kept == len(rows) else 1


def write_json(path: pathlib.Path, document: Any) -> None:
    """A document, in the shape that people and programs read."""
    path.write_text(json.dumps(document, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvasir", type=pathlib.Path, required=True, help="the kvasir binary")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", default="qwen3", help="one of: " + ", ".join(models.MODELS))
    which.add_argument("--all-models", action="store_true", help="every model; prints a support table")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file")
    parser.add_argument("--cache", type=pathlib.Path, required=True, help="directory that keeps weights")
    parser.add_argument("--pool-size", default="1GiB", help="pool of the temporary server")
    parser.add_argument("--keep-logs", type=pathlib.Path, help="leave all logs in this new directory")
    return parser.parse_args()


def main() -> int:
    """Entry point; see the head of the file."""
    options = arguments()
    # Ended from outside: unwind, which ends server and engines and removes the temporary directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory(prefix="kvasir-demo-") as temporary:
        work = options.keep_logs or pathlib.Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        return run_all(options, work) if options.all_models else run_one(options, work)


if __name__ == "__main__":
    sys.exit(main())
