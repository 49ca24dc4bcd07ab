"""What keeps this engine from caching, for `kvasir status` and `kvasir doctor`: the log says it once, and nobody reads it."""

from __future__ import annotations

import threading

from kvasir import Client
from kvasir.vllm.servers import Servers

WEIGHTS = ("weights_pending", "weights_unreadable", "weights_unknown")
"""Of which one holds at most."""


class Conditions:
    """One per role; any thread may tell it. The names are those of docs/operations.md."""

    def __init__(self, client: Client | Servers) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def set(self, name: str, holds: bool = True) -> None:
        """One of them begins to hold, or no longer does."""
        with self._lock:
            if holds != (name in self._names):
                self._names ^= {name}
                self._client.set_conditions(sorted(self._names))

    def set_weights(self, name: str | None) -> None:
        """The one of `WEIGHTS` that holds."""
        with self._lock:
            names = (self._names - set(WEIGHTS)) | ({name} if name else set())
            if names != self._names:
                self._names = names
                self._client.set_conditions(sorted(names))
