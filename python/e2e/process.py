"""The driver's side of the processes of the end-to-end harness: server, engines, nursery.

Every process started here is ended here: by its protocol first, by its own pid (or the process group it
leads) if that takes too long. Standard library only.
"""

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
from typing import Any, Iterator

HERE = pathlib.Path(__file__).resolve().parent

START_S = 900.0
ORDER_S = 600.0
STOP_S = 30.0

# Signals, to be sent by an engine to a server.
KILL = int(signal.SIGKILL)
STOP = int(signal.SIGSTOP)


class HarnessError(RuntimeError):
    """A process of the harness did not do what it was asked."""


class EngineError(HarnessError):
    """The engine's own answer is an error; `reason` is its message in one line."""

    def __init__(self, answer: str, log_tail: str) -> None:
        # What follows is the validation library's account of the arguments, a page of them.
        self.reason = " ".join(answer.split(" [type=")[0].split())
        super().__init__(f"engine: {answer}{log_tail}")


def engine_environment(in_process: bool) -> dict[str, str]:
    """The environment of an engine: offline, silent, on the CPU, no compiler.

    An engine in one process computes in one thread: it serves tests, its matrices are tiny, and threads that
    wait for each other cost more than they bring on a busy machine.
    """
    threads = {"OMP_NUM_THREADS": "1"} if in_process else {}
    return os.environ | threads | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def connector_config(socket_path: pathlib.Path, **extra: Any) -> dict[str, Any]:
    """What an engine needs to be told to keep its prefix cache in Kvasir."""
    return {
        "kv_connector": "KvasirConnector",
        "kv_connector_module_path": "kvasir.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kvasir.socket": str(socket_path), **extra},
    }


def remember_weights(config: dict[str, Any]) -> None:
    """Finds out what the model's weights are, so that an engine knows it from its start, as one does that has been
    started before. Otherwise a prompt of a second may be over before it is known."""
    if config["connector"] is None or config.get("strange") or config["settings"].get("load_format") == "dummy":
        return
    from kvasir import WeightsJob

    place = config["connector"]["kv_connector_extra_config"].get("kvasir.cache_dir")
    job = WeightsJob(config["model"], "", place)
    deadline = time.monotonic() + START_S
    while job.result() is None:
        if time.monotonic() > deadline:
            raise HarnessError(f"the weights of {config['model']} were not read in {START_S:.0f} s")
        time.sleep(0.01)


