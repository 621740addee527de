"""The raw log held against a slow and simple oracle, on a topic that librdkafka and Kafka's Java
client wrote together.

The oracle reads the broker's own files, batch by batch with kafka-python, and keeps one open
transaction per producer id. Which offsets hold a record it takes from two plain consumers, so that
it decodes none itself. It shares no code with `topicproof.backend.kafka.log.rawlog`, `batches` or
`fates`.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.record import MemoryRecords

from tests.backend.kafka.topics import Writer, broker_setting, delete_below, delivered
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import READ_COMMITTED, READ_UNCOMMITTED, admin_config
from topicproof.backend.kafka.log.batches import COMPRESSIONS
from topicproof.backend.kafka.log.fates import balance, fate_ranges, total, transactions
from topicproof.backend.kafka.log.over_partitions import over_partitions
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.backend.services.jars import BROKER, TOOLS, jar_files
from topicproof.backend.services.processes import java
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

NewTopic = Callable[..., str]

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COPIED_RECORDS, COPIED_AT_ONCE = 300, 10
ENDS = "+++++-----+++++"
"""How each transaction of the librdkafka producers ends."""
OUTCOMES = {"+": "COMMITTED", "-": "ABORTED"}
COMPACTING = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "100",
}


@dataclass
class Part:
    """One transaction on one partition, as the oracle finds it."""

    partition: int
    producer_id: int
    producer_epoch: int = -1
    offsets: list[int] = field(default_factory=list)
    """Where its records lie."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    bytes: int = 0
    outcome: str = "OPEN"
    marker: tuple[int | None, int | None] = (None, None)
    """Offset and epoch."""

    def row(self) -> tuple[object, ...]:
        places = (self.spans[0][0], self.spans[-1][1], len(self.offsets), self.bytes)
        return (
            self.partition,
            self.producer_id,
            self.producer_epoch,
            *places,
            self.outcome,
            *self.marker,
        )


@dataclass
class Oracle:
    """What the files and the consumers say of one topic within the bounds."""

    fates: dict[tuple[int, int], Fate]
    parts: list[Part]


def ask_oracle(data: Path, bootstrap: str, bounds: Bounds) -> Oracle:
    committed = delivered(bootstrap, bounds, READ_COMMITTED)
    uncommitted = delivered(bootstrap, bounds, READ_UNCOMMITTED)
    answer = Oracle({}, [])
    for p in bounds.partitions:
        files = sorted((data / f"{bounds.topic}-{p.partition}").glob("*.log"))
        markers, parts = read_files(
            files, p, {offset for number, offset in uncommitted if number == p.partition}
        )
        answer.parts += parts
        for offset in range(p.start, p.hw):
            place = (p.partition, offset)
            if offset >= p.lso:
                fate = Fate.PENDING
            elif place in committed:
                fate = Fate.COMMITTED
            elif place in uncommitted:
                fate = Fate.ABORTED
            else:
                fate = Fate.MARKER if offset in markers else Fate.GONE
            answer.fates[place] = fate
    return answer


def read_files(
    files: list[Path], p: PartitionBounds, held: set[int]
) -> tuple[set[int], list[Part]]:
    """The offsets of markers, and the transactions that hold records, of one partition's log."""
    markers, parts = set[int](), []
    under_way: dict[int, Part] = {}
    for file in files:
        records = MemoryRecords(file.read_bytes())
        while records.has_next():
            batch = records.next_batch()
            if (
                batch.last_offset < p.start
                or batch.base_offset >= p.hw
                or not batch.is_transactional
            ):
                continue
            producer = batch.producer_id
            if not batch.is_control_batch:
                offsets = [
                    offset
                    for offset in range(batch.base_offset, batch.last_offset + 1)
                    if offset in held
                ]
                if offsets:
                    part = under_way.setdefault(producer, Part(p.partition, producer))
                    part.producer_epoch = batch.producer_epoch
                    part.offsets += offsets
                    part.spans.append(
                        (
                            batch.base_offset if batch.base_offset >= p.start else offsets[0],
                            batch.last_offset,
                        )
                    )
                    part.bytes += batch.size_in_bytes
                continue
            for control in batch:
                markers.add(control.offset)
                if producer in under_way:
                    part = under_way.pop(producer)
                    part.outcome = "COMMITTED" if control.commit else "ABORTED"
                    part.marker = (control.offset, batch.producer_epoch)
                    parts.append(part)
    return markers, [*parts, *under_way.values()]


def agree(data: Path, bootstrap: str, topic: str) -> Oracle:
    """Hold every offset and every transaction of the raw log against the oracle's, at a moment when
    no file changes."""
    looks: list[tuple[Bounds, pa.Table, Oracle]] = []

    def look() -> bool:
        before = files_of(data, topic)
        bounds = fetch_bounds(Address(bootstrap), topic)
        table = scan(Address(bootstrap), topic, bounds, check_crc=True)
        looks.append((bounds, table, ask_oracle(data, bootstrap, bounds)))
        return files_of(data, topic) == before

    wait_until(look, 60, f"a look at {topic} while the cleaner rests")
    bounds, table, oracle = looks[-1]
    expected = {"COMMITTED": Fate.COMMITTED, "ABORTED": Fate.ABORTED}
    for part in oracle.parts:
        lso = bounds.partitions[part.partition].lso
        fates = {oracle.fates[(part.partition, offset)] for offset in part.offsets if offset < lso}
        assert fates <= {expected.get(part.outcome)}, (
            "the oracle's own witnesses, files and consumers, disagree"
        )
    ranges = fate_ranges(table, bounds)
    for row in pa.Table.from_pandas(ranges).to_pylist():
        span = range(row["first_offset"], row["last_offset"] + 1)
        found = Counter(oracle.fates[(row["partition"], offset)] for offset in span)
        # Which offsets of a thinned-out batch are left is not in its header, only how many.
        kept = row["records"] if row["fate"] in (Fate.COMMITTED, Fate.ABORTED) else len(span)
        assert found == Counter([row["fate"]] * kept + [Fate.GONE] * (len(span) - kept)), row
    assert {fate: n for fate, n in total(balance(ranges, bounds)).items() if n} == Counter(
        oracle.fates.values()
    )
    names = [
        "partition",
        "producer_id",
        "producer_epoch",
        "first_offset",
        "last_offset",
        "records",
        "bytes",
        "outcome",
    ]
    found_parts = pa.Table.from_pandas(
        transactions(table, bounds)[[*names, "marker_offset", "marker_epoch"]]
    )
    assert sorted(
        tuple(row[name] for name in found_parts.column_names) for row in found_parts.to_pylist()
    ) == sorted(part.row() for part in oracle.parts)
    return oracle


