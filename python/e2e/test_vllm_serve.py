"""The README's commands, as they stand there: `vllm serve` with what `kvasir vllm-args` prints, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Iterator

import demo
import models
import process
import tokens
import weights

from conftest import Bench

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
MODEL = models.find("qwen3")
PROMPT_TOKENS = 500
BLOCK = 32
# Beside the README's: a tiny engine, and the engine's own word on what was cached.
FLAGS = (
    f"--host 127.0.0.1 --dtype {MODEL.dtype} --max-model-len 1024 --max-num-seqs 4 --block-size {BLOCK} --enforce-eager "
    "--enable-prompt-tokens-details --served-model-name tiny"
)


def command_of_the_readme() -> str:
    """The line of the README that starts the engine."""
    (line,) = (line for line in README.read_text().splitlines() if line.startswith("vllm serve MODEL"))
    return line


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Serving:
    """A `vllm serve` process."""

    def __init__(self, port: int, child: subprocess.Popen, log: pathlib.Path) -> None:
        self._port, self._child, self._log = port, child, log

    def ask(self, path: str, body: dict | None = None) -> str:
        """A request over HTTP; POST if it has a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=process.ORDER_S) as answer:
            return answer.read().decode()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + process.START_S
        while time.monotonic() < deadline:
            if self._child.poll() is not None:
                raise AssertionError(f"vllm serve: exit status {self._child.returncode}\n{self._log.read_text()[-4000:]}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                self.ask("/health")
                return
            time.sleep(0.5)
        raise AssertionError(f"vllm serve is not ready\n{self._log.read_text()[-4000:]}")

    def complete(self, prompt: list[int]) -> dict:
        return json.loads(
            self.ask(
                "/v1/completions",
                {"model": "tiny", "prompt": tokens.text(prompt), "max_tokens": 8, "temperature": 0, "ignore_eos": True},
            )
        )

    def metric(self, name: str) -> float:
        """A counter, summed over its labels."""
        lines = [line for line in self.ask("/metrics").splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert lines, f"no {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@contextlib.contextmanager
def serving(bench: Bench, model: pathlib.Path, server: process.Server) -> Iterator[Serving]:
    port, log = free_port(), bench.place / "vllm-serve.log"
    places = [bench.binary.parent, pathlib.Path(sys.executable).parent, os.environ["PATH"]]
    environment = process.engine_environment(in_process=False) | {
        "PATH": os.pathsep.join(map(str, places)),
        "KVASIR_SOCKET": str(server.socket_path),
        # For the request that empties the engine's own prefix cache.
        "VLLM_SERVER_DEV_MODE": "1",
    }
    command = command_of_the_readme().replace("MODEL", str(model), 1) + f" {FLAGS} --port {port}"
    with log.open("ab") as output:
        child = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        found = Serving(port, child, log)
        found.wait_ready()
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(process.STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_the_commands_of_the_readme_serve_hits_over_http(bench: Bench) -> None:
    server = bench.server()
    model = tokens.ensure(weights.ensure(MODEL, bench.cache), bench.place / "tiny")
    prompt = demo.prompt(1, PROMPT_TOKENS)
    with serving(bench, model, server) as engine:
        cold = engine.complete(prompt)
        assert cold["usage"]["prompt_tokens"] == PROMPT_TOKENS
        assert engine.metric("vllm:external_prefix_cache_hits_total") == 0
        server.settle()
        engine.ask("/reset_prefix_cache", {})
        warm = engine.complete(prompt)
        cached = (PROMPT_TOKENS - 1) // BLOCK * BLOCK
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        assert engine.metric("vllm:external_prefix_cache_hits_total") == cached
        loads, failed = server.reported("loads", "failed_loads")
        assert loads > 0 and failed == 0
