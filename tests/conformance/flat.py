"""Flatbuffers from a schema read at run time: a dict in, a frame out, and back.

Knows nothing of Kvasir: what there is to send and receive comes from `schema/*.fbs`. It is written as somebody would
write it whose language has no code generator.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import struct
from typing import Any

SCALARS = {
    "bool": "B", "byte": "b", "ubyte": "B", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H",
    "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
}  # fmt: skip


@dataclasses.dataclass
class Field:
    name: str
    type: str
    default: Any


@dataclasses.dataclass
class Schema:
    """Every declaration under its name."""

    tables: dict[str, list[Field]] = dataclasses.field(default_factory=dict)
    structs: dict[str, list[Field]] = dataclasses.field(default_factory=dict)
    enums: dict[str, tuple[str, dict[str, int]]] = dataclasses.field(default_factory=dict)
    unions: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def scalar(self, kind: str) -> str | None:
        """The format of a scalar or enum; None for everything else."""
        return SCALARS.get(self.enums[kind][0] if kind in self.enums else kind)

    def slots(self, table: str) -> list[tuple[Field, str]]:
        """The fields as the vtable has them: a union takes two, its kind first."""
        out = []
        for field in self.tables[table]:
            if field.type in self.unions:
                out.append((Field(field.name, "ubyte", 0), "kind"))
                out.append((field, "union"))
            else:
                out.append((field, "plain"))
        return out

    def layout(self, name: str) -> tuple[list[tuple[Field, int]], int, int]:
        """Offset of each field of a struct, its size and its alignment."""
        at, align, out = 0, 1, []
        for field in self.structs[name]:
            size, own = self.inline(field.type)
            at += -at % own
            out.append((field, at))
            at, align = at + size, max(align, own)
        return out, at + -at % align, align

    def inline(self, kind: str) -> tuple[int, int]:
        """Size and alignment of what stands in a struct, a vector or a table itself."""
        if kind in self.structs:
            _, size, align = self.layout(kind)
            return size, align
        array = re.fullmatch(r"\[(\w+):(\d+)\]", kind)
        if array:
            size, align = self.inline(array[1])
            return size * int(array[2]), align
        form = self.scalar(kind)
        size = struct.calcsize("<" + form) if form else 4
        return size, size


def parse(path: pathlib.Path) -> tuple[Schema, str | None]:
    """A schema with all that it includes, and its root."""
    schema = Schema()
    root = _parse_into(schema, path, set())
    return schema, root


def _parse_into(schema: Schema, path: pathlib.Path, seen: set[pathlib.Path]) -> str | None:
    if path in seen:
        return None
    seen.add(path)
    text = re.sub(r"//[^\n]*", "", path.read_text())
    for name in re.findall(r'include\s+"([^"]+)"\s*;', text):
        _parse_into(schema, path.parent / name, seen)
    for kind, name, base, body in re.findall(r"\b(table|struct|enum|union)\s+(\w+)\s*(?::\s*(\w+))?\s*\{([^}]*)\}", text):
        if kind in ("table", "struct"):
            fields = re.findall(r"(\w+)\s*:\s*([\w\[\]:]+)\s*(?:=\s*(\w+))?\s*;", body)
            to = schema.tables if kind == "table" else schema.structs
            to[name] = [Field(field, of, _value(default)) for field, of, default in fields]
            continue
        entries, numbers = [entry.strip() for entry in body.split(",") if entry.strip()], {}
        for entry in entries:
            label, _, number = entry.partition("=")
            numbers[label.strip()] = int(number) if number.strip() else len(numbers)
        if kind == "union":
            schema.unions[name] = list(numbers)
        else:
            schema.enums[name] = (base, numbers)
    roots = re.findall(r"root_type\s+(\w+)\s*;", text)
    return roots[0] if roots else None


def _value(text: str) -> int:
    return {"": 0, "true": 1, "false": 0}.get(text) if not text.isdigit() else int(text)  # type: ignore[return-value]


class _Writer:
    """Parents before children, so every offset points forward."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.out = bytearray(8)  # length, then the offset of the root

    def pad(self, align: int, ahead: int = 0) -> None:
        self.out.extend(b"\0" * (-(len(self.out) + ahead) % align))

    def inline(self, kind: str, value: Any) -> bytes:
        schema = self.schema
        if kind in schema.structs:
            fields, size, _ = schema.layout(kind)
            out = bytearray(size)
            for field, at in fields:
                data = self.inline(field.type, value[field.name])
                out[at : at + len(data)] = data
            return bytes(out)
        if kind.startswith("["):
            return bytes(value)  # only bytes come as arrays
        form = schema.scalar(kind)
        assert form is not None, kind
        if isinstance(value, str):
            value = schema.enums[kind][1][value]
        return struct.pack("<" + form, value)

    def table(self, name: str, values: dict[str, Any]) -> int:
        slots = self.schema.slots(name)
        unknown = set(values) - {field.name for field, _ in slots}
        assert not unknown, f"{name} has no {unknown}"
        placed: list[tuple[int, Field, str, Any]] = []
        for slot, (field, role) in enumerate(slots):
            value = values.get(field.name)
            if value is None:
                continue
            if role == "kind":
                union = next(f.type for f, r in slots if f.name == field.name and r == "union")
                value = self.schema.unions[union].index(value[0]) + 1
            placed.append((slot, field, role, value))
        self.pad(2)
        vtable = len(self.out)
        self.out.extend(b"\0" * (4 + 2 * len(slots)))
        body, offsets = bytearray(4), {}
        self.pad(8)  # so that what is aligned in the body is aligned in the frame
        table = len(self.out)
        for slot, field, role, value in placed:
            indirect = role == "union" or (field.type not in self.schema.structs and self.schema.scalar(field.type) is None)
            data = b"\0" * 4 if indirect else self.inline(field.type, value)
            align = 4 if indirect else self.schema.inline(field.type)[1]
            body.extend(b"\0" * (-len(body) % align))
            struct.pack_into("<H", self.out, vtable + 4 + 2 * slot, len(body))
            if indirect:
                offsets[len(body)] = (field, role, value)
            body.extend(data)
        struct.pack_into("<HH", self.out, vtable, 4 + 2 * len(slots), len(body))
        struct.pack_into("<i", body, 0, table - vtable)
        self.out.extend(body)
        for at, (field, role, value) in offsets.items():
            child = self.child(field.type, role, value)
            struct.pack_into("<I", self.out, table + at, child - (table + at))
        return table

    def child(self, kind: str, role: str, value: Any) -> int:
        if role == "union":
            return self.table(*value)
        if kind in self.schema.tables:
            return self.table(kind, value)
        if kind == "string":
            data, align, count = value.encode() + b"\0", 1, len(value.encode())
        else:
            of = kind[1:-1]
            if of == "string" or of in self.schema.tables:
                return self.children(of, value)
            data = bytes(value) if of == "ubyte" else b"".join(self.inline(of, one) for one in value)
            align, count = self.schema.inline(of)[1], len(value)
        self.pad(max(align, 4), 4)
        at = len(self.out)
        self.out += struct.pack("<I", count) + data
        return at

    def children(self, kind: str, values: list[Any]) -> int:
        self.pad(4)
        at = len(self.out)
        self.out += struct.pack("<I", len(values)) + bytes(4 * len(values))
        for place, value in enumerate(values):
            entry = at + 4 + 4 * place
            struct.pack_into("<I", self.out, entry, self.child(kind, "plain", value) - entry)
        return at


