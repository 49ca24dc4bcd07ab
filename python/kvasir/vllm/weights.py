"""The identity of the engine's weights, found in the background.

The scheduler role looks for it and tells the workers with its plans, so that one process of an engine reads the files and
all agree. Until it is known nothing is reused or stored.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

from kvasir import Weights, WeightsJob, remembered_weights
from kvasir.vllm import identity
from kvasir.vllm.identity import LocalWeights
from kvasir.vllm.notes import Notes
from kvasir.vllm.settings import Settings

# The clock by which the kernel stamps changes of files.
CLOCK_REALTIME_COARSE = 5

_configured_ns: list[int] = []
"""When engines of this process were configured of which no connector has been made yet."""


def note_configuration() -> None:
    """An engine is being configured, so it has not begun to load its weights."""
    _configured_ns.append(time.clock_gettime_ns(CLOCK_REALTIME_COARSE))


def load_began_ns() -> int:
    """A moment before the engine whose scheduler role is being made began to load its weights.

    Far ahead where nobody has told: not in an engine that vLLM has started.
    """
    configured, _configured_ns[:] = list(_configured_ns), []
    if multiprocessing.parent_process() is not None:
        # The engine's own process, started to load it.
        configured = [max(_process_began_ns(), min(configured, default=0))]
    return min(configured, default=sys.maxsize)


def _process_began_ns() -> int:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return int((time.time() - age_s) * 1e9)


def known_at_once(vllm_config: Any, settings: Settings) -> bytes | None:
    """The identity if no file has to be read for it. Raises OSError where there is none."""
    found = []
    for part in identity.weights_parts(vllm_config, settings.weights_id):
        if isinstance(part, LocalWeights):
            known = remembered_weights(part.path, part.overrides, settings.cache_dir)
            if known is None:
                return None
            part = known.identity
        found.append(part)
    return identity.combined(found)


class EngineWeights:
    """What the weights of this engine are, once it is known."""

    def __init__(self, vllm_config: Any, settings: Settings, notes: Notes) -> None:
        self._notes = notes
        self._began_ns = load_began_ns()
        self._started = time.monotonic()
        self._identity: bytes | None = None
        self._parts: list[bytes | tuple[LocalWeights, WeightsJob | Weights]] = []
        self._hopeless = False
        try:
            for part in identity.weights_parts(vllm_config, settings.weights_id):
                if isinstance(part, LocalWeights):
                    known = remembered_weights(part.path, part.overrides, settings.cache_dir)
                    if known is not None:
                        self._parts.append((part, known))
                        continue
                    job = WeightsJob(part.path, part.overrides, settings.cache_dir, settings.hash_threads)
                    self._parts.append((part, job))
                else:
                    self._parts.append(part)
        except OSError as error:
            self._give_up(f"the weights have no identity: {error}")

    def poll(self) -> bytes | None:
        """The identity, or None as long as it is not known, which may be for ever. Never waits."""
        if self._identity is not None or self._hopeless:
            return self._identity
        found = []
        for part in self._parts:
            if isinstance(part, bytes):
                found.append(part)
                continue
            weights, job = part
            try:
                result = job.result() if isinstance(job, WeightsJob) else job
            except OSError as error:
                self._give_up(f"the weights have no identity: {error}")
                return None
            if result is None:
                self._notes.info(
                    "reading", f"reading {weights.path} to know its weights; until then nothing is reused or stored"
                )
                return None
            if result.newest_change_ns >= self._began_ns:
                self._give_up(
                    f"{weights.path} was changed after this engine began to load it, so what the engine holds is unknown; "
                    "start it again, or set \"kvasir.weights_id\""
                )
                return None
            found.append(result.identity)
            self._say(weights, result)
        self._identity = identity.combined(found)
        self._parts = []
        return self._identity

    def _say(self, weights: LocalWeights, found: Weights) -> None:
        seconds = time.monotonic() - self._started
        self._notes.info(
            f"weights {weights.path}",
            f"weights of {weights.path} are known: {found.files} files, {found.bytes} bytes, of which {found.bytes_read} "
            f"were read; known after {seconds:.1f} s",
        )
        if found.forgetful and found.bytes_read:
            self._notes.warn("cache", f"the next start has to read the weights again: {found.forgetful}")

    def _give_up(self, why: str) -> None:
        self._hopeless = True
        self.close()
        self._notes.warn("weights", f"not caching: {why}")

    def close(self) -> None:
        """Ends the search."""
        for part in self._parts:
            if not isinstance(part, bytes) and isinstance(part[1], WeightsJob):
                part[1].cancel()
        self._parts = []