def files_of(data: Path, topic: str) -> list[tuple[str, int, int]]:
    """The log's files as they are: name, number on the disk, size. The cleaner puts new ones in
    their place."""
    return sorted(
        (str(f), f.stat().st_ino, f.stat().st_size) for f in data.glob(f"{topic}-*/*.log")
    )


def copy(bootstrap: str, settings: Settings, source: str, topic: str) -> subprocess.Popen[bytes]:
    """Kafka's own test program: copies one partition in transactions of Java's client, and aborts a
    third of them."""
    jars = [*jar_files(settings, BROKER), *jar_files(settings, TOOLS)]
    options = {
        "broker-list": bootstrap,
        "input-topic": source,
        "input-partition": "0",
        "output-topic": topic,
        "consumer-group": f"{topic}-copier",
        "transactional-id": f"{topic}-copier",
        "transaction-size": str(COPIED_AT_ONCE),
    }
    command = [
        java(),
        "-Xmx128m",
        "-cp",
        ":".join(map(str, jars)),
        COPIER,
        "--enable-random-aborts",
    ]
    command += [word for name, value in options.items() for word in (f"--{name}", value)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def configure(bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
    """Change the topic's settings."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient(admin_config(Address(bootstrap)))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


@pytest.fixture(scope="module")
def data(settings: Settings) -> Path:
    """Where the embedded broker keeps its partitions."""
    return settings.services / "kafka-1" / "broker-1" / "data"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_fate_and_transaction_is_what_the_oracle_says(
    bootstrap: str, settings: Settings, data: Path, new_topic: NewTopic, compression: str
) -> None:
    """Two librdkafka producers and one without transactions write beside Java's client, which
    aborts at random. Then the log is compacted, a transaction is left open, and records are
    deleted. Each time all witnesses agree."""
    source = new_topic()
    Writer(bootstrap, source).write(f"n{COPIED_RECORDS}")
    # The broker compresses what Java's client sends, which cannot be told to.
    topic = new_topic(
        partitions=2, compression_type="uncompressed" if compression == "none" else compression
    )
    writer = Writer(bootstrap, topic, {"compression.type": compression})
    copier = copy(bootstrap, settings, source, topic)
    for end in ENDS:
        writer.write("n2 A20 B3", partition=0)
        writer.write("B1 A30 n1", partition=1)
        writer.write(f"B{end} A{end}")
    assert copier.wait(60) == 0
    wait_until(
        lambda: all(p.lso == p.hw for p in fetch_bounds(Address(bootstrap), topic).partitions),
        20,
        "every marker",
    )

    oracle = agree(data, bootstrap, topic)
    bounds = fetch_bounds(Address(bootstrap), topic)
    whole = over_partitions(transactions(scan(Address(bootstrap), topic, bounds), bounds))
    over_both = whole[whole["partitions"].map(len) == 2].groupby("producer_id")["outcome"].agg(list)
    assert over_both.tolist() == [[OUTCOMES[end] for end in ENDS]] * 2
    copied = Counter(
        part.outcome for part in oracle.parts if part.producer_id not in over_both.index
    )
    assert copied["COMMITTED"] == COPIED_RECORDS / COPIED_AT_ONCE and copied["ABORTED"] > 0
    assert len(whole) == 2 * len(ENDS) + copied.total()

    first_markers = {part.marker[0] for part in oracle.parts[:5]}

    def thinned() -> bool:
        writer.write("A5 A+ B2 B- A2 A+")
        table = scan(Address(bootstrap), topic, fetch_bounds(Address(bootstrap), topic))
        span = pc.add(pc.subtract(table["last_offset"], table["base_offset"]), 1)
        sparse = bool(
            pc.any(pc.and_(pc.greater(table["count"], 0), pc.less(table["count"], span))).as_py()
        )
        return sparse and not first_markers <= set(
            table.filter(pc.is_valid(table["control"]))["base_offset"].to_pylist()
        )

    with broker_setting(bootstrap, "log.cleaner.backoff.ms", "100"):
        configure(bootstrap, topic, COMPACTING)
        wait_until(thinned, 60, "a batch that compaction has thinned out, and a marker gone")
    configure(bootstrap, topic, {"cleanup.policy": "delete"})
    writer.write("n2 B3 n1", partition=0)
    writer.write("B2 A3 A+", partition=1)
    left = Counter(agree(data, bootstrap, topic).fates.values())
    assert left[Fate.GONE] > 0 and left[Fate.PENDING] > 0

    for partition in fetch_bounds(Address(bootstrap), topic).partitions:
        delete_below(bootstrap, topic, partition.start + 33, partition.partition)
    assert len(agree(data, bootstrap, topic).fates) == left.total() - 66
