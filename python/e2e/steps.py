"""Orders of an engine in one process that go step by step, and that look at the bytes of its KV cache.

The engine process of `engine.py` hands them to `Steps`; `process.Engine.step_order` sends them. What an engine puts
out also depends on what else is in the same step (floating-point sums are ordered differently), so whether a load
restored what was stored is judged by the ledger: digests of the KV blocks as they were when the engine had computed
them, and as they are once a load has filled them. Equal digests are exact whatever the batch was.

Faults are put into the one moment that matters and that no outside process can hit by chance: after the scheduler has
promised a hit to the engine, before a worker loads it. This is the harness's doing; the product has no hook for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

DRAIN_S = 300.0
FAULT_S = 30.0


class Steps:
    """Step-wise orders of one in-process engine."""

    def __init__(self, llm: Any) -> None:
        self._engine = llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        self._requests: dict[str, Any] = {}
        self._outputs: dict[str, dict[str, Any]] = {}
        self._ledger: Ledger | None = None
        self._before_load: Callable[[], None] | None = None
        self._gate = threading.Event()
        self._connector = _worker_connector()
        if self._connector is not None:
            self._ledger = Ledger(self._core, self._connector)
            self._wrap_loads()

    def _wrap_loads(self) -> None:
        load = self._connector.start_load_kv

        def start_load_kv(*args: Any, **kwargs: Any) -> None:
            plan = self._connector._plan()
            if plan is not None and (plan.sync_loads or plan.async_loads):
                self._ledger.loading(plan)
                if self._before_load is not None:
                    fault, self._before_load = self._before_load, None
                    fault()
            load(*args, **kwargs)

        self._connector.start_load_kv = start_load_kv

    # Orders

    def add(self, name: str, tokens: list[int], max_tokens: int, params: dict[str, Any] | None) -> dict[str, Any]:
        """Queues a request, with `kv_transfer_params` if there are any."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=1,
            extra_args={"kv_transfer_params": params} if params else None,
        )
        internal = self._engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        self._requests[name] = self._core.scheduler.requests[internal]
        return {}

    def step(self, count: int) -> dict[str, Any]:
        """Takes engine steps."""
        for _ in range(count):
            for result in self._engine.step():
                if result.finished:
                    self._outputs[result.request_id] = output_of(result)
            if self._ledger is not None:
                self._ledger.look()
        return self.look()

    def drain(self) -> dict[str, Any]:
        """Steps until nothing is left to do, which includes loads of aborted requests."""
        deadline = time.monotonic() + DRAIN_S
        while self._core.scheduler.has_requests() or self._engine.has_unfinished_requests():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the engine still has requests after {DRAIN_S:.0f} s: {self.look()}")
            self.step(1)
        seen = self.look()
        self._requests.clear()
        outputs, self._outputs = self._outputs, {}
        return seen | {"outputs": outputs}

    def abort(self, names: list[str]) -> dict[str, Any]:
        """Aborts requests, as a client does that goes away."""
        self._engine.abort_request(names)
        return self.look()

    def look(self) -> dict[str, Any]:
        """Where the requests are that were added since the last `drain`."""
        return {
            "requests": {
                name: {
                    "status": request.status.name,
                    "computed": request.num_computed_tokens,
                    "preemptions": request.num_preemptions,
                    "tokens": request.num_tokens,
                }
                for name, request in self._requests.items()
            },
            "free_blocks": self._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }

    def before_load(self, fault: str, argument: Any) -> dict[str, Any]:
        """Arms a fault for the next load: it happens once, right before the worker starts to copy."""
        faults: dict[str, Callable[[], None]] = {
            "signal": lambda: os.kill(*argument),
            "lose": lambda: self._lose(argument),
            "hold": self._hold,
            "clear": self._clear,
            "evict": self._evict,
        }
        self._before_load = faults[fault]
        return {}

    def let_go(self) -> dict[str, Any]:
        """Lets a load go on that the fault "hold" holds."""
        self._gate.set()
        return {}

    def _lose(self, server: int) -> None:
        """The server is killed, and its clients have noticed: until then what it held can be loaded."""
        os.kill(server, signal.SIGKILL)
        deadline = time.monotonic() + FAULT_S
        while self._connector._worker._client.healthy and time.monotonic() < deadline:
            time.sleep(0.001)

    def _hold(self) -> None:
        """The load does not begin to copy before `let_go`. Of loads that run between steps only."""
        self._gate.clear()
        role = self._connector._worker
        run = role._run

        def run_later(load: Any) -> Any:
            del role._run
            self._gate.wait(FAULT_S)
            return run(load)

        role._run = run_later

    def _clear(self) -> None:
        if not self._scheduler_role()._client.clear():
            raise RuntimeError("the server did not answer")

    def _evict(self) -> None:
        """What must never happen: the promise's pins are gone, and with them the objects."""
        role = self._scheduler_role()
        for state in role._states.values():
            role._client.end_session(state.label)
            state.held_pin = 0
        self._clear()

    def _scheduler_role(self) -> Any:
        return self._core.scheduler.connector._scheduler

    def ledger(self) -> dict[str, Any]:
        """{"computed": {block: digests}, "loaded": [[block, digest], ...]} since the last call."""
        assert self._ledger is not None
        return self._ledger.take()

    def metrics(self) -> dict[str, Any]:
        """The engine's own counters by name; it has to be started with `disable_log_stats` false."""
        found = self._engine.get_metrics()
        return {metric.name: metric.value for metric in found if hasattr(metric, "value")}

    def client_stats(self) -> dict[str, Any]:
        """The connector's own counters, of both roles."""
        return {
            "worker": self._connector._worker._client.stats(),
            "scheduler": self._scheduler_role()._client.stats(),
            "requests": len(self._scheduler_role()._states),
        }


