"""What to do next about a finding, in one sentence for each kind. A broken premise has its remedy
in its own sentence (validators/expectation.py)."""

from __future__ import annotations

from collections.abc import Mapping

from topicproof.validators.expectation import FIRST_COPY, MOVEMENT, PENDING, PREMISES, UNTOLD
from topicproof.validators.finding import Finding, Outcome

OF_VIOLATIONS: Mapping[str, str] = {
    "duplicate": (
        "Compare the writers of both copies: two writers are two instances on one source partition"
        " (give them one transactional.id, so that the older is fenced), and one writer processed"
        " the input again (commit the group's offset in the transaction of the outputs)."
    ),
    "gap": (
        "Read the application's log at this input, then process it again. If the pipeline may not"
        " have reached it yet, name its consumer group under `group:` in the contract: what lies"
        " beyond the group's offset is not due."
    ),
    "order": (
        "Look for two writers of one source partition, and for a producer with retries and without"
        " idempotence (enable.idempotence=true prevents that)."
    ),
    "aborted_read": (
        "Keep the segments of the partition, and report them with `kafka-dump-log.sh` to whoever"
        " maintains the broker: it delivered a record of an aborted transaction."
    ),
    "phantom": (
        "Look for another program that writes to the sink, or for another source that the pipeline"
        " reads; a contract can name several sources."
    ),
    "wrong_value": (
        "Compute the contract's expression by hand for one of these inputs: either the contract is"
        " wrong, or the application."
    ),
    "offset_ahead": (
        "Stop the pipeline and set the group's offset right behind its last committed output"
        " (`kafka-consumer-groups.sh --reset-offsets --to-offset`); commit offsets in the"
        " transaction of the outputs, never before them."
    ),
    "offset_behind": (
        "Before the pipeline starts again, set the group's offset beyond its last committed output"
        " (`kafka-consumer-groups.sh --reset-offsets --to-offset`); commit offsets in the"
        " transaction of the outputs, not after it."
    ),
    "reading_mismatch": (
        "Check again; if it repeats, keep the segments of the partition, and report them with"
        " `kafka-dump-log.sh` to whoever maintains the broker."
    ),
    "fate_split": (
        "Keep the segments of these partitions, and look in the coordinator's log for a failover"
        " while the transaction ended; its outputs must be repaired by hand."
    ),
    "wrong_attribution": (
        "Use transactions of version 2 (KIP-890, brokers and clients from Kafka 4.0 on): a delayed"
        " EndTxn ended a later transaction of the same producer."
    ),
    "late_append": (
        "Use transactions of version 2 (KIP-890, brokers and clients from Kafka 4.0 on): a delayed"
        " Produce arrived after the end of its own transaction."
    ),
    "zombie_write": (
        "Find out why the replaced instance still ran, and give all instances of one task the same"
        " transactional.id, so that the broker fences the older one."
    ),
    "marker_accounting": (
        "Look for compaction, a restore or an unclean leader election of this partition: a marker"
        " was lost, or written twice."
    ),
    "torn": (
        "Look in the application for a send whose error is ignored before the commit: if one send"
        " fails, the transaction must be aborted."
    ),
    "resurrected": (
        "Look for compaction, a restore or an unclean leader election of this partition: the marker"
        " is gone, so nothing proves that these records were committed."
    ),
    "aborted_input": "Set isolation.level=read_committed in the consumer that reads the source.",
    "precommitted_read": (
        "Keep the segments of the partition, and report them to whoever maintains the broker: it"
        " delivered records of an open transaction at read_committed."
    ),
    "poll_skip": (
        "Check again; if it repeats, report the client's and the broker's version: a consumer at"
        " read_committed skipped or repeated committed records."
    ),
    "circular_flow": (
        "Look for a stage that reads its own output, or that reads at read_uncommitted."
    ),
    "intruder": (
        "If another program may write to this topic, nothing is wrong; otherwise take away its"
        " right to write (`kafka-acls.sh`)."
    ),
    "sequence_hole": (
        "Look for an unclean leader election or lost segments of this partition at that time."
    ),
    "hanging": "End it with `kafka-transactions.sh abort`: no producer will.",
    "lso_stall": (
        "End the transaction that holds the offset back: stop its producer, or use"
        " `kafka-transactions.sh abort`."
    ),
    "unstable_offsets": (
        "Look at the coordinator's broker: markers arrive within milliseconds if it and the leader"
        " of the partition are up."
    ),
}
"""By kind, if it is violated."""

OF_UNKNOWN: Mapping[str, str] = {
    PENDING: "Check again when the open transaction has ended.",
    MOVEMENT: (
        "Check again when nothing is written, or name the pipeline's consumer group under `group:`"
        " in the contract."
    ),
    UNTOLD: (
        "Compare the group's name with the pipeline's. If it is right, its offsets have expired"
        " (offsets.retention.minutes), or it commits none to Kafka: then leave `group:` out."
    ),
    FIRST_COPY: "Look at the copies: once there is one of each, the order can be judged.",
}
"""By the cause of the rows, if they cannot be judged."""


def next_step(finding: Finding) -> str:
    """Returns what to do next; empty if nothing is wrong, if the finding's sentence has it, or if
    it is a consequence of another finding."""
    if finding.outcome is Outcome.UNKNOWN and finding.kind not in PREMISES:
        return OF_UNKNOWN.get(finding.explained_by or "", "")
    if finding.outcome is Outcome.VIOLATED and finding.primary:
        return OF_VIOLATIONS.get(finding.kind, "")
    return ""
