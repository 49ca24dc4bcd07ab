"""The connector's settings: `kv_role`, and the `kvasir.*` keys of `kv_connector_extra_config`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from kvasir import parse_size

PREFIX = "kvasir."


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {value!r}; it has to be a string that is not empty")
    return value


# Of any number of seconds and of any count; what is more is a slip, and does not fit where it goes.
SECONDS_MAX = 86_400
COUNT_MAX = 2**62


def _seconds(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= SECONDS_MAX:
        raise ValueError(f"{key} is {value!r}; it has to be a number above 0, up to {SECONDS_MAX}")
    return float(value)


def _count(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= COUNT_MAX:
        raise ValueError(f"{key} is {value!r}; it has to be an integer above 0, up to {COUNT_MAX}")
    return value


THREADS_MAX = 256


def _threads(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= THREADS_MAX:
        raise ValueError(f"{key} is {value!r}; it has to be an integer above 0, up to {THREADS_MAX}")
    return value


COPY_THREADS_MAX = 16


def _copy_threads(key: str, value: Any) -> int:
    if value == "auto":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= COPY_THREADS_MAX:
        raise ValueError(f"{key} is {value!r}; it has to be \"auto\" or an integer above 0, up to {COPY_THREADS_MAX}")
    return value


def _bytes(key: str, value: Any) -> int:
    """A size, as a number or as it is written on the command line of the server."""
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return _count(key, value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}; it has to be true or false")
    return value


def _store(key: str, value: Any) -> str:
    if value not in ("all", "prompt"):
        raise ValueError(f"{key} is {value!r}; it has to be \"all\" or \"prompt\"")
    return value


def _payload_path(key: str, value: Any) -> str:
    if value not in ("direct", "ring"):
        raise ValueError(f"{key} is {value!r}; it has to be \"direct\" or \"ring\"")
    return value


def _sockets(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        value = [value]
    sockets = tuple(_text(key, socket) for socket in value)
    if not sockets:
        raise ValueError(f"{key} is an empty list; it has to name at least one socket")
    if len(set(sockets)) < len(sockets):
        raise ValueError(f"{key} names a socket twice: {', '.join(sockets)}; each server is named once")
    return sockets


# kv_role: (stores, loads)
_ROLES = {"kv_both": (True, True), "kv_producer": (True, False), "kv_consumer": (False, True)}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How one engine uses Kvasir."""

    sockets: tuple[str, ...]
    """Path of the server's socket; of several servers, in the order in which ranks are dealt to them."""
    heartbeat_interval: float = 10.0
    """Seconds between attempts to repair a connection that was refused or failed."""
    deadline: float = 1.0
    """Longest wait for an answer of the server, in seconds."""
    lookup_wait: float = 0.002
    """How long the scheduler waits for a lookup before it takes up the request in a later step, in seconds."""
    weights_id: str | None = None
    """Identity of the weights, in place of the one found from the model's files."""
    store: str = "all"
    """`all`: prompts and generated tokens are stored; `prompt`: prompts only."""
    preferred_base: int = 256
    """Chunk size that this engine would like to see as the minimum where the server leaves it open."""
    credit_bytes: int = 64 << 20
    """Pool space that a worker holds ready for its next stores."""
    cache_dir: str | None = None
    """Where digests of weights and adapters are remembered, in place of KVASIR_CACHE_DIR and the user's caches."""
    hash_threads: int = 0
    """Threads that read weights to know what they are; 0: half of the machine's, from 2 to 8."""
    checksums: bool = True
    """Sum what is stored, and fail loads whose bytes are not those that were stored."""
    copy_threads: int = 0
    """Threads of a large copy, the calling one among them; 0: as many as a measurement says is worth it."""
    payload_path: str = "direct"
    """`direct`: the engine maps pool and index; `ring`: it maps neither, and the server copies through a ring of its own."""
    describe_file: str | None = None
    """Where the first rank writes the engine's description, which `kvasir doctor --engine` reads; None: nowhere."""
    stores: bool = True
    """Its role has it store what it computes."""
    loads: bool = True
    """Its role has it load what is stored. A producer must not: the engine then returns blocks to its pool that a step
    under way may still write, and what was loaded into them would be overwritten."""

    @property
    def where(self) -> str:
        """The servers, for a message."""
        return ", ".join(self.sockets)

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any], kv_role: str = "kv_both") -> Settings:
        """Reads the engine's extra configuration; keys of other prefixes are not ours and are left alone."""
        if not isinstance(kv_role, str) or kv_role not in _ROLES:
            raise ValueError(f"kv_role is {kv_role!r}; it has to be one of {', '.join(_ROLES)}")
        stores, loads = _ROLES[kv_role]
        own = {key: value for key, value in extra.items() if key.startswith(PREFIX)}
        unknown = sorted(set(own) - set(_KEYS))
        if unknown:
            raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(sorted(_KEYS))}")
        values = {field: read(key, own[key]) for key, (field, read) in _KEYS.items() if own.get(key) is not None}
        values |= {"stores": stores, "loads": loads}
        if "sockets" not in values:
            socket = os.environ.get("KVASIR_SOCKET")
            if not socket:
                raise ValueError(
                    "no server named: set \"kvasir.socket\" in kv_connector_extra_config, or KVASIR_SOCKET in the "
                    "environment, to the path given to `kvasir serve --socket`"
                )
            values["sockets"] = (socket,)
        return cls(**values)


_KEYS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "kvasir.socket": ("sockets", _sockets),
    "kvasir.heartbeat_interval": ("heartbeat_interval", _seconds),
    "kvasir.deadline": ("deadline", _seconds),
    "kvasir.lookup_wait": ("lookup_wait", _seconds),
    "kvasir.weights_id": ("weights_id", _text),
    "kvasir.store": ("store", _store),
    "kvasir.preferred_base": ("preferred_base", _count),
    "kvasir.credit_bytes": ("credit_bytes", _bytes),
    "kvasir.cache_dir": ("cache_dir", _text),
    "kvasir.hash_threads": ("hash_threads", _threads),
    "kvasir.checksums": ("checksums", _flag),
    "kvasir.copy_threads": ("copy_threads", _copy_threads),
    "kvasir.payload_path": ("payload_path", _payload_path),
    "kvasir.describe_file": ("describe_file", _text),
}
