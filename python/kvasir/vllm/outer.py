"""The engine's own configuration, where this connector runs inside another one, as in vLLM's MultiConnector.

Each inner connector is given a configuration of its own, and the engine goes by the outer one: whether a request whose
load failed is computed or fails, and when freed blocks may be used again. Only workers can see it, while they start.
"""

from __future__ import annotations

from typing import Any

from kvasir.vllm import engine


def forbids_loads(own: Any, without: str) -> str:
    """Why not to load although the connector's own `kv_transfer_config` allows it; empty if nothing is known against it.

    `without` says what is left to do then.
    """
    outer = engine.transfer_config()
    if outer is None or outer is own:
        return ""
    where = f"{without}: inside {outer.kv_connector} the engine goes by the outer kv_transfer_config"
    if outer.kv_load_failure_policy != "recompute":
        return (
            f"{where}, whose kv_load_failure_policy is {outer.kv_load_failure_policy!r}, under which a load that fails would "
            "fail its request. Set the outer one to \"recompute\" too"
        )
    if outer.kv_role == "kv_producer":
        return (
            f"{where}, whose kv_role is 'kv_producer', under which freed blocks are used again while a step may still write "
            "them. Set the outer one to \"kv_both\" or \"kv_consumer\""
        )
    return ""
