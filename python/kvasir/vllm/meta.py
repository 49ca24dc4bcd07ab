"""What crosses between the scheduler role and the workers. Plain data: it is pickled on its way."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Container, Iterable
from typing import NamedTuple

KEY_BYTES = 32


class Adapter(NamedTuple):
    """The adapter that keys of a request name, as the scheduler role knows it."""

    number: int
    """The engine's own for it."""
    path: str
    identity: bytes
    stamp: bytes
    """Its files when they were read. What a worker has loaded from other files is another adapter."""


class LoadRun(NamedTuple):
    """Objects of one object group in consecutive chunks, to be loaded: the `LoadRun` of `_native.pyi`.

    A plan names runs, since a long prompt has more chunks than a step has time to plan one by one.
    """

    keys: bytes
    group: int
    tokens: int
    """Of each object."""
    blocks: list[bytes]
    """Per KV cache group the packed block ids of all objects, as many of each: null where nothing is written."""

    @property
    def num_objects(self) -> int:
        """How many objects these are."""
        return len(self.keys) // KEY_BYTES

    def blocks_of(self, objects: Iterable[int]) -> set[int]:
        """Blocks that these of its objects fill."""
        lists = [block_ids(packed) for packed in self.blocks]
        each = [len(ids) // self.num_objects for ids in lists]
        blocks = {block for at in objects for ids, n in zip(lists, each) for block in ids[n * at : n * (at + 1)]}
        return blocks - {0}


class StoreRun(NamedTuple):
    """The same, to be stored: the `StoreRun` of `_native.pyi`."""

    keys: bytes
    parent: bytes | None
    """Key of the chunk before the first."""
    group: int
    tokens: int
    blocks: list[bytes]

    def each_key(self) -> list[bytes]:
        """The keys of its objects."""
        return [self.keys[at : at + KEY_BYTES] for at in range(0, len(self.keys), KEY_BYTES)]

    def part(self, first: int, end: int) -> StoreRun:
        """The run of its objects from `first` up to `end`."""
        keys = self.each_key()
        each = [len(packed) // len(keys) for packed in self.blocks]
        blocks = [packed[size * first : size * end] for packed, size in zip(self.blocks, each)]
        parent = keys[first - 1] if first else self.parent
        return self._replace(keys=b"".join(keys[first:end]), parent=parent, blocks=blocks)


def block_ids(packed: bytes) -> array.array[int]:
    """The ids that `pack_blocks` has packed."""
    return array.array("q", packed)


@dataclasses.dataclass
class Load:
    """Blocks of one request to fill."""

    request_id: str
    label: int
    runs: list[LoadRun]
    by_server: list[list[LoadRun]] = dataclasses.field(default_factory=list)
    """Runs per server, only where the servers do not all name the same objects."""
    broken: bool = False
    """The promise behind this load can no longer be kept: report the failure, copy nothing."""
    withheld: bool = False
    """Broken because its request has ended, which is no failure to count."""
    blocks: list[int] = dataclasses.field(default_factory=list)
    """Blocks that the engine believes will be filled; only where no run names them and failures are reported by block."""
    adapter: Adapter | None = None
    """What the engine has to have loaded for these blocks to be any good."""

    def of(self, server: int) -> list[LoadRun]:
        """The runs for ranks of a server."""
        return self.by_server[server] if self.by_server else self.runs


@dataclasses.dataclass
class Stores:
    """Everything that one step stores, in an order in which parents precede their children."""

    runs: list[StoreRun] = dataclasses.field(default_factory=list)
    owners: list[str] = dataclasses.field(default_factory=list)
    """Request id per run."""
    supersedes: list[tuple[bytes, int]] = dataclasses.field(default_factory=list)
    """Tails that these runs make needless: (key, object group)."""
    may_exist: list[int] = dataclasses.field(default_factory=list)
    """Places of the runs whose objects the server may have already. Workers ask before they copy them."""
    adapters: dict[str, Adapter] = dataclasses.field(default_factory=dict)
    """Of the owners that have one: with what their blocks have been computed, if the engine has that loaded."""
    new_tokens: int = 0
    """Tokens whose KV the engine has computed for the first time since the last plan, of requests that store."""

    def only(self, groups: Container[int]) -> Stores:
        """What of this belongs to these object groups."""
        kept = [at for at, run in enumerate(self.runs) if run.group in groups]
        places = {at: place for place, at in enumerate(kept)}
        return Stores(
            runs=[self.runs[at] for at in kept],
            owners=[self.owners[at] for at in kept],
            supersedes=[one for one in self.supersedes if one[1] in groups],
            may_exist=[places[at] for at in self.may_exist if at in places],
            adapters=self.adapters,
            new_tokens=self.new_tokens,
        )

    def apart(self, owners: Container[str]) -> tuple[Stores, Stores]:
        """What belongs to none of these owners, and what does. Neither supersedes anything."""
        parts = Stores(adapters=self.adapters), Stores(adapters=self.adapters)
        asked = set(self.may_exist)
        for at, (owner, run) in enumerate(zip(self.owners, self.runs)):
            part = parts[owner in owners]
            part.add(run, at in asked)
            part.owners.append(owner)
        return parts

    def add(self, run: StoreRun, may_exist: bool = False) -> None:
        """Adds a run, whose owner is added apart."""
        if may_exist:
            self.may_exist.append(len(self.runs))
        self.runs.append(run)


@dataclasses.dataclass
class StepPlan:
    """The work of one engine step."""

    sync_loads: list[Load] = dataclasses.field(default_factory=list)
    async_loads: list[Load] = dataclasses.field(default_factory=list)
    stores: Stores | None = None
    epoch: bytes = b""
    """The weight epoch that the keys of this plan belong to; empty before the first reset."""
    weights: bytes = b""
    """The identity of the weights, where workers did not know it when they registered."""


@dataclasses.dataclass
class RankReport:
    """What a worker tells the scheduler role after the engine has registered its tensors."""

    rank: int
    domain: dict[str, str | bytes] | None
    """The domain's fields, or None where this rank cannot take part."""
    problem: str = ""
    """Why it cannot."""
    no_loads: str = ""
    """What in the engine's own configuration, which only workers see, keeps it from loading."""


class Loaded(NamedTuple):
    """From where a worker has loaded an adapter."""

    path: str
    stamp: bytes
    """The files as they were then; empty where they changed meanwhile, so that nobody knows what it holds."""


@dataclasses.dataclass
class StepReport:
    """What a worker tells the scheduler role after a step."""

    orphaned: set[str] = dataclasses.field(default_factory=set)
    """Requests with a chunk whose parent is not live: their chains have to be stored again from the first gap."""
    adapters: dict[int, Loaded] = dataclasses.field(default_factory=dict)
    """Adapters that were loaded, or loaded again from other files, by the engine's numbers."""
    ability: dict[tuple[int, int], tuple[bool, str]] = dataclasses.field(default_factory=dict)
    """Of workers (server, rank there) that are not as they should be, or are so again: whether they can load, and why not
    all is well."""
    ranks: dict[int, RankReport] = dataclasses.field(default_factory=dict)
    """Once: what the handshake says too, which another connector's may take the place of."""

    def merge(self, other: StepReport) -> None:
        """Adds another worker's report."""
        self.orphaned |= other.orphaned
        for number, loaded in other.adapters.items():
            own = self.adapters.setdefault(number, loaded)
            if own != loaded:
                self.adapters[number] = Loaded(own.path, b"")
        self.ability |= other.ability
        self.ranks |= other.ranks
