"""A scripted engine: real connectors of both roles, a real server behind them, KV tensors in memory of its own.

It makes the calls of the engine's scheduler and workers in the engine's order, allocates blocks as the engine does
(null where a group no longer needs one) and computes nothing: a forward pass writes, into every block that it fills,
bytes that follow from the prompt, the layer and the place. So what a load must have brought is known to the byte.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import logging
import pickle
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

import fake_vllm  # noqa: F401  (before the connector)
import fakes
from kvasir.vllm import engine as engine_module
from kvasir.vllm import geometry as geometries
from kvasir.vllm.connector import KvasirConnector
from kvasir.vllm.geometry import CHUNKED_LOCAL, FULL
from ranks import BLOCKS, Rank, Write
from test_native import eventually
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

LAYERS = 2

FULL_SPECS = (fakes.FullAttentionSpec(16, page_size_bytes=512),)
WINDOW_SPECS = (fakes.FullAttentionSpec(16, page_size_bytes=512), fakes.SlidingWindowSpec(16, 256, sliding_window=32))
CHUNKED_SPECS = (
    fakes.FullAttentionSpec(16, page_size_bytes=512),
    fakes.ChunkedLocalAttentionSpec(16, 256, attention_chunk_size=96),
)
HYBRID_SPECS = (fakes.FullAttentionSpec(32, page_size_bytes=512), fakes.MambaSpec(32, page_size_bytes=384))
# Models without full attention, whose objects hang under nothing.
ONLY_WINDOW_SPECS = (fakes.SlidingWindowSpec(16, 256, sliding_window=32),)
ONLY_STATE_SPECS = (fakes.MambaSpec(32, page_size_bytes=384),)
# Two KV cache groups in each object group, as where an engine cuts the layers of a kind into groups of equal size.
PAIRED_SPECS = (
    fakes.FullAttentionSpec(16, page_size_bytes=512),
    fakes.SlidingWindowSpec(16, 512, sliding_window=32),
    fakes.FullAttentionSpec(16, page_size_bytes=512),
    fakes.SlidingWindowSpec(16, 512, sliding_window=32),
)
LATENT_HYBRID_SPECS = (fakes.MLAAttentionSpec(32, page_size_bytes=512), fakes.MambaSpec(32, page_size_bytes=384))


class Request(fakes.Request):
    """A request whose tokens follow from a number, so that two with the same number share their prefix."""

    def __init__(self, request_id: str, tokens: int, prompt: int = 1, **fields: Any) -> None:
        self.prompt = prompt
        super().__init__(request_id, [(prompt * 7919 + at * 31) % 50_000 for at in range(tokens)], **fields)

    def generate(self, count: int) -> None:
        """More tokens, which two requests of one prompt have in common too."""
        self.all_token_ids += [(self.prompt * 104_729 + len(self.all_token_ids) + at) % 50_000 for at in range(count)]


class Spared(logging.Handler):
    """Errors that connectors spared their engines. A hook that has to spare its engine anything is mostly a defect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(record.getMessage())

    def take(self, what: str) -> int:
        """How many there were with these words; they are forgotten."""
        found = [line for line in self.errors if what in line]
        self.errors = [line for line in self.errors if what not in line]
        return len(found)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Spared]:
        """Listens, and finds at the end that nothing was left untaken."""
        logger = logging.getLogger("vllm.kvasir")
        logger.addHandler(self)
        try:
            yield self
        finally:
            logger.removeHandler(self)
        assert self.errors == []


@dataclasses.dataclass
class Output:
    """What one step's workers have told the scheduler, merged over the ranks."""

    done: set[str]
    failed: set[str]
    bad_blocks: set[int]


