"""One vLLM engine as a process that takes orders over a socket.

The driver (`process.py`) owns the other end. A message is one JSON object on one line, in both directions.
A new engine process says {"pid": n}, so that it can be ended whatever happens next. The first message from the
driver configures the engine; the reply says that it is ready: {"start_s": s, "prefix_cache": bool}. Then:

    {"op": "generate", "prompts": [[token, ...], ...], "max_tokens": n}   with "lora": arguments of LoRARequest
        -> {"outputs": [{"token_ids", "logprobs", "cached_tokens", "finish_reason"}, ...], "wall_s": s}
    {"op": "reset_prefix_cache", "connector": bool}  -> {"attempts": n}
    {"op": "step_order", "order": name, ...}         -> see steps.py; only engines in one process
    {"op": "shutdown"}                               -> {"stopped": true}

Log probabilities travel as hexadecimal floats, so that equal text means equal bits. A failed order is
answered with {"error": text}.

    engine.py --fd N          one engine; the descriptor is the socket
    engine.py --listen FD     a nursery: imports the engine once and forks one engine process for every
                              connection accepted on the descriptor. Imports take most of a start; the forked
                              processes share nothing else. Their engines run in one process each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

from steps import Steps, arm_store_fault, output_of

# Short enough to be cached by nobody: it only makes the engine take a step.
NUDGE = [7, 11, 13, 17]
RESET_ATTEMPTS = 200


class Orders:
    """The engine and the orders it understands."""

    def __init__(self, config: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        arguments = dict(config["settings"])
        if config["connector"] is not None:
            arguments["kv_transfer_config"] = KVTransferConfig(**config["connector"])
        if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0":
            ranks = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1)
            arguments["distributed_executor_backend"] = "uni" if ranks == 1 else "mp"
        if config.get("store_fault"):
            arm_store_fault(**config["store_fault"])
        self._llm = LLM(
            config["model"],
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=True,
            seed=0,
            **({"max_num_seqs": 8} | arguments),
        )
        self._steps: Steps | None = None

    @property
    def prefix_cache(self) -> bool:
        """Whether the engine has a prefix cache of its own; it turns it off for some architectures."""
        return self._llm.llm_engine.vllm_config.cache_config.enable_prefix_caching

    def generate(
        self, prompts: list[list[int]], max_tokens: int, lora: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Runs the prompts as one batch, greedily, with an adapter if one is given."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, logprobs=1
        )
        requests = [{"prompt_token_ids": tokens} for tokens in prompts]
        started = time.perf_counter()
        adapter = LoRARequest(**lora) if lora else None
        results = self._llm.generate(requests, sampling, use_tqdm=False, lora_request=adapter)
        wall_s = time.perf_counter() - started
        return {"outputs": [output_of(result) for result in results], "wall_s": wall_s}

    def reset_prefix_cache(self, connector: bool) -> dict[str, Any]:
        """Empties the engine's own prefix cache.

        The engine refuses while any block is still held, and lets go of blocks only in a step, so a refusal
        is answered with a step and another attempt.
        """
        for attempt in range(1, RESET_ATTEMPTS + 1):
            if self._llm.reset_prefix_cache(reset_connector=connector):
                return {"attempts": attempt}
            self.generate([NUDGE], 1)
            time.sleep(0.02)
        raise RuntimeError(f"the engine refused to reset its prefix cache {RESET_ATTEMPTS} times")

    def step_order(self, order: str, **arguments: Any) -> dict[str, Any]:
        """One of the orders of `steps.Steps`; the engine has to run in this process."""
        if self._steps is None:
            self._steps = Steps(self._llm)
        return getattr(self._steps, order)(**arguments)

    def shutdown(self) -> dict[str, Any]:
        """Stops the engine; the process ends after the reply."""
        core = getattr(self._llm.llm_engine, "engine_core", None)
        if core is not None:
            core.shutdown()
        return {"stopped": True}


def serve(connection: socket.socket) -> None:
    """Starts the engine that the first message describes and obeys until told to stop or left alone."""
    lines = connection.makefile("r", encoding="utf-8")

    def reply(message: dict[str, Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    reply({"pid": os.getpid()})
    config = json.loads(lines.readline())
    if config.get("log"):
        _redirect_output(config["log"])
    started = time.perf_counter()
    try:
        orders = Orders(config)
    except BaseException as error:
        traceback.print_exc()
        reply({"error": f"the engine did not start: {type(error).__name__}: {error}"})
        raise
    reply({"start_s": time.perf_counter() - started, "prefix_cache": orders.prefix_cache})

    operations = {
        "generate": orders.generate,
        "reset_prefix_cache": orders.reset_prefix_cache,
        "step_order": orders.step_order,
        "shutdown": orders.shutdown,
    }
    for line in lines:
        order = json.loads(line)
        name = order.pop("op")
        try:
            answer = operations[name](**order)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{name}: {type(error).__name__}: {error}"}
        reply(answer)
        if name == "shutdown":
            return


def _redirect_output(path: str) -> None:
    """Everything that the engine and its children print goes to one file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _quick_exit(code: int) -> None:
    # An engine that ran inside this process leaves threads that make interpreter shutdown wait or abort.
    # Everything that had to be said has been said; leave without running finalizers.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def nursery(listener: socket.socket) -> None:
    """Forks an engine process for every connection, until the listener's owner is gone."""
    import vllm  # noqa: F401  (the expensive import, shared by every fork)
    import vllm.entrypoints.llm  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from vllm.model_executor.models import registry
    from vllm.v1.executor import multiproc_executor

    # The engine asks a fresh interpreter about every model class, to keep CUDA out of its own process. There
    # is no CUDA here, and a fresh interpreter imports everything again.
    registry._run_in_subprocess = lambda call: call()
    # Workers of several ranks inherit the imports too; the engine's CPU platform would start each anew.
    multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")

    parent = os.getppid()
    listener.settimeout(1.0)
    while os.getppid() == parent:
        _reap()
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            listener.close()
            connection.setblocking(True)
            os.setsid()
            _serve_and_exit(connection)
        connection.close()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _serve_and_exit(connection: socket.socket) -> None:
    code = 0
    try:
        serve(connection)
    except BaseException:
        traceback.print_exc()
        code = 1
    _quick_exit(code)


def main() -> None:
    """Entry point; see the head of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--fd", type=int, help="serve one engine on this connected socket")
    role.add_argument("--listen", type=int, help="fork an engine for every connection to this socket")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's; it stops its engines in order
    number = options.fd if options.fd is not None else options.listen
    os.set_inheritable(number, False)
    endpoint = socket.socket(fileno=number)
    if options.fd is not None:
        _serve_and_exit(endpoint)
    nursery(endpoint)


if __name__ == "__main__":
    main()
