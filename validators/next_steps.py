"""What to do next about a finding: what the logs decide (validators/incidents/), or else what its
kind suggests. A broken premise has its remedy in its own sentence (validators/expectation.py)."""

from __future__ import annotations

from collections.abc import Mapping

from topicproof.validators.expectation import (
    FIRST_COPY,
    FORGOTTEN,
    MOVEMENT,
    PENDING,
    PREMISES,
    TOO_MANY,
    UNREADABLE,
    UNTOLD,
)
from topicproof.validators.finding import Finding, Outcome
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.sentences import once_more

OF_VIOLATIONS: Mapping[str, str] = {
    validator.NAME: validator.TRAITS.next_step
    for validator in VALIDATORS
    if validator.TRAITS.next_step
}
"""By kind, if it is violated."""

OF_ABORTED_OUTPUTS = (
    "The outputs were written and aborted, and the program went on with later inputs instead of"
    " going back. After an abort, or as the successor of an instance that died in a transaction, it"
    " must read again from the group's committed offset: the aborted transaction did not move it."
    f" {once_more('these inputs')}"
)
"""Of gaps whose rows all name the aborted transaction of the output."""

OF_UNKNOWN: Mapping[str, str] = {
    PENDING: (
        "Check again when the open transaction has ended: its producer ends it, or its coordinator"
        " after transaction.timeout.ms. `topicproof inspect TOPIC` names the producer. Do not abort"
        " it by hand: where the group is beyond its inputs already, they would be lost."
    ),
    MOVEMENT: (
        "Check again when nothing is written, or name the pipeline's consumer group under `group:`"
        " in the contract."
    ),
    UNTOLD: (
        "Compare the group's name with the pipeline's. If it is right and its offsets have expired"
        " (offsets.retention.minutes), set them before the pipeline starts again, to the offset"
        " after the last input with an output: else auto.offset.reset decides, and everything is"
        " repeated or what is not processed is lost. Leave `group:` out only if it commits none to"
        " Kafka."
    ),
    TOO_MANY: "Judge fewer records at a time: give the contract a range.",
    FORGOTTEN: "`topicproof check` tells them apart. Give `remember:` more time.",
    UNREADABLE: (
        "Remove what is up to there (kafka-delete-records.sh), or use a copy of the topic without"
        " it. Then begin again with `topicproof watch --anew`."
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
        if finding.next_step:
            return finding.next_step
        if finding.kind == "gap" and all(row.transaction for row in finding.examples):
            return OF_ABORTED_OUTPUTS
        return OF_VIOLATIONS.get(finding.kind, "")
    return ""
