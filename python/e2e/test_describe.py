"""`kvasir plan from-vllm` against real engines: what it makes of the flags is what the engine comes to."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

import models
import process
import weights

from conftest import Bench

# Of the flags alone nobody knows the layout of the pages, nor in which processes the engine is.
ONLY_RUNNING = ("source", "multiprocessing")


def flags(settings: dict) -> list[str]:
    """The engine's keyword arguments as `vllm serve` takes them."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def kvasir(bench: Bench, *arguments: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    environment = process.engine_environment(in_process=False) | {"KVASIR_PYTHON": sys.executable}
    return subprocess.run(
        [str(bench.binary), *map(str, arguments)],
        env={name: value for name, value in environment.items() if name != "KVASIR_SOCKET"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=process.START_S,
    )


def from_vllm(bench: Bench, name: str, *arguments: str) -> tuple[pathlib.Path, dict]:
    result = kvasir(bench, "plan", "from-vllm", *arguments)
    assert result.returncode == 0, result.stderr[-4000:]
    path = bench.place / name
    path.write_text(result.stdout)
    return path, json.loads(result.stdout)


@pytest.mark.parametrize("name", ("qwen3", "qwen3.5"))
def test_flags_come_to_what_the_engine_comes_to(bench: Bench, name: str) -> None:
    model = models.find(name)
    server = bench.server()
    written = bench.place / "running.json"
    connector = process.connector_config(server.socket_path, **{"kvasir.describe_file": str(written)})
    engine = bench.engine(model, server, connector=connector)
    running = json.loads(written.read_text())
    engine.stop()

    directory = str(weights.ensure(model, bench.cache))
    settings = model.engine_settings | {"max_num_seqs": 8}
    arguments = [directory, *flags(settings), "--enforce-eager", "--enable-prefix-caching", "--skip-tokenizer-init"]
    given = ["--kv-transfer-config", json.dumps(process.connector_config(server.socket_path))]
    path, described = from_vllm(bench, "flags.json", *arguments, *given)

    assert described["groups"] == running["groups"]
    assert len(running["identity"].pop("fingerprint")) == 64
    assert described["identity"] == running["identity"]
    of_flags = {key: value for key, value in described.items() if key not in ONLY_RUNNING}
    del running["kv_transfer_config"]["kv_connector_extra_config"]["kvasir.describe_file"]
    assert of_flags == {key: value for key, value in running.items() if key not in ONLY_RUNNING}

    # Both commands read it, and have nothing against it that the engine would not have.
    plan = kvasir(bench, "plan", "groups", path, "--json")
    assert plan.returncode == 0 and plan.stderr == "", plan.stderr
    assert json.loads(plan.stdout)["chunk_size"] == server.chunk_size()
    doctor = kvasir(bench, "doctor", "--json", "--engine", path)
    report = json.loads(doctor.stdout)
    assert [found["name"] for found in report["findings"] if found["severity"] in ("refused", "silent")] == []
    assert doctor.returncode == 0

    # Two engines: the same flags, and another block size.
    same = kvasir(bench, "doctor", "--json", "--engine", path, "--engine", written)
    assert "engines_differ" not in same.stdout, same.stdout
    other = dict(described, block_size=64, groups=[dict(group, block_size=64) for group in described["groups"]])
    (bench.place / "other.json").write_text(json.dumps(other))
    differ = kvasir(bench, "doctor", "--json", "--engine", path, "--engine", bench.place / "other.json")
    found = [finding["message"] for finding in json.loads(differ.stdout)["findings"]]
    assert any("block_size of group 0" in message for message in found), differ.stdout


def test_a_tensor_parallel_engine_is_described_by_one_of_its_ranks(bench: Bench) -> None:
    model = models.find("qwen3")
    directory = str(weights.ensure(model, bench.cache))
    arguments = [directory, *flags(model.engine_settings), "--skip-tokenizer-init"]
    _, one = from_vllm(bench, "one.json", *arguments)
    # vLLM's own spelling of the option, and of the command.
    result = kvasir(bench, "plan", "--from-vllm", *arguments, "-tp", "2")
    assert result.returncode == 0, result.stderr[-4000:]
    two = json.loads(result.stdout)
    assert two["identity"]["parallel_shape"].startswith("tp=2,")
    page = [description["groups"][0]["layers"][0]["page_size_bytes"] for description in (one, two)]
    assert page[0] == 2 * page[1], "each of two ranks holds half of the heads"


def test_flags_that_vllm_refuses_are_told_in_its_own_words(bench: Bench) -> None:
    refused = kvasir(bench, "plan", "from-vllm", "/nonexistent", "--block-sise", "32")
    assert refused.returncode == 2 and refused.stdout == ""
    assert "--block-sise" in refused.stderr
    assert refused.stderr.rstrip().splitlines()[-1].startswith("kvasir plan: "), refused.stderr
    missing = kvasir(bench, "plan", "from-vllm", "/nonexistent/model")
    assert missing.returncode == 2 and missing.stdout == ""
    assert "/nonexistent/model" in missing.stderr
