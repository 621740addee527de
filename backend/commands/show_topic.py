"""What is wrong with a cluster, and its topics, in a terminal: balance, transactions, blockers,
producers and consumer groups."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from topicproof.backend.commands.terminal import Piece, Style, Styled, Table, Terminal
from topicproof.backend.kafka.browse.causes import Cause, Severity, abort_command
from topicproof.backend.kafka.browse.inspect import ProducerView, TopicView
from topicproof.backend.kafka.browse.overview import Overview
from topicproof.backend.kafka.coordination.ended import EndedTransaction
from topicproof.backend.kafka.coordination.transactions import TransactionsOfCluster
from topicproof.validators.coordinator import TWO_PHASE_TIMEOUT_MS, OpenTransaction, short_name
from topicproof.validators.finding import Fate
from topicproof.validators.sentences import brief, first_of

ALWAYS = {Fate.COMMITTED, Fate.ABORTED, Fate.PENDING, Fate.MARKER}
"""Fates that are always shown, even without offsets."""
PRODUCERS_MAX = 20
"""Maximum producers shown, latest writers first; `--json` has all."""
WHYS_MAX = 20
"""Partitions of groups that are explained; --json has all."""
IDS_MAX = 100
"""Maximum ids shown, active ones first; `--json` has all."""
PROTOCOLS = {False: "version 2", True: "exposed", None: ""}
"""Protocol names, by whether a transactional id is exposed to late requests."""
EXPOSED = (
    "A commit that arrives late can end their next transaction, unless they take new epochs"
    " themselves, as this project's sink does."
)
ENDED_MAX, TOPICS_NAMED = 20, 3
"""Ended transactions shown, the latest first, and topics of each; `--json` has all."""
CAUSES_MAX = 50
"""Causes shown, worst first; `--json` has all."""
SEVERITY_STYLES: dict[Severity, Style] = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTE: "dim",
}
TEXTS = {"group", "state", "outcome", "producer", "transactional id", "note", "who", "protocol"}
TEXTS |= {"share group", "isolation", "client id", "host", "partitions here"}
"""Left-aligned text columns. Text may wrap, numbers never do."""


def print_topic(out: Terminal, view: TopicView, at: str = "") -> None:
    """Print a topic for `topicproof inspect`, in 80 columns or more."""
    fates = {fate: count for fate, count in view.fates.items() if count or fate in ALWAYS}
    terms = " + ".join(f"{count:,} {fate.lower()}" for fate, count in fates.items())
    out.line(Styled(view.topic, "bold"), f" at {view.taken_at:%Y-%m-%d %H:%M:%S} UTC")
    out.line(f"{_count(view.bounds.offsets, 'offset')} = {terms}")
    if view.outside:
        out.line(f"{_count(view.outside, 'record')} in no transaction")
    _partitions(out, view, list(fates))
    _transactions(out, view)
    _in_the_way(out, view, at)
    _producers(out, view)
    _groups(out, view)
    for question in view.not_heard:
        out.line(Styled("no answer", "yellow"), f" {question}")


def print_causes(out: Terminal, cluster: Overview, listed: Sequence[Cause]) -> None:
    """Print what is wrong with a cluster for `topicproof status`."""
    out.line(
        Styled(f"Cluster {cluster.cluster}", "bold"),
        f" at {cluster.taken_at:%Y-%m-%d %H:%M:%S} UTC: {_count(cluster.brokers, 'broker')},"
        f" {_count(len(cluster.topics), 'topic')}",
    )
    for question in cluster.not_heard:
        out.line(Styled("no answer", "yellow"), f" {question}")
    if all(cause.severity is Severity.NOTE for cause in listed):
        if cluster.not_heard:
            out.line(Styled("Nothing of what was answered is wrong.", "yellow"))
        else:
            out.line(Styled("Nothing is wrong.", "green"))
    for cause in listed[:CAUSES_MAX]:
        since = "" if cause.since is None else f" Since {cause.since:%Y-%m-%d %H:%M:%S} UTC."
        out.blank()
        out.line(
            Styled(cause.condition, SEVERITY_STYLES[cause.severity]),
            f" {cause.holder} {cause.effect}.",
        )
        out.line(f"  It {cause.status}.{since}")
        out.line(f"  {cause.advice}")
        for command in cause.commands:
            out.line(f"  {command}")
    if len(listed) > CAUSES_MAX:
        out.line(f"and {len(listed) - CAUSES_MAX:,} more; --json has all")


def print_transactions(out: Terminal, view: TransactionsOfCluster, at: str) -> None:
    """Print open transactions and transactional ids for `topicproof transactions`."""
    for topic, opened in view.open.items():
        _open(out, f"Open on {topic}", topic, opened, at)
    if not view.open:
        out.line("No transaction is open on any topic.")
    if view.note:
        out.line(view.note)
    _ended(out, view.ended)
    states = Counter(entry.state for entry in view.ids)
    counts = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    names = ("transactional id", "state", "producer", "age", "timeout", "partitions", "protocol")
    table = _table(*names)
    for entry in view.ids[:IDS_MAX]:
        table.add(
            short_name(entry.transactional_id),
            entry.state,
            f"{entry.producer_id}"
            + ("" if entry.producer_epoch is None else f":{entry.producer_epoch}"),
            "" if entry.age_ms is None else brief(entry.age_ms),
            _timeout(entry.timeout_ms),
            f"{len(entry.partitions):,}" if entry.partitions else "",
            PROTOCOLS[entry.exposed],
        )
    more = f", the first {IDS_MAX} here" if len(view.ids) > IDS_MAX else ""
    _section(out, "Transactional ids", table, f": {counts or 'none'}{more}")
    if any(entry.exposed for entry in view.ids):
        out.line(f"{view.protocols}. {EXPOSED}")


def _ended(out: Terminal, ended: Sequence[EndedTransaction]) -> None:
    """Print the transactions that ended last."""
    if not ended:
        return
    now_ms = int(time.time() * 1000)
    table = _table("ended", "transactional id", "outcome", "took", "timeout", "partitions", "note")
    for each in ended[:ENDED_MAX]:
        table.add(
            f"{brief(max(0, now_ms - each.ended_ms))} ago",
            each.transactional_id,
            each.outcome.lower() + (f", {each.reason}" if each.reason else ""),
            "" if each.began_ms is None else brief(max(0, each.ended_ms - each.began_ms)),
            _timeout(each.timeout_ms),
            f"{len(each.partitions):,}" if each.partitions else "",
            first_of(each.topics, TOPICS_NAMED),
        )
    more = f": the last {ENDED_MAX} of {len(ended):,}" if len(ended) > ENDED_MAX else ""
    _section(out, "Ended last", table, more)


def _partitions(out: Terminal, view: TopicView, fates: list[Fate]) -> None:
    table = _table("p", "start", "LSO", "HW", *(fate.lower() for fate in fates))
    for partition in view.partitions:
        counts = (partition.fates.get(fate, 0) for fate in fates)
        table.add(
            str(partition.partition),
            *(f"{n:,}" for n in (partition.start, partition.lso, partition.hw, *counts)),
        )
    _section(out, "Partitions", table)


def _transactions(out: Terminal, view: TopicView) -> None:
    moved = view.transactions
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in moved.aborted_by.items())
    aborted = f"{_count(moved.records_aborted, 'record')}" + (f"; {reasons}" if reasons else "")
    ends = (
        f": {_count(moved.total, 'transaction')} ="
        f" {moved.committed:,} committed ({_count(moved.records_committed, 'record')})"
        f" + {moved.aborted:,} aborted{f' ({aborted})' if moved.aborted else ''}"
        f" + {moved.open:,} open"
    )
    on = f", on {_count(moved.partitions, 'partition')}" if moved.total else ""
    damage = [
        Styled(f" + {count:,} {word}", "red")
        for count, word in (
            (moved.split, "split: committed on one partition, aborted on another"),
            (moved.unexplained, "without a marker"),
        )
        if count
    ]
    table = _table(
        "p", "first", "last", "records", "outcome", "marker", "producer", "transactional id"
    )
    for transaction in moved.last:
        table.add(
            str(transaction.partition),
            *(
                f"{n:,}"
                for n in (transaction.first_offset, transaction.last_offset, transaction.records)
            ),
            transaction.outcome + (f", {transaction.reason}" if transaction.reason else ""),
            _number(transaction.marker_offset),
            f"{transaction.producer_id}:{transaction.producer_epoch}",
            transaction.transactional_id or "",
        )
    _section(out, "Transactions", table, ends, *damage, on)


def _in_the_way(out: Terminal, view: TopicView, at: str) -> None:
    if view.open:
        _open(out, "Blocking read_committed", view.topic, view.open, at)
    for offset in view.unstable:
        out.line(Styled(offset.why, "red" if offset.stuck else "yellow"))


def _timeout(timeout_ms: int | None) -> str:
    if timeout_ms == TWO_PHASE_TIMEOUT_MS:
        return "none: two-phase commit"
    return "" if timeout_ms is None else brief(timeout_ms)


def _open(
    out: Terminal, title: str, topic: str, opened: Sequence[OpenTransaction], at: str
) -> None:
    table = _table("p", "from", "records", "withheld", "age", "timeout", "state", "who")
    for transaction in opened:
        table.add(
            str(transaction.partition),
            *(
                f"{n:,}"
                for n in (transaction.start_offset, transaction.records, transaction.withheld)
            ),
            brief(transaction.age_ms),
            _timeout(transaction.timeout_ms),
            _state(transaction),
            transaction.name,
        )
    _section(out, title, table)
    for transaction in opened:
        if transaction.hanging or transaction.overdue or transaction.unseen:
            out.line(Styled(transaction.why, "red"))
        elif transaction.two_phase:
            out.line(Styled(transaction.why, "yellow"))
        if transaction.hanging:
            command = abort_command(transaction, topic, at)
            out.line(f"  Dry run of the abort: {command}")


def _state(transaction: OpenTransaction) -> Piece:
    if transaction.hanging:
        return Styled("hanging", "red")
    if transaction.unseen:
        return Styled("not known", "yellow")
    late = " stuck" if transaction.stuck else " overdue" if transaction.overdue else ""
    return f"{transaction.state}{late}" if not late else Styled(f"{transaction.state}{late}", "red")


def _producers(out: Terminal, view: TopicView) -> None:
    newest = sorted(view.producers, key=lambda producer: -producer.last_timestamp)[:PRODUCERS_MAX]
    table = _table(
        "p", "producer", "sequence", "last wrote", "open from", "state", "transactional id"
    )
    for producer in newest:
        table.add(*_producer(producer, view))
    more = (
        f", the last {len(newest)} of {len(view.producers):,} to write"
        if len(newest) < len(view.producers)
        else ""
    )
    _section(out, "Producers", table, more)


def _producer(producer: ProducerView, view: TopicView) -> tuple[str, ...]:
    ago_ms = max(0, int(view.taken_at.timestamp() * 1000) - producer.last_timestamp)
    return (
        str(producer.partition),
        f"{producer.producer_id}:{producer.producer_epoch}",
        f"{producer.last_sequence:,}",
        f"{brief(ago_ms)} ago",
        _number(producer.open_from),
        producer.state or "",
        producer.transactional_id or "",
    )


def _groups(out: Terminal, view: TopicView) -> None:
    _mirrored(out, view)
    if not view.lags and not view.shares:
        out.blank()
        out.line("No group owns a partition here, or has committed offsets.")
        return
    _group_table(out, view)
    _shares(out, view)
    _members(out, view)


def _mirrored(out: Terminal, view: TopicView) -> None:
    if not view.mirrored:
        return
    table = _table("group", "p", "committed there", "continues here at")
    for checkpoint in view.mirrored:
        offsets = (checkpoint.source_offset, checkpoint.sink_offset)
        table.add(checkpoint.group, str(checkpoint.partition), *(f"{n:,}" for n in offsets))
    _section(out, "Groups of another cluster, as MirrorMaker translates their offsets", table)


def _group_table(out: Terminal, view: TopicView) -> None:
    if not view.lags:
        return
    table = _table(
        "group",
        "state",
        "to read at\nread_committed",
        "to read at\nread_uncommitted",
        "HW -\ncommitted",
    )
    for lag in view.lags:
        counts = (lag.visible, lag.uncommitted, lag.subtraction)
        table.add(lag.group, lag.state, *(f"{n:,}" for n in counts))
    _section(out, "Groups", table)
    explained = [
        (lag.group, partition)
        for lag in view.lags
        for partition in lag.partitions
        if not partition.is_plain
    ]
    # What holds a group up comes first.
    explained.sort(key=lambda entry: not entry[1].stuck)
    for group, partition in explained[:WHYS_MAX]:
        about = (
            ""
            if partition.exact
            else " (Estimated: the offset lies in a batch that compaction thinned out.)"
        )
        text = f"{group}, partition {partition.partition}: {partition.why}{about}"
        out.line(Styled(text, "yellow" if partition.stuck else ""))
    if len(explained) > WHYS_MAX:
        out.line(f"and {len(explained) - WHYS_MAX:,} more; --json has all")


def _members(out: Terminal, view: TopicView) -> None:
    table = _table("group", "client id", "host", "partitions here")
    of_groups = [(lag.group, lag.members or ()) for lag in view.lags]
    of_groups += [(share.group, share.members) for share in view.shares]
    for group, members in of_groups:
        for member in members:
            table.add(group, member.client, member.host, member.places(view.topic) or "none")
    if table.rows:
        _section(out, "Members", table)


def _shares(out: Terminal, view: TopicView) -> None:
    table = _table("share group", "state", "isolation", "p", "start", "left", "withheld", "lag")
    for group in view.shares:
        for partition in group.partitions:
            counts = (
                partition.start_offset,
                partition.left,
                partition.withheld,
                partition.reported,
            )
            table.add(
                group.group,
                group.state,
                group.isolation or "unknown",
                str(partition.partition),
                *(_number(count) for count in counts),
            )
    if not table.rows:
        return
    rest = ": left is in records, at most; lag is what the coordinator tells, in offsets"
    _section(out, "Share groups", table, rest)
    for group in view.shares:
        if group.trap is not None:
            out.line(Styled(group.trap, "yellow"))
        for partition in group.partitions:
            if partition.stuck or partition.start_offset is None:
                out.line(f"{group.group}, partition {partition.partition}: {partition.why}")


def _section(out: Terminal, title: str, table: Table, *rest: Piece) -> None:
    out.blank()
    out.line(Styled(title, "bold"), *rest)
    if table.rows:
        out.table(table)


def _table(*names: str) -> Table:
    """Make a table with left-aligned words and right-aligned numbers."""
    return Table(names, TEXTS)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
