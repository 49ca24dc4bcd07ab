"""Which files the engine's adapters were loaded from, as a worker sees it.

The engine loads an adapter when a request first needs it or an API call says so, drops it when others need the space, and
loads it again, from whatever is there by then. No hook of the connector interface tells of it, so the one method of the
engine that reads adapters is watched.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import Any

from kvasir import weights_stamp
from kvasir.vllm.meta import Adapter, Loaded
from kvasir.vllm.notes import Notes
from kvasir.vllm.weights import CLOCK_REALTIME_COARSE

# The method of the engine's `WorkerLoRAManager` that reads an adapter's files.
METHOD = "_load_adapter"


class LoadedAdapters:
    """What a worker has loaded last under each of the engine's numbers."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._lock = threading.Lock()
        self._loaded: dict[int, Loaded] = {}
        self._news: dict[int, Loaded] = {}

    def has(self, adapter: Adapter) -> bool:
        """Whether the engine computes with exactly this adapter, in a step that uses it."""
        with self._lock:
            loaded = self._loaded.get(adapter.number)
        return loaded is not None and loaded.stamp == adapter.stamp

    def will_have(self, adapter: Adapter) -> bool:
        """Whether the engine will compute with it: it has it loaded, or would load it now. Looks at the files."""
        with self._lock:
            loaded = self._loaded.get(adapter.number)
        if loaded is not None and loaded.stamp != adapter.stamp:
            return False
        try:
            there = weights_stamp(adapter.path)[0] == adapter.stamp
        except OSError:
            there = False
        if not there:
            # What the engine has may be dropped any time, and be another when it is loaded again.
            self._set(adapter.number, Loaded(adapter.path, b""))
        return there

    def take_news(self) -> dict[int, Loaded]:
        """What has been loaded since it was last asked."""
        if not self._news:  # nearly always
            return {}
        with self._lock:
            news, self._news = self._news, {}
        return news

    def _set(self, number: int, loaded: Loaded) -> None:
        with self._lock:
            if self._loaded.get(number) != loaded:
                self._loaded[number] = self._news[number] = loaded

    def watch(self, manager: Any) -> None:
        """Watches loads by this class of the engine from here on. A worker process has one engine at a time."""
        global _watching
        _watching = self
        method = getattr(manager, METHOD)
        if not getattr(method, "kvasir_watches", False):
            setattr(manager, METHOD, _watched(method))

    def unwatch(self) -> None:
        """Watches no longer."""
        global _watching
        if _watching is self:
            _watching = None

    def _before(self, request: Any) -> tuple[bytes, int]:
        began = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        path = local_path(request.lora_path)
        return (weights_stamp(path)[0] if path is not None else b""), began

    def _after(self, request: Any, before: tuple[bytes, int]) -> None:
        """Notes what an adapter was loaded from: only if nothing of it changed from before the load to after it."""
        stamp, began = before
        path = local_path(request.lora_path)
        if path is not None:
            now, newest = weights_stamp(path)
            unchanged = now == stamp and newest < began
        else:
            # A snapshot of the hub, which the load may have brought. Nobody writes to one that is complete.
            path = _snapshot(request.lora_path)
            now, unchanged = weights_stamp(path)[0], True
        self._set(request.lora_int_id, Loaded(path, now if unchanged else b""))

    def _unknown(self, request: Any, error: Exception) -> None:
        self._notes.warn(
            f"adapter {request.lora_int_id}", f"not caching with adapter {request.lora_name}: {error}"
        )
        self._set(request.lora_int_id, Loaded(str(request.lora_path), b""))


_watching: LoadedAdapters | None = None


def _watched(method: Any) -> Any:
    @functools.wraps(method)
    def load(self: Any, lora_request: Any) -> Any:
        watching = _watching
        if watching is None:
            return method(self, lora_request)
        before, problem = (b"", 0), None
        try:
            before = watching._before(lora_request)
        except Exception as error:  # the engine says what is wrong with it
            problem = error
        adapter = method(self, lora_request)
        try:
            if problem is not None:
                raise problem
            watching._after(lora_request, before)
        except Exception as error:
            watching._unknown(lora_request, error)
        return adapter

    load.kvasir_watches = True  # type: ignore[attr-defined]
    return load


def local_path(path: str) -> str | None:
    """Where the engine reads an adapter that is called so, if it is not one of the hub's names."""
    if os.path.isabs(path):
        return path
    if path.startswith("~"):
        return os.path.expanduser(path)
    return os.path.abspath(path) if os.path.exists(path) else None


def _snapshot(name: str) -> str:
    """Where the hub's tools keep what they have downloaded under a name."""
    from huggingface_hub import snapshot_download

    return str(snapshot_download(name, local_files_only=True))
