"""Stand-ins for the engine's and the server's side of the connector, for tests without either."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable, Sequence
from typing import Any

from kvasir import pack_blocks
from kvasir.vllm import geometry
from kvasir.vllm.servers import Named
from kvasir.vllm.geometry import Geometry, ObjectGroup
from kvasir.vllm.meta import KEY_BYTES, LoadRun, StoreRun, Stores, block_ids

SEED = bytes(32)


# Specs by the engine's class names and fields: only these are read.
@dataclasses.dataclass
class FullAttentionSpec:
    block_size: int = 16
    page_size_bytes: int = 64
    dtype: str = "torch.bfloat16"
    dcp_sharded: bool = True
    prefix_cacheable: bool = True
    tokens_per_state: int = 1
    non_causal: bool = False
    max_tp_shards: int | None = None


@dataclasses.dataclass
class MLAAttentionSpec(FullAttentionSpec):
    pass


@dataclasses.dataclass
class RSWASpec(FullAttentionSpec):
    pass


@dataclasses.dataclass
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int = 128
    extra_retained_tokens: int = 0


@dataclasses.dataclass
class ChunkedLocalAttentionSpec(FullAttentionSpec):
    attention_chunk_size: int = 128


@dataclasses.dataclass
class MambaSpec:
    block_size: int = 32
    page_size_bytes: int = 96
    dtypes: tuple[str, ...] = ("torch.bfloat16", "torch.float32")
    dcp_sharded: bool = False
    prefix_cacheable: bool = True
    tokens_per_state: int = -1
    mamba_cache_mode: str = "align"


@dataclasses.dataclass
class UniformTypeKVCacheSpecs:
    kv_cache_specs: dict[str, Any]
    block_size: int = 16
    dcp_sharded: bool = True
    prefix_cacheable: bool = True


def kv_config(*specs: Any, layers: int = 2, **fields: Any) -> Any:
    """A KVCacheConfig with one group per spec."""
    groups = []
    for number, spec in enumerate(specs):
        names = list(getattr(spec, "kv_cache_specs", [f"layer.{number}.{index}" for index in range(layers)]))
        groups.append(types.SimpleNamespace(kv_cache_spec=spec, layer_names=names))
    return types.SimpleNamespace(kv_cache_groups=groups, **fields)


def group(index: int, kind: str, kv_groups: Sequence[int], spans: Sequence[int], window: int = 0) -> ObjectGroup:
    """One object group; its bytes matter to no planner."""
    return ObjectGroup(index, kind, window, tuple(kv_groups), tuple(spans), unit_bytes=1)


_SPEC_KINDS = {
    "full": "full_attention",
    "sliding_window": "sliding_window",
    "chunked_local": "chunked_local_attention",
    "recurrent": "mamba",
}


def plain(*groups: ObjectGroup, alignment: int) -> Geometry:
    """A geometry from its object groups."""
    members = sorted((kv_group, span, one) for one in groups for kv_group, span in zip(one.kv_groups, one.spans))
    described = [
        {
            "kind": _SPEC_KINDS[one.kind],
            "block_size": span,
            "layers": [{"page_size_bytes": 64, "dtype": "bfloat16"}],
            "mamba_cache_mode": "align" if one.kind == "recurrent" else None,
            "window": one.window_tokens or None,
            "attention_chunk_size": one.window_tokens or None,
        }
        for _, span, one in members
    ]
    spans = tuple((kv_group, span) for kv_group, span, _ in members)
    return Geometry(json.dumps({"dcp": 1, "groups": described}), alignment, spans, tuple(groups), ())


def full(span: int = 16) -> Geometry:
    """One full-attention group."""
    return plain(group(0, geometry.FULL, [0], [span]), alignment=span)


def windowed(window: int = 32) -> Geometry:
    """Full attention beside two groups of one window."""
    return plain(
        group(0, geometry.FULL, [0], [16]), group(1, "sliding_window", [1, 2], [16, 16], window), alignment=16
    )


def hybrid() -> Geometry:
    """Full attention beside two groups of recurrent state."""
    return plain(group(0, geometry.FULL, [0], [32]), group(1, geometry.RECURRENT, [1, 2], [32, 32]), alignment=32)


class Request:
    """An engine's request."""

    def __init__(self, request_id: str, tokens: Sequence[int], **fields: Any) -> None:
        self.request_id = request_id
        self.prompt_token_ids = list(tokens)
        self.all_token_ids = list(tokens)
        self.num_prompt_tokens = len(tokens)
        self.prompt_embeds = None
        self.mm_features: list[Any] = []
        self.lora_request = None
        self.cache_salt = None
        self.kv_transfer_params = None
        self.__dict__.update(fields)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


def key(name: str | int) -> bytes:
    """A key that can be told from others."""
    return str(name).encode().ljust(KEY_BYTES, b".")


def packed(*ids: int) -> bytes:
    """Block ids as the scheduler role packs them."""
    return pack_blocks(list(ids), 0, len(ids))[0]


