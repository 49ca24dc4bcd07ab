"""A small engine for the examples: what every rank of it does before it stores or loads.

Its KV cache is one buffer, `[layers, blocks, page]`: vLLM's is like that, with larger numbers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import kvasir

LAYERS, BLOCKS, PAGE = 2, 256, 4096
BLOCK_TOKENS = 16
"""Tokens of one block of the engine's block table."""
BLOCK_BYTES = LAYERS * PAGE
SPANS = [(0, BLOCK_TOKENS)]
"""Of each KV cache group the tokens that one block holds. This engine has one group."""


class Engine:
    """One rank: its connection and its share of the KV cache."""

    def __init__(self, socket: str, rank: int = 0, world: int = 1) -> None:
        self.rank = rank
        self.client = connect(socket, "worker")
        # First both sides agree on the size of a chunk: a multiple of the engine's blocks.
        self.chunk_tokens = self.client.negotiate(BLOCK_TOKENS, SPANS)
        # Then the engine says where its pages are. The client copies from and to this buffer until it is closed.
        self.kv = (ctypes.c_ubyte * (BLOCKS * BLOCK_BYTES))()
        layers = [(0, layer * BLOCKS * PAGE, PAGE, PAGE) for layer in range(LAYERS)]
        self.client.set_memory([(ctypes.addressof(self.kv), len(self.kv))], [(0, [(BLOCK_TOKENS, layers)])], BLOCKS)
        # And what they hold. Each rank of a tensor parallel engine holds one part of every object.
        groups = [(0, "full", world, rank, 0, BLOCK_BYTES)]
        self.seed = self.client.register(
            domain(world), rank, world, BLOCK_TOKENS, SPANS, groups, layers=LAYERS, blocks=BLOCKS
        )

    def wait_for_room(self) -> None:
        """Waits until the pool is there. A new server makes it present bit by bit.

        An engine would not wait: it would go on, and that store would be dropped."""

        def is_present() -> bool:
            pool = json.loads(self.client.status_json())["pool"]
            return pool["prefaulted"] == pool["total"]

        wait("the pool", is_present)

    def write_block(self, block: int, content: int) -> None:
        """Fills a block with bytes that follow from `content`."""
        for layer in range(LAYERS):
            # A period of 251, so that a page that is off by a little shows.
            page = bytes((content * 37 + layer * 11 + at % 251 + at // 251) % 256 for at in range(PAGE))
            start = (layer * BLOCKS + block) * PAGE
            self.kv[start : start + PAGE] = page

    def read_block(self, block: int) -> bytes:
        """The bytes of a block, layer by layer."""
        starts = [(layer * BLOCKS + block) * PAGE for layer in range(LAYERS)]
        return b"".join(bytes(self.kv[start : start + PAGE]) for start in starts)


def domain(world: int) -> dict[str, object]:
    """All that decides about the bytes of a chunk beside its tokens: engines of one domain share objects."""
    return {
        "model": "example/model",
        "weights_id": b"revision 1",
        "kv_dtype": "bfloat16",
        "fingerprint": b"[layers, blocks, page]",
        "parallel_shape": f"tp={world}",
    }


def connect(socket: str, kind: str) -> kvasir.Client:
    """Makes a client, and waits until it is connected.

    A server that is away is no error: the client connects when there is one."""
    # All processes of one engine have the same 16 bytes. Each rank holds a little space ahead: the pools here are
    # small.
    client = kvasir.Client(socket, kind, "example", b"\7" * 16, credit_bytes=1 << 20)
    wait("the server", lambda: client.healthy)
    return client


def keys(seed: bytes, chunk_tokens: int, tokens: list[int]) -> kvasir.KeyChain:
    """The names of a prompt's objects. They follow from the domain's seed and from all tokens up to their ends."""
    chain = kvasir.KeyChain(seed, chunk_tokens)
    chain.extend(tokens)
    return chain


def look_up(client: kvasir.Client, seed: bytes, chain: kvasir.KeyChain, request: int) -> kvasir.Hit:
    """Asks how much of a prompt is there: full chunks, and the tail that ends at any block of the last one.

    What is found is pinned under the label `request`."""
    return client.lookup(seed, request, chain, BLOCK_TOKENS, len(chain), 0)


def wait(what: str, holds: Callable[[], bool], patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"waited for {what} in vain")
        time.sleep(0.005)


@contextlib.contextmanager
def server_at(socket: str | None) -> Iterator[str]:
    """The server that listens at `socket`, or one that lives as long as the block."""
    if socket is not None:
        yield socket
        return
    # An environment that the package is installed in has the program beside its Python.
    beside = str(pathlib.Path(sys.executable).parent)
    program = shutil.which("kvasir", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if program is None:
        sys.exit("no program `kvasir` on the path")
    with tempfile.TemporaryDirectory() as directory:
        socket = os.path.join(directory, "kvasir.sock")
        server = subprocess.Popen([program, "serve", "--socket", socket, "--pool-size", "64MiB", "--log-level", "warn"])
        try:
            yield socket
        finally:
            server.terminate()
            server.wait()