@dataclasses.dataclass(frozen=True)
class Shape:
    """How an engine's workers split the model. Their number is a multiple of `pp`; the rest is tensor parallel."""

    ranks: int = 1
    pp: int = 1
    dcp: int = 1
    heads: int | None = None
    """Shards into which attention's heads are split, each on neighbouring ranks of a stage; None: one for each rank."""

    @property
    def tp(self) -> int:
        """Workers of a pipeline stage."""
        return self.ranks // self.pp

    def held(self, rank: int, specs: Sequence[Any]) -> list[tuple[int, int, int]]:
        """Per group what of the model's KV a rank holds: its stage, its heads and, of shared-out tokens, which."""
        stage, own = divmod(rank, self.tp)
        attention = stage, own * (self.heads or self.tp) // self.tp
        return [
            (stage, own, 0) if isinstance(spec, fakes.MambaSpec) else (*attention, own % self.dcp * spec.dcp_sharded)
            for spec in specs
        ]


class Stages:
    """A fake of the collective in which the workers of all pipeline stages tell each other their layouts."""

    def __init__(self, ranks: Sequence[Rank], tp: int) -> None:
        self._tp = tp
        self._said: dict[int, Any] = {}
        self._met = threading.Barrier(len(ranks), timeout=60)
        self._ranks = ranks
        self._own = threading.local()

    def register(self) -> None:
        """Registers all ranks, which wait for each other."""
        with mock.patch.object(engine_module, "exchange", self._exchange):
            with concurrent.futures.ThreadPoolExecutor(len(self._ranks)) as threads:
                list(threads.map(self._register, range(len(self._ranks))))

    def _register(self, number: int) -> None:
        self._own.number = number
        self._ranks[number].register()

    def _exchange(self, own: Any) -> list[Any]:
        self._said[self._own.number] = own
        self._met.wait()
        # Ranks of the same place in their stages make up a group.
        return [self._said[number] for number in sorted(self._said) if (number - self._own.number) % self._tp == 0]