def encode(schema: Schema, root: str, values: dict[str, Any]) -> bytes:
    """A frame with its length in front. A union's value is the pair (name, fields)."""
    writer = _Writer(schema)
    table = writer.table(root, values)
    struct.pack_into("<II", writer.out, 0, len(writer.out) - 4, table - 4)
    return bytes(writer.out)


class _Reader:
    def __init__(self, schema: Schema, data: bytes) -> None:
        self.schema, self.data = schema, data

    def get(self, form: str, at: int) -> int:
        return struct.unpack_from("<" + form, self.data, at)[0]

    def inline(self, kind: str, at: int) -> Any:
        if kind in self.schema.structs:
            return {field.name: self.inline(field.type, at + off) for field, off in self.schema.layout(kind)[0]}
        if kind.startswith("["):
            return self.data[at : at + self.schema.inline(kind)[0]]
        value = self.get(self.schema.scalar(kind) or "", at)
        if kind in self.schema.enums:
            return next(name for name, number in self.schema.enums[kind][1].items() if number == value)
        return bool(value) if kind == "bool" else value

    def table(self, name: str, at: int) -> dict[str, Any]:
        vtable = at - self.get("i", at)
        length = self.get("H", vtable)
        out: dict[str, Any] = {}
        kind = 0
        for slot, (field, role) in enumerate(self.schema.slots(name)):
            entry = 4 + 2 * slot
            offset = self.get("H", vtable + entry) if entry < length else 0
            if role == "kind":
                kind = self.get("B", at + offset) if offset else 0
            elif role == "union":
                union = self.schema.unions[field.type]
                out[field.name] = (union[kind - 1], self.table(union[kind - 1], self.target(at + offset)))
            elif field.type in self.schema.structs or self.schema.scalar(field.type):
                absent = None if field.type in self.schema.structs else self.absent(field)
                out[field.name] = self.inline(field.type, at + offset) if offset else absent
            else:
                out[field.name] = self.child(field.type, self.target(at + offset)) if offset else None
        return out

    def absent(self, field: Field) -> Any:
        if field.type in self.schema.enums:
            return next(name for name, number in self.schema.enums[field.type][1].items() if number == field.default)
        return bool(field.default) if field.type == "bool" else field.default

    def target(self, at: int) -> int:
        return at + self.get("I", at)

    def child(self, kind: str, at: int) -> Any:
        if kind in self.schema.tables:
            return self.table(kind, at)
        count, start = self.get("I", at), at + 4
        if kind == "string":
            return self.data[start : start + count].decode()
        of = kind[1:-1]
        if of == "ubyte":
            return self.data[start : start + count]
        if of == "string" or of in self.schema.tables:
            return [self.child(of, self.target(start + 4 * i)) for i in range(count)]
        size = self.schema.inline(of)[0]
        return [self.inline(of, start + size * i) for i in range(count)]


def decode(schema: Schema, root: str, frame: bytes) -> dict[str, Any]:
    """What a frame with its length in front holds. A union's value is the pair (name, fields)."""
    reader = _Reader(schema, frame)
    assert reader.get("I", 0) == len(frame) - 4, "the frame is not as long as it says"
    return reader.table(root, reader.target(4))
