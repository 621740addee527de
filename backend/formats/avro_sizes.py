"""How much memory a value of Avro takes, known before it is decoded.

An array of null takes no byte for an item, so ten bytes stand for any number of them. fastavro
neither counts, nor looks at the depth of a schema that contains itself: 5,000 levels end its
process. So a schema is looked at once. Only values of schemas that allow this, and very long
values, are walked through before they are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topicproof.backend.formats.decoded import DECIMAL_DIGITS_MAX, DEPTH_MAX
from topicproof.backend.formats.limits import (
    DICT_BYTES,
    FIELD_BYTES,
    ITEM_BYTES,
    TooLargeError,
    quoted,
)

_VARINT_BYTES_MAX = 10
_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_TYPES = _PRIMITIVES | frozenset(
    ("record", "error", "enum", "fixed", "array", "map", "union", "error_union", "request")
)
"""Avro's own types. A reader takes these names for them, whatever a schema calls so."""
_LEAST = {"null": 0, "boolean": 1, "float": 4, "double": 8}
"""Bytes that a value takes at least, of types that are written with a fixed length."""


@dataclass
class _Shape:
    """A type as it lies in the bytes."""

    kind: str
    """A primitive type, `fixed`, `record`, `union`, `array`, `map`, or `enum`."""
    inner: list[_Shape] = field(default_factory=list)
    """Types of a record's fields, of a union's branches, or of the items."""
    size: int = 0
    """Bytes of `fixed`."""
    own: int = ITEM_BYTES
    """Memory of a value without what is in it."""
    least: int = 0
    """Bytes that a value takes at least."""
    whole: int = 0
    """Memory that a value takes at most, without items of arrays and maps."""
    depth: int = 0


