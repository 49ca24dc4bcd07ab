"""The vLLM connector. Give vLLM this module as `kv_connector_module_path` and `KvasirConnector` as `kv_connector`.

Only `connector` and `engine` import vLLM; the other modules work on plain data, so that planning can be tested without
an engine:

    settings   the `kvasir.*` keys of the engine's configuration
    geometry   resolved KV cache groups -> spans, alignment, object groups
    layout     registered tensors -> where pages lie, and the layout fingerprint
    identity   which model and weights the bytes belong to
    weights    the weights' identity, found in the background
    adapters   what the adapters of requests are, to the scheduler role
    loaded     which files the engine's adapters were loaded from, to a worker
    requests   what the scheduler role remembers about one request
    servers    several servers behind the face of one
    lookups    asking the server what a prompt can reuse
    loads      from a hit to the blocks to fill
    stores     which chunks, tails and states a step completes
    meta       what crosses from scheduler to workers and back
    scheduler  the scheduler role
    worker     the worker role
    engine     what is read from the engine's objects
    describe   an engine's description for `kvasir doctor`
"""

import sys
from typing import Any

__all__ = ["KvasirConnector"]


# Calls above the one that asks for the class in which the engine's reason shows.
CALLERS = 10


def _is_configuration() -> bool:
    """Whether the engine asks for the connector's class while it is configured, which is before it loads weights."""
    frame, names = sys._getframe(2), []
    while frame is not None and len(names) < CALLERS:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return "__post_init__" in names and "create_connector" not in names


def __getattr__(name: str) -> Any:
    # Lazy, so that the modules for planning can be imported where there is no vLLM.
    if name == "KvasirConnector":
        from kvasir.vllm.connector import KvasirConnector
        from kvasir.vllm.weights import note_configuration

        if _is_configuration():
            note_configuration()
        return KvasirConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
