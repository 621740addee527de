"""A source and a sink that are judged increment by increment: what was read so far, folded.

Each offset is read once. What is left of it is a bit for each input and for each expected output,
the last place of each line, and counts. So the state grows with the distance between the two
topics, not with their length.

An increment ends below the last stable offsets and behind whole transactions, so that every fate in
it is final. The source is folded before the sink, and reaches further: each output finds its input.
An output whose input is still pending holds back the rest of its sink partition. So what is found
is what a check of the same ranges finds, whatever the increments are.

What is held back is judged all the same, on a copy that is thrown away (`with_held`): a transaction
of the source that hangs would otherwise hide everything behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topicproof.validators.expectation import FORGOTTEN, PENDING, RANGE, UNREADABLE
from topicproof.validators.finding import EXAMPLES_MAX, Example
from topicproof.validators.increments.offset_bits import Bits, OffsetBits, offsets_of, size_of
from topicproof.validators.kinds import (
    aborted_input,
    aborted_read,
    duplicate,
    identity_missing,
    order,
    phantom,
    reading_mismatch,
    sink_removed,
    source_removed,
)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

KEPT_OFFSETS = 4_194_304
"""Offsets of each source partition, up to its end, of which is known what each of them is. Of
earlier ones it is known which outputs are missing, and which ranges Kafka has removed; all others
count as inputs with theirs."""
GONE_RANGES_MAX = 100_000
"""Removed ranges of earlier offsets that are remembered for each source partition. Of a log that
compaction left more holes in, the earliest offsets are known no more: an output that names one is
neither a copy nor of a removed input."""
OPEN_BELOW_MAX = 100_000
"""Missing outputs of earlier inputs that are told one by one, over all partitions. Beyond that no
partition forgets what its offsets are."""
HELD_MAX = 1_000_000
"""Outputs that wait for a pending input, over all partitions. Then the sink is not read further."""
UNNAMED_MAX = 20
"""Times at which records without a known input came, that are told apart by cause."""
BEFORE_MAX = 1_000_000
"""Outputs of inputs before the judged range that are told apart."""
NO_PARTITION = -1
UNRESOLVED = -2
"""In place of `source_partition`: no input has the identity yet, while inputs are pending."""
MAYBE_REPEATED = -1
"""How certain the input is of an output whose identity an input may have that is not read yet."""


class SinkRows(NamedTuple):
    """Records of the sink that read_committed received, by partition and offset."""

    partition: Ints
    offset: Ints
    timestamp_ms: Ints
    source_partition: Ints
    """`NO_PARTITION`: it names no input of the source."""
    source_offset: Ints
    output_index: Ints
    identity_high: Ints
    """Its identity as a digest of 16 bytes, in two numbers; both 0 by lineage."""
    identity_low: Ints
    certain: Ints
    """1 if no other input has its identity, else 0, or `MAYBE_REPEATED`: others have no order."""

    def take(self, rows: Ints | Flags) -> SinkRows:
        return SinkRows(*(column[rows] for column in self))

    @property
    def size(self) -> int:
        return int(self.offset.size)


NO_ROWS = SinkRows(*(np.zeros(0, np.int64) for _ in range(9)))


def rows_together(parts: Iterable[SinkRows]) -> SinkRows:
    """Return several sets of rows as one, by partition and offset."""
    rows = SinkRows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return rows.take(np.lexsort((rows.offset, rows.partition)))


class SourceSpan(NamedTuple):
    """What the new offsets of one source partition are. The rest of them are markers."""

    partition: int
    begin: int
    """The first of them."""
    end: int
    """Behind the last of them."""
    hw: int
    """The partition's high watermark: no output names an input at or above it."""
    inputs: Ints
    """Committed records."""
    aborted: Ints
    gone: Ints
    """Offsets that compaction has emptied."""


class UnreadableRange(NamedTuple):
    """Records that nobody reads: they are too large, or broken."""

    is_source: bool
    partition: int
    first: int
    last: int
    records: int
    why: str
    """A sentence with its place."""


