"""Lineage of many records in one header: what is written is read back, and only records of the pack
are given it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicproof.validators.lineage.headers import INT_MAX, LONG_MAX
from topicproof.validators.lineage.packs import (
    BYTES_MAX,
    HEADS,
    RECORDS_MAX,
    Pack,
    format_pack,
    formatted,
    lay,
    parse_pack,
)

names = st.text(min_size=1, max_size=249).filter(
    lambda text: "/" not in text and text.isprintable()
)
places = st.lists(
    st.tuples(st.integers(0, LONG_MAX), st.integers(0, INT_MAX)), min_size=1, max_size=50
)


def pack(
    offsets: list[int], indices: list[int] | None = None, topic: str = "numbers", partition: int = 0
) -> Pack:
    return Pack(
        topic,
        partition,
        np.array(offsets, np.int64),
        np.array(indices or [0] * len(offsets), np.int64),
    )


@given(names, st.integers(0, INT_MAX), places)
def test_a_pack_is_read_back(topic: str, partition: int, places: list[tuple[int, int]]) -> None:
    """Story: our sink writes a pack, anybody reads it. Each record has the lineage that it was
    given."""
    made = pack([one for one, _ in places], [index for _, index in places], topic, partition)
    found = parse_pack(format_pack(made))
    assert found is not None and (found.topic, found.partition) == (topic, partition)
    assert list(zip(found.offsets.tolist(), found.indices.tolist(), strict=True)) == places
    assert [found.lineage(n) for n in range(len(places))] == [
        f"{topic}/{partition}/{offset}/{index}".encode() for offset, index in places
    ]


def test_a_pack_of_one_to_one_outputs_takes_less_than_a_byte_a_record() -> None:
    """Story: the squares of one source partition are hashed over four partitions. What one of these
    gets is small."""
    gaps = np.random.default_rng(1).geometric(0.25, 5_000)
    made = Pack("numbers", 3, np.cumsum(gaps), np.zeros(gaps.size, np.int64))
    assert len(format_pack(made)) < gaps.size


def test_a_long_pack_becomes_several() -> None:
    """Story: a transaction holds more records of a partition than a pack may, with lineage that
    does not compress. Each header stays small, and together they say the same."""
    random = np.random.default_rng(1)
    offsets = np.cumsum(random.integers(1, 2**40, RECORDS_MAX + 10))
    made = Pack("numbers", 3, offsets, random.integers(0, 2**30, offsets.size))
    found = [(first, text, parse_pack(text)) for first, text in formatted(made)]
    assert max(len(text) for _, text, _ in found) <= BYTES_MAX
    ends = [first for first, _, _ in found[1:]] + [offsets.size]
    for (first, _, one), end in zip(found, ends, strict=True):
        assert one is not None
        assert one.offsets.tolist() == offsets[first:end].tolist()
        assert one.indices.tolist() == made.indices[first:end].tolist()


WHOLE = format_pack(pack([5, 6, 9], [0, 1, 0]))


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            b"",
            b"\x01",
            WHOLE[:-1],
            WHOLE + b"x",
            b"\x02" + WHOLE[1:],
            WHOLE[:19] + b"\x03" + WHOLE[20:],
        ),
        *(
            WHOLE.replace(b"numbers", b"num/ers"),
            WHOLE.replace(b"numbers", b"num\xffers"),
            WHOLE[:-9] + b"123456789",
        ),
        *(
            format_pack(pack([-1])),
            format_pack(pack([0], [-1])),
            format_pack(pack([0, -1])),
            format_pack(pack([1], topic="")),
        ),
        *(
            format_pack(pack([1], partition=-1)),
            WHOLE[:15] + b"\0\0\0\x04" + WHOLE[19:],
            WHOLE[:15] + b"\xff" * 4 + WHOLE[19:],
        ),
        *(WHOLE[:15] + b"\0\0\0\x02" + WHOLE[19:], WHOLE[:15] + b"\0\0\0\0" + WHOLE[19:]),
    ],
)
def test_what_is_no_pack_is_none(value: bytes | None) -> None:
    """Story: a foreign producer uses our header's name, or a header is broken. It is nothing, never
    an error."""
    assert parse_pack(value) is None


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(value: bytes) -> None:
    """Story: whatever stands in a header, reading it does not fail."""
    parse_pack(value)
    parse_pack(WHOLE[: len(value)] + value)


@dataclass
class Log:
    """One partition as its brokers write it, and the lineage that each of its records was given."""

    rows: list[tuple[int, int, int, int, int, bool, str | None]] = field(default_factory=list)
    """first offset, last offset, producer, epoch, first number, transactional, control"""
    given: dict[int, bytes] = field(default_factory=dict)
    heads: list[tuple[int, bytes]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    """The number of each producer's next record."""
    epochs: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def write(self, producer: int, count: int, transactional: bool = True) -> range:
        number = self.numbers.get(producer, 2**31 - 5)
        offsets = range(self.end, self.end + count)
        epoch = self.epochs.get(producer, 0)
        self.rows.append(
            (self.end, self.end + count - 1, producer, epoch, number, transactional, None)
        )
        self.numbers[producer] = (number + count) & 2**31 - 1
        self.end += count
        return offsets

    def mark(self, producer: int) -> None:
        self.rows.append(
            (self.end, self.end, producer, self.epochs.get(producer, 0), -1, True, "COMMIT")
        )
        self.end += 1

    def pack(self, offsets: list[int]) -> None:
        """Say of these records, which follow each other, that they are one pack."""
        made = pack([1_000 + offset for offset in offsets])
        self.heads.append((offsets[0], format_pack(made)))
        self.given |= {offset: made.lineage(n) for n, offset in enumerate(offsets)}

    def batches(self) -> pa.Table:
        names = (
            "base_offset",
            "last_offset",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "transactional",
            "control",
        )
        columns = dict(zip(names, zip(*self.rows, strict=True), strict=True))
        types = [pa.int64()] * 5 + [pa.bool_(), pa.string()]
        made = {
            name: pa.array(columns[name], kind) for name, kind in zip(names, types, strict=True)
        }
        return pa.table({"partition": pa.array([7] * len(self.rows), pa.int32()), **made})

    def named(self) -> tuple[dict[int, bytes], set[int]]:
        """The lineage by offset as the batch headers tell it, and the offsets that are lost."""
        heads = pa.table(
            {
                "partition": [7] * len(self.heads),
                "offset": [offset for offset, _ in self.heads],
                "packed": [packed for _, packed in self.heads],
                "transaction": [None] * len(self.heads),
            }
        ).cast(HEADS)
        segments, lost = lay(self.batches(), heads)
        packs = dict(self.heads)
        found = {}
        for one in segments.to_pylist():
            whole = parse_pack(packs[one["head"]])
            assert whole is not None
            for n in range(one["last_offset"] - one["first_offset"] + 1):
                assert one["first_offset"] + n not in found
                found[one["first_offset"] + n] = whole.lineage(one["position"] + n)
        return found, {
            n
            for one in lost.to_pylist()
            for n in range(one["first_offset"], one["last_offset"] + 1)
        }


