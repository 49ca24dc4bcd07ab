"""The build backend of the `kvasir` wheel: maturin, plus the `kvasir` program.

maturin builds the extension module and packs whatever lies in `kvasir.data/scripts` as commands of the
environment. This backend builds the program in release mode and puts it there first, so that one
`pip install` brings client, connector and server of the same version. Everything else is maturin's.

Every hook looks first for what a build needs. maturin itself is asked for by a hook and not by `pyproject.toml`, so
that nothing is fetched where a build cannot work: without cargo, maturin would fetch a whole toolchain.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from types import ModuleType

import build_needs

MATURIN = "maturin>=1.9,<2"
HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = "kvasir"
SCRIPTS = HERE / "kvasir.data" / "scripts"


def get_requires_for_build_wheel(config_settings=None):
    """PEP 517: what to fetch, once a build can work."""
    build_needs.check()
    return [MATURIN]


def get_requires_for_build_editable(config_settings=None):
    """PEP 660: the same."""
    return get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings=None):
    """PEP 517: the same; cargo is asked for the files."""
    return get_requires_for_build_wheel(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517: maturin's."""
    return _maturin().prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    """PEP 660: maturin's."""
    return _maturin().prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517: maturin's."""
    return _maturin().build_sdist(sdist_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517: a wheel with the extension module and the program."""
    maturin = _maturin()
    _place_program()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 660: the same, with the Python files left where they are."""
    maturin = _maturin()
    _place_program()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


@functools.lru_cache(maxsize=None)
def _maturin() -> ModuleType:
    """maturin, in surroundings that suit it."""
    # Without build isolation nobody asks what to fetch, so this is the first look.
    build_needs.check()
    # Its hooks run the `maturin` command, which lies beside this interpreter; that need not be on the path.
    places = [str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(places)
    # Every hook wants it there, also those that pack nothing.
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    import maturin

    return maturin


def _place_program() -> None:
    # Not over the old file: a server that runs from it would make the copy fail.
    (SCRIPTS / PROGRAM).unlink(missing_ok=True)
    shutil.copy2(_build_program(), SCRIPTS / PROGRAM)


def _build_program() -> pathlib.Path:
    """Builds the program and returns where cargo put it, which CARGO_TARGET_DIR and profiles can move."""
    cargo = os.environ.get("CARGO") or "cargo"
    command = [cargo, "build", "--release", "--locked", "--bin", PROGRAM]
    command += ["--manifest-path", str(HERE.parent / "Cargo.toml"), "--message-format", "json-render-diagnostics"]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if result.returncode != 0:
        print(f"kvasir: {' '.join(command)}: exit status {result.returncode}; the reason is above", file=sys.stderr)
        sys.exit(1)
    for line in result.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            if message["target"]["name"] == PROGRAM:
                return pathlib.Path(message["executable"])
    raise RuntimeError(f"cargo built no program called {PROGRAM}")
