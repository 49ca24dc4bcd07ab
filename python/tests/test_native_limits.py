"""Arguments that make no sense, and processes that have run out of descriptors: exceptions, and clients that wait."""

from __future__ import annotations

import contextlib
import ctypes
import json
import pathlib
import subprocess
import sys

import pytest

import kvasir
from server_status import status
from test_native import Server, client

HERE = pathlib.Path(__file__).parent


def test_no_argument_ends_the_process(server: Server) -> None:
    result = subprocess.run(
        [sys.executable, str(HERE / "extremes.py"), server.socket], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, f"{result.returncode}: {result.stderr[-3000:]}"
    raised = json.loads(result.stdout.splitlines()[-1])
    assert min(raised[kind] for kind in ("nothing", "ValueError", "TypeError", "OverflowError", "KvasirError")) > 20
    assert status(server)["health"] == "serving"
    assert server.process.poll() is None
    with open(server.log) as log:
        assert "panicked" not in log.read()


@pytest.mark.parametrize(("first", "end"), [(0, 2**33), (0, 2**62), (2**62, 2**63), (0, 2**64 - 1)])
def test_more_block_ids_than_fit_are_a_value_error(first: int, end: int) -> None:
    with pytest.raises(ValueError, match="at most 4194304"):
        kvasir.pack_blocks([1], first, end)
    assert kvasir.pack_blocks([1], end, first) == (b"", [])


def test_a_page_that_no_zeroes_could_stand_for_is_refused(server: Server) -> None:
    with contextlib.closing(client(server.socket)) as worker:
        memory = ctypes.create_string_buffer(64)
        for page in (2**30 + 1, 2**40, 2**62):
            # Nobody copies with such a layout, so that the region is a lie does no harm.
            with pytest.raises(kvasir.KvasirError, match="at most 1073741824") as refused:
                worker.set_memory([(ctypes.addressof(memory), page)], [(0, [(16, [(0, 0, page, page)])])], 1)
            assert refused.value.kind == "InvalidLayout"


@pytest.mark.parametrize("wait", [1e9, 1e19, 1.7e308])
def test_waits_beyond_any_clock_are_value_errors(server: Server, wait: float) -> None:
    for settings in ({"deadline_s": wait}, {"heartbeat_s": wait}):
        with pytest.raises(ValueError):
            client(server.socket, **settings)
    with contextlib.closing(client(server.socket)) as worker, pytest.raises(ValueError):
        worker.lookup_result(1, wait)


# A process that may open no more files makes a client, and has it work once it may.
OUT_OF_DESCRIPTORS = """
import os, resource, sys, time
import kvasir

def eventually(holds):
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, client.state_text
        time.sleep(0.01)

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
spare = int(sys.argv[2])
used = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
kept = []
while True:
    try:
        kept.append(os.dup(0))
    except OSError:
        break
for descriptor in kept[:spare]:
    os.close(descriptor)
client = kvasir.Client(sys.argv[1], "worker", "x", bytes(16), 5.0, 0.05, 1 << 16)
assert not client.healthy and not client.readable
try:
    client.negotiate(16, [(0, 16)])
except kvasir.KvasirError as error:
    assert error.kind == "Unavailable", error.kind
    print(error)
else:
    raise AssertionError("negotiated without a descriptor")
assert client.state_text.startswith("degraded"), client.state_text
chain = kvasir.KeyChain(bytes(32), 64)
chain.extend(list(range(100)))
assert client.lookup(bytes(32), 1, chain, 16, 100, 0).degraded
ticket = client.lookup_start(bytes(32), 1, chain, 16, 100, 0)
assert client.lookup_result(ticket, 10.0).degraded
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
eventually(lambda: client.healthy)
assert client.chunk_size == 64, "what was asked in vain was asked again"
client.close()
"""


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 5, 6])
def test_a_client_without_descriptors_is_degraded_until_there_are(server: Server, spare: int) -> None:
    """Of those it needs: one to be woken, one for the socket, six that come with the greeting, copies to lock."""
    result = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS, server.socket, str(spare)], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "not available" in result.stdout
