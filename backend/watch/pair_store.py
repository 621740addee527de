"""The folded pairs of a watch on disk: one SQLite file for each cluster, in which a pair's state,
its cursors and its identities advance in one transaction."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topicproof.backend.errors import SetupError, TopicError
from topicproof.backend.watch.identities import SCHEMA as IDENTITIES, Identities
from topicproof.backend.watch.standings import (
    SCHEMA as STANDINGS,
    Standing,
    forget_standings,
    note_standings,
)
from topicproof.validators.finding import Example
from topicproof.validators.increments.offset_bits import OffsetBits
from topicproof.validators.increments.watched_pair import (
    Awaited,
    LineEnd,
    PairCounts,
    SinkRows,
    SourcePart,
    UnnamedOutputs,
    UnreadableRange,
    WatchedPair,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FORMAT = 2
SCHEMA = f"""
create table if not exists pair (name text primary key, checksum text, body blob);
{IDENTITIES}
{STANDINGS}"""
BYTES_MAX = 2**29
"""Of a state before compression. SQLite takes no more than 1,000,000,000 bytes."""
_COUNTERS = ("transactions", "source_lost", "sink_lost")


class StateTooLarge(TopicError):
    """A pair has more to remember than a state may hold. It is not judged further."""


class PairStore:
    """The states of the pairs of one cluster. Nobody else has it open."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db, self.path = db, path

    def read(self, name: str) -> WatchedPair | None:
        """Return the state of a pair; None at the first time. Raises SetupError if it is
        damaged."""
        try:
            row = self.db.execute(
                "select checksum, body from pair where name = ?", (name,)
            ).fetchone()
            if row is None:
                return None
            checksum, body = row
            if hashlib.sha256(body).hexdigest() != checksum:
                raise self._unusable("is damaged: it does not have its checksum")
            return _pair_of(body)
        except sqlite3.DatabaseError as error:
            raise self._unusable(f"cannot be read: {error}") from error
        except (ValueError, KeyError, TypeError, EOFError, OSError, zlib.error) as error:
            raise self._unusable("was written by another version of Topicproof") from error

    def write(self, name: str, pair: WatchedPair) -> None:
        """Replace the state of a pair, with what its identities have gained. After a kill the file
        holds all of it, or all of the state before. Raises StateTooLarge, SetupError."""
        body = _body_of(pair)
        checksum = hashlib.sha256(body).hexdigest()
        try:
            self.db.execute("insert or replace into pair values (?, ?, ?)", (name, checksum, body))
            self.db.commit()
        except sqlite3.DatabaseError as error:
            raise self._unusable(f"cannot be written: {error}") from error

    def note(self, standings: Iterable[Standing], now_s: int, unlisted: Iterable[str] = ()) -> None:
        """Write how contracts stand now, for the dashboard. `unlisted`: names of those that are no
        longer watched. Raises SetupError."""
        try:
            forget_standings(self.db, unlisted)
            note_standings(self.db, standings, now_s)
            self.db.commit()
        except sqlite3.DatabaseError as error:
            raise self._unusable(f"cannot be written: {error}") from error

    def standing_names(self) -> set[str]:
        """Return the names of the contracts of which it is written how they stand. Raises
        SetupError."""
        try:
            return {name for (name,) in self.db.execute("select name from standing")}
        except sqlite3.DatabaseError as error:
            raise self._unusable(f"cannot be read: {error}") from error

    def undo(self) -> None:
        """Forget what was not written."""
        self.db.rollback()

    def forget(self, name: str | None = None) -> None:
        """Begin anew: with one pair, or with all."""
        for table, column in (
            ("pair", "name"),
            ("identity", "pair"),
            ("shared", "pair"),
        ):
            if name is None:
                self.db.execute(f"delete from {table}")
            else:
                self.db.execute(f"delete from {table} where {column} = ?", (name,))
        self.db.commit()

    def identities(self, name: str) -> Identities:
        return Identities(self.db, name)

    def _unusable(self, why: str) -> SetupError:
        return SetupError(
            f"The state of this watch, {self.path}, {why}. `topicproof watch --anew` begins"
            " without it: contracts are then judged from the beginning of their topics again."
        )


@contextmanager
def pair_store(path: Path) -> Iterator[PairStore]:
    """Open the file of a cluster's pairs. The caller holds the watch's lock. Raises SetupError if
    it is damaged or cannot be made."""
    try:
        with closing(sqlite3.connect(path, check_same_thread=False)) as db:
            path.chmod(0o600)
            # What is committed survives a loss of power, too.
            db.executescript("pragma journal_mode = wal; pragma synchronous = full;")
            db.executescript(SCHEMA)
            yield PairStore(db, path)
    except sqlite3.DatabaseError as error:
        raise SetupError(
            f"The state of this watch, {path}, cannot be used: {error}. `topicproof watch --anew`"
            " begins without it."
        ) from error


