"""The scheduler role: hashes prompts, looks them up, decides what is loaded and stored.

Every engine step is one pass: `matched` for each waiting request (asked again in every pass until the request is
admitted), `allocated` for those that were admitted, then `build_plan` once. An engine may allocate in one pass and say
so in a later one, so an offer lives until its request is told, asked about again, or ends.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kvasir import Client, domain_seed
from kvasir.vllm import identity, loads
from kvasir.vllm.adapters import Adapters
from kvasir.vllm.conditions import Conditions
from kvasir.vllm.servers import Answer, Servers, Pins, reach, runs_by_server
from kvasir.vllm.geometry import Geometry, GeometryRefused
from kvasir.vllm.lookups import Lookups
from kvasir.vllm.meta import Load, RankReport, StepPlan, StepReport, Stores
from kvasir.vllm.notes import Notes
from kvasir.vllm.offers import Offers
from kvasir.vllm.outages import Outage, Workers
from kvasir.vllm.requests import Offer, RequestState, odd_switches
from kvasir.vllm.runs import Table
from kvasir.vllm.settings import Settings
from kvasir.vllm.stores import StorePlanner, states_of_step
from kvasir.vllm.tally import Tally
from kvasir.vllm.weights import EngineWeights

# A request whose chain the server lost is stored again from the first gap this many times, then left alone.
RESETS_MAX = 3


@dataclasses.dataclass(slots=True)
class Scheduled:
    """One request of a step."""

    request_id: str
    computed: int
    """Tokens computed before the step."""
    reached: int
    """Tokens computed after it that cannot be taken back."""
    settled: bool
    """No token of the step can be taken back."""


class SchedulerRole:
    """One per engine; all calls come from the engine's scheduler thread."""

    def __init__(
        self,
        geometry: Geometry,
        settings: Settings,
        client: Client | Servers,
        serves_loads: bool,
        block_size: int | None,
        notes: Notes,
        steps_under_way: int = 1,
        ranks: int = 1,
        weights: EngineWeights | None = None,
        lora_config: Any = None,
        counts_media: bool = False,
        conditions: Conditions | None = None,
    ) -> None:
        """`weights`: None where the workers' reports name them. `counts_media`: as `identity.counts_media`."""
        self._geometry = geometry
        self._group_count = max((group.index for group in geometry.object_groups), default=-1) + 1
        self._settings = settings
        self._client = client
        self._serves_loads = serves_loads
        self._block_size = block_size
        self._notes = notes
        self._steps_under_way = steps_under_way
        self._ranks = ranks
        self._lookups = Lookups(client, geometry, settings.lookup_wait)
        self._tally = Tally(client, steps_under_way)
        self._weights = weights
        self._tells_weights = False
        self._told_weights = b""
        """What workers that did not know it have to be told of the weights."""
        self._conditions = conditions or Conditions(client)
        self._adapters = Adapters(lora_config, settings, notes, self._conditions)
        self._counts_media = counts_media
        self._domain: dict[str, Any] | None = None
        self._epoch = b""
        self._seed = b""
        self._chunk_size = 0
        self._planner: StorePlanner | None = None
        self._refused = False
        self._server = Outage(notes, f"the server at {client.socket} is back (healthy)")
        self._workers = Workers(notes)
        self._rank_reports: dict[int, RankReport] = {}
        self._states: dict[str, RequestState] = {}
        self._labels = itertools.count(1)
        self._offers = Offers(self._release, notes)
        self._loads: list[Load] = []
        self._step_loads: list[tuple[str, int | Pins]] = []
        """Requests with a synchronous load in the step that is being planned, and what holds it."""
        self._running: collections.deque[list[tuple[str, int | Pins]]] = collections.deque()
        """The same for the steps that may be running, oldest first."""

    @property
    def loads_async(self) -> bool:
        """Whether loads run between steps. Only a single full-attention group of a single rank is loaded in its step.

        With several ranks a load may fail on one while the others go on in the same step, and store as good what
        follows from the blocks that it lacks.
        """
        return self._ranks > 1 or not self._geometry.single_full

    # Start-up

    def set_ranks(self, reports: Mapping[Any, RankReport]) -> None:
        """Takes what the workers say about their layouts. All have to agree, or nothing is served."""
        problems = sorted({report.problem for report in reports.values() if report.domain is None})
        domains = [report.domain for report in reports.values() if report.domain is not None]
        if problems or not domains:
            self._conditions.set("workers_refused")
            self._notes.warn("ranks", f"not caching: {'; '.join(problems) or 'no worker has reported its layout'}")
            return
        # A rank may not know yet what the weights are.
        known = {key: {domain[key] for domain in domains} for key in domains[0]}
        pending = b"" in known["weights_id"]
        known["weights_id"] = known["weights_id"] - {b""} or {b""}
        fields = sorted(key for key, values in known.items() if len(values) > 1)
        if fields:
            self._conditions.set("workers_refused")
            self._notes.warn("ranks", f"not caching: the ranks differ in {', '.join(fields)}")
            return
        for text in sorted({report.no_loads for report in reports.values()} - {""}):
            self._serves_loads = False
            self._conditions.set("loads_forbidden")
            self._notes.warn("policy", text)
        self._conditions.set("workers_refused", False)
        self._domain = {key: next(iter(values)) for key, values in known.items()}
        self._tells_weights = pending
        self._ready()

    def _identified(self) -> bool:
        """Whether it is known what the weights are."""
        assert self._domain is not None
        known = self._domain["weights_id"]
        if self._weights is not None:
            found = self._weights.poll()
            if found is None:
                return False
            if known not in (b"", found):
                self._refused = True
                self._conditions.set_weights("weights_unknown")
                self._notes.warn(
                    "ranks", "not caching: the weights were changed while the engine started; start it again"
                )
                return False
            self._domain["weights_id"] = known = found
        if self._tells_weights:
            self._told_weights = known
        return known != b""

    def _ready(self) -> bool:
        """Whether keys can be computed; becomes true once layout and chunk size are known, also much later."""
        if self._planner is not None:
            return True
        chunk_size = self._client.chunk_size
        self._conditions.set("servers_differ", not chunk_size and getattr(self._client, "differ", False))
        if self._refused or self._domain is None or not chunk_size or not self._identified():
            return False
        try:
            self._geometry.check_chunk(chunk_size, self._block_size)
        except GeometryRefused as error:
            self._refused = True
            self._conditions.set("chunk_refused")
            self._notes.warn("chunk", f"not caching: {error}")
            return False
        self._seed = domain_seed(identity.with_epoch(self._domain, self._epoch), chunk_size)
        self._chunk_size = chunk_size
        self._planner = StorePlanner(self._geometry, chunk_size, self._settings.store == "prompt")
        self._notes.info("ready", f"chunk size {chunk_size} tokens, hits in steps of {self._geometry.alignment}")
        return True

    def _reachable(self) -> bool:
        """Whether the server can be asked; a change is said in the log."""
        client = self._client
        if client.healthy:
            if self._server.lasts:
                self._conditions.set("servers_differ", False)
            self._server.end()
            return True
        readable, why = client.readable, client.state_text
        self._conditions.set("servers_differ", getattr(client, "differ", False))
        what = "late or gone, so hits go on from memory and nothing is stored" if readable else "away, so nothing is reused or stored"
        self._server.say(why, f"the server at {client.socket} is {what} ({why})")
        return readable

    def away_at_start(self) -> None:
        """The server is away, and the log says so already."""
        self._server.begin(self._client.state_text)

    # Waiting requests

    def _state(self, request: Any) -> RequestState:
        state = self._states.get(request.request_id)
        if state is None:
            state = RequestState(request, next(self._labels), self._group_count)
            state.no_store = state.no_store or not self._settings.stores
            if self._counts_media and getattr(request, "mm_features", None):
                state.bypass = True
                self._conditions.set("media_unhashed")
                self._notes.warn(
                    "media", "not caching requests with images or other media, because the engine does not hash them "
                    "(neither its prefix cache nor its cache of media is on)"
                )  # fmt: skip
            if getattr(request, "lora_request", None) is not None:
                state.adapter_entry = self._adapters.entry(request.lora_request)
                state.adapter_changes = state.adapter_entry.changes
            self._states[request.request_id] = state
            for name, text in odd_switches(request):
                self._notes.warn(f"switch {name}", text)
        return state

    def matched(self, request: Any, local: int) -> tuple[int | None, bool]:
        """Tokens beyond `local` that can be loaded, and whether between steps; (None, False) to be asked again."""
        state = self._state(request)
        state.local = local
        self._offers.withdraw(state)
        state.compute_anew()
        if state.bypass or not self._ready() or not self._reachable():
            return 0, False
        if state.adapter_entry is not None and not self._adapters.take(state, local, self._lookups):
            return 0, False
        cap = (request.num_tokens - 1) // self._geometry.alignment * self._geometry.alignment
        wanted = (
            self._serves_loads
            and self._workers.load
            and not (state.failed or state.no_load or getattr(request, "skip_reading_prefix_cache", False))
            and cap > local
        )
        if not wanted:
            # Not a question about loading, but stores need to know what is there already.
            if not state.no_store:
                self._learn(state)
            return 0, False
        hit = self._lookups.poll(state, self._seed, self._chunk_size, cap, local, pin=True)
        while hit is not None and hit.shortened and self._offers.give_way():
            self._release(hit.pin)
            hit = self._lookups.poll(state, self._seed, self._chunk_size, cap, local, pin=True)
        if hit is None:
            return None, False
        self._cover(state, hit)
        total = min(hit.hit_tokens, cap)
        total -= total % self._geometry.alignment
        if total <= local or total != hit.hit_tokens:
            self._release(hit.pin)
            return 0, False
        self._offers.make(state, Offer(hit, local, total))
        return total - local, self.loads_async

    def admitted(self, request: Any, external: int) -> None:
        """The engine has allocated blocks: what it asked about counts now, and once."""
        state = self._states.get(request.request_id)
        self._tally.admitted(request, state.local if state is not None else 0, external)

    def allocated(self, request: Any, table: Table, external: int) -> None:
        """The engine has allocated blocks; with `external` tokens above 0 it counts on their being loaded."""
        if external <= 0:
            # Without the load that was offered, or after it.
            told = self._states.get(request.request_id)
            if told is not None:
                self._offers.withdraw(told)
            return
        state = self._state(request)
        offer = self._offers.take(state)
        load = Load(request.request_id, state.label, [], broken=True, adapter=state.adapter)
        # In the plan whatever happens below: a load that nobody reports would leave its request waiting for ever.
        self._loads.append(load)
        local = offer.local if offer else 0
        total = local + external
        try:
            hit = self._hit_of(state, offer, total)
            if hit is not None:
                self._hold(state, hit)
                self._fill(load, hit, table, local, total)
                if not load.broken:
                    state.loaded = (local, total)
        finally:
            if load.broken and not self.loads_async:
                load.blocks = loads.blocks_to_fill(self._geometry, table, local, total)
            self._count_load(request.request_id, table, local, max(min(total, request.num_tokens), local))

    def _count_load(self, request_id: str, table: Table, local: int, total: int) -> None:
        if self.loads_async:
            self._tally.loads_between_steps(request_id, total - local)
            return
        (group,) = self._geometry.object_groups
        (kv_group,), (span,) = group.kv_groups, group.spans
        self._tally.loads_in_step(request_id, local, total, table[kv_group], span)

    def _hold(self, state: RequestState, hit: Answer) -> None:
        """Keeps what is to be loaded until every rank has loaded it."""
        # A preempted request may be back before the step of its last load is over.
        self._release(state.held_pin)
        state.held_pin = hit.pin
        if not self.loads_async:
            self._step_loads.append((state.request.request_id, hit.pin))

    def _fill(self, load: Load, hit: Answer, table: Table, local: int, total: int) -> None:
        fills = [
            loads.plan(self._geometry, self._chunk_size, named, table, local, total) for named in runs_by_server(hit)
        ]
        if not all(fill.complete for fill in fills):
            self._notes.warn("incomplete", f"a hit of {total} tokens did not name every object that it needs")
            return
        load.runs, load.broken = fills[0].runs, False
        if len(fills) > 1:
            load.by_server = [fill.runs for fill in fills]

    def _hit_of(self, state: RequestState, offer: Offer | None, total: int) -> Answer | None:
        """The hit to load `total` tokens from: the offer's, or that of a shorter prefix if the engine takes less."""
        if offer is None:
            return None
        if total == offer.total or (total < offer.total and self._geometry.single_full):
            return offer.hit
        self._release(offer.hit.pin)
        if total > offer.total:
            return None
        return self._lookups.exact(state, self._seed, self._chunk_size, total, offer.local)

    # The plan of a step

    def build_plan(
        self,
        scheduled: Iterable[Scheduled],
        table_of: Any,
        handed: Mapping[str, Sequence[tuple[int, int, int]]],
    ) -> StepPlan:
        """Everything that this step loads and stores. `table_of(request id)` gives a request's current block table."""
        plan = StepPlan(epoch=self._epoch)
        new, self._loads = self._loads, []
        if self.loads_async:
            plan.async_loads = new
        else:
            plan.sync_loads = new
        # The engine counts on these loads, so whatever else fails here, they are in the plan.
        try:
            self._end_pass()
        except Exception as error:
            self._notes.failure("pins", "releasing pins", error)
        try:
            plan.stores = self._plan_stores(scheduled, table_of, handed)
        except Exception as error:  # a cache that cannot store is still a cache
            self._notes.failure("stores", "planning stores", error)
        plan.weights = self._told_weights
        return plan

    def _end_pass(self) -> None:
        """Lets go of loads whose step is over."""
        self._lookups.new_step()
        self._tally.next_step()
        self._running.append(self._step_loads)
        self._step_loads = []
        while len(self._running) > self._steps_under_way:
            # The engine does not plan a step before this one is over.
            for request_id, pin in self._running.popleft():
                state = self._states.get(request_id)
                if state is not None and state.held_pin == pin:
                    self._let_go([request_id])

    def _plan_stores(
        self,
        scheduled: Iterable[Scheduled],
        table_of: Any,
        handed: Mapping[str, Sequence[tuple[int, int, int]]],
    ) -> Stores | None:
        # Identity and chunk size may have become known since the last request came.
        planner = self._planner if self._ready() else None
        if planner is None or not self._reachable() or not self._workers.store:
            return None
        out = Stores()
        for step in scheduled:
            state = self._states.get(step.request_id)
            offers = handed.get(step.request_id, ())
            if state is None or state.bypass or state.no_store:
                continue
            if state.furthest is None:
                state.furthest = step.computed  # what a request begins with is nothing new
            if not offers and planner.is_up_to_date(state, step.reached):
                continue
            if not self._adapters.has(state):
                continue
            if state.pending is not None or state.recheck:
                self._learn(state)
                if state.pending is not None and self._geometry.single_full:
                    continue  # nothing is lost by waiting; windows and states are there now or never
            table = table_of(step.request_id)
            if table is None:
                continue
            states = states_of_step(self._geometry, table, step.reached, offers, step.settled)
            planner.plan(state, self._seed, table, step.reached, states, out)
            if state.adapter is not None:
                out.adapters[step.request_id] = state.adapter
        return out if out.runs or out.new_tokens else None  # what is new is counted also where nothing is stored

    def _learn(self, state: RequestState) -> None:
        """Asks what the server has of this request, without pinning anything."""
        cap = state.known_tokens // self._geometry.alignment * self._geometry.alignment
        if not cap:
            return
        hit = self._lookups.poll(state, self._seed, self._chunk_size, cap, 0, pin=False)
        if hit is None:
            return
        state.recheck = False
        self._release(hit.pin)
        self._cover(state, hit)

    def _cover(self, state: RequestState, hit: Answer) -> None:
        if hit.degraded:
            return
        for group in self._geometry.object_groups:
            present = hit.present_tokens[group.index] if group.index < len(hit.present_tokens) else 0
            # Not up to the hit: windows and states are there for its end, and may be missing before.
            state.covered[group.index] = present
        state.served, state.reach = hit.hit_tokens, reach(hit)

    # After a step, and the end of a request

    def on_output(
        self,
        finished: Iterable[str],
        failed: Iterable[str],
        report: StepReport | None,
        bad_blocks: Collection[int] = (),
    ) -> None:
        """Takes the workers' results of a step."""
        self._tally.ended(finished, failed, bad_blocks)
        for request_id in failed:
            state = self._states.get(request_id)
            if state is not None:
                state.failed = True
                # What the lookup found may be gone; what is computed instead is stored where the server lacks it.
                state.store_again()
        self._let_go(finished)
        if report is None:
            return
        for number, loaded in report.adapters.items():
            self._adapters.loaded(number, loaded, self._states.values())
        self._workers.report(report.ability)
        if report.ranks:
            self._rank_reports |= report.ranks
            if self._domain is None and len(self._rank_reports) == self._ranks:
                self.set_ranks(self._rank_reports)
        for request_id in report.orphaned:
            state = self._states.get(request_id)
            if state is not None and state.resets < RESETS_MAX:
                state.resets += 1
                state.recheck = True
                state.store_again()

    def finished(self, request_id: str) -> None:
        """Forgets a request. Its load, if one is still running, has pins of its own in the workers."""
        state = self._states.pop(request_id, None)
        if state is None:
            return
        self._withhold(request_id)
        self._tally.gone(request_id)
        self._offers.withdraw(state)
        self._lookups.drop(state)
        self._release(state.held_pin)
        if state.chain is not None:
            self._client.end_session(state.label)

    def reset(self) -> bool:
        """Drops every unpinned object of the server, and makes keys for new weights from here on.

        The engine says so when its weights change. What is pinned or being committed now, and what another replica
        still stores from the old weights, has other keys. An operator who names the weights answers for their change.
        """
        done = self._client.clear()
        renew = self._settings.weights_id is None
        for state in self._states.values():
            state.store_again()
            if renew:
                # Its blocks come from the old weights.
                self._offers.withdraw(state)
                self._lookups.drop(state)
                state.chain, state.hashed, state.no_store = None, 0, True
        if renew:
            self._epoch = os.urandom(identity.EPOCH_BYTES)
            if self._domain is not None and self._chunk_size:
                self._seed = domain_seed(identity.with_epoch(self._domain, self._epoch), self._chunk_size)
        return done

    def close(self) -> None:
        """Lets go of everything that is held."""
        for request_id in list(self._states):
            self.finished(request_id)
        if self._weights is not None:
            self._weights.close()
        self._client.close()

    def _withhold(self, request_id: str) -> None:
        """Keeps a load that no worker has heard of from being run: its blocks may be another request's by then."""
        if not self.loads_async:
            self._tally.withheld(request_id)
            self._loads = [load for load in self._loads if load.request_id != request_id]
        for load in self._loads:
            if load.request_id == request_id:
                # Reported all the same: until then the engine keeps the request's blocks.
                load.broken = load.withheld = True

    def _let_go(self, request_ids: Iterable[str]) -> None:
        """Releases the pins of loads that are over."""
        for request_id in request_ids:
            state = self._states.get(request_id)
            if state is not None:
                self._release(state.held_pin)
                state.held_pin = 0

    def _release(self, pin: int | Pins) -> None:
        if pin:
            self._client.release([pin])