class Engine:
    """A running engine process: `generate`, `reset_prefix_cache`, `stop`."""

    def __init__(self, channel: socket.socket, log: pathlib.Path, process: subprocess.Popen | None) -> None:
        self._channel = channel
        self._lines = b""
        self._process = process
        self.log = log
        self.pid = process.pid if process else 0
        self.start_s = 0.0
        self.prefix_cache = False

    @classmethod
    def fresh(cls, config: dict[str, Any], log: pathlib.Path, in_process: bool = False) -> Engine:
        """Starts a new interpreter with a new engine in it."""
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py"), "--fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env=engine_environment(in_process),
                start_new_session=True,
            )
        return cls(ours, log, process)._configure(config)

    def _configure(self, config: dict[str, Any]) -> Engine:
        try:
            remember_weights(config)
            self.pid = self._answer("connect", START_S)["pid"]
            ready = self._ask(config | {"log": str(self.log)}, START_S)
            self.start_s = ready["start_s"]
            self.prefix_cache = ready["prefix_cache"]
        except BaseException:
            self.kill()
            raise
        return self

    def generate(
        self, prompts: list[list[int]], max_tokens: int, lora: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Runs prompts as one batch; the reply holds outputs and the wall time inside the engine. `lora`: an adapter, as
        the arguments of the engine's `LoRARequest`."""
        return self._ask({"op": "generate", "prompts": prompts, "max_tokens": max_tokens, "lora": lora}, ORDER_S)

    def reset_prefix_cache(self, connector: bool = False) -> None:
        """Empties the engine's own prefix cache, and with `connector` what the connector stored."""
        self._ask({"op": "reset_prefix_cache", "connector": connector}, ORDER_S)

    def step_order(self, order: str, **arguments: Any) -> dict[str, Any]:
        """An order of `steps.Steps`, to an engine in one process."""
        return self._ask({"op": "step_order", "order": order, **arguments}, ORDER_S)

    def add(self, name: str, tokens: list[int], max_tokens: int, **params: Any) -> None:
        """Queues a request without taking a step; `params` are its `kv_transfer_params`."""
        self.step_order("add", name=name, tokens=tokens, max_tokens=max_tokens, params=params or None)

    def stop(self) -> None:
        """Ends the engine by its protocol, or else by its process group."""
        try:
            self._ask({"op": "shutdown"}, STOP_S)
            if self._process:
                self._process.wait(STOP_S)
        except (HarnessError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """Ends the engine and whatever processes it started, now."""
        self._channel.close()
        if self.pid:
            # It leads a session of its own, so the group is exactly it and its children.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.pid = 0
        if self._process:
            self._process.wait()

    def _ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        what = message.get("op", "start")
        try:
            self._channel.settimeout(limit_s)
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise HarnessError(f"engine: cannot send {what!r} ({error}){self._log_tail()}") from error
        return self._answer(what, limit_s)

    def _answer(self, what: str, limit_s: float) -> dict[str, Any]:
        try:
            reply = json.loads(self._read_line(time.monotonic() + limit_s))
        except OSError as error:
            raise HarnessError(f"engine: no answer to {what!r} ({error}){self._log_tail()}") from error
        if "error" in reply:
            raise EngineError(reply["error"], self._log_tail())
        return reply

    def _read_line(self, deadline: float) -> bytes:
        while b"\n" not in self._lines:
            self._channel.settimeout(max(0.01, deadline - time.monotonic()))
            piece = self._channel.recv(1 << 20)
            if not piece:
                raise ConnectionError("the process ended")
            self._lines += piece
        line, self._lines = self._lines.split(b"\n", 1)
        return line

    def _log_tail(self) -> str:
        return f"\n--- end of {self.log}\n{_tail(self.log)}"


class Nursery:
    """Forks engine processes from one parent that has the engine's modules loaded already."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._path = directory / "nursery.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(4)
        with listener, (directory / "nursery.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py"), "--listen", str(listener.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[listener.fileno()],
                env=engine_environment(in_process=True),
            )

    def engine(self, config: dict[str, Any], log: pathlib.Path) -> Engine:
        """A new engine process."""
        channel = socket.socket(socket.AF_UNIX)
        channel.connect(str(self._path))
        return Engine(channel, log, None)._configure(config)

    def stop(self) -> None:
        """Ends the parent. Engines that still run are their owners' to stop."""
        self._process.terminate()
        self._process.wait()
        self._path.unlink(missing_ok=True)


class Server:
    """A `kvasir serve` process on a socket of its own."""

    def __init__(self, binary: pathlib.Path, socket_path: pathlib.Path, log: pathlib.Path, *flags: str) -> None:
        self._binary = binary
        self.socket_path = socket_path
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(binary), "serve", "--socket", str(socket_path), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise HarnessError(f"server: exit status {self._process.returncode}\n{_tail(self.log)}")
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self.socket_path))
                    return
                except OSError:
                    time.sleep(0.005)
        self.kill()
        raise HarnessError(f"server: not ready after {STOP_S:.0f} s\n{_tail(self.log)}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def status(self) -> dict[str, Any]:
        """`kvasir status --json`."""
        command = [str(self._binary), "status", "--json", "--socket", str(self.socket_path)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=STOP_S)
        if result.returncode != 0:
            raise HarnessError(f"kvasir status: exit status {result.returncode}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    def table(self) -> str:
        """`kvasir status`, for people."""
        command = [str(self._binary), "status", "--socket", str(self.socket_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=STOP_S).stdout

    def reported(self, *names: str) -> tuple[int, ...]:
        """These counters, summed over all clients that report any."""
        found = [client["reported"] for client in self.status()["clients"] if client["reported"]]
        return tuple(sum(counters[name] for counters in found) for name in names)

    def chunk_size(self) -> int:
        """The chunk size in tokens, of a server that has only one."""
        sizes = self.chunk_sizes()
        if len(sizes) != 1:
            raise HarnessError(f"server: expected one chunk size, there are {sizes}")
        return sizes[0]

    def chunk_sizes(self) -> list[int]:
        """The chunk sizes in tokens: one, or with `--chunk-scope model` one per binding domain."""
        binding = self.status()["binding"]
        rows = binding["domains"] if binding["scope"] == "model" else [binding]
        return [row["chunk_size"] for row in rows if row["chunk_size"] is not None]

    def settle(self) -> None:
        """Waits until the server holds what the engines have sent so far.

        A store is one message without an answer that anybody waits for, so a measurement that follows a
        store would otherwise share the machine with its last bookkeeping.
        """
        deadline = time.monotonic() + STOP_S
        before = None
        while time.monotonic() < deadline:
            status = self.status()
            now = (status["pool"], status["objects"])
            if now == before:
                return
            before = now
            time.sleep(0.02)
        raise HarnessError(f"server: pool and objects did not come to rest in {STOP_S:.0f} s")

    def stop(self) -> int:
        """SIGTERM, and the exit status. SIGKILL if that takes too long."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise HarnessError(f"server: still there {STOP_S:.0f} s after SIGTERM") from None

    def pause(self) -> None:
        """SIGSTOP: the server is there and does not answer."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running(process: Any) -> Iterator[Any]:
    """Stops an engine, a nursery or a server at the end of a block, however the block ends."""
    try:
        yield process
    except BaseException:
        if hasattr(process, "kill"):
            process.kill()
        else:
            process.stop()
        raise
    process.stop()


def _tail(path: pathlib.Path, lines: int = 25) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:])
