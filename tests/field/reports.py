"""Public reports of what goes wrong with exactly-once delivery, and what Topicproof says of each.
docs/FIELD.md is made from them by `make docs`; the test that each one names compares its sentence
with what is printed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topicproof.backend.settings import ROOT

PATH = ROOT / "docs" / "FIELD.md"
ANY = "…"
"""In a sentence: any text, such as a name, an id or a time."""
TRACKER = "https://issues.apache.org/jira/browse/"
TOGETHER = "tests/field/test_reports.py::test_a_reported_pipeline_is_found"
CHECK = "`check`"

HEAD = """# Reports from the field

Search this page for what you see. Each row is a report in a public tracker: what its users saw, the
command that shows it, the kind of finding, and the sentence that Topicproof prints. `…` stands for
names, ids and times of your topics; where records are matched by what they hold, that is printed in
place of `this input`. [KINDS.md](KINDS.md) has every kind, and
[OTHERS.md](OTHERS.md) shows how to check topics of other programs:

```sh
topicproof check --source orders --sink invoices --identity key --bootstrap broker:9092
```

The mechanism is that of the report, made small, with plain clients on a real broker where a broker
can be brought into it. The test that a row names makes it, demands the sentence, and
demands that the same pipeline without the fault holds. This page is made from the list in
`tests/field/reports.py` by `make docs`; a test fails when it is out of date.

"""


@dataclass(frozen=True)
class PublicReport:
    """What the report says, and what Topicproof says of it."""

    ids: tuple[str, ...]
    """`owner/repository#number`, or a key of Apache's Jira. The first one names it here."""
    symptom: str
    """What a user sees."""
    command: str
    verdict: str
    kind: str
    """Empty: no finding."""
    sentence: str
    """What is printed; `ANY` stands for any text."""
    test: str
    """The test that shows it: file and function."""

    def is_in(self, text: str) -> bool:
        """Return whether the sentence is in a text, however its lines are broken."""
        pattern = ".*?".join(re.escape(part) for part in self.sentence.split(ANY))
        return re.search(pattern, " ".join(text.split())) is not None


