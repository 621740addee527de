"""The fast path: counts a ledger by proving that nothing is odd.

Most topics are as they should be. Then Spark need only fold each reading once into words of 64
offsets (validators/folded/offset_runs.py). Fates, transactions, order and repeats become arithmetic
on the bits of these words, together with the raw log and the journal. So the proof can be repeated
from the folded readings alone, which hold no keys and no values.

Any deviation, even by one bit, ends the proof with None. The slow path (validators/ledger/build.py)
then examines each record and names the anomaly. So no finding ever rests on this file;
tests/validators/test_sound.py compares the counts of both paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from topicproof.validators.facts.balance import Headers
from topicproof.validators.facts.cell import Cell
from topicproof.validators.facts.header_transactions import (
    NAME,
    Outcomes,
    TransactionalId,
    beyond_limits,
)
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.folded.compact_runs import parse_origin
from topicproof.validators.folded.fold import Folded
from topicproof.validators.folded.offset_runs import Pieces, Words, as_pieces, first_of, last_of
from topicproof.validators.folded.regular_log import RegularLog
from topicproof.validators.lineage.headers import Transaction, parse_transaction
from topicproof.validators.offsets import WORD
from topicproof.validators.readings import column_names

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NAMED_COLUMNS = (
    "partition int, transactional_id string, sequence long, attempt int, task string, last_offset"
    " long, records long, total long, committed long, aborted long, pending long, stable long,"
    " unstable long, declared string, reason string, first_source int, last_source int, first_input"
    " long, last_input long, offset long, source_topic string, source_partition int, source_offset"
    " long, output_index int, producer_id long, producer_epoch long"
)
"""The same columns as in validators/facts/header_transactions.py."""


class Proof(NamedTuple):
    """The ledger's counts for a sink in which nothing is odd: no doubts, no repeats, every line in
    order. Every record belongs to a transaction that has ended, and is an output of an input in the
    judged range."""

    cells: tuple[Cell, ...]
    headers: dict[int, Headers]
    ids: tuple[TransactionalId, ...]
    ends: dict[str, int]
    inputs: int
    produced: int
    """Inputs with an output, whatever its fate."""
    headed: int
    """Inputs with a header."""
    named: pd.DataFrame
    """Transactions with `NAMED_COLUMNS`."""


def prove(
    folded: Folded,
    log: RegularLog,
    sink_bounds: Bounds,
    source_bounds: Bounds,
    declared: Outcomes | None,
    source_ids: Mapping[str, str] = MappingProxyType({}),
) -> Proof | None:
    """Proves that nothing is odd, or returns None. `source_ids`: the ids of the source's topics, as
    far as they are known."""
    committed_words, inputs = whole_words(folded.seen), whole_words(folded.inputs)
    if not (
        _once(committed_words)
        and _once(inputs)
        and _within(inputs.partition, *_ends(inputs.word, inputs.bits), source_bounds, "lso")
    ):
        return None
    committed = produced = NO_INPUTS
    parts = []
    for partition, table in _by_partition(folded.pieces):
        first, end = np.searchsorted(committed_words.partition, (partition, partition + 1))
        words = Words(*(column[first:end] for column in committed_words))
        pieces = as_pieces(table)
        partition_proof = (
            None
            if pieces is None
            else _part(
                pieces, words, log, sink_bounds, source_bounds=source_bounds, source_ids=source_ids
            )
        )
        if partition_proof is None:
            return None
        part, committed_more, produced_more = partition_proof
        parts.append(part)
        committed, produced = committed.merged(committed_more), produced.merged(produced_more)
    if (
        sum(part.seen for part in parts) < committed_words.word.size
        or committed.total() != sum(part.records for part in parts)
        or not _read(produced, inputs)
    ):
        return None
    codes: dict[bytes, int] = {}
    groups = _all_groups(parts, codes, log)
    names = [name for name in map(parse_transaction, codes) if name]
    if groups is None or len(names) < len(codes) or _are_beyond_limits(names):
        return None
    named = _named(groups, names, declared, source_bounds.topic)
    if named is None:
        return None
    return Proof(
        cells=tuple(cell for part in parts for cell in part.cells),
        headers=log.headers,
        ids=_ids(named),
        ends=log.ends,
        inputs=int(inputs.counted.sum()),
        produced=produced.total(),
        headed=int(inputs.headed.sum()),
        named=named,
    )


def _by_partition(pieces: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yields one partition after the other, at least one, with its pieces: those of one partition
    are expanded at a time."""
    partitions = np.asarray(pieces["partition"], np.int64)
    for number in np.unique(partitions).tolist() or [0]:
        yield number, pieces.take(pa.array(np.flatnonzero(partitions == number)))


