"""A verdict in one sentence that can be quoted, and its warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topicproof.validators.aggregate import AggregateTerms
from topicproof.validators.circumstances import Circumstances
from topicproof.validators.expectation import PREMISES, RANGE, UNDECIDED, is_undecided, remedy
from topicproof.validators.expected import Expect
from topicproof.validators.facts.writers import NO_TIME, time_of
from topicproof.validators.finding import (
    Example,
    Finding,
    InputOutcomes,
    JudgedInputs,
    Order,
    Outcome,
)
from topicproof.validators.found_rows import OF_LOST_OUTPUTS, WriterRows
from topicproof.validators.kinds import duplicate, identity_disjoint, source_removed, zombie_write
from topicproof.validators.ledger.counts import OF_CONTRACT, OF_READINGS, GroupCounts
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Words, capitalized, counted, portion, sentence

PLACES_MAX = 3
"""A sentence names so many places at most."""
DISTRUST = "The readings cannot be trusted"
OF_DOUBT = (
    "Check again; if it repeats, report it to whoever maintains the broker. It says nothing against"
    " the pipeline."
)
"""What to do about readings that contradict each other."""
NOTHING_LEFT = (
    "No input is left to judge. Check sooner the next time, or let the source keep its records"
    " longer (retention.ms)."
)
"""What to do about a source that has lost all records."""


def finding_sentence(
    kind: str, words: Words, causes: Mapping[str | None, int], covered: int, by_whom: str = ""
) -> str:
    """Formulates what a kind found. `causes`: its rows by what explains them; None: nothing.
    `by_whom`: the end of the first sentence, who wrote the records (`writers_clause`), behind their
    inputs (`inputs_clause`)."""
    primary = causes.get(None, 0)
    others = sorted(
        ((cause, count) for cause, count in causes.items() if cause is not None and count),
        key=lambda pair: -pair[1],
    )
    if primary or not others:
        sentences = [sentence(words, primary, covered) + by_whom]
        sentences += [f"{count:,} more {_explained(cause, count, kind)}" for cause, count in others]
    elif all(is_undecided(cause, kind) for cause, _ in others):
        count = sum(count for _, count in others)
        reasons = "; ".join(dict.fromkeys(_reason(cause) for cause, _ in others))
        sentences = [f"{_of(words, count, covered)} cannot be judged: {reasons}"]
    elif words.outside is not None and [cause for cause, _ in others] == [RANGE]:
        count = others[0][1]
        sentences = [f"{_of(words, count, covered)} {words.outside.of(count)}"]
    else:
        count = sum(count for _, count in others)
        sentences = [sentence(words, count, covered) + by_whom]
        alone = len(others) == 1
        sentences += [
            (f"{count:,} of these " if not alone else "This " if count == 1 else "All of these ")
            + _explained(cause, count, kind)
            for cause, count in others
        ]
    return " ".join(f"{capitalized(text)}." for text in sentences)


def _of(words: Words, count: int, covered: int) -> str:
    if words.counted is not None:
        return counted(count, *words.counted)
    return portion(count, covered, words.noun)


def _explained(cause: str, count: int, kind: str) -> str:
    """Formulates a verb phrase about rows that something explains."""
    if cause == RANGE and kind in PREMISES:
        return "is accepted by the contract" if count == 1 else "are accepted by the contract"
    if cause == RANGE:
        return "may lie outside the judged range, and " + (
            "does not count" if count == 1 else "do not count"
        )
    if is_undecided(cause, kind):
        return f"cannot be judged: {_reason(cause)}"
    if (cause, kind) == (duplicate.NAME, zombie_write.NAME):
        verb = "belongs" if count == 1 else "belong"
        return f"{verb} to duplicate: nothing shows that both wrote at a time or in turns"
    return f"is a consequence of {cause}" if count == 1 else f"are consequences of {cause}"


def _reason(cause: str) -> str:
    return UNDECIDED[cause] if cause in UNDECIDED else PREMISES[cause].broken


def verdict_sentence(
    verdict: Outcome,
    ledger: Ledger,
    promise: str | None,
    counting: Sequence[Finding],
    findings: Sequence[Finding],
    not_processed: int,
) -> str:
    """Formulates the verdict in one sentence. `promise`: what is judged, such as `exactly once`;
    None if the contract requires only some of its kinds."""
    if ledger.doubts:
        doubt = ledger.doubts[0]
        if doubt.startswith(OF_CONTRACT):
            return f"Could not be judged: {doubt}"
        step = f" {OF_DOUBT}" if doubt.startswith(OF_READINGS) else ""
        return f"{DISTRUST}: {doubt}{step}"
    if ledger.circumstances.replaced:
        return f"Could not be judged: {replaced_sentence(ledger.circumstances)}"
    rest = _rest(ledger, not_processed)
    bad = [finding for finding in counting if finding.outcome is verdict]
    if verdict is Outcome.VIOLATED:
        causes = [finding for finding in bad if finding.primary] or bad
        clauses = "; ".join(_clause(finding) for finding in causes)
        promise = (
            "unique" if ledger.question.agreed.unique else promise or "as the contract requires"
        )
        return f"Not {promise}: {clauses}{rest}."
    if verdict is Outcome.UNKNOWN:
        premises = [finding for finding in bad if finding.kind in PREMISES]
        broken = [finding for finding in premises if finding.primary] or premises
        others = [
            finding
            for finding in bad
            if finding not in premises and finding.explained_by not in PREMISES
        ] or [finding for finding in bad if not broken]
        # Kinds that had nothing to examine, because a premise is broken, add nothing.
        causes = [finding for finding in others if finding.count or not broken]
        reasons = [f"{finding.kind}: {_clause(finding)}" for finding in (*broken, *causes)]
        if ledger.pending and not ledger.circumstances.moving:
            reasons.insert(0, f"{counted(ledger.pending, 'offset')} {_pending(ledger)}")
        step = f" {remedy_sentence(broken[0].kind, ledger)}" if broken else ""
        return f"Could not be judged: {'; '.join(reasons)}{rest}.{step}"
    praise = _praise(ledger, promise, counting, findings)
    return f"{praise}{_judged_from(ledger)}{_left_out(ledger, findings)}{rest}."


def remedy_sentence(premise: str, ledger: Ledger) -> str:
    """Formulates what to do about a broken premise."""
    is_emptied = ledger.source_incomplete and not ledger.counts.inputs.judged
    if is_emptied and premise in (source_removed.NAME, identity_disjoint.NAME):
        return NOTHING_LEFT
    return remedy(premise, ledger.question.agreed.unique)


def replaced_sentence(circumstances: Circumstances) -> str:
    """Formulates that topics were deleted, or made again, and what to do; begins with a small
    letter."""
    remedy = "Check again." if circumstances.vanished else PREMISES["recreated"].remedy
    return f"{'; '.join(circumstances.replaced)}. {remedy}"


def _pending(ledger: Ledger) -> str:
    verb = "is" if ledger.pending == 1 else "are"
    return f"of the sink {verb} still pending, at or above the last stable offset"


def _praise(
    ledger: Ledger, promise: str | None, counting: Sequence[Finding], findings: Sequence[Finding]
) -> str:
    """Formulates what holds, claiming no more than was required."""
    gaps = next((finding for finding in findings if finding.kind == "gap"), None)
    # What the sink may have lost is not judged.
    outside = gaps.count - gaps.primary if gaps and gaps.explained_by == RANGE else 0
    one_to_one = ledger.question.expected.kind is Expect.ONE_TO_ONE
    inputs = counted(ledger.counts.inputs.judged - (outside if one_to_one else 0), "input")
    if ledger.question.agreed.unique:
        records = counted(ledger.counts.inputs.judged, "committed record")
        identities = "its identity" if ledger.counts.inputs.judged == 1 else "as many identities"
        return f"{records} and {identities}: none repeats"
    if ledger.groups is not None:
        return _praise_of_groups(ledger.groups, ledger.question.agreed.aggregate)
    kinds = {finding.kind for finding in counting}
    primary = {finding.kind: finding.primary for finding in findings}
    in_order = ", in order" if keeps_order(ledger) else ""
    if promise is None:
        names = " and ".join(sorted(kinds))
        return f"Nothing but {names} was judged, and none was found among {inputs}"
    due = ledger.counts.outputs - outside
    # A gap that another kind explains, such as a group's offset ahead, is missing all the same.
    present = due - (gaps.count - outside if gaps else 0)
    match ledger.question.expected.kind:
        case Expect.ONE_TO_ONE:
            praise = f"{present:,} of {inputs} committed {promise}{in_order}"
        case Expect.ZERO_OR_ONE if ledger.question.expected.count is None:
            praise = f"{counted(present, 'output')} of {inputs} committed {promise}{in_order}"
            if rest := _without_outcome(ledger):
                others = "one was" if rest == 1 else f"{rest:,} were"
                praise += f"; it is unknown whether the other {others} filtered out or lost"
        case _:
            outputs = counted(due, "output")
            praise = f"{present:,} of {outputs} of {inputs} committed {promise}{in_order}"
    letters, term = ledger.counts.letters, ledger.question.agreed.letters
    if letters is not None and term is not None and letters.inputs:
        praise += f"; {counted(letters.inputs, 'dead letter')} in {term.topic}"
    if ledger.aborted and "aborted_read" in kinds:
        praise += f"; {counted(ledger.aborted, 'aborted record')} stayed invisible"
    if primary.get("duplicate"):
        praise += f"; {counted(primary['duplicate'], 'duplicate')}, as allowed"
    if due - present:
        praise += f"; {due - present:,} lost, as allowed"
    if outside:
        praise += f"; {counted(outside, 'output')} that the sink may have lost, not judged"
    return praise


def _without_outcome(ledger: Ledger) -> int:
    """Counts the inputs without an output, if an input has one at most. Those with a dead letter do
    not count."""
    letters = 0 if ledger.counts.letters is None else ledger.counts.letters.inputs
    return max(0, ledger.counts.inputs.judged - letters - ledger.counts.outputs)


def outcomes_note(ledger: Ledger) -> tuple[str, ...]:
    """Formulates where the outcomes of the inputs lie, with their shares; empty without dead
    letters."""
    outcomes, term = outcomes_of(ledger), ledger.question.agreed.letters
    inputs = JudgedInputs(ledger.counts.inputs.judged, outcomes)
    if outcomes is None or term is None or not inputs.records:
        return ()
    output, letter = (
        f"{count:,} ({inputs.share(count):.1%})"
        for count in (outcomes.with_output, outcomes.with_dead_letter)
    )
    return (
        f"Outcomes of {counted(inputs.records, 'input')}: {output} with an output, {letter} with a"
        f" dead letter in {term.topic}, {outcomes.with_both:,} with both,"
        f" {outcomes.with_neither:,} with neither.",
    )


def outcomes_of(ledger: Ledger) -> InputOutcomes | None:
    """Counts the inputs by their outcome; None without dead letters."""
    letters, inputs = ledger.counts.letters, ledger.counts.inputs.judged
    if letters is None:
        return None
    neither = max(0, inputs - letters.inputs - letters.delivered + letters.both)
    return InputOutcomes(letters.delivered, letters.inputs, letters.both, neither)


def _judged_from(ledger: Ledger) -> str:
    """Formulates where judging begins in the sink of a source that has lost records, if records are
    matched by what they hold. Lineage names the removed inputs."""
    first = ledger.retained.matched_from if ledger.by_key else {}
    if not first:
        return ""
    if len(first) > PLACES_MAX:
        partitions = counted(len(first), "partition")
        return f"; judged from the first output of a retained input on, in {partitions}"
    places = []
    for number, offset in sorted(first.items()):
        topic, partition = ledger.sink_bounds.place(number)
        places.append(f"{topic}-{partition}@{offset}")
    return f"; judged from {', '.join(places)} on"


def _left_out(ledger: Ledger, findings: Sequence[Finding]) -> str:
    """Formulates what a verdict that holds does not cover."""
    clauses = ""
    circumstances = ledger.circumstances
    is_cut = ledger.question.agreed.offsets is not None or circumstances.moving
    for side in ("source", "sink"):
        removed = getattr(circumstances, f"{side}_removed").values()
        lost = sum(removal.offsets for removal in removed)
        if not lost:
            continue
        clauses += f"; {counted(lost, 'offset')} lost by the {side} and not judged"
        if side == "source" and ledger.by_key and not is_cut and not ledger.sink_incomplete:
            outputs = sum(
                finding.count - finding.primary for finding in findings if finding.kind == "phantom"
            )
            if outputs:
                clauses += f", with {counted(outputs, 'output')} of them still in the sink"
    if ledger.pending:
        clauses += f"; {counted(ledger.pending, 'offset')} {_pending(ledger)}, and not judged yet"
    return clauses


def _praise_of_groups(groups: GroupCounts, terms: AggregateTerms | None) -> str:
    """Formulates what holds of aggregates."""
    which = "the last output of each" if terms is None or not terms.running else "each output"
    praise = (
        f"{counted(groups.due, 'group')} of {counted(groups.inputs, 'input')}, and"
        f" {which} is the aggregate of its inputs"
    )
    if groups.ungrouped:
        verb = "belongs" if groups.ungrouped == 1 else "belong"
        praise += f"; {counted(groups.ungrouped, 'input')} {verb} to no group"
    return praise


def _rest(ledger: Ledger, not_processed: int) -> str:
    """Formulates which inputs no verdict covers."""
    clauses = ""
    if pending := 0 if ledger.question.agreed.unique else pending_inputs(ledger):
        verb = "is" if pending == 1 else "are"
        clauses += (
            f"; {counted(pending, 'offset')} of the source {verb} pending in a transaction that is"
            " still open, and not judged yet"
        )
    if not_processed and ledger.circumstances.watched:
        verb = "was" if not_processed == 1 else "were"
        clauses += f"; {counted(not_processed, 'later input')} {verb} not due, and not judged"
    elif not_processed:
        clauses += f"; {counted(not_processed, 'input')} not processed"
    return clauses


def pending_inputs(ledger: Ledger) -> int:
    """Counts the source's offsets at and above its last stable offset."""
    stable = ledger.circumstances.source_lso
    return sum(
        max(0, partition.hw - stable[partition.partition])
        for partition in ledger.question.source.partitions
        if partition.partition in stable
    )