class Ledger:
    """Digests of blocks. Where pages lie is worked out here, from what the engine declared."""

    def __init__(self, core: Any, connector: Any) -> None:
        from vllm.v1.core.kv_cache_utils import resolve_block_hashes
        from vllm.v1.kv_cache_interface import MambaSpec

        self._hashes = resolve_block_hashes
        self._pool = core.scheduler.kv_cache_manager.block_pool
        self._scheduler = core.scheduler
        config = connector._kv_cache_config
        layers = {layer for group in config.kv_cache_groups for layer in group.layer_names}
        base = min(_storage(connector._worker._kv_caches[layer]) for layer in layers)
        self._spans = [
            (group.kv_cache_spec.block_size, isinstance(group.kv_cache_spec, MambaSpec)) for group in config.kv_cache_groups
        ]
        self._pages: dict[int, list[tuple[int, int, int]]] = {}
        places = {
            layer: (base + tensor.offset + index * tensor.layer_stride, tensor.block_stride)
            for tensor in config.kv_cache_tensors
            for index, layer in enumerate(tensor.layers)
        }
        for number, group in enumerate(config.kv_cache_groups):
            specs = getattr(group.kv_cache_spec, "kv_cache_specs", None) or {}
            self._pages[number] = [
                (*places[layer], specs.get(layer, group.kv_cache_spec).page_size_bytes)
                for layer in group.layer_names
                if layer in places
            ]
        self._known: set[tuple[bytes, int]] = set()
        self._loading: dict[str, set[int]] = {}
        self._computed: dict[str, set[str]] = {}
        self._loaded: list[tuple[str, str]] = []
        self._forget_failed_loads(connector)

    def _forget_failed_loads(self, connector: Any) -> None:
        results, errors = connector.get_transfer_results, connector.get_block_ids_with_load_errors

        def get_transfer_results(finished: set[str]) -> Any:
            found = results(finished)
            for request_id in found.failed_recving or ():
                self._loading.pop(request_id, None)
            return found

        def get_block_ids_with_load_errors() -> set[int]:
            bad = errors()
            for blocks in self._loading.values():
                blocks -= bad
            return bad

        connector.get_transfer_results = get_transfer_results
        connector.get_block_ids_with_load_errors = get_block_ids_with_load_errors

    def loading(self, plan: Any) -> None:
        """Notes which blocks a step starts to fill."""
        for load in (*plan.sync_loads, *plan.async_loads):
            blocks = set().union(*(run.blocks_of(range(run.num_objects)) for run in load.runs))
            self._loading[load.request_id] = blocks
            self._known = {(key, block) for key, block in self._known if block not in blocks}

    def look(self) -> None:
        """Digests what has come, since the last look, into the engine's prefix cache or the tables of its requests."""
        for request_id in list(self._loading):
            if request_id not in self._scheduler.requests:
                del self._loading[request_id]  # over, or aborted
        held = {*self._cached(), *self._in_tables()}
        for key, block in held - self._known:
            name, digest = key.hex(), self._digest(int.from_bytes(key[-4:], "big"), block)
            if any(block in blocks for blocks in self._loading.values()):
                self._loaded.append((name, digest))
            else:
                self._computed.setdefault(name, set()).add(digest)
        for blocks in self._loading.values():
            blocks -= {block for _, block in held}
        self._known = held

    def take(self) -> dict[str, Any]:
        """What has been noted, and forgets it."""
        computed, self._computed = self._computed, {}
        loaded, self._loaded = self._loaded, []
        return {"computed": {name: sorted(digests) for name, digests in computed.items()}, "loaded": loaded}

    def _cached(self) -> Iterator[tuple[bytes, int]]:
        # A reset of the prefix cache replaces the map.
        for key, blocks in self._pool.cached_block_hash_to_block._cache.items():
            for block in blocks.values() if isinstance(blocks, dict) else (blocks,):
                yield bytes(key), block.block_id

    def _in_tables(self) -> Iterator[tuple[bytes, int]]:
        """Full blocks of requests that compute; of a recurrent group the state at the last computed token."""
        manager = self._scheduler.kv_cache_manager
        for request_id, request in self._scheduler.requests.items():
            if request.status.name != "RUNNING":
                continue  # the blocks of one that waits for a load may hold anything
            computed = request.num_computed_tokens
            for group, (table, (span, recurrent)) in enumerate(zip(manager.get_block_ids(request_id), self._spans)):
                last = computed // span
                first = (last - 1 if computed % span == 0 else last) if recurrent else 0
                hashes = self._hashes(request.block_hashes, self._pool.hash_block_size, span)
                for slot in range(max(first, 0), min(last, len(table), len(hashes))):
                    if table[slot]:
                        yield bytes(hashes[slot]) + group.to_bytes(4, "big"), table[slot]

    def _digest(self, group: int, block: int) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for address, stride, size in self._pages[group]:
            digest.update(ctypes.string_at(address + block * stride, size))
        return digest.hexdigest()