class _Inputs(NamedTuple):
    """A set of inputs, by source partition and word."""

    partition: Ints
    word: Ints
    bits: Ints

    def total(self) -> int:
        return int(np.bitwise_count(self.bits.view(np.uint64)).sum())

    def merged(self, more: _Inputs) -> _Inputs:
        partition, word, bits = map(np.concatenate, zip(self, more, strict=True))
        order = np.lexsort((word, partition))
        partition, word, bits = partition[order], word[order], bits[order]
        begins = _begins(partition, word)
        if not begins.size:
            return self
        return _Inputs(partition[begins], word[begins], np.bitwise_or.reduceat(bits, begins))


NO_INPUTS = _Inputs(*(np.empty(0, np.int64) for _ in range(3)))


class _Section(NamedTuple):
    """What one partition of the sink contributes, besides inputs."""

    records: int
    """Committed records."""
    seen: int
    """Words that read_committed saw."""
    groups: pd.DataFrame
    names: list[bytes]
    cells: tuple[Cell, ...]


def _part(
    pieces: Pieces,
    committed_words: Words,
    log: RegularLog,
    sink_bounds: Bounds,
    source_bounds: Bounds,
    source_ids: Mapping[str, str],
) -> tuple[_Section, _Inputs, _Inputs] | None:
    """Returns the part of one partition, the inputs with a committed output in it, and those with
    any output in it. None if something in it is odd."""
    places = _origins(pieces, source_bounds, source_ids)
    if (
        not _once(pieces)
        or not pieces.ordered.all()
        or (pieces.transaction < 0).any()
        or places is None
    ):
        return None
    spread = _spread(pieces)
    stable = log.transactions["stable"].to_numpy(bool)[pieces.transaction]
    sound = (
        _seen_as_told(pieces, committed_words, stable)
        and _within(pieces.partition, spread.first, spread.last, sink_bounds, "hw")
        and _in_order(places[stable], *(column[stable] for column in spread))
    )
    groups = _groups(pieces, spread, places, log) if sound else None
    if groups is None:
        return None
    part = _Section(
        records=int(pieces.counted[stable].sum()),
        seen=committed_words.word.size,
        groups=groups,
        names=pieces.names,
        cells=_cells(pieces, spread, places, stable),
    )
    produced = _Inputs(places, pieces.source_word, pieces.source_bits)
    committed = _Inputs(*(column[stable] for column in produced))
    return part, NO_INPUTS.merged(committed), NO_INPUTS.merged(produced)


def _all_groups(
    parts: Sequence[_Section], codes: dict[bytes, int], log: RegularLog
) -> pd.DataFrame | None:
    """Returns the groups of all parts, with `name` as a code, which is added to `codes`. None if
    the log has further transactions."""
    groups = []
    for part in parts:
        name_codes = np.array([codes.setdefault(name, len(codes)) for name in part.names], np.int64)
        groups.append(part.groups.assign(name=name_codes[part.groups["name"].to_numpy(np.int64)]))
    return pd.concat(groups) if sum(map(len, groups)) == len(log.transactions) else None


class _Spread(NamedTuple):
    """Each piece's first and last offset, with the source offsets of both."""

    first: Ints
    last: Ints
    first_input: Ints
    last_input: Ints


def whole_words(words: Words) -> Words:
    """Merges the rows of each word into one."""
    begins = _begins(words.partition, words.word)
    if begins.size == words.word.size:
        return words
    bits, content = (
        combine.reduceat(of, begins)
        for combine, of in ((np.bitwise_or, words.bits), (np.bitwise_xor, words.content))
    )
    counted, headed = (np.add.reduceat(column, begins) for column in (words.counted, words.headed))
    return Words(words.partition[begins], words.word[begins], bits, counted, content, headed)


def _once(words: Words | Pieces) -> bool:
    """Whether each offset was read once; rows may be parts of words."""
    if not np.array_equal(np.bitwise_count(words.bits.view(np.uint64)), words.counted):
        return False
    begins = _begins(words.partition, words.word)
    if not begins.size:
        return True
    whole = np.bitwise_or.reduceat(words.bits, begins)
    return int(np.bitwise_count(whole.view(np.uint64)).sum()) == int(words.counted.sum())


def _begins(*keys: Ints) -> Ints:
    """Returns the rows where any key differs from the previous row; the rows are sorted by these
    keys."""
    if not keys[0].size:
        return np.empty(0, np.int64)
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def _spread(pieces: Pieces) -> _Spread:
    """Returns the spread of ordered pieces."""
    return _Spread(*_ends(pieces.word, pieces.bits), *_ends(pieces.source_word, pieces.source_bits))


