"""The build backend of the `kvasir` wheel: maturin, plus the `kvasir` program.

maturin builds the extension module and packs whatever lies in `kvasir.data/scripts` as commands of the
environment. This backend builds the program in release mode and puts it there first, so that one
`pip install` brings client, connector and server of the same version. Everything else is maturin's.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import maturin
from maturin import (  # noqa: F401  (hooks that need nothing added)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

# maturin's hooks run the `maturin` command; without build isolation it lies beside this interpreter, which need
# not be on the path.
os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = "kvasir"
SCRIPTS = HERE / "kvasir.data" / "scripts"
# Every hook of maturin wants it there, also those that pack nothing.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517: a wheel with the extension module and the program."""
    _place_program()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 660: the same, with the Python files left where they are."""
    _place_program()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def _place_program() -> None:
    # Not over the old file: a server that runs from it would make the copy fail.
    (SCRIPTS / PROGRAM).unlink(missing_ok=True)
    shutil.copy2(_build_program(), SCRIPTS / PROGRAM)


def _build_program() -> pathlib.Path:
    """Builds the program and returns where cargo put it, which CARGO_TARGET_DIR and profiles can move."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "build", "--release", "--locked", "--bin", PROGRAM]
    command += ["--manifest-path", str(HERE.parent / "Cargo.toml"), "--message-format", "json-render-diagnostics"]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    for line in result.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            if message["target"]["name"] == PROGRAM:
                return pathlib.Path(message["executable"])
    raise RuntimeError(f"cargo built no program called {PROGRAM}")