def unchecked_filter(ledger: Ledger) -> tuple[str, ...]:
    """Warns if inputs without an output may be lost, unless the contract takes them for
    filtered."""
    count = _without_outcome(ledger)
    open_ = (
        ledger.question.expected.kind is Expect.ZERO_OR_ONE
        and ledger.question.expected.count is None
    )
    if not open_ or ledger.question.agreed.filter_unchecked or count <= 0:
        return ()
    has = "has" if count == 1 else "have"
    return (
        f"{counted(count, 'input')} {has} no output: filtered or lost, and zero_or_one"
        " without a count cannot tell. Give the contract a `count` of 0 or 1, or accept this with"
        " `filtered: unchecked`.",
    )


def keeps_order(ledger: Ledger) -> bool:
    """Whether the order of records is judged."""
    return ledger.question.order is not Order.NONE


def writers_clause(kind: str, count: int, writers: Sequence[WriterRows]) -> str:
    """Formulates who wrote the `count` rows of a finding, as the end of its first sentence; empty
    if nothing tells."""
    if not writers:
        return ""
    by = [f"{rows.count:,} by {_writer(rows)}" for rows in writers]
    more = writers[0].writers - len(writers)
    if more:
        by.append(f"others by {counted(more, 'more writer')}")
    is_alone = writers[0].count == count
    who = f"by {_writer(writers[0])}" if is_alone else ", ".join(by)
    if kind == zombie_write.NAME:
        return f": {_writer(writers[0]) if is_alone else who}"
    if kind not in OF_LOST_OUTPUTS:
        return f", written {who}" if is_alone else f" (writers: {who})"
    if not is_alone:
        return f": outputs were written and not committed, {who}"
    return f": {'its output was' if count == 1 else 'their outputs were'} written {who}"


