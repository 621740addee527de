"""The catalogue: every anomaly between a source and a sink that today's verifiers or this project
look for.

Each row is an anomaly. It lists the kinds of finding that report it here, or what else covers it,
and the other tools that look for it. docs/KINDS.md is generated from it (`make docs`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Anomaly:
    """A row of the catalogue. An empty text for another tool means that it does not look for the
    anomaly."""

    number: str
    """F1 to F6 are faults: injected on purpose, and recognised by their effects."""
    name: str
    definition: str
    kinds: tuple[str, ...] = ()
    """The kinds that report it."""
    otherwise: str = ""
    """What covers it if no kind does, or in addition; with the reason."""
    needs: str = ""
    """What must be there besides the witnesses."""
    jepsen: str = ""
    apache: str = ""
    """Apache Kafka's own tests and tools."""
    uis: str = ""
    """Web interfaces for Kafka."""


ANOMALIES: tuple[Anomaly, ...] = (
    Anomaly(
        "1",
        "Committed duplicate",
        "one output at two or more committed offsets, over all partitions",
        ("duplicate",),
        jepsen="per partition, by value",
        apache="transactions_test",
    ),
    Anomaly(
        "2",
        "Gap",
        "an expected output of a processed input is not committed",
        ("gap",),
        jepsen="`lost-write`",
        apache="transactions_test, as sets",
    ),
    Anomaly(
        "3",
        "Lost tail",
        "a gap after the last committed output of its partition",
        ("gap",),
        jepsen="`unseen`",
    ),
    Anomaly(
        "4", "Phantom record", "a committed record without an input in the source", ("phantom",)
    ),
    Anomaly(
        "5",
        "Aborted input processed",
        "an output of a record that was aborted in the source",
        ("aborted_input",),
    ),
    Anomaly(
        "6",
        "Wrong value",
        "a committed value that is not what its input must give",
        ("wrong_value",),
        apache="EosTestDriver",
    ),
    Anomaly(
        "7",
        "Order violation",
        "outputs of a source partition, or of a key, out of the order of their inputs",
        ("order",),
        jepsen="`nonmonotonic-send`",
        apache="transactions_test, of one partition",
    ),
    Anomaly(
        "8",
        "Offset ahead of output",
        "a committed offset beyond inputs without outputs",
        ("offset_ahead",),
        jepsen="auto-commit workload only",
    ),
    Anomaly(
        "9",
        "Offset behind output",
        "a committed offset at or below an input with an output",
        ("offset_behind",),
    ),
    Anomaly(
        "10",
        "Aborted read (G1a)",
        "read_committed shows a record of a transaction that was aborted",
        ("aborted_read",),
        jepsen="`G1a`",
        apache="TransactionsTest, by header",
    ),
    Anomaly(
        "11",
        "Torn transaction (G1b)",
        "some records of a transaction are committed, not all",
        ("torn",),
        needs="headers with the number of records, as the sink of a run writes them",
    ),
    Anomaly(
        "12",
        "Fate split",
        "a transaction with a COMMIT and an ABORT marker in two partitions",
        ("fate_split",),
        needs="headers that name transactions, or transactions of version 2 (KIP-890)",
    ),
    Anomaly(
        "13",
        "Wrong attribution (KAFKA-17754)",
        "records of two transactions before one marker, or a marker against the journal",
        ("wrong_attribution",),
    ),
    Anomaly("14", "Late append", "records of a transaction after its own marker", ("late_append",)),
    Anomaly(
        "15",
        "Precommitted read",
        "a read_committed reader received a record of an open transaction",
        ("precommitted_read",),
        "By a reader beside the pipeline; a pipeline's own reads leave no trace in the topics.",
        jepsen="`precommitted-read`",
    ),
    Anomaly(
        "16",
        "Circular flow (G1c)",
        "a transaction depends on what it wrote itself, by lineage",
        ("circular_flow",),
        jepsen="`G1c`",
    ),
    Anomaly(
        "17",
        "Interleaving (G0)",
        "records of other transactions between those of one; information",
        ("interleaving",),
        jepsen="`int-send-skip`, allowed",
    ),
    Anomaly(
        "18",
        "Read past the LSO",
        "read_committed returned an offset at or above the last stable offset",
        ("precommitted_read",),
        "In the judge's own reading it is a doubt, after which nothing is judged.",
        apache="TransactionsTest",
    ),
    Anomaly(
        "19",
        "Readings against the log",
        "read_committed differs from what batches and markers say",
        ("reading_mismatch",),
        "Between the two readings it is a doubt, after which nothing is judged.",
    ),
    Anomaly(
        "20",
        "Inconsistent offset",
        "one offset had two contents",
        (),
        "A doubt, after which nothing is judged: both readings are compared block by block.",
        jepsen="`inconsistent-offsets`",
    ),
    Anomaly(
        "21",
        "Marker accounting",
        "offsets, records and markers do not add up",
        ("marker_accounting",),
        "Offsets that nothing explains are a doubt, after which nothing is judged.",
    ),
    Anomaly(
        "22",
        "Aborted volume",
        "aborted records by transaction, with reason; information",
        ("aborted_volume",),
    ),
    Anomaly(
        "23",
        "Resurrected",
        "a record shown as committed without a marker that commits it",
        ("resurrected",),
    ),
    Anomaly("24", "Intruder", "a batch that the pipeline did not write", ("intruder",)),
    Anomaly(
        "25",
        "Poll skip, or backwards",
        "a reader skipped a committed record, or received one again",
        ("poll_skip",),
        "By a reader beside the pipeline; other readers leave no trace in the topics.",
        jepsen="`poll-skip`, `nonmonotonic-poll`",
    ),
    Anomaly(
        "26",
        "Zombie write",
        "a lower epoch after a higher one, or two transactional ids at one source partition",
        ("zombie_write",),
        apache="fencing tests, by exceptions",
    ),
    Anomaly(
        "27",
        "Sequence hole or overlap",
        "a producer's sequence numbers do not follow one another",
        ("sequence_hole",),
    ),
    Anomaly(
        "28",
        "Identity change",
        "a transactional id with a new producer id or epoch, and why; information",
        ("identity_change",),
        apache="TransactionsExpirationTest",
    ),
    Anomaly(
        "29",
        "Hanging transaction",
        "a partition holds an open transaction that no coordinator knows",
        ("hanging",),
        apache="kafka-transactions.sh",
    ),
    Anomaly(
        "30",
        "LSO stall",
        "the last stable offset stands still longer than a transaction may stay open",
        ("lso_stall",),
    ),
    Anomaly(
        "31",
        "Stuck transaction, unstable offsets",
        "decided and without its markers, or a group's offset that does not become stable",
        ("unstable_offsets",),
    ),
    Anomaly(
        "32",
        "True lag",
        "committed records between a group's offset and the last stable offset",
        (),
        "No finding but a figure of a living group: `topicproof inspect` and Groups of a topic"
        " show it.",
        jepsen="a plot",
        uis="offsets, markers and aborted records included",
    ),
    Anomaly(
        "33",
        "Unknown outcome resolved",
        "the log settles what a client was not told; information",
        ("unknown_outcome",),
        jepsen="`:info`",
    ),
    Anomaly(
        "34",
        "Incomplete or vacuous proof",
        "a verdict on nothing, on a moving topic, by a check that finds nothing",
        (
            *(
                "undecodable",
                "identity_missing",
                "identity_repeated",
                "identity_disjoint",
                "outputs_alike",
                "key_spread",
            ),
            *("source_removed", "sink_removed", "recreated", "movement", "source_pending"),
        ),
        "The verdict's own rule: UNKNOWN on zero, on pending offsets, without a witness; `check"
        " --self-test`.",
        jepsen="unit tests",
        apache="EosTestDriver, in part",
    ),
    Anomaly(
        "35",
        "Two outcomes",
        "an input with both a committed output and a dead letter",
        ("both_outcomes",),
        "An input with neither is a gap, and a dead letter without an input a phantom.",
    ),
    Anomaly(
        "36",
        "Repeated dead letter",
        "two dead letters of one input",
        ("letter_repeated",),
        needs="a contract that names dead letters",
    ),
    Anomaly(
        "37",
        "Wrong aggregate",
        "an output is not the aggregate of the inputs of its group, or a group is missing or of no"
        " input",
        ("group_missing", "group_unknown", "wrong_aggregate", "wrong_update"),
    ),
    Anomaly(
        "F1",
        "Worker killed at each step",
        "SIGKILL and aborts between begin and the commit's answer",
        (),
        "Made on purpose: `crash`, `error`, `--abort-probability`.",
        jepsen="aborts",
        apache="kills and aborts of its copier",
    ),
    Anomaly(
        "F2",
        "Zombie",
        "a worker stopped and resumed, a transactional id taken over",
        (),
        "Made on purpose: `zombie`, `hijack`.",
        apache="EosIntegrationTest, a stall",
    ),
    Anomaly(
        "F3",
        "Broker fault by role",
        "the leader of source, sink, transactions or offsets killed, paused or cut off from its"
        " peers",
        (),
        "Made on purpose: `broker`, `isolated`.",
        jepsen="yes",
        apache="kafkatest",
    ),
    Anomaly(
        "F4",
        "Protocol-aware delay",
        "single requests lost, late, overtaken or delivered as ghosts",
        (),
        "Made on purpose: `network`, `refused`.",
    ),
    Anomaly(
        "F5",
        "Time and housekeeping",
        "timeouts, expiry, compaction, deletion, added partitions",
        (),
        "Made on purpose in the tests, and by `open` and `offsets`.",
        apache="in separate tests",
    ),
    Anomaly(
        "F6",
        "Engine faults",
        "executor or driver killed, checkpoint lost or old, batch replayed",
        (),
        "Made on purpose in the tests, and by `crash` and `offsets`.",
    ),
)
