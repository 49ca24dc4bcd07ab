"""The vLLM connector. Give vLLM this module as `kv_connector_module_path` and `KvasirConnector` as `kv_connector`.

Only `connector` and `engine` import vLLM; the other modules work on plain data, so that planning can be tested without
an engine:

    settings   the `kvasir.*` keys of the engine's configuration
    geometry   resolved KV cache groups -> spans, alignment, object groups
    layout     registered tensors -> where pages lie, and the layout fingerprint
    identity   which model and weights the bytes belong to
    requests   what the scheduler role remembers about one request
    fleet      several servers behind the face of one
    lookups    asking the server what a prompt can reuse
    loads      from a hit to the blocks to fill
    stores     which chunks, tails and states a step completes
    meta       what crosses from scheduler to workers and back
    scheduler  the scheduler role
    worker     the worker role
    engine     what is read from the engine's objects
    describe   an engine's description for `kvasir doctor`
"""

from typing import Any

__all__ = ["KvasirConnector"]


def __getattr__(name: str) -> Any:
    # Lazy, so that the modules for planning can be imported where there is no vLLM.
    if name == "KvasirConnector":
        from kvasir.vllm.connector import KvasirConnector

        return KvasirConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
