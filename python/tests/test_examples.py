"""The programs of `python/examples` against a real server: they end well, and say what they are there to show."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from test_native import WATCHDOG_S, Server, program

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: str) -> list[str]:
    """The lines that an example prints; it has to succeed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}
    # The program that is tested, before any other of its name.
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(program()).parent), environment.get("PATH", os.defpath)])
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S)
    assert result.returncode == 0, f"{name}: {result.stdout}{result.stderr}"
    return result.stdout.splitlines()


STORED = [
    "store of 3 x 64 tokens: published",
    "store of 1 x 16 tokens: published",
    "hit: 208 of 208 tokens",
    "loaded: 13 blocks, every byte as it was stored",
]


def test_a_prompt_is_stored_and_loaded_and_a_scheduler_finds_it(server: Server):
    assert run("lookup", server.socket) == ["no engine of this model has registered yet"]
    assert run("store_and_load", server.socket) == STORED
    assert run("lookup", server.socket) == [
        "the same prompt: hit 208 of 208 tokens",
        "another second chunk: hit 64 of 208 tokens",
        "another first token: hit 0 of 208 tokens",
        "3 of 3 lookups without a message",
    ]
    # The same again: the objects are there already, and loaded all the same.
    again = run("store_and_load", server.socket)
    assert again[0] == "store of 3 x 64 tokens: exists"
    assert again[2:] == STORED[2:]


def test_without_a_socket_it_starts_a_server():
    printed = run("store_and_load")
    assert printed[0] == "store of 3 x 256 tokens: published"
    assert printed[-1] == "loaded: 49 blocks, every byte as it was stored"


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_object_of_many_ranks_is_there_with_its_last_part(server: Server, ranks: int):
    expected = [
        f"rank {rank} registered: hit 0; stored its part: part_accepted, hit 0 of 64 tokens"
        for rank in range(ranks - 1)
    ]
    expected.append(f"rank {ranks - 1} registered: hit 0; stored its part: published, hit 64 of 64 tokens")
    expected.append("every rank loaded its part, every byte as it was stored")
    assert run("many_ranks", server.socket, str(ranks)) == expected


def test_the_examples_are_those_of_rust():
    here = {path.stem for path in EXAMPLES.glob("*.py")}
    there = {path.stem for path in (EXAMPLES.parents[1] / "examples").glob("*.rs")}
    assert here - {"engine"} == there
