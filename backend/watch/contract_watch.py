"""Judges one contract look by look: reads what is new of its topics, folds it, and says what that
means."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from confluent_kafka import Message

from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.log.inflation import UnreadableBatch
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.raw_records import RawRecord
from topicproof.backend.kafka.reading import NotText
from topicproof.backend.watch.conditions import NAMES_MAX, PATIENCE_S, Condition, Kind
from topicproof.backend.watch.identities import (
    NO_DIGEST,
    SLICES,
    Identities,
    Unread,
    digest,
    no_unread,
)
from topicproof.backend.watch.pair_reader import (
    BEYOND_OFFSETS,
    LogSpan,
    LongTransactions,
    fold_log,
    note_unreadable,
    read_log,
    source_by_lineage,
    source_span,
    unread_offsets,
    with_unreadable,
)
from topicproof.backend.watch.pair_store import PairStore
from topicproof.backend.watch.record_reader import (
    NAMESAKE,
    UNREADABLE,
    MatchTerms,
    PlaceReader,
    RecordReader,
    WithheldRows,
    held,
)
from topicproof.backend.watch.standings import State
from topicproof.backend.watch.watchable import RefusedContract, WatchedContract
from topicproof.validators.expectation import PENDING, PREMISES, UNREADABLE as UNREADABLE_RECORDS
from topicproof.validators.finding import Bounds, Finding, Outcome, PartitionBounds
from topicproof.validators.increments.watch_verdict import WatchVerdict, verdict_of
from topicproof.validators.increments.watched_pair import (
    HELD_MAX,
    NO_ROWS,
    SinkRows,
    WatchedPair,
    rows_together,
)
from topicproof.validators.kinds import gap, source_removed
from topicproof.validators.next_steps import OF_UNKNOWN
from topicproof.validators.sentences import counted

PASSED_OVER_S = 300.0
"""A contract is looked at in full after so long, whatever the cluster says."""
REFUSED_STEP = "Correct it and switch its watch off and on, or stop it on the page Watch."
"""What to do about a contract on the list that is not judged."""
OFFSETS_AT_ONCE = 100_000
"""Offsets of one topic that are read before the state is written."""


@dataclass
class ContractFigures:
    """What the metrics say of a contract."""

    verdict: WatchVerdict | None = None
    inputs_due: int = 0
    inputs_late: int = 0
    judged: int = 0
    """Offsets of the sink that were judged."""
    behind: int = 0
    """Offsets below the last stable ones that were not read yet, of both topics."""
    aborted: int = 0
    withheld: int = 0
    """Offsets of the sink at and above its last stable one."""
    waived: tuple[str, ...] = ()
    """Kinds of finding whose alarm a waiver silences."""
    read_at: float = field(default_factory=time.monotonic)
    """When the bounds were taken up to which all was read last, in seconds of the monotonic clock;
    before that when its watch began."""
    trouble: str = ""
    """Why the last look at it failed; empty if it did not."""
    is_read: bool = False
    """Whether the last look at it since the start of this process did not fail."""
    failed_looks: int = 0
    """How many looks at it have failed since the last one that did not."""

    @property
    def is_caught_up(self) -> bool:
        return self.verdict is not None and not self.behind and not self.trouble

    @property
    def outcome(self) -> Outcome:
        """Nothing is known of a contract whose topics cannot be read; what it violated stays."""
        verdict = Outcome.UNKNOWN if self.verdict is None else self.verdict.verdict
        is_known = verdict is Outcome.VIOLATED or not self.trouble
        return verdict if is_known else Outcome.UNKNOWN

    @property
    def delay_s(self) -> float:
        """How long ago all was read."""
        return time.monotonic() - self.read_at

    @property
    def is_silenced(self) -> bool:
        """Whether it is violated, and a waiver accepts each kind that violates it."""
        return self.outcome is Outcome.VIOLATED and {*self.violating} <= {*self.waived}

    @property
    def violating(self) -> tuple[str, ...]:
        """Kinds that violate it and that nothing else explains."""
        return () if self.verdict is None else self.verdict.violating

    @property
    def state(self) -> State:
        """How it stands."""
        if self.outcome is Outcome.VIOLATED:
            return State.VIOLATED
        if self.trouble:
            return State.UNKNOWN
        if self.behind:
            return State.BEHIND
        return State.HOLDS if self.outcome is Outcome.HOLDS else State.UNKNOWN


@dataclass
class ContractWatch:
    """The watch of one contract."""

    contract: WatchedContract
    store: PairStore
    topic_ids: Mapping[str, str]
    """Of both topics, when their watch began or went on."""
    pair: WatchedPair
    figures: ContractFigures = field(default_factory=ContractFigures)
    turn: int = 0
    looks: int = 0
    _source_transactions: LongTransactions = field(default_factory=LongTransactions)
    _sink_transactions: LongTransactions = field(default_factory=LongTransactions)
    _withheld: WithheldRows = field(default_factory=WithheldRows)
    """Of the sink."""
    _withheld_inputs: WithheldRows = field(default_factory=WithheldRows)
    _looked_at: float = 0.0
    """When it was last read, in seconds of the monotonic clock."""
    _pending_since: dict[str, float] = field(default_factory=dict)
    """By kind of finding: since when open transactions have kept it unknown, at every look."""
    _is_source_read: bool = False
    """Whether the source was read up to its last stable offsets at the last look."""

    @classmethod
    def begin(
        cls, contract: WatchedContract, store: PairStore, topic_ids: Mapping[str, str]
    ) -> ContractWatch:
        """Go on where the state ends; begin where there is none, or where it is of other topics.
        Raises SetupError if it is damaged."""
        ids = {topic: topic_ids.get(topic, "") for topic in (contract.source, contract.sink)}
        name = f"{contract.state_name} {' '.join(ids.values())}"
        pair = store.read(name) or _begun(contract)
        pair.within_ms = contract.contract.within
        watch = cls(contract, store, ids, pair)
        if pair.sources:
            watch._judge()
        return watch

    @property
    def name(self) -> str:
        return f"{self.contract.state_name} {' '.join(self.topic_ids.values())}"

    def pass_over(self, bounds: Mapping[str, Bounds], taken_at: float) -> bool:
        """Whether nothing is to be read at these bounds of the cluster's topics, which were taken
        at this time of the monotonic clock. Then it counts as looked at, and what is late by now
        is folded: hundreds of quiet contracts cost no request. Raises StateTooLarge,
        SetupError."""
        source, sink = bounds.get(self.contract.source), bounds.get(self.contract.sink)
        if source is None or sink is None or not self.figures.is_read or self.figures.trouble:
            return False
        if time.monotonic() - self._looked_at > PASSED_OVER_S or not self._is_settled(source, sink):
            return False
        self.figures.read_at = max(self.figures.read_at, taken_at)
        self.figures.withheld = sum(p.hw - p.lso for p in sink.partitions)
        if self._waits_for_time:
            age_ms = int((time.monotonic() - taken_at) * 1_000)
            ends = [part.late_end for part in self.pair.sources.values()]
            self.pair.settle(time.time_ns() // 1_000_000 - age_ms, is_sink_read=True)
            if ends != [part.late_end for part in self.pair.sources.values()]:
                self._judge()
                self.store.write(self.name, self.pair)
        return True

    @property
    def _waits_for_time(self) -> bool:
        """Whether an input was read whose time for an output is not over."""
        return any(part.late_end < part.end for part in self.pair.sources.values())

    def _is_settled(self, source: Bounds, sink: Bounds) -> bool:
        """Whether all of these bounds was read, and no output waits for its input or for the end of
        a transaction."""
        pair = self.pair
        ends = {number: part.end for number, part in pair.sources.items()}
        is_read = all(
            reached.get(p.partition) == p.lso and p.start <= p.lso <= p.hw
            for topic, reached in ((source, ends), (sink, pair.sink_ends))
            for p in topic.partitions
        )
        is_withheld = any(p.lso < p.hw for p in sink.partitions)
        return (
            is_read
            and not pair.held.size
            and not (is_withheld and (self._waits_for_time or pair.missing_count()))
        )

    def look(self, kafka: Connection, now_ms: int, offsets_max: int) -> int:
        """Read and judge what is new, at most `offsets_max` offsets of both topics. Returns how
        many were read. Raises ClusterError, StateTooLarge, SetupError, and kafka-python's errors:
        then nothing has changed."""
        try:
            read = self._look(kafka, now_ms, offsets_max)
            self.store.write(self.name, self.pair)
        except BaseException:
            self.store.undo()
            self.pair = self.store.read(self.name) or _begun(self.contract)
            raise
        return read

    def _look(self, kafka: Connection, now_ms: int, offsets_max: int) -> int:
        pair, contract, began = self.pair, self.contract, time.monotonic()
        self._looked_at = began
        self.looks += 1
        # The source's bounds are taken after the sink's, so that each output finds its input.
        sink = kafka.bounds(contract.sink)
        source = kafka.bounds(contract.source)
        self._note_removed(source, sink)
        self.note_behind(source, sink)
        self.figures.withheld = sum(p.hw - p.lso for p in sink.partitions)
        half = max(1, offsets_max // 2)
        spans = _shares({p: part.end for p, part in pair.sources.items()}, source, half)
        read = self._read_source(kafka, source, spans, now_ms)
        for p in source.partitions:
            # Of a partition whose last stable offset stays, nothing new is read.
            if p.partition in pair.sources:
                pair.sources[p.partition].hw = p.hw
        spans = _shares(pair.sink_ends, sink, max(half, offsets_max - read))
        log: list[LogSpan] = []
        new_rows = NO_ROWS
        if pair.held.size < HELD_MAX:
            new_rows = self._read_sink(kafka, sink, spans, log)
            read += sum(span.end - span.begin for span in log)
        unread = cache(partial(self._unread_identities, kafka, source))
        pair.add_sink(self._resolved(new_rows, source, unread))
        is_sink_read = all(
            pair.sink_ends.get(p.partition, p.start) >= p.lso for p in sink.partitions
        )
        self._is_source_read = all(
            p.partition in pair.sources and pair.sources[p.partition].end >= p.lso
            for p in source.partitions
        )
        rows = self._held_rows(unread)
        pair.settle(now_ms, is_sink_read=is_sink_read, held=rows)
        judged = None if rows is None else pair.with_held(rows)
        pair.counts.pending = self._pending(kafka, sink, log, judged or pair)
        if contract.by_key:
            before_s = (now_ms - contract.contract.remember) // 1_000
            # An output may still come while the sink is not read so far, or its input is not late.
            patience = max(contract.contract.remember, contract.contract.within)
            open_before_s = (pair.through_ms - patience) // 1_000
            self._identities.forget(pair, self.turn, before_s=before_s, open_before_s=open_before_s)
            self.turn = (self.turn + 1) % SLICES
        self._judge(judged)
        self.note_behind(source, sink)
        if not self.figures.behind:
            self.figures.read_at = began
        return read

    def note_behind(self, source: Bounds, sink: Bounds) -> None:
        """Count what is not read. Before reading, too: it may fail."""
        ends = {p: part.end for p, part in self.pair.sources.items()}
        self.figures.behind = sum(
            max(0, p.lso - reached.get(p.partition, p.start))
            for bounds, reached in ((source, ends), (sink, self.pair.sink_ends))
            for p in bounds.partitions
        )

    def _note_removed(self, source: Bounds, sink: Bounds) -> None:
        """Note what Kafka removed before it was read. Raises TopicError for a log that became
        shorter."""
        pair = self.pair
        for bounds, ends in (
            (source, {p: part.end for p, part in pair.sources.items()}),
            (sink, pair.sink_ends),
        ):
            for p in bounds.partitions:
                end = ends.get(p.partition, 0)
                if p.start > end:
                    pair.note_removed(p.partition, p.start, is_source=bounds is source)
                if end > p.hw:
                    raise TopicError(
                        f"The log of {bounds.topic}-{p.partition} ends at {p.hw:,}, and was read up"
                        f" to {end:,}: it was truncated. `topicproof watch --anew` begins again."
                    )

    def _read_source(
        self, kafka: Connection, bounds: Bounds, spans: Mapping[int, tuple[int, int]], now_ms: int
    ) -> int:
        pair, topic = self.pair, self.contract.source
        log, batches = read_log(
            kafka, topic, bounds, spans, self._source_transactions, readable=pair.by_key
        )
        hws = {p.partition: p.hw for p in bounds.partitions}
        by_headers = [span for span in log if span.is_whole and not pair.by_key]
        log = [span for span in log if not span.is_whole or pair.by_key]
        if not pair.by_key and log:
            # Their records must be received, so their sizes are looked at.
            refused: list[UnreadableBatch] = []
            with_holes = tuple(
                PartitionBounds(
                    span.partition,
                    span.begin,
                    span.end,
                    min(hws[span.partition], span.end + BEYOND_OFFSETS),
                )
                for span in log
            )
            batches = kafka.scan(
                topic, Bounds(topic, with_holes), readable=True, on_unreadable=refused.append
            )
            log = with_unreadable(log, refused)
        reader = RecordReader(kafka, topic, batches, log, self.looks)
        visible = {span.partition: array("q") for span in log}
        digests = {span.partition: bytearray() for span in log}
        for message in reader.messages():
            partition = message.partition() or 0
            visible[partition].append(message.offset() or 0)
            if pair.by_key:
                digests[partition] += self._digest(message)
        for span in by_headers:
            pair.add_source(source_span(span, hws[span.partition], None), now_ms)
        for span in reader.log:
            offsets = np.frombuffer(visible[span.partition], np.int64)
            hw = hws[span.partition]
            if not pair.by_key:
                doubtful, of_source = source_by_lineage(span, hw, offsets)
                pair.add_source(of_source, now_ms)
                note_unreadable(pair, doubtful, is_source=True)
                continue
            whole = source_span(span, hw, offsets, unread_offsets(span))
            named, taken = self._identities.add_inputs(
                pair,
                span.partition,
                offsets=offsets,
                digests=digests[span.partition],
                now_s=now_ms // 1_000,
            )
            pair.add_source(whole._replace(inputs=named), now_ms)
            pair.take_back(span.partition, taken)
            note_unreadable(pair, span, is_source=True)
        return sum(span.end - span.begin for span in (*by_headers, *reader.spans))

    def _digest(self, message: Message | RawRecord) -> bytes:
        """Return the digest of what identifies an input."""
        try:
            return digest(held(message, self._match.source))
        except NotText:
            self.pair.counts.unreadable += 1
            return NO_DIGEST

    def _read_sink(
        self,
        kafka: Connection,
        bounds: Bounds,
        spans: Mapping[int, tuple[int, int]],
        log: list[LogSpan],
    ) -> SinkRows:
        """Return the new records of the sink that read_committed received, and add what the raw log
        says to `log`."""
        pair, topic = self.pair, self.contract.sink
        spans_read, batches = read_log(
            kafka, topic, bounds, spans, self._sink_transactions, readable=True
        )
        reader = RecordReader(kafka, topic, batches, spans_read, self.looks)
        rows = self._places.rows(reader.messages())
        log.extend(reader.log)
        rows = fold_log(pair, rows, log)
        pair.counts.of_namesake += int((rows.source_partition == NAMESAKE).sum())
        pair.counts.unreadable += int((rows.source_partition == UNREADABLE).sum())
        return rows.take(~np.isin(rows.source_partition, (NAMESAKE, UNREADABLE)))

    def _unread_identities(self, kafka: Connection, source: Bounds) -> Set[tuple[int, int]] | None:
        """Return the identities of the source's records that its open transactions withhold; None
        if they cannot be told, or if it is to be read further. Raises ClusterError, and
        kafka-python's errors."""
        sources = self.pair.sources
        if any(
            p.partition not in sources or sources[p.partition].end < p.lso
            for p in source.partitions
        ):
            return None
        # An input is identified by its own side of the match.
        match = replace(self._match, sink=self._match.source)
        places = PlaceReader(self.contract.source, match)
        rows = self._withheld_inputs.read(kafka, places, [], source)
        if rows is None or self._withheld_inputs.unread:
            return None
        return {*zip(rows.identity_high.tolist(), rows.identity_low.tolist(), strict=True)}

    def _resolved(self, rows: SinkRows, source: Bounds, unread: Unread) -> SinkRows:
        """Return the rows with their inputs' places, if these are matched by what they hold."""
        pair = self.pair
        if not pair.by_key:
            return rows
        is_read = all(
            p.partition in pair.sources and pair.sources[p.partition].end >= p.hw
            for p in source.partitions
        )
        return self._identities.resolve_outputs(pair, rows, is_source_read=is_read, unread=unread)

    def _held_rows(self, unread: Unread = no_unread) -> SinkRows | None:
        """Return the outputs that are held, with the places of their inputs; None if there are any,
        and the source is to be read further: reading it tells more, and costs less."""
        pair = self.pair
        if pair.held.size and not self._is_source_read:
            return None
        return self._identities.resolve_held(pair, unread) if pair.by_key else pair.held

    def _pending(
        self, kafka: Connection, sink: Bounds, log: list[LogSpan], judged: WatchedPair
    ) -> int:
        """Count the late outputs that an open transaction of the sink may hold. `judged`: the pair
        with the outputs that are held."""
        missing = judged.missing_count()
        is_withheld = any(p.lso < p.hw for p in sink.partitions)
        if not missing or not is_withheld:
            return 0
        rows = self._withheld.read(kafka, self._places, log, sink)
        if rows is None:
            return missing
        nameless = int((rows.source_partition == UNREADABLE).sum())
        unread = sum(self._withheld.unread.values())
        if self.pair.by_key:
            nameless = int(((rows.identity_high == 0) & (rows.identity_low == 0)).sum())
            # Of inputs that share an identity, those that are held are outputs of the first ones.
            rows = rows_together((self.pair.held, rows))
            rows = self._identities.resolve(rows, np.ones(rows.size, bool), is_counted=False)
        # Any late output may be one without an identity, or one that nobody reads.
        return min(missing, judged.missing_among(rows) + nameless + unread)

    def _judge(self, judged: WatchedPair | None = None) -> None:
        """Judge what was read so far. `judged`: the pair with the outputs that are held. Without
        it, any late output may be among them."""
        pair, figures = self.pair, self.figures
        pending = pair.counts.pending
        if judged is None:
            judged, pending = pair, min(pair.missing_count(), pending + pair.held.size)
        doubts = []
        if pair.counts.hidden:
            doubts.append(
                f"{counted(pair.counts.hidden, 'record')} that the raw log commits"
                f" {'was' if pair.counts.hidden == 1 else 'were'} not delivered."
            )
        if pair.counts.unreadable:
            doubts.append(
                f"{counted(pair.counts.unreadable, 'record')} cannot be told: the name of a header"
                " is not UTF-8."
            )
        if pair.unobserved:
            doubts.append(
                f"{counted(pair.unobserved, 'record')} of {pair.sink_topic} had to be"
                " decoded from the raw log, beside an aborted batch that cannot be read: what a"
                " consumer gets there was not observed."
            )
        if pair.counts.undecided:
            doubts.append(
                f"{counted(pair.counts.undecided, 'record')} of {pair.sink_topic} without the"
                " marker of a transaction: nothing in the log says whether it was committed."
            )
        figures.verdict = verdict_of(judged, self.contract.terms, pending=pending, doubts=doubts)
        now, causes = time.monotonic(), judged.causes
        self._pending_since = {
            kind: self._pending_since.get(kind, now)
            for kind in figures.verdict.unknown
            if (kind == gap.NAME and pair.counts.pending) or causes.get(kind, Counter())[PENDING]
        }
        figures.inputs_due, figures.inputs_late = pair.counts.due_total, pair.counts.late_total
        figures.judged = pair.counts.committed + pair.counts.aborted
        figures.aborted = pair.counts.aborted

    @property
    def _identities(self) -> Identities:
        return self.store.identities(self.name)

    @property
    def _match(self) -> MatchTerms:
        match = self.contract.contract.terms(None).match
        topic_id = self.topic_ids[self.contract.source] or None
        return MatchTerms(self.pair.by_key, match.source, match.sink, topic_id)

    @property
    def _places(self) -> PlaceReader:
        return PlaceReader(self.contract.source, self._match)

    def conditions(self) -> list[Condition]:
        """Return what is wrong with the contract, by what was judged so far."""
        verdict = self.figures.verdict
        if verdict is None:
            return []
        wrong = [verdict.by_kind[kind] for kind in verdict.violating]
        wrong += [
            replace(
                verdict.by_kind[kind],
                why=f"{verdict.by_kind[kind].why} But so few inputs cannot explain {rows:,} of"
                " them: these violate the contract.",
            )
            for kind, rows in verdict.unexplained.items()
        ]
        unknown = [
            finding
            for finding in verdict.findings
            if finding.kind in PREMISES and finding.outcome is Outcome.UNKNOWN
        ]
        # One transaction ends soon. But it may hang, or they may follow one another without an end.
        now = time.monotonic()
        pending = [
            verdict.by_kind[kind]
            for kind, since in self._pending_since.items()
            if now - since >= PATIENCE_S
        ]
        return [
            *(self._condition(Kind.VIOLATED, finding) for finding in wrong),
            *(self._condition(Kind.UNKNOWN, finding) for finding in unknown),
            *(self._condition(Kind.UNKNOWN, finding, OF_UNKNOWN[PENDING]) for finding in pending),
            *self._doubts(verdict.doubts),
        ]

    @property
    def unknown(self) -> frozenset[tuple[str, str]]:
        """The contract with each kind of finding of which nothing is known now. None of its alarms
        of them is over."""
        verdict = self.figures.verdict
        kinds = () if verdict is None else verdict.unknown
        if self.pair.held.size and not self._is_source_read:
            # Each may be among what is held and not judged.
            kinds = self.contract.terms.kinds
        return frozenset((self.contract.name, kind) for kind in kinds)

    def _doubts(self, doubts: Sequence[str]) -> Iterator[Condition]:
        """Yield a condition for the reasons why nothing more can be judged."""
        contract, pair = self.contract, self.pair
        places = [
            (pair.source_topic if each.is_source else pair.sink_topic, each.partition, each.first)
            for each in pair.unreadable[:NAMES_MAX]
        ]
        if doubts:
            yield Condition(
                kind=Kind.UNKNOWN,
                holder=f"{contract.name} doubts",
                sentence=f"Contract {contract.name} cannot be judged in full: {' '.join(doubts)}",
                topics=(contract.source, contract.sink),
                next_step=(
                    OF_UNKNOWN[UNREADABLE_RECORDS]
                    if places
                    else "`topicproof check` of the same contract names every record."
                ),
                offsets=tuple(places),
                contract=contract.name,
                finding="doubts",
            )

    def _condition(self, kind: Kind, finding: Finding, step: str = "") -> Condition:
        """`step`: what to do about it; without it, what its kind says."""
        contract = self.contract
        offsets = []
        topic = contract.source if finding.kind == source_removed.NAME else contract.sink
        for example in finding.examples[:NAMES_MAX]:
            if example.partition is not None and example.offset is not None:
                offsets.append((topic, example.partition, example.offset))
            elif example.lineage is not None:
                _, partition, offset, *_ = example.lineage.split("/")
                offsets.append((contract.source, int(partition), int(offset)))
        return Condition(
            kind=kind,
            holder=f"{contract.name} {finding.kind}",
            sentence=f"Contract {contract.name}, {finding.kind}: {finding.why}",
            topics=(contract.source, contract.sink),
            next_step=(
                "`topicproof check` of the same contract names every record."
                f" {step or next_step(finding)}"
            ).strip(),
            offsets=tuple(offsets),
            contract=contract.name,
            finding=finding.kind,
        )