def arm_store_fault(rank: int, witness: str, during: bool) -> None:
    """Before the engine forks its workers: one of them will die by SIGKILL when it is to store for the first time.

    Either before it has stored anything, once the others' parts are there (`witness` gets the server's status of that
    moment), or at some moment of its store.
    """
    from kvasir.vllm.worker import WorkerRole

    save = WorkerRole.save

    def die_when_the_others_have_stored(client: Any) -> None:
        deadline = time.monotonic() + FAULT_S
        while not json.loads(status := client.status_json())["incomplete"] and time.monotonic() < deadline:
            time.sleep(0.01)
        with open(witness, "w", encoding="utf-8") as file:
            file.write(status)
        os.kill(os.getpid(), signal.SIGKILL)

    def die_soon() -> None:
        time.sleep(0.0005)
        os.kill(os.getpid(), signal.SIGKILL)

    def save_and_die(self: Any, stores: Any) -> None:
        if stores is not None and self._rank.rank == rank:
            if during:
                threading.Thread(target=die_soon).start()
            else:
                die_when_the_others_have_stored(self._client)
        save(self, stores)

    WorkerRole.save = save_and_die


def _storage(tensor: Any) -> int:
    while isinstance(tensor, (list, tuple)):
        tensor = tensor[0]
    return tensor.untyped_storage().data_ptr()


def _worker_connector() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    return get_kv_transfer_group() if has_kv_transfer_group() else None


def output_of(result: Any) -> dict[str, Any]:
    """A finished request as JSON."""
    completion = result.outputs[0]
    tokens = list(completion.token_ids)
    logprobs = [float(at[token].logprob).hex() for at, token in zip(completion.logprobs or [], tokens)]
    return {
        "token_ids": tokens,
        "logprobs": logprobs,
        "cached_tokens": result.num_cached_tokens or 0,
        "finish_reason": completion.finish_reason,
    }
