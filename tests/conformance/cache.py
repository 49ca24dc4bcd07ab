"""What a client stores and finds again: one engine of three object groups, for every case of the golden keys.

`write` and `read` run in processes of their own, so nothing but the server connects them.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from blake3 import blake3
from client import ROOT, Client, Refused, hash32, object_id, status

sys.path.insert(0, str(ROOT / "tests"))
import keys_golden
import sums_golden

FULL, WINDOW, STATE = 0, 3, 7
WINDOW_TOKENS = 100
UNIT_BYTES = {FULL: 401, WINDOW: 7}
STATE_BYTES = 1001
# A window's object that begins with holes: golden case, chunk, and its first token that is held.
HOLES = ("256 tokens, plain, longer than one lane batch", 3, 64)


def cases() -> list[dict[str, Any]]:
    path: pathlib.Path = ROOT / "tests/data/keys/golden.json"
    return json.loads(path.read_text())["cases"]


class Prompt:
    """A golden case with its keys, computed here."""

    def __init__(self, case: dict[str, Any]) -> None:
        form, self.name = case["tokens"], case["name"]
        tokens = [(i * form["mul"] + form["add"]) % form["modulus"] for i in range(form["count"])]
        self.domain, self.size, self.count = case["domain"], case["domain"]["chunk_size"], len(tokens)
        self.seed = keys_golden.domain_seed(self.domain)
        self.keys: list[bytes] = []
        for start in range(0, self.count - self.size + 1, self.size):
            parent = self.keys[-1] if self.keys else self.seed
            self.keys.append(keys_golden.key(case, parent, tokens[start : start + self.size], start))
        self.tails: list[tuple[int, int, bytes]] = []
        for tail in case["tails"]:
            chunk, length = tail["chunk"], tail["tokens"]
            if length < self.size:
                start, parent = chunk * self.size, self.keys[chunk - 1] if chunk else self.seed
                self.tails.append((chunk, length, keys_golden.key(case, parent, tokens[start : start + length], start)))

    def binding_domain(self) -> bytes:
        return blake3(b"conformance" + self.size.to_bytes(8, "little")).digest()

    def objects(self) -> list[tuple[int, int, bytes]]:
        """(chunk, tokens, key), parents before children."""
        chunks = [(chunk, self.size, key) for chunk, key in enumerate(self.keys)]
        return sorted(chunks + self.tails, key=lambda one: (one[0], -one[1]))

    def parent(self, chunk: int) -> bytes | None:
        return self.keys[chunk - 1] if chunk else None

    def boundary(self) -> int:
        """The longest prefix that can be a hit when all is stored: the last token has to be computed."""
        ends = [chunk * self.size + length for chunk, length, _ in self.objects()]
        return max(end for end in ends if end < self.count)


def content(key: bytes, group: int, tokens: int, held_from: int = 0) -> bytes:
    """Bytes that no other object has; holes are zeroes."""
    size = STATE_BYTES if group == STATE else UNIT_BYTES[group] * tokens
    data = blake3(key + bytes([group])).digest(length=size)
    holes = held_from * UNIT_BYTES.get(group, 0)
    return bytes(holes) + data[holes:]


def checksum(data: bytes) -> int:
    return sums_golden.part_sum(data)


def held_from(prompt: Prompt, group: int, chunk: int, tokens: int) -> int:
    case, hole, first = HOLES
    return first if (group, prompt.name, chunk, tokens) == (WINDOW, case, hole, prompt.size) else 0


def negotiate(client: Any, prompt: Prompt) -> None:
    reply = client.call(
        "Negotiate", required_alignment=1, spans=[{"group": 0, "tokens": 1}], preferred_base=prompt.size,
        binding_domain=prompt.binding_domain(),
    )  # fmt: skip
    assert reply["chunk_size"] == prompt.size


def registration(domain: dict[str, Any], stores: bool = True, **other: Any) -> dict[str, Any]:
    def group(number: int, kind: str, window: int, unit: int) -> dict[str, Any]:
        return {"group": number, "kind": kind, "parts": 1, "part": 0, "window_tokens": window, "unit_bytes": unit}

    fields = {
        "domain": {
            "model": domain["model"], "weights_id": bytes.fromhex(domain["weights_id_hex"]),
            "kv_dtype": domain["kv_dtype"], "fingerprint": bytes.fromhex(domain["fingerprint_hex"]),
            "parallel_shape": domain["parallel_shape"],
        },
        "rank": 0, "world_size": 1, "required_alignment": 1, "spans": [{"group": 0, "tokens": 1}],
        "groups": [
            group(FULL, "Full", 0, UNIT_BYTES[FULL]), group(WINDOW, "SlidingWindow", WINDOW_TOKENS, UNIT_BYTES[WINDOW]),
            group(STATE, "Recurrent", 0, STATE_BYTES),
        ],
        "payload_path": "ShmDirect", "stores": stores,
    }  # fmt: skip
    return fields | other


def register(client: Any, prompt: Prompt, stores: bool) -> dict[str, Any]:
    reply = client.call("RegisterKvCache", **registration(prompt.domain, stores))
    assert reply["domain_seed"]["bytes"] == prompt.seed, f"{prompt.name}: the server has another seed"
    assert reply["chunk_size"] == prompt.size
    return reply


def pairs(extents: list[dict[str, int]] | None) -> list[tuple[int, int]]:
    return [(extent["frame"], extent["count"]) for extent in extents or []]


def named(extents: list[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"frame": frame, "count": count} for frame, count in extents]


class Granted:
    """Granted frames, handed out from the front."""

    def __init__(self, client: Client, extents: list[tuple[int, int]]) -> None:
        self.client, self.extents = client, extents

    def take(self, size: int) -> list[tuple[int, int]]:
        need, out = -(-size // self.client.hello["frame_bytes"]), []
        while need:
            frame, count = self.extents.pop(0)
            used = min(need, count)
            if used < count:
                self.extents.insert(0, (frame + used, count - used))
            out.append((frame, used))
            need -= used
        return out


def item(client: Client, extents: list[dict[str, int]], space: Granted, key: bytes, data: bytes, **fields: Any) -> dict[str, Any]:
    """Writes a part into granted frames and describes it; its extents are added to `extents`."""
    runs = space.take(len(data))
    client.write(runs, data)
    parent, group = fields.pop("parent"), fields.pop("group", FULL)
    out = {
        "id": object_id(key, group), "parent": hash32(parent or b""), "has_parent": int(parent is not None), "skipped": 0,
        "part": 0, "held_from": 0, "bytes": len(data), "checksum": checksum(data), "first_extent": len(extents),
        "extent_count": len(runs),
    }  # fmt: skip
    extents += named(runs)
    return out | fields


def store(client: Client, prompt: Prompt) -> None:
    frame = client.hello["frame_bytes"]
    objects = [(chunk, tokens, key, group) for chunk, tokens, key in prompt.objects() for group in (FULL, WINDOW, STATE)]
    datas = [content(key, g, tokens, held_from(prompt, g, chunk, tokens)) for chunk, tokens, key, g in objects]
    frames = sum(-(-len(data) // frame) for data in datas)
    granted = pairs(client.call("Grant", bytes=frames * frame)["extents"])
    assert sum(count for _, count in granted) == frames, "the pool is large enough for all of this"
    space, extents, items = Granted(client, granted), [], []
    for (chunk, tokens, key, group), data in zip(objects, datas):
        items.append(
            item(
                client, extents, space, key, data, parent=prompt.parent(chunk), group=group, tokens=tokens,
                held_from=held_from(prompt, group, chunk, tokens),
            )
        )  # fmt: skip
    commit = {"domain_seed": hash32(prompt.seed), "items": items, "extents": extents, "supersedes": [], "credit_bytes": frame}
    reply = client.call("Commit", **commit)
    assert set(reply["outcomes"]) <= {"Published", "Exists"}, reply["outcomes"]
    # Cases with one domain and one prompt but other extras share nothing; a case that is stored twice is a retry.
    assert "Published" in reply["outcomes"]
    assert sum(count for _, count in pairs(reply["granted"])) <= 1, "no more is granted than was asked for"
    client.call("Abort", extents=reply["granted"] or [])


def write(path: str) -> None:
    client = Client(path, "Worker", b"writer".ljust(16, b"\0"))
    client.call("Attach")
    for case in cases():
        prompt = Prompt(case)
        negotiate(client, prompt)
        register(client, prompt, True)
        store(client, prompt)
    client.close()
    print(f"stored {len(cases())} prompts")


def needed(group: int, boundary: int, local: int) -> range:
    """Tokens that a group has to load for a resume at `boundary`."""
    first = max(boundary - WINDOW_TOKENS + 1, 0) if group == WINDOW else 0
    return range(max(first, local), boundary)


def check_loads(prompt: Prompt, loads: list[dict[str, Any]], boundary: int, local: int) -> None:
    keys = {(chunk, tokens): key for chunk, tokens, key in prompt.objects()}
    found: dict[int, list[tuple[int, int]]] = {FULL: [], WINDOW: [], STATE: []}
    for load in loads:
        chunk, tokens = load["chunk"], load["tokens"]
        assert load["id"]["key"]["bytes"] == keys[chunk, tokens]
        found[load["id"]["group"]].append((chunk * prompt.size, chunk * prompt.size + tokens))
    assert [end for _, end in found[STATE]] == [boundary], f"{prompt.name}: the state at {boundary} and no other"
    for group in (FULL, WINDOW):
        covered = {token for start, end in found[group] for token in range(start, end)}
        missing = set(needed(group, boundary, local)) - covered
        assert not missing, f"{prompt.name}: group {group} lacks {min(missing)}"
        assert all(end > local for _, end in found[group]), "nothing that the engine has already is named"


def lookup(client: Any, prompt: Prompt, **other: Any) -> dict[str, Any]:
    tails = [{"key": hash32(key), "chunk": chunk, "tokens": tokens} for chunk, tokens, key in prompt.tails]
    fields = {
        "domain_seed": hash32(prompt.seed), "session": 5, "keys": [hash32(key) for key in prompt.keys], "tails": tails,
        "max_tokens": prompt.count - 1, "local_tokens": 0, "pin": True, "describe": False,
    }  # fmt: skip
    return client.call("Lookup", **fields | other)


def check_bytes(client: Client, prompt: Prompt, loads: list[dict[str, Any]], domain: int) -> int:
    """Retrieves what a lookup named, copies it, and makes the checks of a reader."""
    ids = [load["id"] for load in loads]
    reply = client.call("Retrieve", domain_seed=hash32(prompt.seed), session=6, part=0, ids=ids)
    extents, total = pairs(reply["extents"]), 0
    assert len(reply["places"]) == len(ids)
    for load, place in zip(loads, reply["places"]):
        key, group = load["id"]["key"]["bytes"], load["id"]["group"]
        runs = extents[place["first_extent"] :][: place["extent_count"]]
        data = client.read(runs, place["bytes"])
        assert client.still_whole(runs, place["incarnation"])
        assert place["held_from"] == held_from(prompt, group, load["chunk"], load["tokens"])
        assert data == content(key, group, load["tokens"], place["held_from"]), f"{prompt.name}: other bytes"
        assert place["tokens"] == load["tokens"] and place["checksum"] == checksum(data)
        record = client.find(key, group)
        assert record is not None, "the index has what the server names"
        same = (place["incarnation"], place["tokens"], place["bytes"], place["checksum"], runs)
        assert (record.incarnation, record.tokens, record.bytes, record.checksum, record.extents) == same
        assert (record.domain, record.frames) == (domain, sum(count for _, count in runs))
        total += len(data)
    client.call("Release", pins=[reply["pin"]])
    return total


def read(path: str) -> None:
    client = Client(path, "Worker", b"reader".ljust(16, b"\0"))
    client.call("Attach")
    total = 0
    for case in cases():
        prompt = Prompt(case)
        negotiate(client, prompt)
        domain = register(client, prompt, False)["domain"]
        boundary = prompt.boundary()
        found = lookup(client, prompt, describe=True)
        assert found["hit_tokens"] == boundary, f"{prompt.name}: a hit of {found['hit_tokens']} instead of {boundary}"
        check_loads(prompt, found["loads"], boundary, 0)
        total += check_bytes(client, prompt, found["loads"], domain)
        client.call("Release", pins=[found["pin"]])
        check_shape(prompt, found["shape"], domain)
        check_answers(client, prompt, boundary)
    check_own_pins(client, Prompt(cases()[0]))
    client.close()
    print(f"another process found {len(cases())} prompts and compared {total} bytes")


def check_shape(prompt: Prompt, shape: dict[str, Any], domain: int) -> None:
    assert (shape["domain"], shape["chunk_size"], shape["alignment"]) == (domain, prompt.size, 1)
    assert shape["has_anchor"] and shape["anchor"] == FULL
    assert [group["group"] for group in shape["groups"]] == [FULL, WINDOW, STATE]
    assert [group["kind"] for group in shape["groups"]] == ["Full", "SlidingWindow", "Recurrent"]
    masks = [group["bit"] for group in shape["groups"]]
    assert all(mask.bit_count() == 1 for mask in masks) and len(set(masks)) == 3, "each a mask of one bit"


def check_answers(client: Client, prompt: Prompt, boundary: int) -> None:
    # A question only: nothing is named or pinned. A group of windows or states may have gaps before its end.
    asked = lookup(client, prompt, pin=False)
    assert (asked["hit_tokens"], asked["pin"], asked["loads"] or []) == (boundary, 0, [])
    assert asked["shape"] is None and asked["present_tokens"][0] >= boundary
    # What the engine holds is not named, but for the state, which belongs to the end.
    if boundary > prompt.size:
        found = lookup(client, prompt, local_tokens=prompt.size)
        check_loads(prompt, found["loads"], boundary, prompt.size)
        client.call("EndSession", session=5)
        try:
            client.call("Release", pins=[found["pin"]])
        except Refused as error:
            assert (error.code, error.numbers) == ("UnknownPin", [found["pin"]])
        else:
            raise AssertionError("EndSession left a pin")
    # All of it: nothing to load.
    found = lookup(client, prompt, local_tokens=boundary)
    assert (found["hit_tokens"], found["pin"], found["loads"] or []) == (boundary, 0, [])


def check_own_pins(client: Client, prompt: Prompt) -> None:
    """A pin word of the slab, as a client that looks up by itself writes it; the record says what is beside and behind it."""
    record = client.find(prompt.keys[-1])
    assert record is not None
    client.pin(record.number)
    client.touch(record.number)
    (own,) = [row for row in status(client.socket.getpeername())["clients"] if row["slab"] == client.hello["slab"]]
    assert own["pin_words"] == 1 and own["kept"] > 0
    client.store("PinSlab", 4096, 0)
    shape = lookup(client, prompt, describe=True, pin=False)["shape"]
    masks = {group["group"]: group["bit"] for group in shape["groups"]}
    words = [client.word("Index", client.word("Index", 56) + 128 * record.number + 8 * at) for at in range(16)]
    assert words[9] & 0xFFFFFFFF == masks[WINDOW] | masks[STATE], "word 9: groups beside it, by their masks"
    behind = 0
    for chunk, tokens, _ in prompt.tails:
        behind |= 1 << (tokens - 1) % 32 if chunk == len(prompt.keys) else 0
    assert words[6] >> 32 == behind != 0, "word 6: tails behind it, by the position of their bit"
    hole = client.find(prompt.keys[HOLES[1]])
    assert hole is not None
    beside = client.word("Index", client.word("Index", 56) + 128 * hole.number + 72)
    assert beside >> 32 == masks[WINDOW], "word 9: groups whose object begins with holes"


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](sys.argv[2])
