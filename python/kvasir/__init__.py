"""Kvasir: a co-located KV-cache server for LLM inference engines.

`Client` and `KeyChain` are the client library (written in Rust, types in `_native.pyi`); `kvasir.vllm` holds the vLLM
connector and is imported only by engines.
"""

from kvasir._native import (
    Client,
    Hit,
    KeyChain,
    KvasirError,
    Weights,
    WeightsJob,
    bind_geometry,
    copy_path,
    domain_seed,
    layout_fingerprint,
    pack_blocks,
    parse_size,
    place_pages,
    remembered_weights,
    resolve_geometry,
    version,
    weights_identity,
    weights_shape,
    weights_stamp,
)

__all__ = [
    "Client",
    "Hit",
    "KeyChain",
    "KvasirError",
    "Weights",
    "WeightsJob",
    "bind_geometry",
    "copy_path",
    "domain_seed",
    "layout_fingerprint",
    "pack_blocks",
    "parse_size",
    "place_pages",
    "remembered_weights",
    "resolve_geometry",
    "version",
    "weights_identity",
    "weights_shape",
    "weights_stamp",
]

__version__ = version()