class AvroSizes:
    """The sizes of the values of one schema. Raises RecursionError if it is nested too deeply,
    ValueError if a reader and this would take a name for different types."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        """`schema` as fastavro parsed it, `named` has its named types."""
        reserved = next((name for name in named if name in _TYPES), None)
        if reserved is not None:
            raise ValueError(
                f"it gives a type of its own the name {reserved}, which is one of Avro's"
            )
        self._named = named
        self._shapes: dict[str, _Shape] = {}
        self._begun: list[str] = []
        self._per_byte = 4
        """Memory for a byte of a value at most, without that of `self._root.whole`."""
        self._walks = False
        """Whether every value is to be walked through."""
        self._endless = False
        """Whether a type contains itself."""
        self._root = self._shape(schema, 0)

    def require(self, data: bytes, limit: int) -> None:
        """Raises TooLargeError if the value takes more than `limit` bytes of memory, ValueError if
        its bytes end within a number, RecursionError if it is nested too deeply."""
        # A short value of most schemas cannot exceed the limit, whatever it holds.
        if self._walks or self._root.whole + len(data) * self._per_byte > limit:
            _ValueWalk(data, self._endless, limit).value(self._root, 0)

    def _shape(self, schema: Any, depth: int) -> _Shape:
        if depth > DEPTH_MAX:
            raise RecursionError
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            if schema not in _PRIMITIVES:
                return self._of_name(schema, depth)
            least = _LEAST.get(schema, 1)
            return _Shape(schema, least=least, whole=ITEM_BYTES)
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_name(schema["name"], depth, schema)
        if kind in ("array", "map"):
            items = schema["items" if kind == "array" else "values"]
            return self._items(kind, self._shape(items, depth + 1))
        if kind == "bytes" and (digits := _digits_bytes(schema)):
            return _Shape(kind, own=ITEM_BYTES + digits, least=1, whole=ITEM_BYTES + digits)
        return self._shape(kind, depth)

    def _union(self, branches: list[Any], depth: int) -> _Shape:
        inner = [self._shape(branch, depth) for branch in branches]
        whole = max((shape.whole for shape in inner), default=0)
        deepest = max((shape.depth for shape in inner), default=0)
        least = 1 + min((shape.least for shape in inner), default=0)
        return _Shape("union", inner, own=0, least=least, whole=whole, depth=deepest)

    def _items(self, kind: str, item: _Shape) -> _Shape:
        least = item.least + (1 if kind == "map" else 0)
        self._walks = self._walks or least == 0
        extra = FIELD_BYTES if kind == "map" else 8
        self._per_byte += (item.whole + extra) // max(least, 1) + 1
        return _Shape(kind, [item], own=DICT_BYTES, least=1, whole=DICT_BYTES, depth=item.depth + 1)

    def _of_name(self, name: str, depth: int, schema: Any = None) -> _Shape:
        """Return a named type: defined here, or referred to."""
        shape = self._shapes.get(name)
        if shape is not None:
            if name in self._begun:
                self._walks = self._endless = True
            elif depth + shape.depth > DEPTH_MAX:
                raise RecursionError
            return shape
        schema = self._named[name] if schema is None else schema
        kind = "record" if schema["type"] == "error" else schema["type"]
        shape = self._shapes[name] = _Shape(kind)
        if kind == "fixed":
            if type(schema["size"]) is not int or schema["size"] < 0:
                raise ValueError(f"{quoted(name)} is of {quoted(schema['size'])} bytes")
            shape.size = shape.least = schema["size"]
            shape.whole = ITEM_BYTES + 4 * shape.size
        elif kind == "enum":
            longest = max(map(len, schema["symbols"]), default=0)
            shape.least, shape.whole = 1, ITEM_BYTES + 4 * longest
            shape.own = shape.whole
        else:
            self._begun.append(name)
            fields = schema["fields"]
            shape.own = DICT_BYTES + sum(FIELD_BYTES + 4 * len(field["name"]) for field in fields)
            shape.inner = [self._shape(field["type"], depth + 1) for field in fields]
            self._begun.pop()
            shape.least = sum(inner.least for inner in shape.inner)
            shape.whole = shape.own + sum(inner.whole for inner in shape.inner)
            shape.depth = 1 + max((inner.depth for inner in shape.inner), default=0)
        return shape


def _digits_bytes(schema: Mapping[str, Any]) -> int:
    """Return the memory of the digits that a decimal has by its scale, however few its bytes are.
    One of fixed length has no more digits than its bytes hold, or fastavro refuses the schema."""
    scale = schema.get("scale")
    is_decimal = schema.get("logicalType") == "decimal" and type(scale) is int
    return 2 * min(abs(scale), DECIMAL_DIGITS_MAX) if is_decimal and scale is not None else 0


class _ValueWalk:
    """One way through the bytes of a value."""

    def __init__(self, data: bytes, endless: bool, limit: int) -> None:
        self._data = data
        self._endless = endless
        self._at = 0
        self._limit = self._left = limit

    def value(self, shape: _Shape, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise RecursionError
        self._charge(shape.own)
        match shape.kind:
            case "null":
                pass
            case "boolean" | "float" | "double" | "fixed":
                size = shape.size or shape.least
                self._skip(size)
                self._charge(2 * size)
            case "bytes" | "string":
                size = self._long()
                self._charge(2 * self._skip(size))
            case "union":
                self._union(shape, depth)
            case "record":
                for inner in shape.inner:
                    self.value(inner, depth + 1)
            case "array" | "map":
                self._items(shape, depth)
            case _:
                self._long()

    def _union(self, shape: _Shape, depth: int) -> None:
        index = self._long()
        if not -len(shape.inner) <= index < len(shape.inner):
            raise ValueError(f"they name branch {index} of a union of {len(shape.inner)}")
        self.value(shape.inner[index], depth)

    def _items(self, shape: _Shape, depth: int) -> None:
        item = shape.inner[0]
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # How many bytes the block has.
            if shape.kind == "array" and item.least == 0 and not self._endless:
                self._charge(count * item.whole)  # Nothing of them is in the bytes.
                continue
            for _ in range(count):
                if shape.kind == "map":
                    self._charge(FIELD_BYTES + 2 * self._skip(self._long()))
                self.value(item, depth + 1)

    def _charge(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLargeError(self._limit)

    def _skip(self, size: int) -> int:
        """Return how many bytes there are: fastavro says that too few are there."""
        before = self._at
        self._at = min(before + max(size, 0), len(self._data))
        return self._at - before

    def _long(self) -> int:
        number = shift = 0
        for byte in self._data[self._at : self._at + _VARINT_BYTES_MAX]:
            self._at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                if number >= 1 << 64:
                    break
                return (number >> 1) ^ -(number & 1)
        raise ValueError("the bytes end too early, or a number has more than 64 bits")
