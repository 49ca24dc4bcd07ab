"""`pip install ./python` where something is missing: one line, before anything is fetched."""

from __future__ import annotations

import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest

PROJECT = pathlib.Path(__file__).resolve().parents[1]
FIRST_WORDS = "kvasir cannot be built here: "
RUST = "install Rust {} or newer (https://rustup.rs)"


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory for the path that holds what a build needs and nothing else."""
    programs = tmp_path / "bin"
    programs.mkdir()
    play(programs, "cargo", "echo cargo 99.0.0")
    play(programs, "rustc", "echo rustc 99.0.0")
    for name in ("cc", "as", "ld", "sh", "echo", "cat"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    return programs


def play(programs: pathlib.Path, name: str, script: str) -> None:
    path = programs / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def environment(programs: pathlib.Path, **more: str) -> dict[str, str]:
    left_out = ("CARGO", "RUSTC", "CC", "CARGO_TARGET_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {"PATH": str(programs)} | more


def needs(programs: pathlib.Path, **more: str) -> str:
    """What the check says, without its first words; empty if nothing is missing."""
    result = subprocess.run(
        [sys.executable, "-c", "import build_needs; build_needs.check()"],
        cwd=PROJECT,
        env=environment(programs, **more) | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
    )
    assert result.stdout == ""
    assert result.returncode == bool(result.stderr), result.stderr
    if result.stderr:
        assert result.stderr.count("\n") == 1 and result.stderr.startswith(FIRST_WORDS), result.stderr
    return result.stderr.removeprefix(FIRST_WORDS).strip()


def oldest_rust() -> str:
    (line,) = (
        line for line in (PROJECT.parent / "Cargo.toml").read_text().splitlines() if line.startswith("rust-version =")
    )
    return line.split('"')[1]


def test_pip_without_cargo_says_one_line_and_fetches_nothing(place: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (place / "cargo").unlink()
    result = subprocess.run(
        # Without an index: whatever would be fetched first is another error.
        [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--wheel-dir", str(tmp_path), str(PROJECT)],
        env=environment(place, PIP_FIND_LINKS=""),
        capture_output=True,
        text=True,
    )
    said = result.stdout + result.stderr
    assert result.returncode != 0
    assert f"{FIRST_WORDS}cargo was not found; {RUST.format(oldest_rust())}" in said, said
    assert "[1 lines of output]" in said, said
    assert "Traceback" not in said and "ownload" not in said, said


def test_nothing_is_missing_where_all_is_there(place: pathlib.Path) -> None:
    assert needs(place) == ""


def test_everything_that_is_missing_is_said_at_once(place: pathlib.Path) -> None:
    (place / "cargo").unlink()
    (place / "cc").unlink()
    said = needs(place)
    assert said == (
        f"cargo was not found; {RUST.format(oldest_rust())}; cc was not found; install a C compiler "
        "(Debian and Ubuntu: apt-get install build-essential)"
    )


@pytest.mark.parametrize("name", ("cargo", "rustc"))
def test_an_old_rust_is_named_with_the_version_that_is_needed(place: pathlib.Path, name: str) -> None:
    play(place, name, f"echo {name} 1.70.0 '(abc 2023-06-01)'")
    assert needs(place) == f"{name} is 1.70.0; {RUST.format(oldest_rust())}"
    # Compared as numbers: 1.9 is older than 1.88.
    play(place, name, f"echo {name} 1.9.0")
    assert needs(place).startswith(f"{name} is 1.9.0")
    play(place, name, f"echo {name} {oldest_rust()}.0")
    assert needs(place) == ""


def test_a_rustup_without_a_toolchain_is_told_in_its_own_words(place: pathlib.Path) -> None:
    play(place, "cargo", "echo 'error: rustup could not choose a version of cargo to run' >&2; exit 1")
    said = needs(place)
    assert "rustup could not choose a version" in said and RUST.format(oldest_rust()) in said


def test_a_compiler_that_cannot_link_is_noticed(place: pathlib.Path) -> None:
    play(place, "cc", "echo 'ld: cannot find crt1.o' >&2; exit 1")
    assert needs(place).startswith("cc cannot build a program of nothing (ld: cannot find crt1.o)")
    assert needs(place, CC=shutil.which("cc") or "cc") == ""


def test_cargo_and_compiler_may_be_named(place: pathlib.Path) -> None:
    for name in ("cargo", "rustc", "cc"):
        (place / name).rename(place / f"other-{name}")
    named = {name.upper(): str(place / f"other-{name}") for name in ("cargo", "rustc", "cc")}
    play(place, "other-cargo", "echo cargo 99.0.0")
    play(place, "other-rustc", "echo rustc 99.0.0")
    assert needs(place, **named) == ""
    assert "nowhere was not found" in needs(place, **(named | {"CARGO": "nowhere"}))


def test_a_full_disk_is_said_with_both_numbers(place: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = "import build_needs; build_needs.DISK_BYTES = 2**70; print(*build_needs.problems(), sep='\\n')"
    target = tmp_path / "not" / "there"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(place, CARGO_TARGET_DIR=str(target)) | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"the build takes {2**70 / 1e9:.1f} GB in {target}, where ") and "GB are free" in line