class Engine:
    """One engine and its workers."""

    def __init__(
        self, socket: str | Sequence[str], specs: Sequence[Any] = FULL_SPECS, name: str = "engine", ranks: int = 1,
        odd: Sequence[Any] | None = None, shape: Shape | None = None, rank_type: Callable[..., Any] = Rank,
        role: str = "kv_both", policy: str = "recompute", model: str = "test/model", lora_config: Any = None,
        alter: Callable[[Any], None] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        """`odd`: what the last rank has in place of `specs`. `ranks`: tensor-parallel ones, short for a `shape`.

        `role` and `policy`: the engine's `kv_role` and `kv_load_failure_policy`. `model`: a directory, with the setting
        `weights_id` as None, where its files are to be looked at. `rank_type`: `Rank`, or what has a
        rank run elsewhere. `alter`: changes the configuration before a connector sees it.
        """
        shape = shape or Shape(ranks)
        extra = {
            "kvasir.socket": socket, "kvasir.weights_id": "w", "kvasir.lookup_wait": 20.0, "kvasir.deadline": 20.0,
            "kvasir.heartbeat_interval": 0.1, "kvasir.credit_bytes": 1 << 20,
        } | {f"kvasir.{key}": value for key, value in settings.items()}  # fmt: skip
        self.kv_config = kv_config(specs, shape)
        self.geometry = geometries.resolve(self.kv_config, shape.dcp)
        span = max(span for _, span in self.geometry.spans)
        plain = functools.partial(_config, name, extra, (role, policy), span, shape, (model, lora_config))

        def config(rank: int) -> Any:
            made = plain(rank)
            if alter is not None:
                alter(made)
            return made

        self.config = config
        self.ranks = [
            rank_type(config(rank), kv_config(specs, shape), rank, shape.held(rank, specs))
            for rank in range(shape.ranks)
        ]
        if odd is not None:
            self.ranks[-1].connector.shutdown()
            last = shape.ranks - 1
            self.ranks[-1] = Rank(config(last), kv_config(odd, shape), last, shape.held(last, odd))
        if shape.pp > 1:
            Stages(self.ranks, shape.tp).register()
        else:
            for rank in self.ranks:
                rank.register()
        self.scheduler = KvasirConnector(config(0), KVConnectorRole.SCHEDULER, self.kv_config)
        self.shape = shape
        self.hand_over()
        self.tables: dict[str, list[list[int]]] = {}
        self.computed: dict[str, int] = {}
        self.reported: dict[str, int] = {}
        """How often each request has been reported by all ranks."""
        self.orphaned = 0
        """Requests that workers have reported chunks of whose parents the server did not have."""
        self._free = list(range(BLOCKS - 1, 0, -1))
        self._new: list[str] = []
        self._finished: set[str] = set()
        self._awaited: dict[str, int] = {}
        self._failed: set[str] = set()
        self._unseen: dict[str, bool] = {}
        """Requests that were reported since they were last waited for: whether their loads failed."""

    # Start and end

    def hand_over(self) -> None:
        """The workers' reports go to the scheduler."""
        reports = {divmod(rank.number, self.shape.tp): rank.handshake() for rank in self.ranks}
        self.scheduler.set_xfer_handshake_metadata_pp_aware(pickle.loads(pickle.dumps(reports)))

    def close(self) -> None:
        self.scheduler.shutdown()
        for rank in self.ranks:
            rank.close()

    @property
    def any_healthy(self) -> bool:
        """Whether any connector has a server that it can use."""
        return any(one._client.healthy for one in (self.scheduler, *(rank.connector for rank in self.ranks)))

    @property
    def healthy(self) -> bool:
        """Whether every connector has a server that it can use."""
        return all(one._client.healthy for one in (self.scheduler, *(rank.connector for rank in self.ranks)))

    @property
    def loads_between_steps(self) -> bool:
        """Whether loads run between steps: all but those of a single rank with nothing but full attention."""
        return self.shape.ranks > 1 or not self.geometry.single_full

    # The scheduler's side

    def ask(self, request: Request, local: int = 0) -> tuple[int | None, bool]:
        return self.scheduler.get_num_new_matched_tokens(request, local)

    def allocate(
        self, request: Request, external: int, local: int = 0, more: int = 0,
        spoil: Callable[[list[list[int]]], object] = lambda _table: None,
    ) -> list[list[int]]:  # fmt: skip
        """Blocks for what is there, what is loaded and `more` tokens; those that a group cannot see are null.

        `spoil` makes a table of it that no engine would hand over.
        """
        total = local + external
        table = []
        for _, kind, window, span in sorted(self._members()):
            first = _first_needed(kind, window, span, total)
            count = -(-(total + more) // span)
            table.append([0 if slot < first else self._free.pop() for slot in range(count)])
        spoil(table)
        self.tables[request.request_id] = table
        self._new.append(request.request_id)
        self.computed[request.request_id] = total
        self.tell(request, external)
        return table

    def tell(self, request: Request, external: int) -> None:
        """The connector hears what was allocated."""
        table = self.tables[request.request_id]
        blocks = types.SimpleNamespace(get_block_ids=lambda: tuple(list(ids) for ids in table))
        self.scheduler.update_state_after_alloc(request, blocks, external)

    def _members(self) -> Iterable[tuple[int, str, int, int]]:
        for group in self.geometry.object_groups:
            for index, span in zip(group.kv_groups, group.spans):
                yield index, group.kind, group.window_tokens, span

    def free(self, request_id: str) -> None:
        """The request's blocks go back: it was preempted, or has ended."""
        for ids in self.tables.pop(request_id, []):
            self._free += [block for block in ids if 0 < block < BLOCKS]
        self.computed.pop(request_id, None)
        if request_id in self._new:
            self._new.remove(request_id)

    def finish(self, request: Request, keep_blocks: bool = False) -> None:
        """Ends or aborts a request. While a load is running the engine keeps its blocks."""
        table = self.tables.get(request.request_id, [])
        answer = self.scheduler.request_finished_all_groups(request, tuple(table))
        assert answer == (False, None)
        self._finished.add(request.request_id)
        if not keep_blocks:
            self.free(request.request_id)

    # A step

    def step(self, scheduled: Mapping[str, tuple[Request, int]] | None = None) -> Output:
        """One step, planned, run and reported; per request the tokens that it reaches."""
        return self.run(self.plan(scheduled), scheduled)

    def plan(self, scheduled: Mapping[str, tuple[Request, int]] | None = None) -> Any:
        """What the workers of a step get."""
        scheduled = scheduled or {}
        counts = {key: reached - self.computed[key] for key, (_, reached) in scheduled.items()}
        new = [key for key in scheduled if key in self._new]
        cached = [key for key in scheduled if key not in self._new]
        handed = self._handed(scheduled)
        state = types.SimpleNamespace(get_block_ids=lambda key: self.tables.get(key), boundary_state_offloads=handed)
        output = types.SimpleNamespace(
            num_scheduled_tokens=counts,
            scheduled_spec_decode_tokens={},
            scheduled_new_reqs=[types.SimpleNamespace(req_id=key, num_computed_tokens=self.computed[key]) for key in new],
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=cached, num_computed_tokens=[self.computed[key] for key in cached]
            ),
            kv_connector_block_state=state,
        )
        self._new = [key for key in self._new if key not in scheduled]
        metadata = self.scheduler.build_connector_meta(output)
        return pickle.loads(pickle.dumps(metadata))

    def _handed(self, scheduled: Mapping[str, tuple[Request, int]]) -> dict[str, list[tuple[int, int, int]]]:
        """The recurrent states that a step leaves behind where it ends on a boundary."""
        handed: dict[str, list[tuple[int, int, int]]] = {}
        for group in self.geometry.object_groups:
            if not group.recurrent:
                continue
            for key, (_, reached) in scheduled.items():
                for index, span in zip(group.kv_groups, group.spans):
                    if reached % span == 0:
                        handed.setdefault(key, []).append((index, self.tables[key][index][reached // span - 1], reached))
        return handed

    def run(self, metadata: Any, scheduled: Mapping[str, tuple[Request, int]] | None = None) -> Output:
        """The workers' side of a step, and what comes of it at the scheduler."""
        finished, self._finished = self._finished, set()
        done: set[str] = set()
        failed: set[str] = set()
        bad: set[int] = set()
        report = None
        writes = [
            write
            for key, (request, reached) in (scheduled or {}).items()
            for write in self._writes(request, self.computed[key], reached)
        ]
        for rank in self.ranks:
            rank.begin(metadata, writes, finished)
        for rank in self.ranks:
            step = rank.end()
            for key in step.finished:
                self._awaited[key] = self._awaited.get(key, 0) + 1
            self._failed |= step.failed
            bad |= step.bad_blocks
            if step.report is not None:
                report = step.report if report is None else report.aggregate(step.report)
                self.orphaned += len(step.report.report.orphaned)
        for key, (_, reached) in (scheduled or {}).items():
            self.computed[key] = reached
        for key in [key for key, count in self._awaited.items() if count == len(self.ranks)]:
            del self._awaited[key]
            done.add(key)
            self.reported[key] = self.reported.get(key, 0) + 1
            assert key not in self._unseen, "reported twice"
            self._unseen[key] = key in self._failed
        failed = self._failed & done
        self._failed -= failed
        self.scheduler.update_connector_output(
            types.SimpleNamespace(finished_recving=done, failed_recving=failed, kv_connector_worker_meta=report)
        )
        return Output(done, failed, bad)

    def _forward(self, rank: Rank, request: Request, computed: int, reached: int) -> None:
        rank.fill(self._writes(request, computed, reached))

    def _writes(self, request: Request, computed: int, reached: int) -> list[Write]:
        """What every rank's forward pass writes."""
        found = []
        for index, kind, _, span in self._members():
            ids = self.tables[request.request_id][index]
            first = computed // span
            if kind == "recurrent":
                # Only where the step ends is there a state, and only on a boundary does it stay.
                first = reached // span - (reached % span == 0)
            found += [(request.prompt, index, slot, ids[slot]) for slot in range(first, reached // span) if ids[slot]]
        return found

    # What tests ask

    def prefill(self, request: Request, steps: Sequence[int] | None = None) -> None:
        """A whole prefill without any hit; `steps`: where each step ends."""
        ends = list(steps or [request.num_tokens])
        assert self.ask(request) in ((0, False), (0, True))
        self.allocate(request, 0, more=request.num_tokens + 64)
        for end in ends:
            self.step({request.request_id: (request, end)})

    def wait(self, *request_ids: str) -> set[str]:
        """Empty steps until these requests have been reported; which of them failed."""

        def reported() -> bool:
            if not set(request_ids) <= self._unseen.keys():
                self.step()
            return set(request_ids) <= self._unseen.keys()

        eventually(f"loads of {request_ids}", reported)
        return {key for key in request_ids if self._unseen.pop(key)}

    def snapshot(self) -> list[np.ndarray]:
        return [rank.copy() for rank in self.ranks]

    def changed(self, before: Sequence[np.ndarray]) -> dict[int, set[int]]:
        """Blocks of any rank with other bytes than before, per group."""
        merged: dict[int, set[int]] = {}
        for rank, memory in zip(self.ranks, before):
            for group, blocks in rank.changed(memory).items():
                merged.setdefault(group, set()).update(blocks)
        return {group: blocks for group, blocks in merged.items() if blocks}

    def needed(self, request: Request, total: int, local: int = 0) -> dict[int, set[int]]:
        """Per group the blocks that a load up to `total` tokens has to fill."""
        found = {}
        for index, kind, window, span in self._members():
            first = max(_first_needed(kind, window, span, total), 0 if kind == "recurrent" else local // span)
            found[index] = set(self.tables[request.request_id][index][first : total // span])
        return {index: blocks for index, blocks in found.items() if blocks}

    def holds(self, request: Request, total: int) -> bool:
        """Whether every block that a resume at `total` tokens can see has the prompt's bytes."""
        wanted = [
            (request.prompt, index, slot, self.tables[request.request_id][index][slot])
            for index, kind, window, span in self._members()
            for slot in range(_first_needed(kind, window, span, total), total // span)
        ]
        return all(rank.has(wanted) for rank in self.ranks)


def kv_config(specs: Sequence[Any], shape: Shape) -> Any:
    """What the engine's workers of a shape resolve specs to."""
    own = copy.deepcopy(specs)  # a test may change those of one engine
    config = fakes.kv_config(*own, layers=LAYERS, num_blocks=BLOCKS, kv_cache_layout="LBHNC")
    for spec in own:
        if not isinstance(spec, fakes.MambaSpec):
            spec.max_tp_shards = shape.heads
    return config


def _first_needed(kind: str, window: int, span: int, total: int) -> int:
    """The first block that a request which resumes at `total` tokens can see."""
    if kind == FULL:
        return 0
    if kind == "recurrent":
        return max(total // span - 1, 0)
    if kind == CHUNKED_LOCAL:
        return (total - total % window) // span
    return max(total - window + 1, 0) // span


def _config(
    name: str, extra: Mapping[str, Any], transfer: tuple[str, str], block_size: int, shape: Shape,
    loaded: tuple[str, Any], rank: int,
) -> Any:  # fmt: skip
    space = types.SimpleNamespace
    role, policy = transfer
    model, lora_config = loaded
    return space(
        kv_transfer_config=space(
            kv_connector_extra_config=dict(extra), engine_id=name, kv_role=role, kv_load_failure_policy=policy
        ),
        parallel_config=space(
            rank=rank, tensor_parallel_size=shape.tp, pipeline_parallel_size=shape.pp,
            decode_context_parallel_size=shape.dcp,
        ),
        cache_config=space(block_size=block_size, cache_dtype="auto"),
        scheduler_config=space(
            max_num_scheduled_tokens=None, max_num_batched_tokens=8192, long_prefill_token_threshold=0,
            long_prefill_token_threshold_adaptive=False,
        ),
        model_config=space(model=model, dtype="torch.bfloat16", hf_config=space()),
        lora_config=lora_config,
        load_config=space(load_format="auto"),
        compilation_config=space(static_forward_context={}),
        max_concurrent_batches=1,
    )
