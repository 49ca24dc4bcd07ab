"""`KvasirConnector`: vLLM's connector interface over the two roles. All decisions are in `scheduler` and `worker`.

At start-up anything that cannot work is an error that says what to change. After that no exception reaches the
engine: a hook that fails is logged once and answers what a cache that is not there would answer.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvasir import Client, KvasirError
from kvasir.vllm import describe, engine, identity, layout, outer, weights, worker
from kvasir.vllm import geometry as geometries
from kvasir.vllm.conditions import Conditions
from kvasir.vllm.servers import Servers
from kvasir.vllm.meta import RankReport, StepPlan, StepReport
from kvasir.vllm.notes import Notes
from kvasir.vllm.scheduler import SchedulerRole
from kvasir.vllm.settings import Settings

logger = init_logger("vllm.kvasir")

_Hook = TypeVar("_Hook", bound=Callable[..., Any])


@dataclasses.dataclass
class KvasirMetadata(KVConnectorMetadata):
    """One step's plan on its way to the workers."""

    plan: StepPlan


@dataclasses.dataclass
class KvasirHandshake(KVConnectorHandshakeMetadata):
    """One worker's report after registration."""

    report: RankReport


@dataclasses.dataclass
class KvasirWorkerMetadata(KVConnectorWorkerMetadata):
    """One step's report on its way to the scheduler."""

    report: StepReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Folds another worker's report into this one."""
        assert isinstance(other, KvasirWorkerMetadata)
        self.report.merge(other.report)
        return self


