"""What the compiled half of the package links: the client, not the server."""

from __future__ import annotations

import pathlib
import re

import pytest

from kvasir import _native

MODULE = pathlib.Path(_native.__file__).read_bytes()


def crates() -> set[str]:
    """The crates that the module's code comes from: messages of panics name their files."""
    # Of a registry: `.../name-1.2.3/src/...`.
    return {name.decode() for name in re.findall(rb"/([A-Za-z0-9_-]+)-\d+\.\d+\.\d+[^/\0]*/src/", MODULE)}


def test_files_of_crates_are_seen():
    """Otherwise nothing below could fail."""
    assert "pyo3" in crates()


@pytest.mark.parametrize("crate", ["tokio", "clap", "clap_builder", "toml", "tracing-subscriber", "sd-notify"])
def test_the_server_and_the_command_line_are_not_in_an_engines_process(crate):
    assert crate not in crates()


@pytest.mark.parametrize("mark", [b"src/server/", b"src/cli/", b"tokio-runtime", b"kvasir serve --"])
def test_nor_is_their_code(mark):
    assert mark not in MODULE