turns = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["write", "write", "write", "pack", "end", "fence"]),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=40,
)


@given(turns, st.data())
def test_records_get_the_lineage_of_their_pack_whatever_else_is_written(
    turns: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    """Story: three producers write packs into one partition, batch by batch between each other, and
    their numbers wrap around; some packs begin inside a batch. Then compaction takes batches and
    heads away: what is left has its own lineage or none, and which records lost it with their head
    is known."""
    log, packs = Log(), dict[int, list[int]]()

    def finish(producer: int) -> None:
        if packs.get(producer):
            log.pack(packs.pop(producer))

    for producer, what, count in turns:
        if what in ("write", "pack"):
            offsets = [*log.write(producer, count)]
            middle = count // 2 if what == "pack" else 0
            packs.setdefault(producer, []).extend(offsets[:middle])
            if what == "pack":
                finish(producer)
            packs.setdefault(producer, []).extend(offsets[middle:])
        else:
            finish(producer)
            log.mark(producer)
            if what == "fence":
                log.epochs[producer] = log.epochs.get(producer, 0) + 1
    for producer in list(packs):
        finish(producer)
    assert log.named() == (log.given, set())

    gone = data.draw(
        st.sets(st.sampled_from([row for row in log.rows if row[6] is None] or log.rows))
    )
    log.rows = [row for row in log.rows if row not in gone]
    left = {n for row in log.rows for n in range(row[0], row[1] + 1)}
    heads = [one for one in log.heads if one[0] in left]
    log.heads = sorted(data.draw(st.sets(st.sampled_from(heads)))) if heads else []
    if not log.rows or not log.heads:
        return
    found, lost = log.named()
    assert found.items() <= log.given.items() and not lost & found.keys()
    writers = {
        row[2:4] for row in log.rows for offset, _ in log.heads if row[0] <= offset <= row[1]
    }
    unnamed = {
        n for row in log.rows if row[6] is None for n in range(row[0], row[1] + 1)
    } - found.keys()
    assert lost == {
        n for n in unnamed if any(row[0] <= n <= row[1] and row[2:4] in writers for row in log.rows)
    }
    begun = {offset for offset, _ in log.heads}
    assert begun <= found.keys()


def test_a_pack_ends_with_its_transaction() -> None:
    """Story: an abort takes away what a client had not sent yet of a pack. What its producer writes
    next has the numbers that those would have had, and is not theirs."""
    log = Log()
    sent = [*log.write(1, 3)]
    log.heads.append((0, format_pack(pack([10, 11, 12, 13, 14, 15]))))
    log.mark(1)
    log.write(1, 2)
    found, lost = log.named()
    assert [found[n] for n in sent] == [b"numbers/0/10/0", b"numbers/0/11/0", b"numbers/0/12/0"]
    assert lost == {4, 5}


def test_a_pack_that_cannot_be_read_ends_the_one_before() -> None:
    """Story: of two packs the second's header is broken. Its records get nothing, from either."""
    log = Log()
    log.write(1, 6)
    log.heads = [(0, format_pack(pack([10, 11, 12, 13, 14, 15]))), (2, b"\x01 broken")]
    found, lost = log.named()
    assert set(found) == {0, 1} and lost == {2, 3, 4, 5}


def test_a_head_that_no_batch_explains_is_of_nobody() -> None:
    """Story: a record outside of any transaction bears our header, and so does an offset that no
    batch holds."""
    log = Log()
    log.write(1, 3, transactional=False)
    log.heads = [(0, WHOLE), (50, WHOLE)]
    assert log.named() == ({}, set())
