"""The identity of the engine's weights, found in the background.

The scheduler role looks for it and tells the workers with its plans, so that one process of an engine reads the files and
all agree. Until it is known nothing is reused or stored.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from typing import Any

from kvasir import Weights, WeightsJob, remembered_weights
from kvasir.vllm import identity
from kvasir.vllm.conditions import Conditions
from kvasir.vllm.identity import LocalWeights
from kvasir.vllm.notes import Notes
from kvasir.vllm.outages import Outage
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
    """The identity if no file has to be read for it. Raises OSError where there will never be one."""
    found = []
    for part in identity.weights_parts(vllm_config, settings.weights_id):
        if isinstance(part, LocalWeights):
            try:
                known = remembered_weights(part.path, part.overrides, settings.cache_dir)
            except OSError:
                known = None  # the scheduler role looks again, and says so
            if known is None:
                return None
            part = known.identity
        found.append(part)
    return identity.combined(found)


# Seconds after which a read that failed is tried again: the first time, and at most.
FIRST_RETRY = 1.0
LAST_RETRY = 60.0
# Seconds between two looks while nobody asks.
LOOK = 0.2


class Search:
    """The search for what the files at one place are, which begins anew after it has failed."""

    def __init__(self, path: str, overrides: str, settings: Settings) -> None:
        self._path = path
        self._overrides = overrides
        self._settings = settings
        self._job: WeightsJob | None = None
        self._found: Weights | None = None
        self._retry = FIRST_RETRY
        self._next = 0.0
        self.error: OSError | None = None
        """Why it failed last; None until it has, and once it is over."""
        self._begin(remembered_weights)

    def _begin(self, remembered: Any) -> None:
        place = (self._path, self._overrides, self._settings.cache_dir)
        try:
            self._found = remembered(*place)
            if self._found is None:
                self._job = WeightsJob(*place, self._settings.hash_threads)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self._job = None
        self.error = error
        self._next = time.monotonic() + self._retry
        self._retry = min(2 * self._retry, LAST_RETRY)

    def poll(self) -> Weights | None:
        """What they are, or None as long as that is not known. Never waits."""
        if self._found is not None:
            return self._found
        if self._job is None and time.monotonic() >= self._next:
            # The job itself looks at the files, in its own thread: they may be where looking takes long.
            self._begin(lambda *_: None)
        if self._job is not None:
            try:
                self._found = self._job.result()
            except OSError as error:
                self._failed(error)
        if self._found is not None:
            self.error = self._job = None
        return self._found

    def cancel(self) -> None:
        """Ends it."""
        if self._job is not None:
            self._job.cancel()


class EngineWeights:
    """What the weights of this engine are, once it is known.

    It is looked for in the background also while no request comes, so that the server's status says what is so.
    """

    def __init__(
        self, vllm_config: Any, settings: Settings, notes: Notes, conditions: Conditions | None = None
    ) -> None:
        self._notes = notes
        self._conditions = conditions
        self._began_ns = load_began_ns()
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._identity: bytes | None = None
        self._parts: list[bytes | tuple[LocalWeights, Search]] = []
        self._hopeless = False
        self._closed = threading.Event()
        self._unreadable = Outage(notes, "the weights could be read at last")
        try:
            for part in identity.weights_parts(vllm_config, settings.weights_id):
                if isinstance(part, LocalWeights):
                    self._parts.append((part, Search(part.path, part.overrides, settings)))
                else:
                    self._parts.append(part)
        except OSError as error:
            self._give_up(f"the weights have no identity: {error}")
        if self.poll() is None and not self._hopeless:
            threading.Thread(target=self._watch, name="kvasir-weights", daemon=True).start()

    def _watch(self) -> None:
        while self.poll() is None and not self._hopeless and not self._closed.wait(LOOK):
            pass

    def poll(self) -> bytes | None:
        """The identity, or None as long as it is not known, which may be for ever. Never waits."""
        with self._lock:
            if self._identity is None and not self._hopeless:
                self._look()
            return self._identity

    def _look(self) -> None:
        found = []
        for part in self._parts:
            if isinstance(part, bytes):
                found.append(part)
                continue
            weights, search = part
            result = search.poll()
            if result is None:
                self._say_unknown(weights, search)
                return
            if result.newest_change_ns >= self._began_ns:
                self._give_up(
                    f"{weights.path} was changed after this engine began to load it, so what the engine holds is unknown; "
                    "start it again, or set \"kvasir.weights_id\""
                )
                return
            found.append(result.identity)
            self._say(weights, result)
        self._identity = identity.combined(found)
        self._parts = []
        self._set(None)
        self._unreadable.end()

    def _say_unknown(self, weights: LocalWeights, search: Search) -> None:
        if search.error is None:
            self._set("weights_pending")
            self._notes.info(
                "reading", f"reading {weights.path} to know its weights; until then nothing is reused or stored"
            )
        else:
            self._set("weights_unreadable")
            why = str(search.error)
            self._unreadable.say(why, f"not caching: the weights have no identity: {why}; that is tried again")

    def _set(self, condition: str | None) -> None:
        if self._conditions is not None:
            self._conditions.set_weights(condition)

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
        self._cancel()
        self._set("weights_unknown")
        self._notes.warn("weights", f"not caching: {why}")

    def _cancel(self) -> None:
        for part in self._parts:
            if not isinstance(part, bytes):
                part[1].cancel()
        self._parts = []

    def close(self) -> None:
        """Ends the search."""
        self._closed.set()
        with self._lock:
            self._hopeless = self._identity is None
            self._cancel()