def _begun(contract: WatchedContract) -> WatchedPair:
    """Return the pair of a contract before anything was read."""
    return WatchedPair(
        contract.source,
        contract.sink,
        outputs=contract.outputs,
        within_ms=contract.contract.within,
        by_key=contract.by_key,
    )


def unread(contract: WatchedContract, figures: ContractFigures) -> Condition:
    """Return the condition of a contract whose topics cannot be read."""
    return Condition(
        kind=Kind.UNKNOWN,
        holder=f"{contract.name} unread",
        sentence=f"Contract {contract.name} is not judged any more: {figures.trouble}",
        topics=(contract.source, contract.sink),
        next_step="Until its topics can be read again, nothing is known of it.",
        contract=contract.name,
        finding="unread",
    )


def refused(contract: RefusedContract) -> Condition:
    """Return the condition of a contract on the list that is not judged."""
    return Condition(
        kind=Kind.UNKNOWN,
        holder=f"{contract.name} refused",
        sentence=f"Contract {contract.name} is refused, and not judged: {contract.why}",
        topics=tuple(topic for topic in (contract.source, contract.sink) if topic),
        next_step=REFUSED_STEP,
        contract=contract.name,
        finding="refused",
    )


def next_step(finding: Finding) -> str:
    """Return what to do about a kind."""
    from topicproof.validators.kinds.catalogue import VALIDATORS

    return next(
        (v.TRAITS.next_step for v in VALIDATORS if finding.kind == v.NAME),
        "",
    )


def _shares(
    reached: Mapping[int, int], bounds: Bounds, offsets_max: int
) -> dict[int, tuple[int, int]]:
    """Return what is read of each partition at this look: what is new, at most so many offsets."""
    new = {
        p.partition: (max(reached.get(p.partition, p.start), p.start), p.lso)
        for p in bounds.partitions
    }
    waiting = sum(max(0, end - first) for first, end in new.values())
    share = 1.0 if waiting <= offsets_max else offsets_max / waiting
    return {
        p: (first, min(max(first, end), first + max(1, int((end - first) * share))))
        for p, (first, end) in new.items()
    }
