"""A client of the server, written from docs/protocol.md and docs/shm-layout.md: opening, calls, shared memory."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import mmap
import pathlib
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import flat

ROOT = pathlib.Path(__file__).parents[2]
REQUESTS, REQUEST = flat.parse(ROOT / "schema/request.fbs")
REPLIES, REPLY = flat.parse(ROOT / "schema/reply.fbs")

F_GET_SEALS = 1034
SEALS = {"seal": 1, "shrink": 2, "grow": 4, "write": 8, "future-write": 16}
SEAL_EXEC = 32
FRAMES_OF_SLAB = 65536

Message = tuple[str, dict[str, Any]]


class Refused(Exception):
    """An error reply."""

    def __init__(self, id: int, code: str, numbers: list[int], message: str) -> None:
        super().__init__(f"{code} {numbers}: {message}")
        self.id, self.code, self.numbers = id, code, numbers


class Closed(Exception):
    """The server has ended the connection."""


def hash32(data: bytes) -> dict[str, bytes]:
    """A key, or an id of 16 bytes, as the schema has it."""
    return {"bytes": data.ljust(32, b"\0")}


def object_id(key: bytes, group: int = 0) -> dict[str, Any]:
    return {"key": hash32(key), "group": group}


class Wire:
    """A connection: frames and the descriptors that ride with them."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self.buffer = b""
        self.fds: list[int] = []
        self.next_id = 1

    def send(self, id: int, body: Message) -> None:
        self.socket.sendall(flat.encode(REQUESTS, REQUEST or "", {"id": id, "body": body}))

    def receive(self) -> tuple[int, Message]:
        while len(self.buffer) < 4 or len(self.buffer) < 4 + struct.unpack_from("<I", self.buffer)[0]:
            try:
                data, fds, flags, _ = socket.recv_fds(self.socket, 1 << 16, 6, socket.MSG_CMSG_CLOEXEC)
            except ConnectionResetError:
                raise Closed from None
            assert not flags & socket.MSG_CTRUNC
            self.fds += fds
            if not data:
                raise Closed
            self.buffer += data
        end = 4 + struct.unpack_from("<I", self.buffer)[0]
        frame, self.buffer = self.buffer[:end], self.buffer[end:]
        reply = flat.decode(REPLIES, REPLY or "", frame)
        return reply["id"], reply["body"]

    def call(self, message: str, /, **fields: Any) -> dict[str, Any]:
        """One request and its reply; an error raises."""
        id, self.next_id = self.next_id, self.next_id + 1
        self.send(id, (message, fields))
        found, (kind, body) = self.receive()
        if kind == "Error":
            raise Refused(found, body["code"], body["numbers"] or [], body["message"])
        assert found == id, f"request {id} was answered as {found}"
        return body

    def close(self) -> None:
        self.socket.close()


def peer(path: str, **other: Any) -> Wire:
    """A connection without the pool."""
    wire = Wire(path)
    hello = {"protocol_version": version("PROTOCOL_VERSION"), "kind": "Tool", "name": "peer"} | other
    reply = wire.call("Hello", **hello)
    assert [region["kind"] for region in reply["regions"]] == ["Control"]
    return wire


def status(path: str) -> dict[str, Any]:
    wire = peer(path)
    document = json.loads(wire.call("Status")["json"])
    wire.close()
    return document


@dataclasses.dataclass
class Record:
    """What the index says of an object."""

    number: int
    incarnation: int
    tokens: int
    frames: int
    domain: int
    bytes: int
    checksum: int
    extents: list[tuple[int, int]]


