"""Reads the index image of `tests/data/index` as docs/shm-layout.md says, and compares it with the text beside it."""

from __future__ import annotations

import json
import struct

from client import ROOT, Client, version


class Image(Client):
    """A reader whose index is a file."""

    def __init__(self, data: bytes) -> None:
        self.maps = {"Index": data}  # type: ignore[dict-item]


def main() -> None:
    folder = ROOT / "tests/data/index"
    text = json.loads((folder / "index.json").read_text())
    data = (folder / "index.bin").read_bytes()
    image = Image(data)
    assert data[:8] == b"KVASIRI1" and image.word("Index", 8) == 4096 << 32 | text["abi_version"]
    assert text["abi_version"] == version("ABI_VERSION")
    assert image.word("Index", 16) == text["frames"]
    for one in text["objects"]:
        key, (part,) = bytes.fromhex(one["key"]), one["parts"]
        found = image.find(key, one["group"])
        assert found is not None, f"group {one['group']} of {one['key']} is not found"
        assert (found.incarnation, found.tokens, found.frames, found.domain) == (
            one["incarnation"], one["tokens"], one["frames"], one["domain"],
        )  # fmt: skip
        assert (found.bytes, found.checksum) == (part["bytes"], part["checksum"])
        assert [list(run) for run in found.extents] == part["extents"]
        words = struct.unpack_from("<16Q", data, image.word("Index", 56) + 128 * found.number)
        assert words[8] & 0xFFFFFFFF == one["held_from"]
        assert (words[9] & 0xFFFFFFFF, words[9] >> 32) == (one["companions"], one["companions_with_holes"])
        assert words[6] >> 32 == one["tails_of_next_chunk"]
    for one in text["absent"]:
        assert image.find(bytes.fromhex(one["key"]), one["group"]) is None
    print(f"{len(text['objects'])} objects of the index image are found")


if __name__ == "__main__":
    main()