def _body_of(pair: WatchedPair) -> bytes:
    """Raises StateTooLarge."""
    arrays: dict[str, np.ndarray[Any, Any]] = {
        f"held_{name}": column for name, column in zip(SinkRows._fields, pair.held, strict=True)
    }
    sources = []
    for number, part in pair.sources.items():
        for name, bits in _sets(part).items():
            arrays[f"{number}_{name}"] = bits.words[: _used(bits)]
        for name in ("open_below", "before"):
            arrays[f"{number}_{name}"] = np.array(sorted(getattr(part, name)), np.int64)
        arrays[f"{number}_gone_below"] = part.gone_below
        ends = [part.begin, part.end, part.hw, part.late_end, part.inputs.floor, part.vague_end]
        sources.append([number, *ends, part.seen])
    fields = {
        "format": FORMAT,
        "topics": [pair.source_topic, pair.sink_topic],
        "outputs": pair.outputs,
        "within_ms": pair.within_ms,
        "by_key": pair.by_key,
        "sources": sources,
        "sink_ends": list(pair.sink_ends.items()),
        "lines": [[*key, *end] for key, end in pair.lines.items()],
        "causes": [[kind, list(causes.items())] for kind, causes in pair.causes.items()],
        "examples": [
            [kind, [asdict(example) for example in examples]]
            for kind, examples in pair.examples.items()
        ],
        "through_ms": pair.through_ms,
        "awaited": None
        if pair.awaited is None
        else [
            list(pair.awaited.source_ends.items()),
            list(pair.awaited.sink_ends.items()),
            pair.awaited.through_ms,
        ],
        "counts": asdict(pair.counts),
        "unreadable": [list(records) for records in pair.unreadable],
        "unobserved": pair.unobserved,
        "unnamed": [
            [cause, [[each.records, list(each.source_ends.items())] for each in outputs]]
            for cause, outputs in pair.unnamed.items()
        ],
        **{name: list(getattr(pair, name).items()) for name in _COUNTERS},
    }
    arrays["fields"] = np.frombuffer(json.dumps(fields).encode(), np.uint8)
    file = _CompressedFile()
    np.savez(file, allow_pickle=False, **arrays)
    return file.body()


class _CompressedFile(io.RawIOBase):
    """Compresses what is written to it. The state itself is never twice in memory: of a long watch
    it is most of what the process holds."""

    def __init__(self) -> None:
        super().__init__()
        self._compressor = zlib.compressobj(1)
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, content: ReadableBuffer, /) -> int:
        """Raises StateTooLarge."""
        view = memoryview(content)
        self._size += view.nbytes
        if self._size > BYTES_MAX:
            raise StateTooLarge(
                f"what a watch must remember of it takes more than {BYTES_MAX:,} bytes: it has too"
                " many partitions, outputs of an input, or outputs that wait. `topicproof check`"
                " judges it."
            )
        self._parts.append(self._compressor.compress(view))
        return view.nbytes

    def body(self) -> bytes:
        return b"".join((*self._parts, self._compressor.flush()))


def _pair_of(body: bytes) -> WatchedPair:
    content = zlib.decompressobj().decompress(body, BYTES_MAX)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        fields = json.loads(arrays["fields"].tobytes())
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']}")
        pair = WatchedPair(
            source_topic=fields["topics"][0],
            sink_topic=fields["topics"][1],
            outputs=fields["outputs"],
            within_ms=fields["within_ms"],
            by_key=fields["by_key"],
        )
        for number, begin, end, hw, late_end, floor, vague_end, moments in fields["sources"]:
            part = SourcePart(begin, pair.outputs)
            for name, bits in _sets(part).items():
                bits.floor, bits.words = floor, arrays[f"{number}_{name}"].copy()
            part.end, part.hw, part.late_end = end, hw, late_end
            part.seen = [(at, reached) for at, reached in moments]
            part.open_below, part.before = (
                set(arrays[f"{number}_{name}"].tolist()) for name in ("open_below", "before")
            )
            part.gone_below, part.vague_end = arrays[f"{number}_gone_below"], vague_end
            pair.sources[number] = part
        pair.held = SinkRows(*(arrays[f"held_{name}"] for name in SinkRows._fields))
    pair.sink_ends = dict(fields["sink_ends"])
    pair.lines = {(source, sink): LineEnd(*end) for source, sink, *end in fields["lines"]}
    pair.causes = {kind: Counter(dict(causes)) for kind, causes in fields["causes"]}
    pair.examples = {
        kind: [Example(**example) for example in examples] for kind, examples in fields["examples"]
    }
    if fields["awaited"] is not None:
        source_ends, sink_ends, through_ms = fields["awaited"]
        pair.awaited = Awaited(dict(source_ends), dict(sink_ends), through_ms)
    pair.through_ms, pair.counts = fields["through_ms"], PairCounts(**fields["counts"])
    # States of earlier versions have none of these.
    pair.unreadable = [UnreadableRange(*records) for records in fields.get("unreadable", ())]
    pair.unobserved = fields.get("unobserved", 0)
    pair.unnamed = {
        cause: [UnnamedOutputs(records, dict(ends)) for records, ends in outputs]
        for cause, outputs in fields.get("unnamed", ())
    }
    for name in _COUNTERS:
        setattr(pair, name, Counter(dict(fields[name])))
    return pair


def _sets(part: SourcePart) -> dict[str, OffsetBits]:
    matched = {f"matched_{index}": bits for index, bits in enumerate(part.matched)}
    return {"inputs": part.inputs, "aborted": part.aborted, "gone": part.gone, **matched}


def _used(bits: OffsetBits) -> int:
    filled = np.flatnonzero(bits.words)
    return int(filled[-1]) + 1 if filled.size else 0
