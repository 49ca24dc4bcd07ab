"""The worker role: copies between the engine's KV tensors and the pool.

Stores run synchronously when a step is done, so nothing that the engine reuses afterwards is still being read, and
there is nothing to fence when requests are preempted. Loads run in the step for a single full-attention group, else
in a thread between steps; every request handed to it is reported finished exactly once, whatever happens to it.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvasir import Client, KvasirError, copy_path
from kvasir.vllm import identity
from kvasir.vllm.geometry import FULL, Geometry
from kvasir.vllm.layout import Layout
from kvasir.vllm.loaded import LoadedAdapters
from kvasir.vllm.meta import Adapter, Load, LoadRun, StepPlan, StepReport, Stores
from kvasir.vllm.notes import Notes

LOAD_THREADS = 2


@dataclasses.dataclass(frozen=True)
class Part:
    """A worker's part of the objects of an object group."""

    part: int
    """The one that it reads and writes."""
    parts: int
    stores: bool
    """False where a lower rank of the same server holds the same bytes and stores them, and for a consumer."""


@dataclasses.dataclass(frozen=True)
class Rank:
    """This worker among the workers of its engine that use the same server."""

    rank: int
    world_size: int
    groups: tuple[Part, ...]
    """By object group."""
    server: int = 0
    """Which of the engine's servers it uses."""

    def by_part(self, groups: Iterable[int]) -> dict[int, list[int]]:
        """The places of these object groups, by this worker's part of each: the client's calls take one part."""
        places: dict[int, list[int]] = {}
        for at, group in enumerate(groups):
            places.setdefault(self.groups[group].part, []).append(at)
        return places


@dataclasses.dataclass
class Results:
    """What has ended since it was last asked."""

    done: set[str]
    failed: set[str]


