"""What building the `kvasir` wheel needs, looked for before anything is fetched or compiled.

Standard library only: it runs before the build's own requirements are there. What is missing is said in one line, all of
it at once, with what to do.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
MANIFEST = HERE.parent / "Cargo.toml"

PYTHON = (3, 11)
# What a release build of program and extension takes in cargo's target directory, rounded up.
DISK_BYTES = 2_000_000_000
# A build of nothing ends long before.
PATIENCE_S = 60


def check() -> None:
    """Ends the process with one line if something is missing."""
    missing = list(problems())
    if missing:
        # Not an exception: whoever installs wants the reason, not where in this file it was found.
        print(f"kvasir cannot be built here: {'; '.join(missing)}", file=sys.stderr, flush=True)
        sys.exit(1)


def problems() -> Iterator[str]:
    """Everything that is missing."""
    if sys.platform != "linux":
        yield f"it runs on Linux, this is {sys.platform}"
    if sys.version_info[:2] < PYTHON:
        wanted, found = ".".join(map(str, PYTHON)), ".".join(map(str, sys.version_info[:3]))
        yield f"this is Python {found}, it needs {wanted} or newer"
    if not MANIFEST.is_file():
        yield f"{MANIFEST} is not there; install from a checkout of the repository"
        return
    yield from _rust()
    yield from _compiler()
    yield from _disk()


def rust_version() -> tuple[int, ...]:
    """The oldest Rust that the repository says it builds with."""
    found = re.search(r'^rust-version\s*=\s*"([0-9.]+)"', MANIFEST.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{MANIFEST} names no rust-version"
    return _numbers(found[1])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _rust() -> Iterator[str]:
    wanted = ".".join(map(str, rust_version()))
    how = f"install Rust {wanted} or newer (https://rustup.rs)"
    for variable, name in (("CARGO", "cargo"), ("RUSTC", "rustc")):
        program = os.environ.get(variable) or name
        if shutil.which(program) is None:
            yield f"{program} was not found; {how}"
            return
        code, said = _run([program, "--version"])
        version = re.match(rf"{name} (\d+(?:\.\d+)+)", said)
        if code != 0 or version is None:
            yield f"{program} --version does not say a version ({_line(said)}); {how}"
            return
        if _numbers(version[1]) < rust_version():
            yield f"{program} is {version[1]}; {how}"
            return


def _compiler() -> Iterator[str]:
    """Rust links with a C compiler, and one of the libraries has assembly in it."""
    how = "install a C compiler (Debian and Ubuntu: apt-get install build-essential)"
    command = (os.environ.get("CC") or "cc").split()
    if shutil.which(command[0]) is None:
        yield f"{command[0]} was not found; {how}"
        return
    with tempfile.TemporaryDirectory() as place:
        source = pathlib.Path(place, "nothing.c")
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        code, said = _run([*command, str(source), "-o", str(source.with_suffix(""))])
    if code != 0:
        yield f"{command[0]} cannot build a program of nothing ({_line(said)}); {how}"


def _disk() -> Iterator[str]:
    target = HERE.parent / (os.environ.get("CARGO_TARGET_DIR") or "target")
    if target.exists():
        return  # what was built before is used again
    place = target
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < DISK_BYTES:
        yield (
            f"the build takes {DISK_BYTES / 1e9:.1f} GB in {target}, where {free / 1e9:.1f} GB are free; make room, or "
            "name another place in CARGO_TARGET_DIR"
        )


def _run(command: list[str]) -> tuple[int, str]:
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=HERE.parent,  # rustup chooses by directory
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return result.returncode, result.stdout


def _line(text: str) -> str:
    """The last line, short enough to be part of another."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no output"])[-1][:160]
