"""What the scheduler role remembers about one request."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kvasir import KeyChain
from kvasir.vllm.adapters import Entry
from kvasir.vllm.servers import Answer, Pins
from kvasir.vllm.meta import Adapter


# Until a lookup has been answered any object may be there.
UNKNOWN_REACH = sys.maxsize

_NO_PARAMS: Mapping[str, Any] = {}


@dataclasses.dataclass
class Pending:
    """A lookup that has been sent and not yet answered."""

    ticket: int
    cap: int
    local: int
    pin: bool


@dataclasses.dataclass
class Offer:
    """A hit that the engine was told about and may take up in this scheduling pass."""

    hit: Answer
    local: int
    total: int


class RequestState:
    """One request, from its arrival to its end. Keys are computed once; answers of the server are never kept."""

    __slots__ = (
        "adapter", "adapter_changes", "adapter_entry", "adapter_local", "bypass", "chain", "covered",
        "failed", "furthest", "grown", "hashed", "held_pin", "loaded", "local", "next_chunk",
        "no_load", "no_store", "offer", "pending", "prompt_tail_done", "reach", "recheck", "request", "resets",
        "served", "label", "tail_end", "unit",
    )  # fmt: skip

    def __init__(self, request: Any, label: int, object_groups: int) -> None:
        params = _params(request)
        self.request = request
        self.label = label
        self.bypass = _bypasses(request)
        self.adapter_entry: Entry | None = None
        """Of a request with an adapter."""
        self.adapter: Adapter | None = None
        """What its keys say that it is."""
        self.adapter_changes = 0
        """How often the adapter had changed when the request was looked at before it was computed."""
        self.adapter_local = 0
        """Tokens that the engine itself had of it then."""
        self.no_load = params.get("no_load") is True
        self.no_store = params.get("no_store") is True
        self.failed = False
        """A load failed: the engine computes this request itself."""
        self.chain: KeyChain | None = None
        self.hashed = 0
        self.pending: Pending | None = None
        self.offer: Offer | None = None
        self.held_pin: int | Pins = 0
        """Pin of the load that is under way; it keeps the promise until every rank has reported."""
        self.covered = [0] * object_groups
        """Per object group: tokens up to which the server has every full chunk. Beyond a gap it may have more."""
        self.served = 0
        """Tokens of the longest prefix that the server can serve."""
        self.reach = UNKNOWN_REACH
        """Tokens beyond which the server had nothing of what is known of this request."""
        self.loaded = (0, 0)
        """From where to where blocks were loaded: what they hold is there."""
        self.local = 0
        """Tokens that the engine held itself when it asked last."""
        self.next_chunk = 0
        self.unit = -1
        """Whole alignments reached when stores were planned last: nothing to do until there is one more."""
        self.prompt_tail_done = False
        self.tail_end = 0
        """Tokens up to which tails were planned."""
        self.grown: tuple[int, int] | None = None
        """(chunk, tokens) of the newest tail that holds generated tokens."""
        self.furthest: int | None = None
        """Tokens whose KV has been computed or was found so far, however often: what is beyond is new. None before the first step."""
        self.recheck = False
        """The server lost part of the chain: ask again what it has before storing."""
        self.resets = 0

    def takes(self, adapter: Adapter) -> None:
        """The keys are made for this adapter from here on."""
        if self.adapter is not None:
            self.store_again()
        self.adapter, self.chain, self.hashed = adapter, None, 0

    def compute_anew(self) -> None:
        """It waits, after a preemption again: it holds no blocks, and what it stored before may be gone since."""
        self.loaded = (0, 0)
        if self.unit >= 0:
            grown = self.grown
            self.store_again()
            # Still needless once a longer tail is there.
            self.grown = grown
            self.reach = UNKNOWN_REACH

    def store_again(self) -> None:
        """Forgets what was stored and what the server was said to have."""
        self.covered = [0] * len(self.covered)
        self.served = 0
        self.loaded = (0, 0)
        self.next_chunk = 0
        self.unit = -1
        self.prompt_tail_done = False
        self.tail_end = 0
        self.grown = None

    def count_new(self, reached: int) -> int:
        """How many tokens up to `reached` have been computed for the first time since this was asked last."""
        before = self.furthest or 0
        self.furthest = max(before, reached)
        return self.furthest - before

    @property
    def known_tokens(self) -> int:
        """Tokens whose ids are known."""
        return self.request.num_tokens

    def chain_to(self, tokens: int, seed: bytes, chunk_size: int) -> KeyChain:
        """The request's key chain, hashed up to at least `tokens` known tokens."""
        if self.chain is None:
            self.chain = KeyChain(seed, chunk_size, *_extras(self.request, self.adapter))
        if self.hashed < tokens:
            # All known ones at once: the prompt in one piece, generated tokens a unit at a time.
            prompt, end = self.request.num_prompt_tokens, min(tokens, self.known_tokens)
            if not self.hashed and end == prompt:
                self.chain.extend(self.request.prompt_token_ids)  # no copy of a long list
            else:
                self.chain.extend(self.request.all_token_ids[self.hashed : end])
            self.hashed = end
        return self.chain


def odd_switches(request: Any) -> Iterator[tuple[str, str]]:
    """Per-request switches that count as not given, because they are neither true nor false: name and what to say."""
    params = _params(request)
    for name in ("no_load", "no_store"):
        value = params.get(name)
        if value is not None and not isinstance(value, bool):
            yield name, (
                f"request {request.request_id} has kv_transfer_params with {name} as {value!r}, which is taken as not "
                "given; it has to be true or false"
            )


def _params(request: Any) -> Mapping[str, Any]:
    params = getattr(request, "kv_transfer_params", None)
    if params is None:
        return _NO_PARAMS  # nearly always, and asking whether it is a mapping is slow
    return params if isinstance(params, Mapping) else _NO_PARAMS


def _bypasses(request: Any) -> bool:
    """Requests whose KV does not follow from token ids, or whose tokens may still be taken back."""
    if getattr(request, "prompt_embeds", None) is not None or request.prompt_token_ids is None:
        return True
    if getattr(request, "prompt_is_token_ids", None) is not None:
        return True
    return bool(getattr(request, "resumable", False))


def _extras(
    request: Any, adapter: Adapter | None
) -> tuple[list[tuple[bytes, int, int]], bytes | None, bytes | None]:
    items = []
    for feature in getattr(request, "mm_features", None) or ():
        position = feature.mm_position
        items.append((str(feature.identifier).encode(), int(position.offset), int(position.length)))
    salt = getattr(request, "cache_salt", None)
    return items, adapter.identity if adapter is not None else None, salt.encode() if salt else None