class Client(Wire):
    """A connection with the pool mapped and the lock byte held."""

    def __init__(self, path: str, kind: str, instance: bytes) -> None:
        super().__init__(path)
        self.hello = self.call(
            "Hello", protocol_version=version("PROTOCOL_VERSION"), kind=kind, name="conformance",
            engine_instance=instance, wants_pool=True,
        )  # fmt: skip
        self.regions = {region["kind"]: region for region in self.hello["regions"]}
        assert list(self.regions) == ["Control", "Index", "Epochs", "PinSlab", "Liveness", "Pool"]
        assert len(self.fds) == len(self.regions), "a descriptor for each region, with the first byte of the frame"
        self.files = dict(zip(self.regions, self.fds))
        self.maps = {kind: self.map(kind) for kind in self.regions if kind != "Liveness"}
        slab = self.hello["slab"]
        assert self.regions["Liveness"]["offset"] == slab
        assert self.regions["PinSlab"]["offset"] == slab * FRAMES_OF_SLAB
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, slab, 1, 0)
        fcntl.fcntl(self.files["Liveness"], fcntl.F_OFD_SETLK, lock)
        assert self.word("PinSlab", 0) != 0, "the server has written the nonce"
        self.check_headers()

    def map(self, kind: str) -> mmap.mmap:
        fd, region = self.files[kind], self.regions[kind]
        assert fcntl.fcntl(fd, F_GET_SEALS) & SEALS["shrink"], f"{kind} may shrink"
        write = mmap.PROT_WRITE if kind in ("PinSlab", "Pool") else 0
        return mmap.mmap(fd, region["bytes"], mmap.MAP_SHARED, mmap.PROT_READ | write, offset=region["offset"])

    def word(self, kind: str, at: int) -> int:
        return struct.unpack_from("<Q", self.maps[kind], at)[0]

    def store(self, kind: str, at: int, value: int) -> None:
        struct.pack_into("<Q", self.maps[kind], at, value)

    def check_headers(self) -> None:
        abi = version("ABI_VERSION")
        for kind, magic in (("Control", b"KVASIRC1"), ("Index", b"KVASIRI1"), ("Epochs", b"KVASIRE1")):
            assert self.maps[kind][:8] == magic
            assert self.word(kind, 8) == 4096 << 32 | abi, f"{kind} is of another version"
        assert self.maps["Control"][16:32] == self.hello["boot_id"]["bytes"][:16]
        assert self.maps["Epochs"][32:48] == self.hello["pool_id"]["bytes"][:16]
        assert self.word("Epochs", 64) == self.hello["boot_seq"]
        frames = self.regions["Pool"]["bytes"] // self.hello["frame_bytes"]
        assert self.word("Index", 16) == self.word("Epochs", 16) == frames

    # Pool

    def pieces(self, extents: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
        """Where the bytes of a part lie: offset and length, extent by extent in order."""
        frame = self.hello["frame_bytes"]
        for first, count in extents:
            length = min(size, count * frame)
            yield first * frame, length
            size -= length
        assert size == 0, "the extents are too small for the part"

    def write(self, extents: list[tuple[int, int]], data: bytes) -> None:
        at = 0
        for offset, length in self.pieces(extents, len(data)):
            self.maps["Pool"][offset : offset + length] = data[at : at + length]
            at += length

    def read(self, extents: list[tuple[int, int]], size: int) -> bytes:
        return b"".join(self.maps["Pool"][at : at + length] for at, length in self.pieces(extents, size))

    def still_whole(self, extents: list[tuple[int, int]], incarnation: int) -> bool:
        """The check after a copy."""
        boot = self.word("Epochs", 64) == self.hello["boot_seq"]
        return boot and self.word("Epochs", 4096 + 8 * extents[0][0]) == incarnation

    # Index

    def find(self, key: bytes, group: int = 0, part: int = 0) -> Record | None:
        """An object's record, by the hash of its name."""
        mask, words = (1 << 64) - 1, struct.unpack("<4Q", key)
        g = group * 0x9E3779B97F4A7C15 & mask
        turned = (g << 32 | g >> 32) & mask
        tag = (words[2] ^ g >> 32) & 0xFFFFFFFF
        buckets, first_bucket = self.word("Index", 32), self.word("Index", 40)
        one = (words[0] ^ g) % buckets
        two = (words[1] ^ turned) % buckets
        for bucket in (one, one ^ 1 if one == two else two):
            for slot in range(8):
                found = self.word("Index", first_bucket + 64 * bucket + 8 * slot)
                if found and found >> 32 == tag:
                    record = self.record((found & 0xFFFFFFFF) - 1, words, group, part)
                    if record:
                        return record
        return None

    def record(self, number: int, key: tuple[int, ...], group: int, part: int) -> Record | None:
        base = self.word("Index", 56) + 128 * number
        words = struct.unpack_from("<16Q", self.maps["Index"], base)
        if words[0] in (0, 1) or words[1:5] != key or words[5] & 0xFFFF != group:
            return None
        body, block, left = list(words[10:16]), words[7] >> 32, words[7] & 0xFFFFFFFF
        while block:
            chain = struct.unpack_from("<8Q", self.maps["Index"], self.word("Index", 72) + 64 * (block - 1))
            body += chain[1:]
            block = chain[0]
        body = body[:left]
        at = 0
        for _ in range(part):
            at += 2 + (body[at] & 0xFFFF)
        runs = body[at + 2 : at + 2 + (body[at] & 0xFFFF)]
        if self.word("Index", base) != words[0]:
            return None
        return Record(
            number, words[0], words[5] >> 32, words[6] & 0xFFFFFFFF, words[8] >> 32,
            body[at] >> 16, body[at + 1], [(run >> 32, run & 0xFFFFFFFF) for run in runs],
        )  # fmt: skip

    # Pin slab

    def pin(self, record: int, word: int = 0) -> None:
        """Pins a record: mark, word, and (on the machines of this test) no fence, since the server is not evicting."""
        self.store("PinSlab", 64, max(self.word("PinSlab", 64), word + 1))
        self.store("PinSlab", 4096 + 8 * word, record + 1)

    def touch(self, record: int) -> None:
        cursor = self.word("PinSlab", 128)
        self.store("PinSlab", 36864 + 8 * (cursor % 3584), record + 1)
        self.store("PinSlab", 128, cursor + 1)


def version(name: str) -> int:
    """A version that the documents state."""
    page = "protocol.md" if name == "PROTOCOL_VERSION" else "shm-layout.md"
    found = re.search(rf"`{name} = (\d+)`", (ROOT / "docs" / page).read_text())
    assert found, f"docs/{page} does not state {name}"
    return int(found[1])


def table(page: str, heading: str, header: str) -> list[list[str]]:
    """The rows of the table with this first line, below a heading of a document."""
    text = (ROOT / "docs" / page).read_text()
    assert heading in text, f"docs/{page} has no {heading!r}"
    lines = iter(text.split(heading, 1)[1].splitlines())
    for line in lines:
        if line.startswith(header):
            break
    else:
        raise AssertionError(f"docs/{page}, {heading!r}: no table that begins with {header!r}")
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.replace("\\|", "\0").strip().strip("|").split("|")])
    return rows[1:]
