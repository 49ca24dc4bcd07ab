"""What the server refuses, with which code and numbers, and what it answers that is no error."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import cache
import flat
from cache import FULL, UNIT_BYTES, Granted, Prompt, item, lookup, named, pairs, registration
from client import REQUEST, REQUESTS, Client, Closed, Refused, Wire, hash32, object_id, peer, table, version


@contextlib.contextmanager
def refused(code: str, *numbers: int | None, id: int | None = None) -> Iterator[None]:
    """The error that the block ends with; None stands for any number."""
    try:
        yield
    except Refused as error:
        found = [None if number is None else got for number, got in zip(numbers, error.numbers)]
        assert error.code == code and len(error.numbers) == len(numbers), f"{error} instead of {code} {numbers}"
        assert found == list(numbers), f"{error} instead of {code} {numbers}"
        assert id is None or error.id == id, f"{error} answers request {error.id}"
    else:
        raise AssertionError(f"no {code}")


def answer(wire: Wire) -> None:
    """The next frame, which is an error."""
    id, (_, body) = wire.receive()
    raise Refused(id, body["code"], body["numbers"] or [], body["message"])


def assert_closed(wire: Wire) -> None:
    try:
        wire.receive()
    except Closed:
        return
    raise AssertionError("the connection is still open")


def raw(path: str, data: bytes, hello: bool = False) -> Wire:
    wire = peer(path) if hello else Wire(path)
    with contextlib.suppress(BrokenPipeError):
        wire.socket.sendall(data)
    return wire


def without_a_request(path: str) -> None:
    """Errors that answer no request have id 0, and end the connection."""
    garbage = struct.pack("<I", 12) + b"\xff" * 12
    limit, early = limits()["bytes of a frame"], limits()["bytes of a frame before the reply to `Hello`"]
    for hello in (False, True):
        wire = raw(path, garbage, hello)
        with refused("Malformed", id=0):
            answer(wire)
        assert_closed(wire)
        bound = limit if hello else early
        wire = raw(path, struct.pack("<I", bound + 1), hello)
        with refused("FrameTooLarge", bound + 1, bound, id=0):
            answer(wire)
        assert_closed(wire)
        wire = raw(path, struct.pack("<I", 100) + b"part of it", hello)
        wire.socket.shutdown(socket.SHUT_WR)
        with refused("Malformed", id=0):
            answer(wire)
        assert_closed(wire)
    wire = peer(path)
    status = flat.encode(REQUESTS, REQUEST or "", {"id": 9, "body": ("Status", {})})
    socket.send_fds(wire.socket, [status], [0])
    with refused("Descriptors", 1, 0, id=0):
        answer(wire)
    assert_closed(wire)


def opening(path: str) -> None:
    """Before the reply to the hello every error ends the connection, whatever its code."""
    mine, theirs = version("PROTOCOL_VERSION") + 7, version("PROTOCOL_VERSION")
    for body, code, numbers in (
        (("Status", {}), "HelloExpected", ()),
        (("Hello", {"protocol_version": mine}), "ProtocolVersion", (mine, theirs)),
        (("Hello", {"protocol_version": theirs, "engine_instance": b"short"}), "InvalidArgument", (5, 16)),
        (("Hello", {"protocol_version": theirs, "name": "n" * 129}), "LimitExceeded", (129, 128)),
    ):
        wire = Wire(path)
        wire.send(77, body)
        with refused(code, *numbers, id=77):
            answer(wire)
        assert_closed(wire)
    wire = peer(path)
    with refused("HelloExpected", id=2):
        wire.call("Hello", protocol_version=theirs)
    assert_closed(wire)


def unknown_message(path: str) -> None:
    """A kind of request that the server does not know; the connection stays usable."""
    wire = peer(path)
    frame = bytearray(flat.encode(REQUESTS, REQUEST or "", {"id": 31, "body": ("Status", {})}))
    root = 4 + struct.unpack_from("<I", frame, 4)[0]
    vtable = root - struct.unpack_from("<i", frame, root)[0]
    frame[root + struct.unpack_from("<H", frame, vtable + 6)[0]] = 200
    wire.socket.sendall(frame)
    with refused("UnknownMessage", 200, id=31):
        answer(wire)
    wire.call("Status")


def before_agreement(path: str) -> None:
    """What needs a chunk size, and what a negotiation refuses."""
    wire = peer(path)
    for name, fields in (
        ("GetChunkSize", {}),
        ("Grant", {"bytes": 1}),
        ("RegisterKvCache", registration(cache.cases()[0]["domain"], payload_path="None")),
        ("Lookup", {"domain_seed": hash32(b"?")}),
        ("Retrieve", {"domain_seed": hash32(b"?")}),
        ("Commit", {"domain_seed": hash32(b"?")}),
        ("Discard", {"domain_seed": hash32(b"?")}),
    ):
        with refused("NotNegotiated"):
            wire.call(name, **fields)
    size = {"binding_domain": b"d" * 32, "preferred_base": 256}
    with refused("InvalidArgument", 0):
        wire.call("Negotiate", required_alignment=1)
    with refused("InvalidArgument", 31, 32):
        wire.call("Negotiate", required_alignment=1, binding_domain=b"d" * 31)
    with refused("InvalidAlignment", 0):
        wire.call("Negotiate", **size)
    with refused("InvalidAlignment", 16, 48):
        wire.call("Negotiate", required_alignment=16, spans=[{"group": 0, "tokens": 16}, {"group": 1, "tokens": 48}], **size)
    with refused("InvalidSpans", 1):
        wire.call("Negotiate", required_alignment=16, spans=[{"group": 0, "tokens": 0}], **size)
    # A client that knows only its alignment names no spans; the size is the least multiple of it from the base on.
    assert wire.call("Negotiate", required_alignment=48, spans=[], **size)["chunk_size"] == 288
    assert wire.call("GetChunkSize")["chunk_size"] == 288
    with refused("IncompatibleChunkSize", 288, 100):
        wire.call("Negotiate", required_alignment=100, **size)
    # The binding of the last successful negotiation is in force; without the lock byte nothing is granted.
    with refused("NotAttached", None):
        wire.call("Grant", bytes=1)


def registering(client: Client, prompt: Prompt) -> None:
    cache.negotiate(client, prompt)
    good = registration(prompt.domain)
    other = {"model": "another", "weights_id_hex": "", "kv_dtype": "", "fingerprint_hex": "", "parallel_shape": ""}

    def registers(domain: dict[str, Any] | None = None, **fields: Any) -> None:
        client.call("RegisterKvCache", **registration(domain or prompt.domain, **fields))

    def group(**fields: Any) -> list[dict[str, Any]]:
        return [good["groups"][0] | fields]

    with refused("InvalidSpans", 0):
        registers(spans=[])  # as all zero, unlike in a negotiation
    with refused("InvalidSpans", prompt.size, 4, 48):
        registers(spans=[{"group": 4, "tokens": 48}], required_alignment=48)
    with refused("InvalidAlignment", 2, 1):
        registers(required_alignment=2)
    with refused("RegistrationConflict", FULL, UNIT_BYTES[FULL], 402):
        registers(groups=group(unit_bytes=402))
    with refused("RegistrationConflict", 0, 1, 2):
        registers(world_size=2)
    with refused("InvalidGroup", FULL, 1):
        registers(other, groups=group(part=1))
    with refused("InvalidGroup", FULL, 0):
        registers(other, groups=group(kind="SlidingWindow"))
    with refused("ObjectTooLarge", FULL, 256 << 30, 256 << 20):
        registers(other, groups=group(unit_bytes=1 << 30))
    wire = peer(client.socket.getpeername())
    cache.negotiate(wire, prompt)
    with refused("InvalidArgument", 1):
        wire.call("RegisterKvCache", **good)  # shm-direct without the pool
    with refused("NotRegistered"):
        client.call("Lookup", domain_seed=hash32(b"nobody's"))
    cache.register(client, prompt, True)


def storing(client: Client, prompt: Prompt) -> None:
    """Outcomes and refusals of a commit; each prompt's first chunk is there."""
    frame, seed = client.hello["frame_bytes"], hash32(prompt.seed)
    tokens, size = prompt.size, prompt.size * UNIT_BYTES[FULL]
    need = -(-size // frame)
    granted = pairs(client.call("Grant", bytes=size)["extents"])
    assert sum(count for _, count in granted) == need, "rounded up to frames"
    space, extents = Granted(client, list(granted)), []
    new, data = b"new".ljust(32, b"1"), cache.content(b"new".ljust(32, b"1"), FULL, tokens)
    good = item(client, extents, space, new, data, parent=None, tokens=tokens)

    def commit(items: list[dict[str, Any]], runs: list[dict[str, int]] = extents, credit_bytes: int = 0) -> list[str]:
        return client.call("Commit", domain_seed=seed, items=items, extents=runs, credit_bytes=credit_bytes)["outcomes"]

    with refused("SizeMismatch", FULL, 0, tokens, size, need, size - 1, need):
        commit([good | {"bytes": size - 1}])
    with refused("SizeMismatch", FULL, 0, tokens, size, need, size, 0):
        commit([good | {"extent_count": 0}])
    with refused("InvalidGroup", 5, 5):
        commit([good | {"id": object_id(new, 5)}])
    with refused("InvalidGroup", FULL, 1):
        commit([good | {"part": 1}])
    with refused("InvalidGroup", FULL, 1):
        commit([good | {"held_from": 1}])
    with refused("InvalidArgument", tokens + 1):
        commit([good | {"tokens": tokens + 1}])
    with refused("InvalidArgument", 2):
        commit([good | {"has_parent": 2}])
    with refused("InvalidExtent", 0, 2):
        commit([good | {"extent_count": 2}], extents[:1])
    last = client.regions["Pool"]["bytes"] // frame - 1
    with refused("InvalidExtent", last, need, last + 1):
        commit([good], named([(last, need)]))
    with refused("InvalidExtent", granted[0][0], need, last + 1):
        commit([good, good | {"id": object_id(new, FULL)}])
    stranger = client.find(prompt.keys[0])
    assert stranger is not None and stranger.extents[0][1] == need
    with refused("ExtentNotGranted", stranger.extents[0][0], *stranger.extents[0]):
        commit([good], named(stranger.extents))
    with refused("InvalidExtent", 0, 0, last + 1):
        client.call("Abort", extents=[{"frame": 0, "count": 0}])
    # Nothing of all that has changed anything: the space is still this client's.
    orphan = object_id(b"orphan".ljust(32, b"2"))
    assert commit([good | {"id": orphan, "has_parent": 1, "parent": hash32(b"nobody")}]) == ["NoParent"]
    with refused("ExtentNotGranted", granted[0][0], *granted[0]):
        commit([good])  # it went back to the pool, not to this client
    extents[:] = client.call("Grant", bytes=size)["extents"]
    client.write(pairs(extents), data)
    assert commit([good]) == ["Published"]
    assert commit([good]) == ["Published"], "the same again, with the same extents: a retry"
    more = client.call("Grant", bytes=size)["extents"]
    assert commit([good], more) == ["Exists"]
    window = good | {"id": object_id(b"alone".ljust(32, b"3"), cache.WINDOW), "bytes": 7 * tokens, "extent_count": 1}
    runs = client.call("Grant", bytes=7 * tokens)["extents"]
    assert commit([window], runs) == ["NoParent"], "a window without the full-attention object of its own key"
    reply = client.call("Commit", domain_seed=seed, items=[], extents=[], credit_bytes=3 * frame)
    assert sum(count for _, count in pairs(reply["granted"])) == 3, "no more is granted than is asked for"
    client.call("Abort", extents=reply["granted"])
    with refused("ExtentNotGranted", reply["granted"][0]["frame"], *pairs(reply["granted"])[0]):
        client.call("Abort", extents=reply["granted"])
    grant_limits(client, frame)


def grant_limits(client: Client, frame: int) -> None:
    """More than there can be is no error: the answer is less, at last nothing."""
    pool, held, extents = client.regions["Pool"]["bytes"], 0, []
    for _ in range(64):
        granted = pairs(client.call("Grant", bytes=pool)["extents"])
        extents += granted
        held += sum(count for _, count in granted) * frame
        if not granted:
            break
    else:
        raise AssertionError("grants have no end")
    assert 0 < held <= pool // 2, f"{held} bytes for one client"
    client.call("Abort", extents=named(extents))
    ahead = pairs(client.call("Grant", bytes=pool, ahead=True)["extents"])
    held = sum(count for _, count in ahead) * frame
    assert 0 < held <= pool // 8, f"{held} bytes for stores to come"
    more = client.call("Grant", bytes=pool, ahead=True, under=[hash32(b"nobody's")])["extents"]
    assert not more, "of these it has its share"
    client.call("Abort", extents=named(ahead))


def fragments(client: Client, prompt: Prompt) -> None:
    """A part in single frames, named from the last to the first: more than a record holds, so a chain of two blocks."""
    cache.negotiate(client, prompt)
    cache.register(client, prompt, True)
    key = b"in pieces".ljust(32, b"6")
    data = cache.content(key, FULL, prompt.size)
    need = -(-len(data) // client.hello["frame_bytes"])
    granted = pairs(client.call("Grant", bytes=len(data))["extents"])
    frames = sorted((frame + at for frame, count in granted for at in range(count)), reverse=True)
    assert len(frames) == need > 6 - 2 + 7, "more than a record and one block of a chain hold"
    extents: list[dict[str, int]] = []
    one = item(client, extents, Granted(client, [(frame, 1) for frame in frames]), key, data, parent=None, tokens=prompt.size)
    assert one["extent_count"] == need
    reply = client.call("Commit", domain_seed=hash32(prompt.seed), items=[one], extents=extents)
    assert reply["outcomes"] == ["Published"]
    record = client.find(key)
    assert record is not None and record.extents == [(frame, 1) for frame in frames]
    place = client.call("Retrieve", domain_seed=hash32(prompt.seed), part=0, ids=[object_id(key)])
    assert pairs(place["extents"]) == record.extents
    assert client.read(record.extents, record.bytes) == data and client.still_whole(record.extents, record.incarnation)
    client.call("Release", pins=[place["pin"]])


def reading(client: Client, prompt: Prompt) -> None:
    seed = hash32(prompt.seed)
    chunks = len(prompt.keys)

    def tail(chunk: int, tokens: int) -> list[dict[str, Any]]:
        return [{"key": hash32(b"tail"), "chunk": chunk, "tokens": tokens}]

    for chunk, tokens in ((0, 0), (0, prompt.size), (chunks + 1, 16)):
        with refused("InvalidKey", tokens, chunk, 1, prompt.size, chunks):
            lookup(client, prompt, tails=tail(chunk, tokens))
    # Where nothing is the place has incarnation 0; the others may be there.
    ids = [object_id(b"nobody's"), object_id(prompt.keys[0])]
    reply = client.call("Retrieve", domain_seed=seed, session=1, part=0, ids=ids)
    nothing, found = reply["places"]
    assert (nothing["incarnation"], nothing["extent_count"]) == (0, 0) and found["incarnation"] > 0
    with refused("UnknownPin", reply["pin"] + 1000):
        client.call("Release", pins=[reply["pin"], reply["pin"] + 1000])
    with refused("UnknownPin", reply["pin"]):
        peer(client.socket.getpeername()).call("Release", pins=[reply["pin"]])
    client.call("Release", pins=[reply["pin"]])  # the refusals have dropped nothing
    with refused("InvalidGroup", FULL, 1):
        client.call("Retrieve", domain_seed=seed, part=1, ids=ids)
    with refused("InvalidGroup", 5, 5):
        client.call("Retrieve", domain_seed=seed, part=0, ids=[object_id(b"", 5)])
    assert client.call("Retrieve", domain_seed=seed, part=0, ids=[object_id(b"")])["pin"] == 0
    # Another publication than the one that was read is left alone; with the right one all that hangs under it goes.
    last = client.find(prompt.keys[-1])
    assert last is not None
    for incarnation, left in ((last.incarnation + 1, chunks), (last.incarnation, chunks - 1)):
        client.call("Discard", domain_seed=seed, objects=[{"id": object_id(prompt.keys[-1]), "incarnation": incarnation}])
        assert lookup(client, prompt, pin=False, tails=[])["present_tokens"][0] == left * prompt.size


def ranks(path: str, prompt: Prompt) -> None:
    """An object of two parts is there with its second, and a rank that cannot store ends it."""
    instance = b"two ranks".ljust(16, b"\0")
    domain = prompt.domain | {"model": "two ranks"}
    clients, seeds = [], set()
    for rank in (0, 1):
        client = Client(path, "Worker", instance)
        client.call("Attach")
        cache.negotiate(client, prompt)
        group = registration(domain)["groups"][0] | {"parts": 2, "part": rank}
        reply = client.call("RegisterKvCache", **registration(domain, rank=rank, world_size=2, groups=[group]))
        seeds.add(reply["domain_seed"]["bytes"])
        clients.append(client)
    (seed,) = seeds
    keys = [b"first".ljust(32, b"4"), b"second".ljust(32, b"5")]

    def commit(rank: int, key: bytes, skipped: int = 0) -> list[str]:
        client, data, extents = clients[rank], cache.content(key + bytes([rank]), FULL, prompt.size), []
        granted = [] if skipped else pairs(client.call("Grant", bytes=len(data))["extents"])
        one = item(client, extents, Granted(client, granted), key, b"" if skipped else data, parent=None, tokens=prompt.size)
        one |= {"part": rank, "skipped": skipped}
        return client.call("Commit", domain_seed=hash32(seed), items=[one], extents=extents)["outcomes"]

    def hit(key: bytes) -> int:
        fields = {"domain_seed": hash32(seed), "keys": [hash32(key)], "max_tokens": prompt.size, "pin": False}
        return clients[0].call("Lookup", **fields)["hit_tokens"]

    assert commit(0, keys[0]) == ["PartAccepted"] and hit(keys[0]) == 0
    assert commit(1, keys[0]) == ["Published"] and hit(keys[0]) == prompt.size
    for rank, client in enumerate(clients):
        ids = [object_id(keys[0])]
        reply = client.call("Retrieve", domain_seed=hash32(seed), part=rank, ids=ids)
        data = client.read(pairs(reply["extents"]), reply["places"][0]["bytes"])
        assert data == cache.content(keys[0] + bytes([rank]), FULL, prompt.size), "each rank its own part"
        record = client.find(keys[0], part=rank)
        assert record is not None and record.extents == pairs(reply["extents"])
    assert commit(0, keys[1]) == ["PartAccepted"]
    assert commit(1, keys[1], skipped=1) == ["Skipped"] and hit(keys[1]) == 0
    # A partial is nobody's before its last rank has come: so is a domain.
    lone = domain | {"model": "one of two"}
    group = registration(lone)["groups"][0] | {"parts": 2, "part": 0}
    reply = clients[0].call("RegisterKvCache", **registration(lone, rank=0, world_size=2, groups=[group]))
    found = clients[0].call("Lookup", domain_seed=reply["domain_seed"], keys=[hash32(keys[0])], max_tokens=99, describe=True)
    assert (found["hit_tokens"], found["shape"]) == (0, None)


def limits() -> dict[str, int]:
    """The table of limits in docs/protocol.md."""
    return {row[0]: int(row[1]) for row in table("protocol.md", "## Limits", "| what |")}


def beyond_limits(client: Client, prompt: Prompt) -> None:
    """One more than the table of limits allows, for each of its rows."""
    seed, key = hash32(prompt.seed), hash32(b"k")
    tail = {"key": key, "chunk": 0, "tokens": 16}
    one = {name: 0 for name in ("has_parent", "skipped", "part", "tokens", "held_from", "bytes", "checksum", "first_extent",
                                "extent_count")} | {"id": object_id(b""), "parent": key}  # fmt: skip
    group = registration(prompt.domain)["groups"][0]
    named_domain = prompt.domain | {"model": "limits"}

    def registers(**fields: Any) -> None:
        client.call("RegisterKvCache", **registration(named_domain, **fields))

    def negotiates(count: int) -> None:
        for domain in range(count):
            client.call("Negotiate", required_alignment=1, preferred_base=16, binding_domain=bytes([domain, 1] * 16))

    simple: dict[str, Callable[[int], Any]] = {
        "keys of a lookup": lambda n: lookup(client, prompt, keys=[key] * n),
        "tails of a lookup": lambda n: lookup(client, prompt, tails=[tail] * n),
        "items of a commit": lambda n: client.call("Commit", domain_seed=seed, items=[one] * n),
        "objects that a commit supersedes": lambda n: client.call("Commit", domain_seed=seed, supersedes=[object_id(b"")] * n),
        "objects of a retrieve": lambda n: client.call("Retrieve", domain_seed=seed, ids=[object_id(b"")] * n),
        "objects of a discard": lambda n: client.call(
            "Discard", domain_seed=seed, objects=[{"id": object_id(b""), "incarnation": 0}] * n
        ),
        "pins of a release": lambda n: client.call("Release", pins=[1] * n),
        "extents of a message": lambda n: client.call("Abort", extents=[{"frame": 0, "count": 0}] * n),
        "spans of a negotiation or registration": lambda n: registers(spans=[{"group": 0, "tokens": 1}] * n),
        "object groups of a domain": lambda n: registers(groups=[group | {"group": number} for number in range(n)]),
        "bytes of `name` and of `copy_path`": lambda n: registers(copy_path="c" * n),
        "bytes of a field of a domain": lambda n: client.call(
            "RegisterKvCache", **registration(named_domain | {"model": "m" * n})
        ),
    }
    tried = set()
    for what, limit in limits().items():
        if what in simple:
            with refused("LimitExceeded", limit + 1, limit):
                simple[what](limit + 1)
        elif what == "parts of an object":
            with refused("InvalidGroup", FULL, limit + 1):
                registers(groups=[group | {"parts": limit + 1}])
        elif what == "ranks of a domain":
            with refused("InvalidArgument", limit + 1):
                registers(world_size=limit + 1)
        elif what == "bytes of a part":
            with refused("InvalidGroup", FULL, limit // 16 + 1):
                client.call("Negotiate", required_alignment=1, preferred_base=16, binding_domain=b"part" * 8)
                registers(groups=[group | {"unit_bytes": limit // 16 + 1}])
            cache.negotiate(client, prompt)
        elif what == "tokens of a chunk":
            with refused("InvalidAlignment", limit + 1, limit):
                spans = [{"group": 0, "tokens": limit + 1}]
                client.call("Negotiate", required_alignment=limit + 1, spans=spans, binding_domain=b"long" * 8)
        elif what == "binding domains in the server's life":
            with refused("LimitExceeded", limit + 1, limit):
                negotiates(limit + 1)
        else:
            continue
        tried.add(what)
    # Frames were tried above; the rest takes more machine than a test should.
    elsewhere = {
        "bytes of a frame", "bytes of a frame before the reply to `Hello`", "descriptors of a frame", "domains at a time",
        "extents of a part", "clients that hold anything", "pins of a client", "objects that these name",
        # Those of rings, which this client has none of.
        "parts of a `RingRead`, runs of a `RingWrite`", "bytes of a lane", "locations that the pins of a client with a ring name",
        "extents of those locations",
    }  # fmt: skip
    assert tried | elsewhere == set(limits()), f"rows: {(tried | elsewhere) ^ set(limits())}"
    print(f"{len(tried)} limits hold")


def kicking(path: str) -> None:
    """Clients are ended by tools alone, and one that is ended is told why before its connection is closed."""
    wire, tool = Wire(path), peer(path)
    wire.call("Hello", protocol_version=version("PROTOCOL_VERSION"), kind="Worker")
    with refused("InvalidArgument", 2):
        wire.call("Kick", client=1)
    with refused("InvalidArgument", 0):
        tool.call("Kick", spare=True)
    with refused("LimitExceeded", 60001, 60000):
        tool.call("Kick", client=1, grace_ms=60001, spare=True)
    with refused("UnknownClient", 1 << 60, 0):
        tool.call("Kick", client=1 << 60, spare=True)
    rows = json.loads(tool.call("Status")["json"])["clients"]
    number = max(row["number"] for row in rows)
    kicked = tool.call("Kick", client=number, grace_ms=60000, spare=True)["clients"]
    assert [(row["client"], row["outcome"]) for row in kicked] == [(number, "LetGo")], kicked
    with refused("Kicked", id=0):
        answer(wire)
    assert_closed(wire)
    with refused("UnknownClient", number, 0):
        tool.call("Kick", client=number, spare=True)


def run(path: str) -> None:
    prompt = Prompt(cache.cases()[0])
    without_a_request(path)
    opening(path)
    unknown_message(path)
    kicking(path)
    before_agreement(path)
    client = Client(path, "Worker", b"refusals".ljust(16, b"\0"))
    cache.negotiate(client, prompt)
    with refused("NotAttached", client.hello["slab"]):
        client.call("Grant", bytes=1)
    client.call("Attach")
    registering(client, prompt)
    storing(client, prompt)
    reading(client, prompt)
    ranks(path, prompt)
    (long,) = [one for one in map(Prompt, cache.cases()) if one.size == 2048]
    fragments(client, long)
    cache.negotiate(client, prompt)
    cache.register(client, prompt, True)
    beyond_limits(client, prompt)
    client.call("UnregisterKvCache")
    with refused("NotRegistered"):
        client.call("Commit", domain_seed=hash32(prompt.seed), items=[])
    client.call("Clear")
    print("refusals are as documented")
