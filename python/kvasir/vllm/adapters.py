"""What the adapters (LoRA) of requests are: their files' content, found in the background.

Neither name nor path nor the engine's number says what an adapter is: all three stay when its files are replaced. And what
the engine computes with is what it has loaded, which need not be what the files hold now. So three things have to agree:
the content that was hashed, the files that it was hashed from (their stamp), and the files that the workers loaded from.
The scheduler role knows the first two and names them in its plans; a worker compares them with the third in the step
that computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvasir.vllm.conditions import Conditions
from kvasir.vllm.identity import adapter_overrides
from kvasir.vllm.loaded import local_path
from kvasir.vllm.meta import Adapter, Loaded
from kvasir.vllm.notes import Notes
from kvasir.vllm.settings import Settings
from kvasir.vllm.weights import Search

if TYPE_CHECKING:
    from kvasir.vllm.lookups import Lookups
    from kvasir.vllm.requests import RequestState

# Adapters that are remembered of one engine; beyond that the one not used for longest goes.
ADAPTERS_MAX = 4096

_CURE = "Load it again, or start the engine again, once its files are complete"


@dataclasses.dataclass(eq=False)
class Entry:
    """One of the engine's adapters: a number and where it is loaded from."""

    number: int
    name: str
    path: str
    overrides: str
    search: Search | None = None
    adapter: Adapter | None = None
    """What it is, once it is known."""
    loaded: Loaded | None = None
    """What workers said last that they have loaded."""
    changes: int = 0
    """How often they said that it is no longer what it was."""
    unknown: bool = False
    """Whether it is looked for, or was in vain."""