def _spares_the_engine(answer: Callable[[], Any]) -> Callable[[_Hook], _Hook]:
    """Turns an exception of a hook into a log line and the answer of an absent cache."""

    def wrap(hook: _Hook) -> _Hook:
        @functools.wraps(hook)
        def guarded(self: KvasirConnector, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                self._notes.failure(hook.__name__, hook.__name__, error)
                return answer()

        return guarded  # type: ignore[return-value]

    return wrap


def _nothing() -> None:
    return None


class KvasirConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps a vLLM engine's prefix cache in a Kvasir server."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        scheduling = role == KVConnectorRole.SCHEDULER
        self._notes = Notes(logger, "scheduler" if scheduling else f"worker {vllm_config.parallel_config.rank}")
        transfer = self._kv_transfer_config
        self._settings = Settings.from_extra(transfer.kv_connector_extra_config, transfer.kv_role)
        self._dcp = vllm_config.parallel_config.decode_context_parallel_size
        self._geometry = geometries.resolve(kv_cache_config, self._dcp)
        for number, text in enumerate(self._geometry.warnings):
            self._notes.warn(f"geometry {number}", text)
        parallel = vllm_config.parallel_config
        ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        # Servers that no rank uses hold nothing of this engine, so they are not asked either.
        self._sockets = self._settings.sockets[:ranks]
        if len(self._sockets) < len(self._settings.sockets):
            self._notes.warn(
                "sockets", f"{ranks} ranks use the first {ranks} of the {len(self._settings.sockets)} servers named"
            )
        self._shards = geometries.shards(
            kv_cache_config, self._geometry, parallel.tensor_parallel_size, parallel.decode_context_parallel_size
        )
        rank = worker.rank_of(parallel, self._shards, len(self._sockets), self._settings.stores)
        clients = [self._connect(socket) for socket in (self._sockets if scheduling else [self._sockets[rank.server]])]
        self._client: Client | Servers = clients[0]
        if len(clients) > 1:
            self._client = Servers(clients, self._settings.deadline, self._notes)
        # The scheduler's own granularity; the workers inflate theirs for hybrid models.
        block_size = vllm_config.cache_config.block_size if scheduling else None
        self._negotiate(block_size)
        self._scheduler: SchedulerRole | None = None
        self._worker: worker.WorkerRole | None = None
        self._rank_report: RankReport | None = None
        self._rank_told = False
        self._no_loads = ""
        self._conditions = Conditions(self._client)
        self._notes.on_failure = lambda: self._conditions.set("errors_spared")
        if scheduling:
            self._scheduler = SchedulerRole(
                self._geometry,
                self._settings,
                self._client,
                self._serves_loads(),
                block_size,
                self._notes,
                vllm_config.max_concurrent_batches,
                ranks,
                weights.EngineWeights(vllm_config, self._settings, self._notes, self._conditions),
                getattr(vllm_config, "lora_config", None),
                identity.counts_media(vllm_config),
                self._conditions,
            )
            if not self._client.healthy:
                self._scheduler.away_at_start()
        else:
            # Before the engine is done with its start: later nobody says what its own configuration is.
            if self._settings.loads:
                self._no_loads = outer.forbids_loads(transfer, self._without_loads)
            adapters = engine.loaded_adapters(vllm_config, self._notes)
            if adapters is None and getattr(vllm_config, "lora_config", None) is not None:
                self._conditions.set("adapter_unknown")
            self._worker = worker.WorkerRole(
                self._geometry, clients[0], rank, self._notes, vllm_config.max_concurrent_batches, adapters
            )

    # Start-up

    def _connect(self, socket: str) -> Client:
        return Client(
            socket,
            "scheduler" if self._role == KVConnectorRole.SCHEDULER else "worker",
            f"vllm {vllm_version}, pid {os.getpid()}",
            identity.engine_instance(self._vllm_config),
            self._settings.deadline,
            self._settings.heartbeat_interval,
            self._settings.credit_bytes,
            self._settings.checksums,
            self._settings.copy_threads,
            self._settings.payload_path,
        )

    def _negotiate(self, block_size: int | None) -> None:
        spans = [(group, span) for group, span in self._geometry.spans if span]
        try:
            chunk_size = self._client.negotiate(
                self._geometry.alignment,
                spans,
                self._settings.preferred_base,
                binding_domain=self._binding_domain(),
            )
        except KvasirError as error:
            if error.kind == "Unavailable":
                self._notes.warn(
                    "away",
                    f"the server at {self._client.socket} is away ({self._client.state_text}); the engine starts without it "
                    "and uses it as soon as it answers",
                )
                return
            raise ValueError(f"Kvasir at {self._client.socket} cannot serve this model: {error}") from None
        self._geometry.check_chunk(chunk_size, block_size)
        for number, text in enumerate(self._client.warnings()):
            self._notes.warn(f"chunk {number}", text)

    def _binding_domain(self) -> bytes | None:
        try:
            outline = identity.weights_outline(self._vllm_config, self._settings.weights_id)
        except OSError:
            # Registration will say so. A server with one size for all models does not ask.
            return None
        return identity.binding_domain(self._vllm_config, outline, (span for _, span in self._geometry.spans))

    def _serves_loads(self) -> bool:
        """Whether lookups may answer anything but 0; why not, if not, is said once."""
        transfer, settings = self._kv_transfer_config, self._settings
        if not settings.loads:
            self._notes.info("role", f"stores only, loads nothing: kv_role is {transfer.kv_role!r}")
            return False
        if not settings.stores:
            self._notes.info("role", f"loads only, stores nothing: kv_role is {transfer.kv_role!r}")
        policy = transfer.kv_load_failure_policy
        if policy == "recompute":
            return True
        self._conditions.set("loads_forbidden")
        self._notes.warn(
            "policy",
            f"{self._without_loads}: kv_load_failure_policy is {policy!r}, under which a load that fails would fail its "
            "request. Set it to \"recompute\"; `kvasir vllm-args` prints the configuration to use",
        )
        return False

    @property
    def _without_loads(self) -> str:
        return "stores only, loads nothing" if self._settings.stores else "neither stores nor loads anything"

    def _check_block_size(self) -> None:
        """Finds steps that end where nothing can be resumed; the CPU engine resets its block size after this was made."""
        text = geometries.unreached_states(
            self._kv_cache_config, self._geometry, *engine.step_ends(self._vllm_config)
        )
        self._conditions.set("states_unreached", text is not None)
        if text is not None:
            self._notes.warn("block size", text)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Registers the worker's tensors and prepares the report for the scheduler role."""
        assert self._worker is not None
        parallel = self._vllm_config.parallel_config
        rank = parallel.rank
        refused = worker.unsupported(parallel)
        if refused:
            self._rank_report = RankReport(rank, None, f"this version does not serve {' and '.join(refused)}")
            return
        placed, fingerprint = self._place(kv_caches)
        try:
            domain = {
                "model": identity.model_name(self._vllm_config.model_config),
                # Without it the scheduler role says it once it knows.
                "weights_id": weights.known_at_once(self._vllm_config, self._settings) or b"",
                "kv_dtype": identity.kv_dtype(self._vllm_config),
                "fingerprint": fingerprint,
                "parallel_shape": identity.parallel_shape(parallel, self._sockets, self._shards),
            }
        except OSError as error:
            self._rank_report = RankReport(rank, None, f"the weights have no identity: {error}")
            self._notes.warn("weights", f"not caching: {error}")
            return
        try:
            self._worker.register(kv_caches, placed, domain)
        except KvasirError as error:
            if error.kind != "Unavailable":
                raise ValueError(f"Kvasir at {self._client.socket} refuses this engine's KV cache: {error}") from None
        self._worker.say_path()
        self._rank_report = RankReport(rank, domain, no_loads=self._no_loads)
        self._describe(domain)

    def _describe(self, domain: dict[str, Any]) -> None:
        """Writes the engine's description where its settings say."""
        path = self._settings.describe_file
        if path is None or self._vllm_config.parallel_config.rank != 0:
            return
        try:
            describe.write(path, describe.document(self._vllm_config, self._kv_cache_config, domain, "a running engine"))
        except Exception as error:  # it is for people; the engine runs without
            self._notes.warn("describe", f"kvasir.describe_file {path} was not written: {error}")

    def _place(self, kv_caches: dict[str, Any]) -> tuple[layout.Layout, bytes]:
        """Where this worker's pages lie, and the fingerprint that all ranks have in common."""
        if self._vllm_config.parallel_config.pipeline_parallel_size == 1:
            return self._place_own(kv_caches)
        try:
            placed, own = self._place_own(kv_caches)
        except Exception:
            engine.exchange(None)  # the other stages wait for this one
            raise
        return placed, layout.combine(engine.exchange(layout.Stage(own, self._shards)))

    def _place_own(self, kv_caches: dict[str, Any]) -> tuple[layout.Layout, bytes]:
        placed = layout.place(kv_caches, self._kv_cache_config, self._geometry)
        backend, isa = engine.attention_tags(self._vllm_config, list(kv_caches))
        return placed, layout.fingerprint(self._kv_cache_config, self._geometry, placed, backend, isa, self._dcp)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What this worker found at registration."""
        return KvasirHandshake(self._rank_report) if self._rank_report is not None else None

    @_spares_the_engine(_nothing)
    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Hands the workers' reports to the scheduler role."""
        assert self._scheduler is not None
        own = {place: one.report for place, one in metadata.items() if isinstance(one, KvasirHandshake)}
        # Of several connectors in one the engine hands on what the first says; the workers' first step then says the rest.
        if len(own) == len(metadata):
            self._scheduler.set_ranks(own)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache may lose a store: it is a later miss and nothing else."""
        return False

    # Scheduler side

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See `SchedulerRole.matched`."""
        return self._matched(request, num_computed_tokens)

    @_spares_the_engine(lambda: (0, False))
    def _matched(self, request: Any, local: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, local)

    @_spares_the_engine(_nothing)
    def on_new_request(self, request: Any) -> None:
        """The engine's configuration is final by the time the first request arrives."""
        self._check_block_size()

    @_spares_the_engine(_nothing)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See `SchedulerRole.allocated`."""
        self._count(request, num_external_tokens)
        assert self._scheduler is not None
        table = blocks.get_block_ids() if num_external_tokens > 0 else ()
        self._scheduler.allocated(request, table, num_external_tokens)

    @_spares_the_engine(_nothing)
    def _count(self, request: Any, external: int) -> None:
        assert self._scheduler is not None
        self._scheduler.admitted(request, external)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """See `SchedulerRole.build_plan`."""
        return self._build(scheduler_output) or KvasirMetadata(StepPlan())

    @_spares_the_engine(_nothing)
    def _build(self, output: Any) -> KvasirMetadata:
        assert self._scheduler is not None
        blocks = output.kv_connector_block_state
        plan = self._scheduler.build_plan(
            engine.scheduled(output),
            blocks.get_block_ids if blocks is not None else lambda _request_id: None,
            blocks.boundary_state_offloads if blocks is not None else {},
        )
        return KvasirMetadata(plan)

    @_spares_the_engine(_nothing)
    def update_connector_output(self, connector_output: Any) -> None:
        """See `SchedulerRole.on_output`."""
        assert self._scheduler is not None
        meta = connector_output.kv_connector_worker_meta
        self._scheduler.on_output(
            connector_output.finished_recving or (),
            connector_output.failed_recving or (),
            meta.report if isinstance(meta, KvasirWorkerMetadata) else None,
            getattr(connector_output, "invalid_block_ids", None) or (),
        )

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Blocks are never kept beyond the end of a request: everything was stored in its steps."""
        return self.request_finished_all_groups(request, (block_ids,))

    @_spares_the_engine(lambda: (False, None))
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same for several groups."""
        assert self._scheduler is not None
        self._scheduler.finished(request.request_id)
        return False, None

    @_spares_the_engine(lambda: False)
    def reset_cache(self) -> bool | None:
        """Empties the server's cache."""
        assert self._scheduler is not None
        return self._scheduler.reset()

    # Worker side

    @_spares_the_engine(_nothing)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads what this step reads, and starts what later steps will."""
        assert self._worker is not None
        plan = self._plan()
        if plan is not None:
            self._worker.start_loads(plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a load that this step reads is complete before its forward starts."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Not used: it is not called for recurrent layers, so stores follow the step as a whole."""

    @_spares_the_engine(_nothing)
    def wait_for_save(self) -> None:
        """Stores what this step completed, before the engine can reuse any of its blocks."""
        assert self._worker is not None
        plan = self._plan()
        if plan is not None:
            self._worker.save(plan.stores)

    def _plan(self) -> StepPlan | None:
        meta = self._connector_metadata
        return meta.plan if isinstance(meta, KvasirMetadata) else None

    @_spares_the_engine(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Asynchronous loads that have ended."""
        assert self._worker is not None
        results = self._worker.take_results()
        return KVConnectorTransferResults(finished_recving=results.done, failed_recving=results.failed)

    @_spares_the_engine(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks of synchronous loads that failed in this step."""
        assert self._worker is not None
        return self._worker.take_bad_blocks()

    @_spares_the_engine(_nothing)
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What this step's stores found out, and what the worker can do."""
        assert self._worker is not None
        report = self._worker.take_report()
        if self._rank_report is not None and not self._rank_told:
            self._rank_told = True
            report = report or StepReport()
            report.ranks[self._rank_report.rank] = self._rank_report
        return KvasirWorkerMetadata(report) if report is not None else None

    @_spares_the_engine(_nothing)
    def shutdown(self) -> None:
        """Ends the connection; the server drops what it held for this process."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()
