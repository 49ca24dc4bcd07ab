"""Checks tests/data/keys/golden.json with nothing but the standard library and the `blake3` package.

The key contract of src/keys, written a second time and as plainly as possible. Run it as
`python tests/keys_golden.py` after `pip install blake3`; it prints a count and exits non-zero on a difference.
"""

import json
import pathlib
import struct
import sys

from blake3 import blake3


def field(data):
    return struct.pack("<I", len(data)) + data


def domain_seed(d):
    parts = [d["model"].encode(), bytes.fromhex(d["weights_id_hex"]), d["kv_dtype"].encode(),
             bytes.fromhex(d["fingerprint_hex"]), d["parallel_shape"].encode(), struct.pack("<Q", d["chunk_size"])]
    return blake3(b"".join(map(field, parts)), derive_key_context="kvasir.domain.1").digest()


def extra_keys(case, start, end):
    out = b""
    for item in sorted(case["mm_items"], key=lambda i: (i["start"], bytes.fromhex(i["identifier_hex"]))):
        if item["length"] and item["start"] < end and item["start"] + item["length"] > start:
            offset = struct.pack("<q", item["start"] - start)
            out += b"\x01" + field(bytes.fromhex(item["identifier_hex"]) + offset)
    if case["lora_hex"] is not None:
        out += b"\x02" + field(bytes.fromhex(case["lora_hex"]))
    if case["salt_hex"] is not None and start == 0:
        out += b"\x03" + field(bytes.fromhex(case["salt_hex"]))
    return out


def key(case, parent, tokens, start):
    leaf = blake3(struct.pack(f"<{len(tokens)}I", *tokens)).digest()
    extras = extra_keys(case, start, start + len(tokens))
    if extras:
        leaf = blake3(leaf + extras, derive_key_context="kvasir.extra.1").digest()
    return blake3(parent + leaf).digest()


def check(case):
    t, size = case["tokens"], case["domain"]["chunk_size"]
    tokens = [(i * t["mul"] + t["add"]) % t["modulus"] for i in range(t["count"])]
    chain = [domain_seed(case["domain"])]
    for start in range(0, len(tokens) - size + 1, size):
        chain.append(key(case, chain[-1], tokens[start:start + size], start))
    pairs = [(chain[0].hex(), case["seed"]), ([k.hex() for k in chain[1:]], case["keys"])]
    for tail in case["tails"]:
        start = tail["chunk"] * size
        part = tokens[start:start + tail["tokens"]]
        assert len(part) == tail["tokens"], f"{case['name']}: tail out of range"
        pairs.append((key(case, chain[tail["chunk"]], part, start).hex(), tail["key"]))
    for got, want in pairs:
        if got != want:
            sys.exit(f"{case['name']}: got {got}, golden file says {want}")
    return len(chain) + len(case["tails"])


def main():
    path = pathlib.Path(__file__).parent / "data" / "keys" / "golden.json"
    cases = json.loads(path.read_text())["cases"]
    if not cases:
        sys.exit(f"{path}: no cases")
    print(f"{sum(map(check, cases))} keys of {len(cases)} cases agree")


if __name__ == "__main__":
    main()