def _ends(word: Ints, bits: Ints) -> tuple[Ints, Ints]:
    """Returns the first and last offset of each word."""
    return word * WORD + first_of(bits), word * WORD + last_of(bits)


def _origins(pieces: Pieces, source: Bounds, source_ids: Mapping[str, str]) -> Ints | None:
    """Returns the source partition of each piece; None if a piece has another source, also of the
    same name, or an output other than the first."""
    first = {part.topic: part.first for part in source.parts} or {source.topic: 0}
    partitions = []
    for text in pieces.origins:
        origin = parse_origin(text)
        if origin is None:
            return None
        lineage, topic_id = origin
        if lineage.topic not in first or lineage.output_index:
            return None
        if topic_id not in (None, source_ids.get(lineage.topic, topic_id)):
            return None
        partitions.append(first[lineage.topic] + lineage.partition)
    return np.array(partitions, np.int64)[pieces.origin] if partitions else np.empty(0, np.int64)


def _seen_as_told(pieces: Pieces, committed_words: Words, stable: Flags) -> bool:
    """Whether read_committed saw exactly what the log says is committed, with the same content."""
    logged = pieces.bits[stable], pieces.partition[stable], pieces.word[stable]
    begins = _begins(logged[1], logged[2])
    if not np.array_equal(logged[1][begins], committed_words.partition) or not np.array_equal(
        logged[2][begins], committed_words.word
    ):
        return False
    if not begins.size:
        return True
    if not np.array_equal(np.bitwise_or.reduceat(logged[0], begins), committed_words.bits):
        return False
    return np.array_equal(
        np.bitwise_xor.reduceat(pieces.content[stable], begins), committed_words.content
    )


def _within(partitions: Ints, first: Ints, last: Ints, bounds: Bounds, end: str) -> bool:
    ranges = {
        partition_bounds.partition: (partition_bounds.start, getattr(partition_bounds, end))
        for partition_bounds in bounds.partitions
    }
    for partition in np.unique(partitions).tolist():
        in_partition = partitions == partition
        if (
            partition not in ranges
            or first[in_partition].min() < ranges[partition][0]
            or last[in_partition].max() >= ranges[partition][1]
        ):
            return False
    return True


def _read(produced: _Inputs, inputs: Words) -> bool:
    """Whether each of these inputs was read."""
    required = pd.DataFrame(produced._asdict())
    available = pd.DataFrame(
        {"partition": inputs.partition, "word": inputs.word, "held": inputs.bits}
    )
    both = required.merge(available, "inner", ["partition", "word"])
    return (
        len(both) == len(required)
        and not (both["bits"].to_numpy() & ~both["held"].to_numpy()).any()
    )


def _in_order(source: Ints, first: Ints, last: Ints, first_input: Ints, last_input: Ints) -> bool:
    """Whether the pieces of each line in one partition follow one another in the order of their
    inputs."""
    order = np.lexsort((first, source))
    line = source[order][1:] == source[order][:-1]
    behind = first[order][1:] > last[order][:-1]
    later = first_input[order][1:] > last_input[order][:-1]
    return bool((~line | (behind & later)).all())


def _cells(pieces: Pieces, spread: _Spread, places: Ints, stable: Flags) -> tuple[Cell, ...]:
    # In a cell, only committed records have an input.
    source = np.where(stable, places, -1)
    rows = pd.DataFrame(
        {
            "partition": pieces.partition,
            "source": source,
            "counted": pieces.counted,
            "last": spread.last_input,
        }
    )
    sums = rows.groupby(["partition", "source"], as_index=False).agg(
        counted=("counted", "sum"), last=("last", "max")
    )
    cells = []
    for partition, place, count, last in sums.to_numpy(np.int64).tolist():
        if place < 0:
            cells.append(Cell(partition, None, aborted=count))
        else:
            cells.append(
                Cell(
                    partition,
                    place,
                    count,
                    heard=count,
                    last_source_offset=last,
                    at_inputs=count,
                    of_source=count,
                )
            )
    return tuple(cells)


