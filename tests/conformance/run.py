"""Tries the server with a client that has no code of it: `schema/`, the documents and `tests/data` only.

Run it as `python tests/conformance/run.py` with `KVASIR_BINARY` set to the program, after `pip install blake3 xxhash`.
It ends with the first thing that is not as the documents say.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import cache
import flat
import golden
import keys_golden
import sums_golden
import refusals
import script
from client import F_GET_SEALS, REPLIES, REPLY, REQUEST, REQUESTS, ROOT, SEAL_EXEC, SEALS, Client, fcntl, status, table

WATCHDOG_S = 60


def golden_frames() -> None:
    """Every frame that the product pins is read by the schema, written anew, and read the same."""
    seen = set()
    for path in sorted((ROOT / "tests/data/wire").glob("*.hex")):
        frame = bytes.fromhex("".join(path.read_text().split()))
        name = path.stem.replace("_", "")
        sides = ((REPLIES, REPLY, "ReplyBody"), (REQUESTS, REQUEST, "RequestBody"))
        matches = [
            (len(kind), kind, schema, root)
            for schema, root, union in sides for kind in schema.unions[union] if name.startswith(kind.lower())
        ]  # fmt: skip
        _, kind, schema, root = max(matches, key=lambda match: match[0])
        values = flat.decode(schema, root or "", frame)
        assert values["body"][0] == kind, f"{path.name} holds {values['body'][0]}"
        assert flat.decode(schema, root or "", flat.encode(schema, root or "", values)) == values, path.name
        seen.add(kind)
    missing = {*REQUESTS.unions["RequestBody"], *REPLIES.unions["ReplyBody"]} - seen
    assert not missing, f"no golden frame of {missing}"
    print(f"{len(seen)} kinds of message are read as written")


def documents() -> None:
    """The table of error codes is the schema's."""
    rows = table("operations.md", "## Errors", "| code | name |")
    documented = {row[1].rstrip("*"): int(row[0]) for row in rows}
    assert documented == REPLIES.enums["ErrorCode"][1]
    print(f"{len(documented)} error codes are documented")


def seals(client: Client) -> None:
    """What the table of regions says of seals holds for every descriptor."""
    kinds = {"control": "Control", "index": "Index", "epochs": "Epochs", "pin arena": "PinSlab", "liveness": "Liveness",
             "pool": "Pool"}  # fmt: skip
    rows = {row[0]: row[2] for row in table("shm-layout.md", "## Regions", "| region |")}
    assert set(kinds) <= set(rows)
    for region, kind in kinds.items():
        expected = sum(SEALS[name.strip()] for name in rows[region].split(","))
        found = fcntl.fcntl(client.files[kind], F_GET_SEALS) & ~SEAL_EXEC
        assert found == expected, f"{region} has the seals {found:#x}, documented are {rows[region]}"


@contextlib.contextmanager
def server(directory: str, *more: str) -> Iterator[str]:
    program = os.environ.get("KVASIR_BINARY", str(ROOT / "target/debug/kvasir"))
    path = os.path.join(directory, "k.sock")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVASIR_")}
    command = [program, "serve", "--socket", path, "--log-level", "warn", *more]
    process = subprocess.Popen(command, env=environment)
    try:
        wait_for(path, process)
        yield path
    finally:
        process.terminate()
        assert process.wait(WATCHDOG_S) == 0


def wait_for(path: str, process: subprocess.Popen[bytes]) -> None:
    """Until it answers and all of its pool may be granted."""
    end = time.monotonic() + WATCHDOG_S
    while time.monotonic() < end:
        assert process.poll() is None, "the server has ended"
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            pool = status(path)["pool"]
            if pool["prefaulted"] == pool["total"]:
                return
        time.sleep(0.05)
    raise AssertionError("the server was not ready in time")


def child(part: str, path: str) -> None:
    subprocess.run([sys.executable, str(pathlib.Path(__file__).with_name("cache.py")), part, path], check=True)


def main() -> None:
    keys_golden.main()
    sums_golden.main()
    golden_frames()
    golden.main()
    documents()
    with tempfile.TemporaryDirectory() as directory:
        options = ("--pool-size", "256MiB", "--chunk-size", "auto", "--chunk-scope", "model")
        with server(directory, *options) as path:
            seals(Client(path, "Tool", bytes(16)))
            child("write", path)
            child("read", path)
            refusals.run(path)
    script.run()


if __name__ == "__main__":
    main()