class Adapters:
    """The scheduler role's view; never waits."""

    def __init__(
        self, lora_config: Any, settings: Settings, notes: Notes, conditions: Conditions | None = None
    ) -> None:
        self._conditions = conditions
        self._lora_config = lora_config
        self._settings = settings
        self._notes = notes
        self._entries: dict[tuple[int, str], Entry] = {}
        self._by_name: dict[str, list[Entry]] = {}
        self._workers: dict[int, Loaded] = {}
        """What workers have loaded last under each number."""
        self._mixed: set[str] = set()
        """Names under which the engine's own prefix cache may hold blocks of several adapters."""

    def entry(self, request: Any) -> Entry:
        """The entry of a request's adapter; the search for what it is has begun."""
        key = (request.lora_int_id, request.lora_path)
        entry = self._entries.pop(key, None)
        if entry is None:
            overrides = adapter_overrides(self._lora_config, request)
            entry = Entry(request.lora_int_id, request.lora_name, request.lora_path, overrides)
            self._by_name.setdefault(entry.name, []).append(entry)
            path, there = local_path(entry.path), self._workers.get(entry.number)
            if there is not None and (path is None or path == there.path):
                # Loaded before the first request came, as by an API call.
                entry.loaded, path = there, there.path
            self._search(entry, path)
            if len(self._entries) >= ADAPTERS_MAX:
                self._forget(next(iter(self._entries)))
        self._entries[key] = entry
        return entry

    def _forget(self, key: tuple[int, str]) -> None:
        entry = self._entries.pop(key)
        self._mixed.add(entry.name)
        self._by_name[entry.name].remove(entry)
        if not self._by_name[entry.name]:
            del self._by_name[entry.name]
        self._set_unknown(entry, False)

    def _search(self, entry: Entry, path: str | None) -> None:
        entry.adapter, entry.search = None, None
        if path is None or (entry.loaded is not None and not entry.loaded.stamp):
            return  # the hub's, of which a worker says where it lies once the engine has it; or nobody knows what it was
        entry.search = Search(path, entry.overrides, self._settings)
        self._set_unknown(entry, self.of(entry) is None)

    def _take(self, entry: Entry, path: str, identity: bytes, stamp: bytes) -> None:
        if entry.loaded is not None and entry.loaded.stamp != stamp:
            self._say(entry, f"its files were changed after the engine had loaded it. {_CURE}")
            return
        entry.adapter = Adapter(entry.number, path, identity, stamp)
        self._set_unknown(entry, False)

    def of(self, entry: Entry) -> Adapter | None:
        """What it is, or None as long as that is not known, which may be for ever."""
        if entry.search is not None:
            found = entry.search.poll()
            if found is not None:
                entry.search = None
                self._take(entry, self._place(entry), found.identity, found.stamp)
            elif entry.search.error is not None:
                self._say(entry, f"{entry.search.error}; that is tried again with later requests")
        return entry.adapter

    def _place(self, entry: Entry) -> str:
        return (entry.loaded.path if entry.loaded is not None else None) or local_path(entry.path) or entry.path

    def take(self, state: RequestState, local: int, lookups: Lookups) -> bool:
        """Whether it is known what a waiting request will be computed with, apart from what the engine has of it."""
        entry = state.adapter_entry
        assert entry is not None
        adapter = self.of(entry)
        state.adapter_changes, state.adapter_local = entry.changes, local
        if adapter is None:
            return False
        if adapter != state.adapter:
            lookups.drop(state)
            state.takes(adapter)
        return self._is_of_one(state, entry)

    def has(self, state: RequestState) -> bool:
        """Whether it is known what a running request has been computed with: what it found when it began to."""
        entry = state.adapter_entry
        if entry is None or state.adapter is not None:
            return True
        adapter = self.of(entry)
        if adapter is None or entry.loaded is None or entry.changes != state.adapter_changes:
            return False
        if not self._is_of_one(state, entry):
            return False
        state.takes(adapter)
        return True

    def _is_of_one(self, state: RequestState, entry: Entry) -> bool:
        """The engine finds its own blocks by the adapter's name. Under one that several adapters have had, they prove
        nothing, and what follows from them must not be stored."""
        if state.adapter_local and self.is_mixed(entry):
            state.no_store = True
            return False
        return True

    def loaded(self, number: int, loaded: Loaded, states: Iterable[RequestState] = ()) -> bool:
        """Takes what workers have loaded under a number; whether it replaced what they had before. Then what the
        requests under way have computed is of one adapter and what follows of another."""
        replaced = self._replace(number, loaded)
        for state in states if replaced else ():
            if state.adapter_entry is not None and state.adapter_entry.number == number and state.adapter is not None:
                state.no_store = True
        return replaced

    def _replace(self, number: int, loaded: Loaded) -> bool:
        replaced = False
        self._workers.pop(number, None)
        if len(self._workers) >= ADAPTERS_MAX:
            del self._workers[next(iter(self._workers))]
        self._workers[number] = loaded
        for entry in [one for one in self._entries.values() if one.number == number]:
            before, entry.loaded = entry.loaded, loaded
            known = entry.adapter
            if (before is not None and before != loaded) or (known is not None and known.stamp != loaded.stamp):
                entry.changes += 1
                replaced = True
            if not loaded.stamp:
                entry.adapter, entry.search = None, None
                self._say(entry, f"its files were changed while or after the engine loaded it. {_CURE}")
            elif known is None and not (entry.search and entry.search.error is None) or known is not None and known.stamp != loaded.stamp:
                own = local_path(entry.path)
                if own is None or own == loaded.path:
                    self._search(entry, loaded.path)
                else:
                    # The number has gone to an adapter of another path, which has an entry of its own.
                    entry.adapter, entry.search = None, None
                    self._set_unknown(entry, False)
        return replaced

    def is_mixed(self, entry: Entry) -> bool:
        """Whether the engine's own prefix cache, which goes by names, may hold another adapter's blocks for it."""
        if entry.changes or entry.name in self._mixed:
            return True
        own = entry.adapter
        return any(
            one is not entry and (one.changes or own is None or one.adapter is None or one.adapter.identity != own.identity)
            for one in self._by_name[entry.name]
        )

    def _say(self, entry: Entry, why: str) -> None:
        self._set_unknown(entry, True)
        self._notes.warn(f"adapter {entry.number} {why}", f"not caching with adapter {entry.name}: {why}")

    def _set_unknown(self, entry: Entry, unknown: bool) -> None:
        if entry.unknown != unknown:
            entry.unknown = unknown
            if self._conditions is not None:
                self._conditions.set("adapter_unknown", unknown or any(one.unknown for one in self._entries.values()))