def inputs_clause(lost: Sequence[Example], *, is_certain: bool) -> str:
    """Formulates where the inputs of lost outputs lie, as the end of a clause. Of more than a few,
    one is named. `is_certain`: each of them is lost, and not only some."""
    places = list(dict.fromkeys(_input_place(example) for example in lost))
    if len(places) > PLACES_MAX:
        return f" (such as that of input {places[0]})" if is_certain else ""
    inputs = f"{'input' if len(places) == 1 else 'inputs'} {', '.join(places)}"
    return f" (of {inputs})" if is_certain else f" (among those of {inputs})"


def _input_place(example: Example) -> str:
    topic, partition, offset, *_ = (example.lineage or "").split("/")
    return f"{topic}-{partition}@{offset}"


def _writer(rows: WriterRows) -> str:
    """Formats a writer with the time of its rows."""
    if rows.first_ms is None or rows.last_ms is None:
        return rows.writer
    first, last = time_of(rows.first_ms), time_of(rows.last_ms)
    if not first or not last:
        return f"{rows.writer.rstrip(',')}, {NO_TIME}"
    return f"{rows.writer} {first if first == last else f'{first} to {last}'}"


def _clause(finding: Finding) -> str:
    """Returns the finding's first sentence as a clause. Findings begin with a number or a word of
    their own, never with a name, so its capital goes."""
    first = finding.why.split(". ")[0].rstrip(".")
    return f"{first[:1].lower()}{first[1:]}"
