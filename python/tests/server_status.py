"""What `kvasir status` says of a server under test."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from test_native import Server, eventually, program


def status(server: Server) -> dict[str, Any]:
    """What `kvasir status --json` prints."""
    command = [program(), "status", "--json", "--socket", server.socket]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def counts(server: Server, kind: str = "worker") -> dict[str, int]:
    """The counters that clients of a kind report, summed, without those of time."""
    total: dict[str, int] = {}
    for client in status(server)["clients"]:
        if client["kind"] == kind and client["reported"]:
            for name, value in client["reported"].items():
                if name != "degraded_seconds":
                    total[name] = total.get(name, 0) + value
    return total


def pins(client: dict[str, Any]) -> int:
    """What a row of `clients` holds: pins that the server counts, and words of the client's own slab."""
    return client["pins"] + client["pin_words"]


def assert_nothing_held(server: Server, limbo: int = 0) -> dict[str, Any]:
    """No pin, no incomplete object, none in limbo; every byte of the pool in one class, and what is granted is a client's.

    `limbo`: objects that were discarded while they were read. They stay until space is needed.
    """

    def let_go() -> bool:
        found = status(server)
        return not (found["pool"]["pinned"] or any(pins(client) for client in found["clients"]))

    def agree() -> bool:
        found = status(server)
        return bool(found["pool"]["granted"] == sum(client["granted"] for client in found["clients"]))

    # A worker gives a load's pin back without waiting for the answer.
    eventually("the pins", let_go)
    # The document is written client by client, and a client may give space back in between.
    eventually("what is granted", agree)
    found = status(server)
    assert (found["incomplete"], found["limbo"]) == (0, limbo)
    pool = found["pool"]
    assert pool["free"] + pool["used"] + pool["granted"] + pool["quarantined"] == pool["total"]
    return found


def assert_idle(server: Server) -> dict[str, Any]:
    """That nothing is held, once all clients have given back the space that they do not use."""
    eventually("idle space", lambda: status(server)["pool"]["granted"] == 0)
    return assert_nothing_held(server)