def named(*objects: tuple[bytes, int, int, int]) -> list[Named]:
    """Objects (key, object group, chunk, tokens) as the runs that a hit names them in."""
    runs: list[Named] = []
    for name, group, chunk, tokens in objects:
        if runs and runs[-1][1:] == (group, chunk - len(runs[-1][0]) // KEY_BYTES, tokens):
            runs[-1] = (runs[-1][0] + name, *runs[-1][1:])
        else:
            runs.append((name, group, chunk, tokens))
    return runs


def objects(runs: Iterable[LoadRun | StoreRun]) -> list[tuple[Any, ...]]:
    """Runs taken apart: (key, parent if it is to be stored, object group, tokens, block ids per KV cache group)."""
    found = []
    for run in runs:
        keys = [run.keys[at : at + KEY_BYTES] for at in range(0, len(run.keys), KEY_BYTES)]
        lists = [list(block_ids(ids)) for ids in run.blocks]
        assert keys and not any(len(ids) % len(keys) for ids in lists)
        each = [len(ids) // len(keys) for ids in lists]
        for at, name in enumerate(keys):
            parent = ((keys[at - 1] if at else run.parent),) if isinstance(run, StoreRun) else ()
            ids = [ids[n * at : n * (at + 1)] for ids, n in zip(lists, each)]
            found.append((name, *parent, run.group, run.tokens, ids))
    return found


def may_exist(stores: Stores) -> list[tuple[bytes, int]]:
    """Objects (key, object group) that workers ask for before they store them."""
    return [(item[0], item[2]) for at in stores.may_exist for item in objects([stores.runs[at]])]


@dataclasses.dataclass
class Hit:
    """An answer to a lookup."""

    hit_tokens: int = 0
    pin: int = 0
    objects: list[tuple[bytes, int, int, int]] = dataclasses.field(default_factory=list)
    present_tokens: list[int] = dataclasses.field(default_factory=list)
    degraded: bool = False
    shortened: bool = False

    @property
    def runs(self) -> list[Named]:
        return named(*self.objects)


class Client:
    """A client whose answers a test scripts; it keeps the books about pins."""

    def __init__(self, chunk_size: int | None = 64) -> None:
        self.chunk_size = chunk_size
        self.tokens: dict[str, int] = {}
        self.healthy = True
        self.late = False
        """Not healthy, but what needs no message works."""
        self.socket = "none"
        self.state_text = "as scripted"
        self.answers: list[Hit | None] = []
        """Popped by every `lookup_result`; None: not answered yet. The last one stays."""
        self.asked: list[dict[str, Any]] = []
        self.pinned: set[int] = set()
        self.ended: list[int] = []
        self.cleared = 0
        self.stored: list[list[Any]] = []
        """Per call the objects."""
        self.outcomes: list[list[str]] = []
        self.superseded: list[Any] = []
        self.parts: list[int] = []
        """Per call the part."""
        self.there: set[tuple[bytes, int]] = set()
        """Objects that `present` finds."""
        self.loaded: list[Any] = []
        """The same."""
        self.load_answer: list[list[bool]] | Exception | None = None
        self._tickets = 0
        self.conditions: list[str] = []

    @property
    def readable(self) -> bool:
        return self.healthy or self.late

    def lookup_start(
        self, seed: bytes, label: int, chain: Any, step: int, cap: int, local: int, pin: bool
    ) -> int:
        self.asked.append({"tokens": len(chain), "step": step, "cap": cap, "local": local, "pin": pin})
        self._tickets += 1
        return self._tickets

    def lookup_result(self, ticket: int, wait_s: float = 0.0) -> Hit | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None and self.asked[-1]["pin"] and answer.hit_tokens:
            answer = dataclasses.replace(answer, pin=1000 + ticket)
            self.pinned.add(answer.pin)
        return answer

    def lookup(self, *args: Any) -> Hit:
        answer = self.lookup_result(self.lookup_start(*args))
        assert answer is not None
        return answer

    def lookup_cancel(self, ticket: int) -> None:
        pass

    def release(self, pins: Sequence[int]) -> None:
        for pin in pins:
            self.pinned.remove(pin)  # a second release of a pin is a mistake

    def end_session(self, label: int) -> None:
        self.ended.append(label)

    def clear(self) -> bool:
        self.cleared += 1
        return True

    def store(self, part: int, runs: Sequence[StoreRun], supersedes: Sequence[Any] = ()) -> list[list[str]]:
        self.parts.append(part)
        self.superseded += supersedes
        self.stored.append(objects(runs))
        return self.outcomes or [["published"] * len(objects([run])) for run in runs]

    def present(self, part: int, objects: Sequence[tuple[bytes, int]]) -> list[bool]:
        self.parts.append(part)
        return [one in self.there for one in objects]

    def count_new_kv(self, bytes: int) -> None:
        self.new_kv = getattr(self, "new_kv", 0) + bytes

    def set_conditions(self, names: Sequence[str]) -> None:
        self.conditions = list(names)

    def count_failed_loads(self, loads: int) -> None:
        pass

    def count_reuse(self, **tokens: int) -> None:
        for name, count in tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + count

    def load(self, label: int, part: int, runs: Sequence[LoadRun]) -> list[list[bool]]:
        self.parts.append(part)
        self.loaded.append(objects(runs))
        if isinstance(self.load_answer, Exception):
            raise self.load_answer
        return self.load_answer if self.load_answer is not None else [[True] * run.num_objects for run in runs]

    def close(self) -> None:
        pass
