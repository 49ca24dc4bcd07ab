"""What crosses between the scheduler role and the workers. Plain data: it is pickled on its way."""

from __future__ import annotations

import dataclasses

# (key, object group, tokens, block ids per KV cache group)
LoadItem = tuple[bytes, int, int, list[list[int]]]

# (key, parent key, object group, tokens, block ids per KV cache group)
StoreItem = tuple[bytes, bytes | None, int, int, list[list[int]]]


@dataclasses.dataclass
class Load:
    """Blocks of one request to fill."""

    request_id: str
    session: int
    items: list[LoadItem]
    by_server: list[list[LoadItem]] = dataclasses.field(default_factory=list)
    """Items per server, only where the servers do not all name the same objects."""
    broken: bool = False
    """The promise behind this load can no longer be kept: report the failure, copy nothing."""
    withheld: bool = False
    """Broken because its request has ended, which is no failure to count."""
    blocks: list[int] = dataclasses.field(default_factory=list)
    """All block ids that the engine believes will be filled; only kept where failures are reported by block."""

    def of(self, server: int) -> list[LoadItem]:
        """The items for ranks of a server."""
        return self.by_server[server] if self.by_server else self.items


@dataclasses.dataclass
class Stores:
    """Everything that one step stores, in an order in which parents precede their children."""

    items: list[StoreItem] = dataclasses.field(default_factory=list)
    owners: list[str] = dataclasses.field(default_factory=list)
    """Request id per item."""
    supersedes: list[tuple[bytes, int]] = dataclasses.field(default_factory=list)
    """Tails that these items make needless: (key, object group)."""
    may_exist: list[tuple[bytes, int]] = dataclasses.field(default_factory=list)
    """Of the items, those that the server may have already: (key, object group). Workers ask before they copy them."""


@dataclasses.dataclass
class StepPlan:
    """The work of one engine step."""

    sync_loads: list[Load] = dataclasses.field(default_factory=list)
    async_loads: list[Load] = dataclasses.field(default_factory=list)
    stores: Stores | None = None
    epoch: bytes = b""
    """The weight epoch that the keys of this plan belong to; empty before the first reset."""


@dataclasses.dataclass
class RankReport:
    """What a worker tells the scheduler role after the engine has registered its tensors."""

    rank: int
    domain: dict[str, str | bytes] | None
    """The domain's fields, or None where this rank cannot take part."""
    problem: str = ""
    """Why it cannot."""


@dataclasses.dataclass
class StepReport:
    """What a worker tells the scheduler role after a step."""

    orphaned: set[str] = dataclasses.field(default_factory=set)
    """Requests with a chunk whose parent is not live: their chains have to be stored again from the first gap."""

    def merge(self, other: StepReport) -> None:
        """Adds another worker's report."""
        self.orphaned |= other.orphaned