def _groups(pieces: Pieces, spread: _Spread, places: Ints, log: RegularLog) -> pd.DataFrame | None:
    """Returns one row per transaction of one partition, with its name and position. None unless
    each has exactly one name, unique in the partition, and all of its records."""
    rows = pd.DataFrame(
        {
            "number": pieces.transaction,
            "partition": pieces.partition,
            "name": pieces.name,
            "records": pieces.counted,
            "first": spread.first,
            "last": spread.last,
            "source": places,
            "first_input": spread.first_input,
            "last_input": spread.last_input,
        }
    ).sort_values(["number", "first"], kind="stable")
    by_transaction = rows.groupby("number")
    groups = by_transaction.agg(
        partition=("partition", "first"),
        name=("name", "first"),
        names=("name", "nunique"),
        records=("records", "sum"),
        offset=("first", "min"),
        last_offset=("last", "max"),
        source_partition=("source", "first"),
        source_offset=("first_input", "first"),
        first_source=("source", "min"),
        last_source=("source", "max"),
        first_input=("first_input", "min"),
        last_input=("last_input", "max"),
    )
    logged = log.transactions.loc[groups.index]
    same = (groups["offset"] == logged["first_offset"]) & (
        groups["last_offset"] == logged["last_offset"]
    )
    single = (groups["names"] == 1) & ~groups.duplicated("name")
    if not (same & single).all():
        return None
    return groups.join(logged[["producer_id", "producer_epoch", "stable"]])


def _named(
    groups: pd.DataFrame, names: list[Transaction], declared: Outcomes | None, topic: str
) -> pd.DataFrame | None:
    """Returns transactions with `NAMED_COLUMNS`. None if a transaction's headers contradict each
    other, the markers or the journal, or if committed records are missing."""
    keys = [(name.transactional_id, name.sequence, name.attempt, name.task) for name in names]
    if len(set(keys)) != len(keys):
        return None
    declarations = [(declared or {}).get(key, (None, None)) for key in keys]
    code = groups["name"].to_numpy(np.int64)
    transactions = groups.drop(columns=["name", "names"]).reset_index(drop=True)
    for place, column in enumerate(NAME):
        transactions[column] = [keys[index][place] for index in code]
    transactions["total"] = [names[index].total for index in code]
    transactions["declared"], transactions["reason"] = (
        [declarations[index][which] for index in code] for which in (0, 1)
    )
    stable = transactions.pop("stable").to_numpy(bool)
    outcome = np.where(stable, Fate.COMMITTED.value, Fate.ABORTED.value)
    if any(
        declared_end is not None and declared_end != end
        for declared_end, end in zip(transactions["declared"], outcome, strict=True)
    ):
        return None
    by_name = pd.DataFrame(
        {
            "code": code,
            "stable": stable,
            "records": transactions["records"],
            "total": transactions["total"],
        }
    )
    whole = by_name.groupby("code").agg(
        ends=("stable", "nunique"),
        stable=("stable", "first"),
        records=("records", "sum"),
        total=("total", "first"),
    )
    if (whole["ends"] > 1).any() or (whole["stable"] & (whole["records"] < whole["total"])).any():
        return None
    records = transactions["records"].to_numpy(np.int64)
    transactions["committed"] = transactions["stable"] = np.where(stable, records, 0)
    transactions["aborted"] = transactions["unstable"] = np.where(stable, 0, records)
    transactions["pending"] = transactions["output_index"] = 0
    transactions["source_topic"] = topic
    for column in ("first_source", "last_source", "first_input", "last_input"):
        transactions[column] = transactions[column].astype("Int64").where(stable)
    return transactions[column_names(NAMED_COLUMNS)]


def _are_beyond_limits(names: Sequence[Transaction]) -> bool:
    return beyond_limits({name.transactional_id for name in names}) > 0


def _ids(named: pd.DataFrame) -> tuple[TransactionalId, ...]:
    ids = []
    for name, transactions in named.groupby("transactional_id", sort=True):
        by_name = transactions.groupby(list(NAME)[1:]).agg(
            committed=("committed", "max"), declared=("declared", "first")
        )
        committed = int((by_name["committed"] > 0).sum())
        sources = (
            transactions["first_source"].dropna().min(),
            transactions["last_source"].dropna().max(),
        )
        has_source = bool(transactions["first_source"].notna().any())
        ids.append(
            TransactionalId(
                transactional_id=str(name),
                records=int(transactions["records"].sum()),
                committed=committed,
                aborted=len(by_name) - committed,
                open=0,
                strangers=0,
                split=0,
                misdeclared=0,
                torn=0,
                unknown=int(by_name["declared"].isna().sum()),
                changed=len(transactions[["producer_id", "producer_epoch"]].drop_duplicates()) > 1,
                source_partition=int(sources[0])
                if has_source and sources[0] == sources[1]
                else None,
                first_input=int(transactions["first_input"].min()) if has_source else None,
                last_input=int(transactions["last_input"].max()) if has_source else None,
            )
        )
    return tuple(ids)
