"""The validators: one module per kind, all with the same interface."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame

from topicproof.validators.finding import Witness
from topicproof.validators.kinds import (
    aborted_input,
    aborted_read,
    aborted_volume,
    both_outcomes,
    circular_flow,
    duplicate,
    fate_split,
    gap,
    group_missing,
    group_unknown,
    hanging,
    identity_change,
    identity_disjoint,
    identity_missing,
    identity_repeated,
    interleaving,
    intruder,
    key_spread,
    late_append,
    letter_repeated,
    lso_stall,
    marker_accounting,
    movement,
    offset_ahead,
    offset_behind,
    order,
    outputs_alike,
    phantom,
    poll_skip,
    precommitted_read,
    reading_mismatch,
    recreated,
    resurrected,
    sequence_hole,
    sink_removed,
    source_pending,
    source_removed,
    torn,
    undecodable,
    unknown_outcome,
    unstable_offsets,
    wrong_aggregate,
    wrong_attribution,
    wrong_update,
    wrong_value,
    zombie_write,
)
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Words


class Validator(Protocol):
    """The interface of each of these modules."""

    NAME: str
    """The kind's name in code, pages and reports."""
    TITLE: str
    """A heading for people."""
    QUESTION: str
    UNIT: str
    """What the denominator counts."""
    WITNESSES: tuple[tuple[Witness, ...], ...]
    """The witnesses that must have been heard: at least one of each group."""
    WORDS: Words
    """The words of its sentence."""
    TRAITS: Traits

    def find(self, ledger: Ledger) -> DataFrame | None:
        """Returns the rows, with the columns of validators/evidence.py. Lazy: nothing is computed
        yet. None if the ledger's counts already show that there is nothing to find."""

    def covered(self, ledger: Ledger) -> int:
        """Returns the denominator: how many were examined. 0 can never hold."""


VALIDATORS: tuple[Validator, ...] = (
    *(
        undecodable,
        identity_missing,
        identity_repeated,
        identity_disjoint,
        outputs_alike,
        key_spread,
        source_removed,
        sink_removed,
        recreated,
    ),
    *(duplicate, gap, order, aborted_read, phantom),
    *(both_outcomes, letter_repeated),
    *(
        reading_mismatch,
        fate_split,
        wrong_attribution,
        late_append,
        zombie_write,
        marker_accounting,
    ),
    *(torn, resurrected, aborted_input, circular_flow, precommitted_read, poll_skip),
    *(wrong_value, offset_ahead, offset_behind),
    *(group_missing, group_unknown, wrong_aggregate, wrong_update),
    *(intruder, sequence_hole, identity_change, aborted_volume, interleaving, unknown_outcome),
    *(hanging, lso_stall, unstable_offsets, movement, source_pending),
)
