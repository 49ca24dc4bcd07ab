"""Goes through the script of `kvasir conform` (docs/conformance.md) with this client."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import tempfile
import time
from typing import Any

from blake3 import blake3
from cache import Granted, item, named, pairs
from client import ROOT, Client, Closed, Refused, hash32, object_id

import keys_golden

WATCHDOG_S = 60
ALIGNMENT, UNIT, CHUNKS = 16, 3001, 3
DOMAIN = {"model": "python", "weights_id_hex": "07" * 32, "kv_dtype": "uint8", "fingerprint_hex": "08" * 32,
          "parallel_shape": "tp=1"}  # fmt: skip
PASSING = ("Exhausted", "LimitExceeded", "Internal", "Draining")


def connect(path: str) -> Client:
    """As soon as there is a server that takes it."""
    end = time.monotonic() + WATCHDOG_S
    while time.monotonic() < end:
        try:
            return Client(path, "Worker", b"script".ljust(16, b"\0"))
        except Refused as error:
            assert error.code in PASSING, error
        except (FileNotFoundError, ConnectionError, Closed):
            time.sleep(0.02)
    raise AssertionError("no server takes the client")


class Engine:
    """A registered connection."""

    def __init__(self, path: str, previous: int) -> None:
        self.client = connect(path)
        self.client.call("Attach")
        spans = [{"group": 0, "tokens": ALIGNMENT}]
        agreed = self.client.call("Negotiate", required_alignment=ALIGNMENT, spans=spans, previous_size=previous)
        self.chunk: int = agreed["chunk_size"]
        group = {"group": 0, "kind": "Full", "parts": 1, "part": 0, "window_tokens": 0, "unit_bytes": UNIT}
        reply = self.client.call(
            "RegisterKvCache", rank=0, world_size=1, required_alignment=ALIGNMENT, spans=spans, groups=[group],
            payload_path="ShmDirect", stores=True, domain={
                "model": DOMAIN["model"], "weights_id": bytes.fromhex(DOMAIN["weights_id_hex"]),
                "kv_dtype": DOMAIN["kv_dtype"], "fingerprint": bytes.fromhex(DOMAIN["fingerprint_hex"]),
                "parallel_shape": DOMAIN["parallel_shape"],
            },
        )  # fmt: skip
        self.seed = keys_golden.domain_seed(DOMAIN | {"chunk_size": self.chunk})
        assert reply["domain_seed"]["bytes"] == self.seed

    def close(self) -> None:
        self.client.close()
        for fd in self.client.fds:
            os.close(fd)

    def keys(self, prompt: int) -> list[bytes]:
        """Of the full chunks."""
        out, parent = [], self.seed
        for start in range(0, CHUNKS * self.chunk, self.chunk):
            tokens = [(i * 7919 + 104729 * prompt) % 50000 for i in range(start, start + self.chunk)]
            parent = blake3(parent + blake3(struct.pack(f"<{self.chunk}I", *tokens)).digest()).digest()
            out.append(parent)
        return out

    def store(self, prompt: int, datas: list[bytes]) -> list[str]:
        client, frame = self.client, self.client.hello["frame_bytes"]
        needed, granted = sum(-(-len(data) // frame) for data in datas), []
        while sum(count for _, count in granted) < needed:
            granted += pairs(client.call("Grant", bytes=needed * frame)["extents"])
        space, extents, items, keys = Granted(client, granted), [], [], self.keys(prompt)
        for number, data in enumerate(datas):
            parent = keys[number - 1] if number else None
            items.append(item(client, extents, space, keys[number], data, parent=parent, tokens=self.chunk))
        if space.extents:
            client.call("Abort", extents=named(space.extents))
        return client.call("Commit", domain_seed=hash32(self.seed), items=items, extents=extents)["outcomes"]

    def find(self, prompt: int) -> None:
        fields: dict[str, Any] = {"domain_seed": hash32(self.seed), "session": prompt, "max_tokens": 1 << 20}
        fields |= {"keys": [hash32(key) for key in self.keys(prompt)]}
        try:
            found = self.client.call("Lookup", **fields)
        except Refused as error:
            assert error.code in PASSING, error
            found = self.client.call("Lookup", **fields)
        assert found["hit_tokens"] == CHUNKS * self.chunk, found
        self.client.call("EndSession", session=prompt)

    def load(self, prompt: int) -> list[bytes]:
        ids = [object_id(key) for key in self.keys(prompt)]
        reply = self.client.call("Retrieve", domain_seed=hash32(self.seed), session=9, part=0, ids=ids)
        extents, out = pairs(reply["extents"]), []
        for place in reply["places"]:
            runs = extents[place["first_extent"] :][: place["extent_count"]]
            out.append(self.client.read(runs, place["bytes"]))
            assert self.client.still_whole(runs, place["incarnation"])
        self.client.call("Release", pins=[reply["pin"]])
        return out


def go(path: str) -> None:
    engine = Engine(path, 0)
    size, chunk = UNIT * engine.chunk // ALIGNMENT, engine.chunk
    own = [blake3(key).digest(length=size) for key in engine.keys(1)]
    assert engine.store(1, own) == ["Published"] * CHUNKS
    engine.find(1)
    engine.find(2)
    loaded = engine.load(2)
    try:
        engine.store(3, loaded)
    except Refused as error:
        assert error.code == "Internal", error
    else:
        raise AssertionError("the commit was to fail")
    engine.close()
    engine = Engine(path, chunk)
    assert engine.store(3, loaded) == ["Published"] * CHUNKS
    with contextlib.suppress(Closed):
        while True:
            engine.client.receive()
    engine.close()
    engine = Engine(path, chunk)
    assert engine.store(1, own) == ["Published"] * CHUNKS
    engine.find(1)
    engine.close()


def run() -> None:
    program = os.environ.get("KVASIR_BINARY", str(ROOT / "target/debug/kvasir"))
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "k.sock")
        kit = subprocess.Popen([program, "conform", path], stdout=subprocess.PIPE, text=True)
        try:
            go(path)
            text, _ = kit.communicate(timeout=WATCHDOG_S)
        finally:
            kit.kill()
            kit.wait()
        assert kit.returncode == 0, text
        print(f"the kit says: {text.splitlines()[-1]}")


if __name__ == "__main__":
    run()
