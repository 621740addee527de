"""What a group's offset on the wrong side of the outputs means, and the command that mends it."""

from __future__ import annotations

from collections.abc import Mapping

from topicproof.validators.finding import Bounds
from topicproof.validators.incidents.incident import Incident, Inputs, inputs_text
from topicproof.validators.kinds.matching import of_group
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import lowered
from topicproof.validators.shell_words import shell_word

COMMANDS_MAX = 3
"""A next step shows at most this many commands."""


def incident_of_ahead(ledger: Ledger, first_lost: Mapping[int, int]) -> Incident | None:
    """Tells which inputs are skipped. `first_lost`: by source partition, the first input without a
    committed output that lies below the group's offset."""
    if not first_lost:
        return None
    offsets = ledger.question.agreed.offsets or {}
    ranges = [
        Inputs(partition, offset, offsets[partition] - 1, offsets[partition] - offset)
        for partition, offset in sorted(first_lost.items())
    ]
    source = ledger.question.source
    return Incident(
        "",
        "Stop all members of the group and check again, because what they process meanwhile would"
        " be repeated. Then set the group to the first input without a committed output, now:"
        f" {_commands(source, ledger.question.agreed.group, first_lost)}. Commit the offset in the"
        " transaction of the outputs (sendOffsetsToTransaction), never before or outside it.",
        clause=f", so the group skips {inputs_text(source, ranges)}",
    )


def incident_of_behind(
    ledger: Ledger, offsets: Mapping[int, int], *, began_one_low: bool = False
) -> Incident | None:
    """Tells which inputs will be processed again. `offsets`: those of the group that lie before a
    committed output's input, by source partition. `began_one_low`: the duplicates come from
    offsets one too low."""
    if not offsets:
        return None
    ranges = [
        Inputs(partition, offset, ledger.after(partition) - 1, ledger.after(partition) - offset)
        for partition, offset in sorted(offsets.items())
    ]
    source = ledger.question.source
    targets = {each.partition: each.last + 1 for each in ranges}
    is_one_low = [each.count for each in ranges] == [1]
    return incident_of_offsets_behind(
        inputs_text(source, ranges),
        lowered(of_group(ledger)),
        _commands(source, ledger.question.agreed.group, targets),
        is_one_low=is_one_low,
        is_same_fault=is_one_low and began_one_low,
    )


def incident_of_offsets_behind(
    inputs: str, group: str, commands: str, *, is_one_low: bool, is_same_fault: bool
) -> Incident:
    """Tells the story of a group before committed outputs. `is_one_low`: by one input.
    `is_same_fault`: the duplicates come from offsets one too low, too."""
    story = (
        f"The offset of {group} is that of the last processed record, {inputs}, and not the one"
        " after it."
        if is_one_low
        else "Outputs beyond the group's offset are committed: the offset was not committed"
        " together with them, or it was set back afterwards."
    )
    if is_same_fault:
        story += " The duplicates began one offset too low as well: probably it is one fault."
    mend = (
        "If the program commits the last record's own offset, mend that first: a reset alone does"
        " not last. "
        if is_one_low
        else ""
    )
    return Incident(
        story,
        f"{mend}If nobody set it back on purpose, and no member runs that may still commit: before"
        " the pipeline starts again, set the group to the offset after the last input with a"
        f" committed output: {commands}. Commit the offset in the transaction of the outputs"
        " (sendOffsetsToTransaction), not after it.",
        clause=f", so the group will process {inputs} again",
    )


def _commands(source: Bounds, group: str | None, targets: Mapping[int, int]) -> str:
    commands = []
    group_word = shell_word(group) if group else "GROUP"
    for number, offset in sorted(targets.items()):
        topic, partition = source.place(number)
        commands.append(
            f"`kafka-consumer-groups.sh --bootstrap-server ADDRESS --group {group_word}"
            f" --topic {shell_word(f'{topic}:{partition}')} --reset-offsets"
            f" --to-offset {offset} --execute`"
        )
    more = len(commands) - COMMANDS_MAX
    likewise = f", and likewise for {more:,} more" if more > 0 else ""
    return ", ".join(commands[:COMMANDS_MAX]) + likewise