class WorkerRole:
    """One per worker process."""

    def __init__(
        self, geometry: Geometry, client: Client, rank: Rank, notes: Notes, steps_under_way: int = 1,
        adapters: LoadedAdapters | None = None,
    ) -> None:  # fmt: skip
        """`adapters`: None in an engine without any."""
        self._geometry = geometry
        self._client = client
        self._rank = rank
        self._notes = notes
        self._steps_under_way = steps_under_way
        self._suspect_steps = 0
        """Steps, from this one on, that may compute from blocks which were not loaded."""
        self._layout: Layout | None = None
        self._domain: Mapping[str, Any] = {}
        self._epoch = b""
        self._weights = b""
        """The weights that the scheduler role has told of."""
        self._adapters = adapters
        self._kv_caches: Any = None
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._results = Results(set(), set())
        self._bad_blocks: set[int] = set()
        self._orphaned: set[str] = set()
        self._was_well = True

    def register(self, kv_caches: Mapping[str, Any], layout: Layout, domain: Mapping[str, Any]) -> None:
        """Names the engine's memory and registers it. The server may be away; the client then does it later.

        A domain without an identity of the weights is registered once a plan tells it.
        """
        self._client.set_memory(layout.regions, layout.object_layouts(self._geometry), layout.num_blocks)
        self._layout = layout
        self._domain = domain
        self._kv_caches = kv_caches  # keeps the memory alive as long as copies may touch it
        if domain["weights_id"]:
            self._register(layout, domain)

    def _register(self, layout: Layout, domain: Mapping[str, Any]) -> None:
        geometry, rank = self._geometry, self._rank
        groups = [
            (group.index, group.kind, own.parts, own.part, group.window_tokens, group.unit_bytes)
            for group, own in zip(geometry.object_groups, rank.groups, strict=True)
        ]
        self._client.register(
            domain,
            rank.rank,
            rank.world_size,
            geometry.alignment,
            geometry.spans,
            groups,
            sum(len(pages) for pages in layout.groups.values()),
            layout.num_blocks,
            any(own.stores for own in rank.groups),
        )

    def say_path(self) -> None:
        """The payload path, once."""
        self._notes.info("path", f"payload path shm-direct, copies by {copy_path()}")

    # Loads

    def start_loads(self, plan: StepPlan) -> None:
        """Runs the step's synchronous loads and starts the others."""
        self._follow(plan)
        for load in plan.sync_loads:
            # The engine has made ready by now what this step computes with.
            load.broken = load.broken or not self._computes_with(load.adapter)
            failed = self._run(load)
            if failed:
                self._bad_blocks |= failed
                self._suspect_steps = self._steps_under_way
                # What was promised may be gone from the server, and what is computed instead belongs there again.
                self._orphaned.add(load.request_id)
        for load in plan.async_loads:
            try:
                if self._threads is None:
                    self._threads = concurrent.futures.ThreadPoolExecutor(LOAD_THREADS, "kvasir-load")
                self._threads.submit(self._run_async, load)
            except RuntimeError as error:
                # No thread to be had: the request must be reported all the same.
                self._notes.failure("thread", "starting a load", error)
                self._report(load, failed=True)

    def _computes_with(self, adapter: Adapter | None) -> bool:
        return adapter is None or (self._adapters is not None and self._adapters.has(adapter))

    def _follow(self, plan: StepPlan) -> None:
        """Moves to the domain of the weights that the scheduler role makes keys for."""
        if (plan.epoch, plan.weights) == (self._epoch, self._weights) or self._layout is None:
            return
        epoch = self._epoch = plan.epoch
        if plan.weights != self._weights:
            self._weights = plan.weights
            self._domain = dict(self._domain) | {"weights_id": plan.weights}
        layout, self._layout = self._layout, None
        try:
            self._register(layout, identity.with_epoch(self._domain, epoch))
        except Exception as error:
            if not isinstance(error, KvasirError) or error.kind != "Unavailable":
                # Without a layout nothing is loaded or stored any more, so nothing goes under the old weights' keys; and
                # the loads of this step are still reported.
                self._notes.failure("epoch", "registering for new weights", error)
                return
        self._layout = layout

    def _run_async(self, load: Load) -> None:
        failed = True
        try:
            if load.adapter is not None:
                load.broken = load.broken or self._adapters is None or not self._adapters.will_have(load.adapter)
            failed = bool(self._run(load))
        finally:
            self._report(load, failed)

    def _report(self, load: Load, failed: bool) -> None:
        with self._lock:
            self._results.done.add(load.request_id)
            if failed:
                self._results.failed.add(load.request_id)

    def _run(self, load: Load) -> set[int]:
        """Copies; the blocks that hold nothing usable afterwards, which is none if all went well."""
        runs = load.of(self._rank.server)
        if load.broken or self._layout is None:
            if not load.withheld:
                self._client.count_failed_loads(max(sum(run.num_objects for run in runs), 1))
            return _all_blocks(load, runs)
        try:
            good = self._load(load.label, runs)
        except Exception as error:  # never into the engine: what was not loaded is computed
            self._notes.failure("load", "loading", error)
            return _all_blocks(load, runs)
        bad: set[int] = set()
        for run, fine in zip(runs, good):
            if not all(fine):
                bad |= run.blocks_of(at for at, was_fine in enumerate(fine) if not was_fine)
        return bad

    def _load(self, label: int, runs: Sequence[LoadRun]) -> list[Sequence[bool]]:
        """Per run which of its objects were loaded."""
        good: list[Sequence[bool]] = [()] * len(runs)
        for part, places in self._rank.by_part(run.group for run in runs).items():
            for at, fine in zip(places, self._client.load(label, part, [runs[at] for at in places])):
                good[at] = fine
        return good

    def take_results(self) -> Results:
        """Asynchronous loads that have ended; each request once."""
        with self._lock:
            results, self._results = self._results, Results(set(), set())
        return results

    def take_bad_blocks(self) -> set[int]:
        """Blocks whose synchronous load failed."""
        bad, self._bad_blocks = self._bad_blocks, set()
        bad.discard(-1)
        return bad

    # Stores

    def save(self, stores: Stores | None) -> None:
        """Copies what a step completed and publishes it, with one message for each number that this rank's parts have."""
        suspect, self._suspect_steps = self._suspect_steps > 0, max(self._suspect_steps - 1, 0)
        if stores is None or self._layout is None:
            return
        stores = stores.only({group for group, own in enumerate(self._rank.groups) if own.stores})
        self._count_new(stores)
        if not stores.runs:
            return
        if suspect:
            # A load of this step failed, and what was computed from its blocks is wrong until the engine computes it
            # again. Which requests share those blocks only the engine knows, so nothing of the step is stored.
            self._orphaned.update(stores.owners)
            self._skip(stores)
            return
        foreign = {owner for owner, adapter in stores.adapters.items() if not self._computes_with(adapter)}
        if foreign:
            # The engine has loaded an adapter from other files than those that the keys are of.
            stores, others = stores.apart(foreign)
            self._skip(others)
            if not stores.runs:
                return
        try:
            # What is there is not copied; saying so ends what another rank began because it was asked a moment earlier.
            stores = self._without_known(stores)
            outcomes = self._store(stores)
        except Exception as error:  # never into the engine: what was not stored is a later miss
            self._notes.failure("store", "storing", error)
            self._skip(stores)
            return
        self._orphaned.update(owner for owner, names in zip(stores.owners, outcomes) if "no_parent" in names)

    def _count_new(self, stores: Stores) -> None:
        """Counts the KV of new tokens, as far as this rank stores it, and the states that are there for this step only."""
        groups = [group for group, own in zip(self._geometry.object_groups, self._rank.groups) if own.stores]
        unit = sum(group.unit_bytes for group in groups if not group.recurrent)
        states = {group.index: group.unit_bytes for group in groups if group.recurrent}
        new = stores.new_tokens * unit // self._geometry.alignment
        new += sum(states[run.group] * len(run.each_key()) for run in stores.runs if run.group in states)
        if new:
            self._client.count_new_kv(new)

    def _without_known(self, stores: Stores) -> Stores:
        """The same, but without blocks for objects that the server has already."""
        if not stores.may_exist:
            return stores
        asked = [(key, stores.runs[at].group) for at in stores.may_exist for key in stores.runs[at].each_key()]
        known: set[tuple[bytes, int]] = set()
        for part, places in self._rank.by_part(group for _, group in asked).items():
            own_part = [asked[at] for at in places]
            known.update(one for one, there in zip(own_part, self._client.present(part, own_part)) if there)
        found = Stores(supersedes=stores.supersedes, adapters=stores.adapters)
        for owner, run in zip(stores.owners, stores.runs):
            flags = [(key, run.group) in known for key in run.each_key()]
            for is_known, objects in itertools.groupby(range(len(flags)), flags.__getitem__):
                own = list(objects)
                part = run.part(own[0], own[-1] + 1)
                found.add(part._replace(blocks=[]) if is_known else part)
                found.owners.append(owner)
        return found

    def _store(self, stores: Stores) -> list[Sequence[str]]:
        """Per run what became of its objects."""
        outcomes: list[Sequence[str]] = [()] * len(stores.runs)
        full = {group.index for group in self._geometry.object_groups if group.kind == FULL}
        by_part = self._rank.by_part(run.group for run in stores.runs)
        # All else hangs under full attention, and may be complete with this rank's part.
        for part in sorted(by_part, key=lambda part: full.isdisjoint(stores.runs[at].group for at in by_part[part])):
            runs = [stores.runs[at] for at in by_part[part]]
            needless = [one for one in stores.supersedes if self._rank.groups[one[1]].part == part]
            for at, names in zip(by_part[part], self._client.store(part, runs, needless)):
                outcomes[at] = names
        return outcomes

    def _skip(self, stores: Stores) -> None:
        """Says that this rank's parts will not come, so that no object is made of parts of two computations."""
        awaited = [run._replace(blocks=[]) for run in stores.runs if self._rank.groups[run.group].parts > 1]
        try:
            self._store(Stores(awaited))
        except Exception as error:  # the other ranks' parts go when space is needed
            self._notes.failure("skip", "giving up a store", error)

    def take_report(self) -> StepReport | None:
        """What the scheduler role should hear about this step."""
        loaded = self._adapters.take_news() if self._adapters is not None else {}
        ability = self._ability()
        if not self._orphaned and not loaded and not ability:
            return None
        orphaned, self._orphaned = self._orphaned, set()
        return StepReport(orphaned, loaded, ability)

    def _ability(self) -> dict[tuple[int, int], tuple[bool, str]]:
        """Whether this worker can load, and why it is not as it should be; nothing while all is well."""
        loads, why = True, ""
        if self._layout is None and self._domain:
            loads, why = False, "its KV cache is not registered"
        elif not self._client.healthy:
            loads, why = self._client.readable, self._client.state_text
        was_well, self._was_well = self._was_well, not why
        return {} if was_well and not why else {(self._rank.server, self._rank.rank): (loads, why)}

    def close(self) -> None:
        """Waits for running loads and ends the connection."""
        if self._adapters is not None:
            self._adapters.unwatch()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._client.close()