REPORTS = {
    report.ids[0]: report
    for report in (
        PublicReport(
            ids=("confluentinc/librdkafka#3575",),
            symptom="A commit returns success, and the first records of the transaction are not"
            " there. OUT_OF_ORDER_SEQUENCE_NUMBER in the client's log.",
            command=CHECK,
            verdict="VIOLATED",
            kind="gap",
            sentence="This input has no committed output, although later inputs of its partition"
            " have one. Its output was aborted: …, aborted because another producer took over its"
            " transactional id, …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("confluentinc/librdkafka#4953",),
            symptom="An idempotent producer writes a batch twice after an error at another"
            " partition.",
            command=CHECK,
            verdict="VIOLATED",
            kind="duplicate",
            sentence="The output of this input is committed 2 times; the first is at …. That one is"
            " of producer id …, epoch 0, outside transactions, …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=(
                "astubbs/parallel-consumer#261",
                "astubbs/parallel-consumer#262",
                "astubbs/parallel-consumer#434",
                "thomhurst/Dekaf#3370",
            ),
            symptom="One record is missing: its send failed (too large,"
            " INVALID_PRODUCER_ID_MAPPING), the error was swallowed, and the rest was committed.",
            command=CHECK,
            verdict="VIOLATED",
            kind="gap",
            sentence="This input has no committed output, although later inputs of its partition"
            " have one.",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("KAFKA-9079", "apache/kafka#7653"),
            symptom="The first transaction of a new group is aborted, and its records are never"
            " processed again.",
            command=CHECK,
            verdict="VIOLATED",
            kind="gap",
            sentence="Its output was aborted: …, aborted by its producer …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("spring-projects/spring-kafka#656", "spring-projects/spring-kafka#657"),
            symptom="After a rollback only the failed record comes again; the rest of its batch is"
            " lost.",
            command=CHECK,
            verdict="VIOLATED",
            kind="gap",
            sentence="This input has no committed output, although later inputs of its partition"
            " have one. Its output was aborted: …, aborted by its producer …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("spring-projects/spring-kafka#1259",),
            symptom="The recoverer throws, and the failed record is neither in the output topic nor"
            " in the dead letters, though its offset is committed.",
            command="`check` with `sink: {topics: [invoices, dead-letters]}`",
            verdict="VIOLATED",
            kind="gap",
            sentence="This input has no committed output, although later inputs of its partition"
            " have one. Its output was aborted: dead-letters…",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("spring-projects/spring-kafka#501",),
            symptom="The transaction of an output is rolled back, and its offset is committed"
            " nevertheless.",
            command="`check` with `group:`",
            verdict="VIOLATED",
            kind="offset_ahead",
            sentence="Group … is at offset 10, and of the expected outputs from this input to"
            " there none is committed: 1 lost, 0 pending.",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("akka/alpakka-kafka#742",),
            symptom="The committed offset goes backwards; after a restart old records come again.",
            command="`check` with `group:`",
            verdict="VIOLATED",
            kind="offset_behind",
            sentence="Group … is at offset 1, and the input at offset 4 has its output: it would be"
            " processed again.",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("aio-libs/aiokafka#921", "aio-libs/aiokafka#920"),
            symptom="The last record of each batch is processed twice: the offset of the record"
            " itself was committed, not the next one.",
            command="`check` with `group:`",
            verdict="VIOLATED",
            kind="offset_behind",
            sentence="Group … is at offset 9, and the input at offset 9 has its output: it would be"
            " processed again.",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("KAFKA-18660", "KAFKA-19367"),
            symptom="A producer id changes in the middle of a job, because the epochs of"
            " transactions of version 2 are used up. Is anything lost?",
            command=CHECK,
            verdict="HOLDS",
            kind="",
            sentence="inputs committed exactly once, in order",
            test="tests/field/test_reports.py::test_the_healthy_twins_hold",
        ),
        PublicReport(
            ids=("redpanda-data/redpanda#3616", "redpanda-data/redpanda#17921"),
            symptom="A commit is answered with an error although it was done, and the client sends"
            " the batch again.",
            command=CHECK,
            verdict="VIOLATED",
            kind="duplicate",
            sentence="The output of this input is committed 2 times; the first is at …. That one is"
            " of …, epoch 0, committed …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=(
                "redpanda-data/redpanda#9571",
                "redpanda-data/redpanda#10669",
                "KAFKA-17507",
                "apache/kafka#18168",
            ),
            symptom="After a rebalance the new owner begins at an older offset than the one"
            " committed last. All offsets look right afterwards.",
            command=CHECK,
            verdict="VIOLATED",
            kind="duplicate",
            sentence="The output of this input is committed 2 times; the first is at …. That one is"
            " of transactional id …, committed …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("databricks/iceberg-kafka-connect#200",),
            symptom="Two tasks with random transactional ids overlap. The second asks for the"
            " offset while the first one's transaction is open, and both commit.",
            command=CHECK,
            verdict="VIOLATED",
            kind="zombie_write",
            sentence="Both … and … committed outputs of 10 inputs of one source partition, offsets"
            " 0 to 9, in transactions that were open at the same time.",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("FLINK-8132", "apache/flink#5053"),
            symptom="After recovery a job commits a transaction of an older checkpoint again, and"
            " newer records are there twice.",
            command=CHECK,
            verdict="VIOLATED",
            kind="duplicate",
            sentence="The output of this input is committed 2 times; the first is at …. That one is"
            " of …, committed …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("KAFKA-13719", "apache/iceberg#17637"),
            symptom="Every record is there twice: two tasks run on one assignment.",
            command=CHECK,
            verdict="VIOLATED",
            kind="zombie_write",
            sentence="Both … and … committed outputs of 10 inputs of one source partition, offsets"
            " 0 to 9, in turns.",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("streamnative/kop#1333", "apache/flink#17152"),
            symptom="A job was down longer than `transaction.timeout.ms`. It continues, and the"
            " records of its last checkpoint are lost.",
            command=CHECK,
            verdict="VIOLATED",
            kind="gap",
            sentence="Its output was aborted: …, aborted by time-out …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("SPARK-25214", "apache/spark#22207"),
            symptom="With `failOnDataLoss=false` on a transactional source, some records are"
            " processed twice.",
            command=CHECK,
            verdict="VIOLATED",
            kind="duplicate",
            sentence="The output of this input is committed 2 times; the first is at …. That one is"
            " of producer id …, epoch 0, outside transactions, …",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("segmentio/kafka-go#1446",),
            symptom="Empty messages between the real ones, one for each transaction of the source.",
            command=CHECK,
            verdict="VIOLATED",
            kind="phantom",
            sentence="No input of the source has its identity.",
            test=TOGETHER,
        ),
        PublicReport(
            ids=("twmb/franz-go#1426", "confluentinc/librdkafka#3255", "KAFKA-12257"),
            symptom="A topic was deleted and made again. The group's old offset is valid in it, and"
            " the first new records are never read.",
            command=CHECK,
            verdict="UNKNOWN",
            kind="recreated",
            sentence="all 150 committed records may be outputs of an earlier source topic, deleted"
            " and made again under its name.",
            test="tests/field/test_recreated_source.py::test_old_outputs_are_none_of_a_new_source",
        ),
        PublicReport(
            ids=("apache/kafka#22248", "apache/kafka#23091"),
            symptom="A mirror falls behind, and retention removes records that it has not copied.",
            command="`check` with `range: retained`",
            verdict="HOLDS",
            kind="source_removed",
            sentence="50 of 50 inputs committed exactly once, in order; judged from … on; 50"
            " offsets lost by the source and not judged, with 21 outputs of them still in the"
            " sink.",
            test="tests/field/test_retained.py::test_22248_retention_that_overtakes_a_mirror",
        ),
        PublicReport(
            ids=(
                "confluentinc/cp-docker-images#706",
                "testcontainers/testcontainers-java#1816",
                "confluentinc/confluent-kafka-python#842",
            ),
            symptom="`init_transactions` hangs until it times out, on a single broker.",
            command="`doctor --for run`",
            verdict="exit code 3",
            kind="",
            sentence="transaction.state.log.replication.factor=3, and the cluster has 1 broker.",
            test="tests/field/test_brokers.py::test_a_cluster_where_no_transaction_can_begin_is_named",
        ),
        PublicReport(
            ids=("Apicurio/apicurio-registry#1147",),
            symptom="`init_transactions` hangs although the replication factor is 1.",
            command="`doctor --for run`",
            verdict="exit code 3",
            kind="",
            sentence="transaction.state.log.min.isr=2 needs more",
            test="tests/field/test_brokers.py::test_a_cluster_where_no_transaction_can_begin_is_named",
        ),
        PublicReport(
            ids=("KAFKA-20685", "apache/kafka#22548"),
            symptom="After a crash a count is one too high: the state store kept a write whose"
            " transaction was aborted.",
            command="`check` with `value:`",
            verdict="VIOLATED",
            kind="wrong_value",
            sentence="Its value is not the one that the contract's expression gives for its input:"
            " it is …, and … is expected.",
            test="tests/field/test_contracts.py::test_a_contract_finds_what_was_reported",
        ),
        PublicReport(
            ids=("debezium/debezium#7945",),
            symptom="A change of a primary key arrives as a delete and a tombstone, and the create"
            " is missing after a restart.",
            command="`check` with `count: 3`",
            verdict="VIOLATED",
            kind="gap",
            sentence="Output 2 of this input, counted from 0, is not committed, although other"
            " outputs of it or of later inputs are.",
            test="tests/field/test_contracts.py::test_a_contract_finds_what_was_reported",
        ),
        PublicReport(
            ids=("apache/kafka#12540",),
            symptom="Two keys have the same number after a standby took over.",
            command="`check` with `unique: value`",
            verdict="VIOLATED",
            kind="duplicate",
            sentence='"…" is committed 2 times; the first is at …',
            test="tests/field/test_contracts.py::test_a_contract_finds_what_was_reported",
        ),
        PublicReport(
            ids=("confluentinc/librdkafka#4510",),
            symptom="Keys are empty, not null, and records with them cannot be told apart.",
            command=CHECK,
            verdict="UNKNOWN",
            kind="identity_repeated",
            sentence="2 inputs hold the identity of this one; the first is at …",
            test="tests/field/test_contracts.py::test_a_contract_finds_what_was_reported",
        ),
        PublicReport(
            ids=(
                "tulios/kafkajs#1154",
                "Blizzard/node-rdkafka#616",
                "confluentinc/confluent-kafka-go#325",
            ),
            symptom="Records of one key are in several partitions: two libraries choose the"
            " partition of a key in different ways.",
            command="`check` with `order: per_key`",
            verdict="UNKNOWN",
            kind="key_spread",
            sentence="Its key lies in 2 partitions of the sink",
            test="tests/field/test_contracts.py::test_a_contract_finds_what_was_reported",
        ),
        PublicReport(
            ids=("confluentinc/librdkafka#3171",),
            symptom="Retention removed all records, and a reader at its old offset asks whether it"
            " lost one.",
            command=CHECK,
            verdict="UNKNOWN",
            kind="source_removed",
            sentence="Retention or DeleteRecords removed 11 offsets below its log start 11.",
            test="tests/field/test_contracts.py::test_a_contract_finds_what_was_reported",
        ),
        PublicReport(
            ids=("aio-libs/aiokafka#781", "platformatic/kafka#391"),
            symptom="A reader fails on a log that begins with the marker of a transaction whose"
            " records are deleted.",
            command="`check` with `range: retained`",
            verdict="VIOLATED",
            kind="gap",
            sentence='"…" has no committed output, although later inputs of its partition have'
            " one.",
            test="tests/field/test_contracts.py::test_a_contract_finds_what_was_reported",
        ),
        PublicReport(
            ids=("FLINK-40626", "apache/flink-connector-kafka#314"),
            symptom="Readers stop: a pooled transactional id that the job no longer uses has left a"
            " transaction open.",
            command=CHECK,
            verdict="UNKNOWN",
            kind="gap",
            sentence="The output of this input is pending: its transaction is still open.",
            test="tests/field/test_contracts.py"
            "::test_outputs_behind_an_open_transaction_are_pending",
        ),
        PublicReport(
            ids=("FLINK-40585", "apache/flink-connector-kafka#313"),
            symptom="A bounded reader ends before the last transaction: its marker came a moment"
            " after the commit's answer.",
            command=CHECK,
            verdict="UNKNOWN",
            kind="gap",
            sentence="The output of this input is pending: its transaction is still open.",
            test="tests/field/test_contracts.py"
            "::test_outputs_behind_an_open_transaction_are_pending",
        ),
        PublicReport(
            ids=("redpanda-data/redpanda#15672", "robot-head/crabka#528"),
            symptom="Records of aborted transactions come back after compaction: the cleaner kept"
            " one marker for all producers.",
            command=CHECK,
            verdict="VIOLATED",
            kind="resurrected",
            sentence="Visible to read_committed, but no marker in the log commits its transaction.",
            test="tests/field/test_raw_logs.py"
            "::test_what_read_committed_shows_without_a_commit_is_found",
        ),
        PublicReport(
            ids=("KAFKA-17801", "redpanda-data/redpanda#7819"),
            symptom="Readers of old segments in the remote tier receive aborted records.",
            command=CHECK,
            verdict="VIOLATED",
            kind="aborted_read",
            sentence="Visible to read_committed, but its transaction ends with an ABORT marker.",
            test="tests/field/test_raw_logs.py"
            "::test_what_read_committed_shows_without_a_commit_is_found",
        ),
        PublicReport(
            ids=(
                "redpanda-data/redpanda#10671",
                "redpanda-data/redpanda#28360",
                "nisshi-io/nisshi#689",
            ),
            symptom="read_committed delivers records beyond the last stable offset.",
            command=CHECK,
            verdict="UNKNOWN",
            kind="",
            sentence="The readings cannot be trusted: records visible to read_committed at or above"
            " the last stable offset: 1.",
            test="tests/field/test_raw_logs.py"
            "::test_a_reading_beyond_the_last_stable_offset_is_not_trusted",
        ),
        PublicReport(
            ids=("kafbat/kafka-ui#1730",),
            symptom="A Protobuf message cannot be shown: it holds an `Any` of a type that the"
            " schema does not have.",
            command="`check` with `{field: id}`",
            verdict="",
            kind="undecodable",
            sentence="field extra is an Any of demo.Unknown, which the schema does not have.",
            test="tests/backend/formats/test_hostile.py::test_an_awkward_part_spoils_no_other_field",
        ),
        PublicReport(
            ids=("provectus/kafka-ui#2021", "grafana/metrictank#1286"),
            symptom="A client connects to the bootstrap address, and then times out or cannot"
            " resolve a host that nobody named.",
            command="each command",
            verdict="exit code 3",
            kind="",
            sentence="answers, and says: reach me at kafka.invalid:29092, which this machine cannot"
            " resolve",
            test="tests/backend/kafka/test_secured.py"
            "::test_an_advertised_address_that_cannot_be_reached_is_named",
        ),
    )
}


def require_sentence(report_id: str, text: str) -> None:
    """Demand the sentence of a report in what was printed."""
    report = REPORTS[report_id]
    assert report.is_in(text), f"{report_id}: no {report.sentence!r} in {text}"


def document() -> str:
    """The whole document."""
    head = "reports", "what a user sees", "command", "says", "test"
    rows = [head, *(_row(report) for report in REPORTS.values())]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return HEAD + "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:]]) + "\n"


def _row(report: PublicReport) -> tuple[str, ...]:
    kind = f" `{report.kind}`" if report.kind else ""
    ids = ", ".join(map(_link, report.ids))
    says = f"{report.verdict}{kind}: {report.sentence}"
    file = report.test.partition("::")[0]
    test = f"[{file.rpartition('/')[2]}](../{file})"
    return ids, report.symptom, report.command, says, test


def _link(report_id: str) -> str:
    repository, _, number = report_id.partition("#")
    if not number:
        return f"[{report_id}]({TRACKER}{report_id})"
    return f"[{report_id}](https://github.com/{repository}/issues/{number})"


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