class UnnamedOutputs(NamedTuple):
    """Records of the sink of which nobody knows the input. Each may be one missing output, of an
    input that was there before them."""

    records: int
    source_ends: Mapping[int, int]
    """By partition: the source's high watermark when they were folded."""


class LineEnd(NamedTuple):
    """The end of a line: the outputs of one source partition in one sink partition. A place is the
    input's offset times the outputs of an input, and the output's index."""

    last: int
    """The place of its last record."""
    last_first: int
    """The place of its last record that repeats no output; -1 without one."""
    records: int


@dataclass
class SourcePart:
    """One partition of the source, as far as it was read."""

    begin: int
    """Where judging begins."""
    outputs: int
    """Expected of each input."""
    end: int = 0
    hw: int = 0
    late_end: int = 0
    """Inputs below have had their time."""
    seen: list[tuple[int, int]] = field(default_factory=list)
    """When the end of what was read was first read, in ms since 1970, and that end."""
    inputs: OffsetBits = field(default_factory=OffsetBits)
    aborted: OffsetBits = field(default_factory=OffsetBits)
    gone: OffsetBits = field(default_factory=OffsetBits)
    matched: list[OffsetBits] = field(default_factory=list)
    """The inputs with a committed output of each index."""
    open_below: set[int] = field(default_factory=set)
    """Places of missing outputs of inputs below the floor."""
    before: set[int] = field(default_factory=set)
    """Places of outputs whose inputs lie before the judged range, or were removed below the
    floor."""
    gone_below: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """Ranges [first, end) below the floor that Kafka has removed, in their order."""
    vague_end: int = 0
    """Below, nothing is known but the places in `open_below`."""

    def __post_init__(self) -> None:
        if not self.matched:
            self.end = self.hw = self.late_end = self.begin
            sets = [OffsetBits(self.begin) for _ in range(3 + self.outputs)]
            self.inputs, self.aborted, self.gone, *self.matched = sets

    def copy(self) -> SourcePart:
        """Return a copy whose outputs may be changed. It shares the inputs."""
        return replace(
            self,
            matched=[bits.copy() for bits in self.matched],
            open_below=set(self.open_below),
            before=set(self.before),
        )

    @property
    def floor(self) -> int:
        return max(self.begin, self.inputs.floor)

    def are_gone(self, offsets: Ints) -> Flags:
        """Return which offsets Kafka has removed."""
        if not len(self.gone_below):
            return self.gone.holds(offsets)
        at = np.searchsorted(self.gone_below[:, 0], offsets, "right") - 1
        is_below = (at >= 0) & (offsets < self.gone_below[at, 1])
        return np.asarray(is_below | self.gone.holds(offsets), bool)

    def are_vague(self, places: Ints) -> Flags:
        """Return which outputs name an input of which nothing is known any more."""
        if not self.vague_end:
            return np.zeros(places.size, bool)
        offsets = places // self.outputs
        vague = (offsets >= self.begin) & (offsets < self.vague_end)
        for at in np.flatnonzero(vague).tolist():
            vague[at] = int(places[at]) not in self.open_below
        return vague

    def forget_gone(self, floor: int) -> None:
        """Keep as ranges what Kafka has removed below a floor, before it is raised."""
        words = self.gone.words[: max(0, (floor - self.gone.floor) // 64)]
        offsets = offsets_of(words, self.gone.floor)
        if offsets.size:
            breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
            firsts = offsets[np.concatenate(([0], breaks))]
            lasts = offsets[np.concatenate((breaks - 1, [-1]))]
            ranges = np.concatenate((self.gone_below, np.column_stack((firsts, lasts + 1))))
            # A range that an earlier floor has cut.
            begins = np.ones(len(ranges), bool)
            begins[1:] = ranges[1:, 0] > ranges[:-1, 1]
            ends = ranges[np.append(np.flatnonzero(begins)[1:] - 1, -1), 1]
            self.gone_below = np.column_stack((ranges[begins, 0], ends))
            for index, matched in enumerate(self.matched):
                room = max(0, BEFORE_MAX - len(self.before))
                outputs = offsets[matched.holds(offsets)][:room]
                self.before.update((outputs * self.outputs + index).tolist())
        if len(self.gone_below) > GONE_RANGES_MAX:
            half = len(self.gone_below) // 2
            self.vague_end = int(self.gone_below[half - 1, 1])
            self.gone_below = self.gone_below[half:].copy()

    def missing(self, end: int) -> list[Bits]:
        """Return the inputs below `end` without an output of each index, as words from the floor
        on."""
        return [self.inputs.minus(matched, end) for matched in self.matched]

    def missing_count(self, end: int) -> int:
        return sum(map(size_of, self.missing(end))) + len(self.open_below)


@dataclass
class PairCounts:
    """Counts of what was folded."""

    inputs: int = 0
    committed: int = 0
    matched: int = 0
    """Committed records with an input."""
    uncertain: int = 0
    """Those whose identity several inputs share."""
    named: int = 0
    """Committed records that name an input of the source, whether or not it exists."""
    aborted: int = 0
    """Aborted records of the sink."""
    due_total: int = 0
    """Inputs whose time for an output is over."""
    late_total: int = 0
    """Those of them that had no output then."""
    nameless_inputs: int = 0
    """Records without an identity, if they are matched by what they hold."""
    nameless_outputs: int = 0
    shared_identities: int = 0
    """Inputs whose identity an earlier one has."""
    forgotten: int = 0
    """Identities of inputs that are no longer remembered."""
    forgotten_open: int = 0
    """Those of them that had no output."""
    of_namesake: int = 0
    """Records of another topic of the source's name."""
    unreadable: int = 0
    """Records with a header whose name is not UTF-8: no client of ours gets their headers."""
    unread_inputs: int = 0
    """Records of the source in ranges that nobody reads, if their identity is needed."""
    unread_outputs: int = 0
    """Committed records of the sink in such ranges."""
    hidden: int = 0
    """Records that the raw log commits and read_committed did not deliver."""
    undecided: int = 0
    """Records of the sink whose transaction has lost its marker."""
    pending: int = 0
    """Late outputs that an open transaction of the sink may hold."""


class Awaited(NamedTuple):
    """What decides the outputs that wait for their inputs: once the source was read up to where it
    ended when they were read, each of their inputs was read, if it has one."""

    source_ends: Mapping[int, int]
    """By partition: the high watermark then."""
    sink_ends: Mapping[int, int]
    """By partition: behind the last of these outputs."""
    through_ms: int
    """When the sink's bounds were taken, if all up to them was read; else 0."""


@dataclass
class WatchedPair:
    """A source and a sink, folded as far as they were read."""

    source_topic: str
    sink_topic: str
    outputs: int
    """Expected of each input: one, or a fixed number."""
    within_ms: int
    sources: dict[int, SourcePart] = field(default_factory=dict)
    sink_ends: dict[int, int] = field(default_factory=dict)
    """Behind the last offset that was read, by partition."""
    by_key: bool = False
    """Whether records are matched by what they hold. Their places are then looked up before they
    are folded."""
    lines: dict[tuple[int, int], LineEnd] = field(default_factory=dict)
    """By source and sink partition."""
    held: SinkRows = NO_ROWS
    """Outputs behind one whose input is pending."""
    awaited: Awaited | None = None
    """Of the oldest outputs that are held; None without any."""
    through_ms: int = 0
    """When the bounds were taken up to which the sink was folded last."""
    transactions: Counter[str] = field(default_factory=Counter)
    """Of the sink, by outcome, each once for each of its partitions."""
    counts: PairCounts = field(default_factory=PairCounts)
    causes: dict[str, Counter[str | None]] = field(default_factory=dict)
    """Rows of each kind by what explains them; None: nothing."""
    examples: dict[str, list[Example]] = field(default_factory=dict)
    """The first of each kind."""
    source_lost: Counter[int] = field(default_factory=Counter)
    """Offsets that Kafka removed before they were read, by partition."""
    sink_lost: Counter[int] = field(default_factory=Counter)
    unreadable: list[UnreadableRange] = field(default_factory=list)
    """The first ranges that nobody reads."""
    unnamed: dict[str, list[UnnamedOutputs]] = field(default_factory=dict)
    """By the reason why nobody knows their inputs, as they came."""
    unobserved: int = 0
    """Records of the sink that no consumer received, because one would decompress an aborted batch
    that nobody reads."""

    def add_source(self, span: SourceSpan, now_ms: int) -> None:
        """Fold new offsets of a source partition."""
        part = self.sources.setdefault(span.partition, SourcePart(span.begin, self.outputs))
        part.inputs.add(span.inputs)
        part.aborted.add(span.aborted)
        part.gone.add(span.gone)
        self.counts.inputs += int(span.inputs.size)
        self.source_lost[span.partition] += int(span.gone.size)
        part.end, part.hw = max(part.end, span.end), span.hw
        if not part.seen or part.seen[-1][1] < part.end:
            part.seen.append((now_ms, part.end))

    def take_back(self, partition: int, offsets: Ints) -> None:
        """Count the outputs of these inputs as theirs. Each was taken for a copy of the output of
        an earlier input with the same identity."""
        self.sources[partition].matched[0].add(offsets)
        copies = self.causes.get(duplicate.NAME, Counter())
        # Of an earlier input of which nothing is known any more, none was counted as a copy.
        self._count(duplicate.NAME, None, -min(copies[None], int(offsets.size)))

    def add_sink(self, rows: SinkRows) -> None:
        """Fold committed records of the sink, the new ones of each partition in their order."""
        rows = rows_together((self.held, rows))
        source = self._sources_of(rows)
        is_held = behind_first(rows, source.waits)
        self.held = rows.take(is_held)
        self._fold(rows.take(~is_held), source.take(~is_held))

    def with_held(self, held: SinkRows) -> WatchedPair:
        """Return a copy in which the held outputs are folded too, as a check counts them now: one
        that waits for its input is explained by that, and has its place in the order. `held`: these
        rows, with the places of their inputs. What the copy shares with this pair is not to be
        changed."""
        if not held.size:
            return self
        named = {*held.source_partition.tolist()}
        pair = replace(
            self,
            held=NO_ROWS,
            lines=dict(self.lines),
            counts=replace(self.counts),
            causes={kind: Counter(causes) for kind, causes in self.causes.items()},
            examples={kind: list(examples) for kind, examples in self.examples.items()},
            sources={
                number: part.copy() if number in named else part
                for number, part in self.sources.items()
            },
        )
        pair._fold(held, pair._sources_of(held))
        return pair

    def _fold(self, rows: SinkRows, source: _Sources) -> None:
        """Fold committed records of the sink, each partition's in their order."""
        self.counts.committed += rows.size
        self.counts.named += int((rows.source_partition >= 0).sum())
        self._count_phantoms(rows, source)
        is_real = source.is_real | (source.waits & (rows.source_partition >= 0))
        real, waits = rows.take(is_real), source.waits[is_real]
        self.counts.matched += real.size
        if real.size:
            repeats, waits = self._repeats(real), waits | (real.certain == MAYBE_REPEATED)
            self._count(duplicate.NAME, None, int((repeats & ~waits).sum()))
            self._count(duplicate.NAME, PENDING, int((repeats & waits).sum()))
            in_line = real.certain > 0
            if in_line.any():
                self._count_order(real.take(in_line), repeats[in_line])
            # Each of the others is a line of its own.
            self.counts.uncertain += int((~in_line).sum())

    def are_decided(self, rows: SinkRows, *, is_source_read: bool) -> Flags:
        """Return which rows must have their input among what was read, if they have one.
        `is_source_read`: nothing of the source is pending. A busy source is never read to its end,
        so those that wait are decided once it was read up to where it ended then."""
        decided = np.full(rows.size, is_source_read)
        if self.awaited is not None and self._is_reached(self.awaited):
            decided |= _are_below(rows, self.awaited.sink_ends)
        return decided

    def _await_source(self, read_ms: int) -> None:
        """Note what decides the outputs that are held now. `read_ms`: when the sink's bounds were
        taken, if all up to them was read; else 0."""
        source_ends = {number: part.hw for number, part in self.sources.items()}
        if self.awaited is not None and self._is_reached(self.awaited):
            if _are_below(self.held, self.awaited.sink_ends).any():
                self.awaited = self.awaited._replace(source_ends=source_ends)
            else:
                self.through_ms = max(self.through_ms, self.awaited.through_ms)
                self.awaited = None
        if not self.held.size:
            self.awaited = None
        elif self.awaited is None:
            self.awaited = Awaited(source_ends, dict(self.sink_ends), read_ms)

    def _is_reached(self, awaited: Awaited) -> bool:
        return all(
            number in self.sources and self.sources[number].end >= end
            for number, end in awaited.source_ends.items()
        )

    def note_removed(self, partition: int, start: int, *, is_source: bool) -> None:
        """Note that Kafka has removed what was not read below the log's new start."""
        part = self.sources.get(partition)
        if is_source:
            end = 0 if part is None else part.end
            kind, lost = source_removed.NAME, self.source_lost
            if part is not None:
                part.gone.add_range(part.end, start)
                part.end = start
        else:
            end = self.sink_ends.get(partition, 0)
            kind, lost = sink_removed.NAME, self.sink_lost
            self.sink_ends[partition] = start
        lost[partition] += start - end
        why = f"Offsets {end:,} to {start - 1:,} were removed before they were read."
        self._show(kind, Example(partition, end, None, None, why))

    def note_unreadable(self, records: UnreadableRange) -> None:
        """Note that nobody reads these records."""
        if records.is_source:
            self.counts.unread_inputs += records.records
        else:
            self.counts.unread_outputs += records.records
        if len(self.unreadable) < EXAMPLES_MAX:
            self.unreadable.append(records)

    def _bound_unnamed(self) -> None:
        """Note up to where the inputs lie of the records without a known one that were folded since
        the last call. The bounds of the source are taken after those of the sink, and no output is
        written before its input."""
        source_ends = {number: part.hw for number, part in self.sources.items()}
        for cause, count in (
            (reading_mismatch.NAME, self.counts.hidden),
            (UNREADABLE, self.counts.unread_outputs),
            (identity_missing.NAME, self.counts.nameless_outputs),
        ):
            outputs = self.unnamed.setdefault(cause, [])
            new = count - sum(each.records for each in outputs)
            if new > 0:
                outputs.append(UnnamedOutputs(new, source_ends))
            if len(outputs) > UNNAMED_MAX:
                # The oldest ones: most inputs below their ends have had their output since.
                first, second = outputs[:2]
                records = first.records + second.records
                outputs[:2] = [UnnamedOutputs(records, second.source_ends)]

    def excusable(self, causes: Collection[str]) -> int:
        """Count the late outputs that may be among the records without a known input, for these
        reasons. Of records that came at a time, each may be one whose input was there then."""
        outputs = [each for cause in causes for each in self.unnamed.get(cause, ())]
        count = 0
        # Each time has all inputs of the times before it.
        for each in sorted(outputs, key=lambda each: sum(each.source_ends.values())):
            count = min(count + each.records, self._missing_below(each.source_ends))
        return count

    def _missing_below(self, source_ends: Mapping[int, int]) -> int:
        """Count the late outputs of inputs below these ends."""
        count = 0
        for number, part in self.sources.items():
            end = min(part.late_end, source_ends.get(number, 0))
            count += sum(map(size_of, part.missing(end)))
            count += sum(place // part.outputs < end for place in part.open_below)
        return count

    def add_revoked(self, partition: int, offsets: Ints) -> None:
        """Count records that read_committed received although their transaction was aborted."""
        why = "Visible to read_committed, but its transaction ends with an ABORT marker."
        self._count(aborted_read.NAME, None, int(offsets.size))
        for offset in offsets[:EXAMPLES_MAX].tolist():
            self._show(aborted_read.NAME, Example(partition, offset, None, None, why))

    def settle(self, now_ms: int, *, is_sink_read: bool, held: SinkRows | None = None) -> None:
        """Move on what is late, once an increment is folded. `is_sink_read`: all that was committed
        at `now_ms` was read. `held`: the outputs that are held, with the places of their inputs;
        without them, nothing becomes late while there are any."""
        self._await_source(now_ms if is_sink_read else 0)
        self._bound_unnamed()
        if is_sink_read and not self.held.size:
            self.through_ms = max(self.through_ms, now_ms)
        # An output that was read is not late because it waits for its turn.
        is_known = is_sink_read and held is not None
        read_ms = max(self.through_ms, now_ms if is_known else 0)
        late_ends: dict[int, int] = {}
        for number, part in self.sources.items():
            while part.seen and part.seen[0][0] + self.within_ms <= read_ms:
                late_ends[number] = max(part.late_end, part.seen.pop(0)[1])
        if late_ends:
            held = NO_ROWS if held is None else held
            before = self.missing_count() - self.missing_among(held)
            for number, late_end in late_ends.items():
                part = self.sources[number]
                self.counts.due_total += _between(part, part.late_end, late_end)
                part.late_end = late_end
            self.counts.late_total += self.missing_count() - self.missing_among(held) - before
        self._forget()

    def missing_count(self) -> int:
        """Count the outputs that are late."""
        return sum(part.missing_count(part.late_end) for part in self.sources.values())

    def missing_places(self, most: int) -> list[tuple[int, int, int]]:
        """Return the first late outputs: source partition, offset, index."""
        places: list[tuple[int, int, int]] = []
        for number, part in sorted(self.sources.items()):
            places += [
                (number, *divmod(place, part.outputs)) for place in sorted(part.open_below)[:most]
            ]
            for index, words in enumerate(part.missing(part.late_end)):
                offsets = offsets_of(words, part.inputs.floor, most)
                places += [(number, offset, index) for offset in offsets.tolist()]
        return sorted(places)[:most]

    @property
    def due(self) -> int:
        """How many inputs wait for an output and are not late."""
        every = sum(part.missing_count(part.end) for part in self.sources.values())
        return every - self.missing_count()

    def waiting(self) -> int:
        """Count the outputs of pending inputs."""
        return int(self._sources_of(self.held).waits.sum())

    def missing_among(self, rows: SinkRows) -> int:
        """Count the late outputs that are among these records."""
        count, all_places = 0, self._places(rows)
        for number in np.unique(rows.source_partition).tolist():
            part = self.sources.get(number)
            if part is None:
                continue
            places = np.unique(
                all_places[(rows.source_partition == number) & (rows.output_index < self.outputs)]
            )
            offset, index = places // self.outputs, places % self.outputs
            if part.open_below:
                old = places[offset < part.floor].tolist()
                count += sum(place in part.open_below for place in old)
            is_late = (offset >= part.floor) & (offset < part.late_end)
            for each, matched in enumerate(part.matched):
                late = offset[is_late & (index == each)]
                count += int((part.inputs.holds(late) & ~matched.holds(late)).sum())
        return count

    def _sources_of(self, rows: SinkRows) -> _Sources:
        size = rows.size
        flags = {name: np.zeros(size, bool) for name in _Sources._fields}
        flags["waits"] |= rows.source_partition == UNRESOLVED
        beyond, places = rows.output_index >= self.outputs, self._places(rows)
        for number in np.unique(rows.source_partition).tolist():
            part = self.sources.get(number)
            if part is None:
                continue
            of_part = np.flatnonzero(rows.source_partition == number)
            offset = rows.source_offset[of_part]
            exists = offset < part.hw
            aborted = part.aborted.holds(offset)
            counted = exists & ~aborted & ~beyond[of_part]
            before = counted & (offset < part.begin)
            waits = counted & (offset >= part.end)
            inside = counted & ~before & ~waits
            is_kept = offset >= part.floor
            flags["is_aborted"][of_part] = exists & aborted
            flags["is_beyond"][of_part] = exists & ~aborted & beyond[of_part]
            flags["is_before"][of_part] = before
            flags["waits"][of_part] = waits
            vague = inside & part.are_vague(places[of_part])
            gone = inside & ~vague & part.are_gone(offset)
            flags["is_vague"][of_part] = vague
            flags["is_gone"][of_part] = gone
            is_input = (~is_kept & ~gone & ~vague) | part.inputs.holds(offset)
            flags["is_input"][of_part] = inside & is_input
        return _Sources(**flags)

    def _count_phantoms(self, rows: SinkRows, source: _Sources) -> None:
        for name, flags in (
            (aborted_input.NAME, source.is_aborted),
            (RANGE, source.is_before),
            (source_removed.NAME, source.is_gone),
            (FORGOTTEN, source.is_vague),
            (PENDING, source.waits),
            # A copy of an output whose input is forgotten looks the same.
            (
                FORGOTTEN if self.counts.forgotten else None,
                ~source.is_real & ~source.is_aborted & ~source.is_vague & ~source.waits,
            ),
        ):
            self._count(phantom.NAME, name, int(flags.sum()))
            for row in np.flatnonzero(flags)[:EXAMPLES_MAX].tolist():
                why = (
                    "Its input was aborted in the source."
                    if name == aborted_input.NAME
                    else f"It names no input of {self.source_topic} that is still remembered."
                    if name == FORGOTTEN
                    else "Its input is in an open transaction of the source, or behind one."
                    if name == PENDING
                    else "Its lineage points to no judged input of the source."
                    if name is not None or rows.source_partition[row] != NO_PARTITION
                    else f"It names no input of {self.source_topic}."
                )
                self._show(phantom.NAME, self._example(rows, row, why))

    def _repeats(self, rows: SinkRows) -> Flags:
        """Mark the records that repeat an output, and note the others as its first ones."""
        place = self._places(rows)
        in_time = np.lexsort(
            (rows.offset, rows.partition, rows.timestamp_ms, place, rows.source_partition)
        )
        source, at = rows.source_partition[in_time], place[in_time]
        again = np.zeros(rows.size, bool)
        again[1:] = (source[1:] == source[:-1]) & (at[1:] == at[:-1])
        repeats = np.zeros(rows.size, bool)
        repeats[in_time] = again
        for number in np.unique(rows.source_partition).tolist():
            part = self.sources[number]
            of_part = np.flatnonzero(rows.source_partition == number)
            offset, index = rows.source_offset[of_part], rows.output_index[of_part]
            for each in range(part.outputs):
                is_read = (offset >= part.floor) & (offset < part.end)
                of_index = of_part[(index == each) & is_read]
                repeats[of_index] |= part.matched[each].holds(rows.source_offset[of_index])
                part.matched[each].add(rows.source_offset[of_index])
            is_old = offset < part.floor
            old_rows, are_gone = of_part[is_old].tolist(), part.are_gone(offset[is_old]).tolist()
            for row, is_gone in zip(old_rows, are_gone, strict=True):
                is_before = is_gone or int(rows.source_offset[row]) < part.begin
                repeats[row] |= self._repeats_old(part, int(place[row]), is_before=is_before)
        for row in np.flatnonzero(repeats)[:EXAMPLES_MAX].tolist():
            why = "The output of this input is committed already."
            self._show(duplicate.NAME, self._example(rows, row, why))
        return repeats

    def _repeats_old(self, part: SourcePart, place: int, *, is_before: bool) -> bool:
        """Return whether an output of an input below the floor was there before, and note it.
        `is_before`: its input lies before the judged range, or was removed."""
        if not is_before:
            is_open = place in part.open_below
            part.open_below.discard(place)
            return not is_open
        is_repeat = place in part.before
        if len(part.before) < BEFORE_MAX:
            part.before.add(place)
        return is_repeat

    def _count_order(self, rows: SinkRows, repeats: Flags) -> None:
        place = self._places(rows)
        by_line = np.lexsort((rows.offset, rows.partition, rows.source_partition))
        source, sink = rows.source_partition[by_line], rows.partition[by_line]
        begins = np.ones(rows.size, bool)
        begins[1:] = (source[1:] != source[:-1]) | (sink[1:] != sink[:-1])
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], rows.size)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            line = (int(source[start]), int(sink[start]))
            of_line = by_line[start:end]
            self._fold_line(line, rows, of_line, place[of_line], repeats[of_line])

    def _fold_line(
        self, line: tuple[int, int], rows: SinkRows, of_line: Ints, place: Ints, repeats: Flags
    ) -> None:
        before = self.lines.get(line, LineEnd(-1, -1, 0))
        previous = np.concatenate(([before.last], place[:-1]))
        # The last place before each record that repeats no output.
        firsts = np.concatenate(([before.last_first], np.where(repeats, -1, place)))
        newest = np.maximum.accumulate(np.where(firsts >= 0, np.arange(firsts.size), 0))
        first_before = firsts[newest]
        certain = ~repeats & (first_before[:-1] >= place)
        by_copy = ~certain & (previous >= place)
        self._count(order.NAME, None, int(certain.sum()))
        self._count(order.NAME, duplicate.NAME, int(by_copy.sum()))
        for row in of_line[certain | by_copy][:EXAMPLES_MAX].tolist():
            why = "It comes after the output of the same or a later input of its source partition."
            self._show(order.NAME, self._example(rows, row, why))
        self.lines[line] = LineEnd(
            int(place[-1]), int(first_before[-1]), before.records + int(place.size)
        )

    def _places(self, rows: SinkRows) -> Ints:
        return rows.source_offset * self.outputs + rows.output_index

    def _example(self, rows: SinkRows, row: int, why: str) -> Example:
        lineage = None
        if rows.source_partition[row] >= 0:
            place = (rows.source_partition[row], rows.source_offset[row], rows.output_index[row])
            lineage = "/".join((self.source_topic, *map(str, place)))
        return Example(int(rows.partition[row]), int(rows.offset[row]), lineage, None, why)

    def _count(self, kind: str, cause: str | None, count: int) -> None:
        if count:
            self.causes.setdefault(kind, Counter())[cause] += count

    def _show(self, kind: str, example: Example) -> None:
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(example)

    def _forget(self) -> None:
        """Forget what the offsets of a long partition are, up to the last `KEPT_OFFSETS` that are
        late."""
        for part in self.sources.values():
            floor = min(part.late_end, part.end - KEPT_OFFSETS) // 64 * 64
            # Half of what is kept at a time: each time copies the rest.
            if floor - part.inputs.floor < KEPT_OFFSETS // 2:
                continue
            missing = part.missing(floor)
            if len(part.open_below) + sum(map(size_of, missing)) > OPEN_BELOW_MAX:
                continue
            for index, words in enumerate(missing):
                offsets = offsets_of(words, part.inputs.floor)
                part.open_below.update((offsets * part.outputs + index).tolist())
            # An output of a removed input is no copy.
            part.forget_gone(floor)
            for each in (part.inputs, part.aborted, part.gone, *part.matched):
                each.raise_floor(floor)


class _Sources(NamedTuple):
    """What the place is that each record names; none of them: nothing of the source."""

    is_input: Flags
    is_before: Flags
    is_gone: Flags
    is_aborted: Flags
    is_vague: Flags
    """Nothing is known of it any more."""
    is_beyond: Flags
    waits: Flags
    """It is not read yet, or pending."""

    @property
    def is_real(self) -> Flags:
        """Whether it has or had an input: only such records repeat one another or have an order."""
        return self.is_input | self.is_before | self.is_gone

    def take(self, rows: Flags) -> _Sources:
        return _Sources(*(column[rows] for column in self))


def _are_below(rows: SinkRows, ends: Mapping[int, int]) -> Flags:
    """Return which rows lie below the end of their partition."""
    below = [ends.get(partition, 0) for partition in rows.partition.tolist()]
    return np.asarray(rows.offset < np.array(below, np.int64), bool)


def behind_first(rows: SinkRows, marked: Flags) -> Flags:
    """Mark the first marked row of each partition, and all behind it. The rows of a partition are
    in their order."""
    behind = np.zeros(rows.size, bool)
    for number in np.unique(rows.partition[marked]).tolist():
        of_partition = np.flatnonzero(rows.partition == number)
        behind[of_partition] = np.logical_or.accumulate(marked[of_partition])
    return behind


def _between(part: SourcePart, first: int, end: int) -> int:
    """Count the inputs of [first, end)."""
    below = OffsetBits(part.inputs.floor)
    return size_of(part.inputs.minus(below, end)) - size_of(part.inputs.minus(below, first))
