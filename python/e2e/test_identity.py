"""What the bytes are of: weights and adapters by their content, with a real engine.

Output is compared with that of an engine without Kvasir, started on the same files: tokens and log probabilities, bit
for bit, of runs that compute the same tokens in the same steps.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import time
from typing import Any

import adapters
import demo
import process
import weights

from conftest import Bench
from kinds import PROMPT_TOKENS, once, patient, small

HIT = (PROMPT_TOKENS - 1) // 32 * 32
LORA = {"enable_lora": True, "max_lora_rank": adapters.RANK, "max_loras": 1, "max_cpu_loras": 1}
KNOWN_S = 60.0

QWEN3 = small("qwen3")

# More than the identity of old looked at: 66 samples of 64 KiB.
BROAD = dataclasses.replace(QWEN3, name="qwen3-broad", config=QWEN3.config | {"intermediate_size": 4096})
SAMPLE = 64 << 10


def adapter(place: pathlib.Path, number: int, name: str = "tuned", **more: Any) -> dict[str, Any]:
    """What a request says of its adapter."""
    return {"lora_name": name, "lora_int_id": number, "lora_path": str(place), **more}


def tuned(engine: process.Engine, tokens: list[int], lora: dict[str, Any] | None) -> dict[str, Any]:
    """One prompt with an adapter."""
    return engine.generate([tokens], demo.OUTPUT_TOKENS, lora)["outputs"][0]


def wait_known(engine: process.Engine, words: str) -> None:
    """Until the connector says that it knows what it looked for in the background."""
    deadline = time.monotonic() + KNOWN_S
    while words not in engine.log.read_text(errors="replace"):
        assert time.monotonic() < deadline, engine.log.read_text(errors="replace")[-4000:]
        engine.generate([[7, 11, 13, 17]], 1)
        time.sleep(0.05)


def settings(server: process.Server, place: pathlib.Path) -> dict[str, Any]:
    """The connector's, with digests remembered in the test's own directory."""
    return patient(server, **{"kvasir.cache_dir": str(place / "digests")})


def known(engine: process.Engine, tokens: list[int], lora: dict[str, Any]) -> dict[str, Any]:
    """What an engine answers once it is known what the adapter is, which it finds out beside its requests."""
    for _ in range(10):
        engine.reset_prefix_cache()
        answer = tuned(engine, tokens, lora)
        if answer["cached_tokens"]:
            break
    return answer


def test_an_adapter_goes_by_its_content(bench: Bench) -> None:
    """W1: the same name and path, other files. And the same files under another name and path."""
    server, place = bench.server(), bench.place / "adapter"
    tokens = demo.prompt(1, PROMPT_TOKENS)
    connector = settings(server, bench.place)

    def start(served: bool = True) -> process.Engine:
        return bench.engine(QWEN3, server if served else None, settings=LORA, connector=connector if served else None)

    adapters.write(QWEN3, place, seed=1)
    plain = start(served=False)
    expected = {1: tuned(plain, tokens, adapter(place, 1))}
    bare = tuned(plain, tokens, None)
    plain.reset_prefix_cache()
    adapters.write(QWEN3, place, seed=2)
    # Under another number the engine loads it anew.
    expected[2] = tuned(plain, tokens, adapter(place, 2))
    again = tuned(plain, tokens, adapter(place, 2))
    plain.stop()
    assert again["cached_tokens"] == HIT
    assert len({str(one["logprobs"]) for one in (bare, *expected.values())}) == 3, "adapters that change nothing"

    adapters.write(QWEN3, place, seed=1)
    first = start()
    # What it is becomes known while it is used, in time for the prompt's last chunks or for the next prompt.
    tuned(first, tokens, adapter(place, 1))
    first.reset_prefix_cache()
    assert tuned(first, tokens, None) == bare, "the adapter's blocks went to a request without one"
    first.reset_prefix_cache()
    one = tuned(first, tokens, adapter(place, 1))
    warm = known(first, tokens, adapter(place, 1))
    assert warm["cached_tokens"] == HIT, "an adapter that is known hits"
    assert one["token_ids"] == warm["token_ids"] == expected[1]["token_ids"]
    first.stop()

    # A new engine, the same name and path, other content.
    adapters.write(QWEN3, place, seed=2)
    second = start()
    assert tuned(second, tokens, adapter(place, 1)) == expected[2]
    assert known(second, tokens, adapter(place, 1)) == again
    # The same engine loads what is there now, under another number and the same name: the first one's blocks are hits.
    adapters.write(QWEN3, place, seed=1)
    assert known(second, tokens, adapter(place, 2)) == warm

    # In place, under the same number: loaded anew when it is used.
    adapters.write(QWEN3, place, seed=2)
    second.reset_prefix_cache()
    replaced = tuned(second, tokens, adapter(place, 2, load_inplace=True))
    assert replaced["token_ids"] == expected[2]["token_ids"]
    # Overwritten while the engine has it loaded: it goes on with what it has, and must not store that as the new one.
    other = demo.prompt(2, PROMPT_TOKENS)
    adapters.write(QWEN3, place, seed=3)
    second.reset_prefix_cache()
    old = tuned(second, other, adapter(place, 2))
    second.stop()

    third = start()
    moved = bench.place / "elsewhere"
    shutil.copytree(place, moved)
    fresh = tuned(third, other, adapter(moved, 1, name="renamed"))
    assert fresh["cached_tokens"] == 0 and fresh["logprobs"] != old["logprobs"]
    third.reset_prefix_cache()
    tuned(third, other, adapter(moved, 1, name="renamed"))
    third.reset_prefix_cache()
    # Known by its content, so the first request of another name and path hits, and so does a new engine's.
    assert tuned(third, other, adapter(moved, 1, name="renamed"))["cached_tokens"] == HIT
    third.stop()
    fourth = start()
    hit = tuned(fourth, other, adapter(moved, 7, name="tuned"))
    assert (hit["cached_tokens"], hit["token_ids"]) == (HIT, fresh["token_ids"])


def spoil_between_samples(path: pathlib.Path) -> None:
    """Rearranges the file's numbers wherever the identity of old did not look: of each gap the order of the words."""
    data = bytearray(path.read_bytes())
    span = len(data) - SAMPLE
    starts = [span * at // 65 for at in range(66)]
    changed = 0
    for start, end in zip(starts, starts[1:]):
        first, last = start + SAMPLE + 16, end - 16
        first += first % 2
        last -= (last - first) % 2
        if last - first > 64:
            words = [bytes(data[at : at + 2]) for at in range(first, last, 2)]
            data[first:last] = b"".join(reversed(words))
            changed += last - first
    assert changed > len(data) // 4
    # In place, as a tool does that patches weights: same name, size and inode.
    with path.open("r+b") as file:
        file.write(data)


def test_weights_go_by_every_byte(bench: Bench) -> None:
    """W2: a directory whose weights differ only where nobody had looked. And a second start reads nothing."""
    server = bench.server()
    tokens = demo.prompt(1, PROMPT_TOKENS)
    kept = bench.cache
    place = bench.place / "models"
    bench.cache = place
    directory = weights.ensure(BROAD, place)
    connector = settings(server, bench.place)

    first = bench.engine(BROAD, server, connector=connector, strange=True)
    wait_known(first, "are known")
    cold = once(first, tokens)
    own = once(first, tokens)
    first.stop()
    again = bench.engine(BROAD, server, connector=connector)
    assert once(again, tokens) == own and own["cached_tokens"] == HIT
    assert ", of which 0 were read" in again.log.read_text()
    again.stop()

    spoil_between_samples(directory / "model.safetensors")
    plain = bench.engine(BROAD, None)
    expected = once(plain, tokens)
    plain.stop()
    assert expected["logprobs"] != cold["logprobs"], "the change of weights changed nothing"
    changed = bench.engine(BROAD, server, connector=connector, strange=True)
    wait_known(changed, "are known")
    assert once(changed, tokens) == expected
    changed.reset_prefix_cache()
    assert once(changed, tokens)["cached_tokens"] == HIT
    bench.cache = kept