def _all_blocks(load: Load, runs: Sequence[LoadRun]) -> set[int]:
    """What a load without a result leaves behind: every block, or -1 where none is known."""
    return set(load.blocks).union(*(run.blocks_of(range(run.num_objects)) for run in runs)) or {-1}


def server_of(rank: int, world_size: int, servers: int) -> int:
    """Which of the engine's servers a rank uses: ranks in order, in runs as even as they go."""
    return rank * servers // world_size


def rank_of(
    parallel_config: Any, shards: Sequence[Sequence[int]], servers: int = 1, stores: bool = True
) -> Rank:
    """Which part of each object group's objects a worker holds: one per pipeline stage and distinct shard of the group.

    Ranks and parts are counted among the workers of one server, each of which keeps whole objects of those parts.
    """
    tp, pp = parallel_config.tensor_parallel_size, parallel_config.pipeline_parallel_size
    world = tp * pp
    own = parallel_config.rank % world
    server = server_of(own, world, servers)
    peers = [rank for rank in range(world) if server_of(rank, world, servers) == server]
    groups = []
    for ranks in shards:
        held = {rank: (rank // tp, ranks[rank % tp]) for rank in peers}
        parts = sorted(set(held.values()))
        lowest = min(rank for rank in peers if held[rank] == held[own])
        groups.append(Part(parts.index(held[own]), len(parts), stores and lowest == own))
    return Rank(peers.index(own), len(peers), tuple(groups), server)


def unsupported(parallel_config: Any) -> Sequence[str]:
    """Parallel shapes that this version does not serve."""
    found = []
    if getattr(parallel_config, "prefill_context_parallel_size", 1) > 1:
        found.append("prefill context parallelism")
    return found
