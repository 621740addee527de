"""A verdict in one sentence that can be quoted, and its warnings."""

from __future__ import annotations

from collections.abc import Sequence

from topicproof.validators.expectation import PREMISES, PROMISES, REQUIRED
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Finding, Guarantee, Order, Outcome
from topicproof.validators.ledger.ledger import Ledger


def verdict_sentence(
    verdict: Outcome,
    ledger: Ledger,
    guarantee: Guarantee,
    counting: Sequence[Finding],
    findings: Sequence[Finding],
    not_processed: int,
) -> str:
    """Formulates the verdict in one sentence."""
    if ledger.doubts:
        return f"The readings cannot be trusted: {ledger.doubts[0]}"
    if ledger.circumstances.replaced:
        remedy = PREMISES["recreated"].remedy
        return f"Could not be judged: {ledger.circumstances.replaced[0]}. {remedy}"
    rest = (
        f"; {not_processed:,} {plural(not_processed, 'input')} not processed"
        if not_processed
        else ""
    )
    bad = [finding for finding in counting if finding.outcome is verdict]
    if verdict is Outcome.VIOLATED:
        told = [finding for finding in bad if finding.primary] or bad
        promise = "unique" if ledger.agreed.unique else PROMISES[guarantee]
        return f"Not {promise}: {'; '.join(_clause(finding) for finding in told)}{rest}."
    if verdict is Outcome.UNKNOWN:
        broken = [finding for finding in bad if finding.kind in PREMISES]
        others = [
            finding
            for finding in bad
            if finding not in broken and finding.explained_by not in PREMISES
        ] or [finding for finding in bad if not broken]
        # Kinds that had nothing to examine, because a premise is broken, add nothing.
        told = [finding for finding in others if finding.count or not broken]
        reasons = [f"{finding.kind}: {_clause(finding)}" for finding in (*broken, *told)]
        if ledger.pending and not ledger.circumstances.moving:
            pending = plural(ledger.pending, "offset")
            reasons.insert(
                0, f"{ledger.pending:,} {pending} still pending at or above the last stable offset"
            )
        remedy = f" {PREMISES[broken[0].kind].remedy}" if broken else ""
        sentence = f"Could not be judged: {'; '.join(reasons)}{rest}.{remedy}"
        return of_sink_alone(sentence) if ledger.agreed.unique else sentence
    return f"{_praise(ledger, guarantee, counting, findings)}{rest}."


def _praise(
    ledger: Ledger, guarantee: Guarantee, counting: Sequence[Finding], findings: Sequence[Finding]
) -> str:
    """Formulates what holds, claiming no more than was required."""
    if ledger.agreed.unique:
        inputs = ledger.inputs_count
        said = (
            f"{inputs:,} committed {plural(inputs, 'record')} and as many identities: none repeats"
        )
        return said + _left_out(ledger)
    kinds = {finding.kind for finding in counting}
    primary = {finding.kind: finding.primary for finding in findings}
    inputs = ledger.inputs_count
    in_order = ", in order" if keeps_order(ledger) else ""
    if not kinds >= set(REQUIRED[guarantee]) - (set() if in_order else {"order"}):
        return (
            f"None of the required kinds ({', '.join(sorted(kinds))}) was found among {inputs:,}"
            " inputs"
        )
    wanted = ledger.outputs_count
    # A gap that another kind explains, such as a group's offset ahead, is missing all the same.
    there = wanted - sum(one.count for one in findings if one.kind == "gap")
    match ledger.expected.kind:
        case Expect.ONE_TO_ONE:
            said = f"{there:,} of {inputs:,} inputs committed {PROMISES[guarantee]}{in_order}"
        case Expect.ZERO_OR_ONE if ledger.expected.count is None:
            said = (
                f"{there:,} outputs of {inputs:,} inputs committed {PROMISES[guarantee]}{in_order}"
            )
            if inputs > wanted:
                others = "one was" if inputs - wanted == 1 else f"{inputs - wanted:,} were"
                said += f"; it is unknown whether the other {others} filtered out or lost"
        case _:
            said = (
                f"{there:,} of {wanted:,} outputs of {inputs:,} inputs committed"
                f" {PROMISES[guarantee]}{in_order}"
            )
    if ledger.aborted and "aborted_read" in kinds:
        said += f"; {ledger.aborted:,} aborted {plural(ledger.aborted, 'record')} stayed invisible"
    if primary.get("duplicate"):
        said += (
            f"; {primary['duplicate']:,} {plural(primary['duplicate'], 'duplicate')}, as allowed"
        )
    if wanted - there:
        said += f"; {wanted - there:,} lost, as allowed"
    return said + _left_out(ledger)


def _left_out(ledger: Ledger) -> str:
    """Formulates what the verdict does not cover."""
    said = ""
    for side in ("source", "sink"):
        lost = sum(one.offsets for one in getattr(ledger.circumstances, f"{side}_removed").values())
        if lost:
            said += f"; {lost:,} {plural(lost, 'offset')} lost by the {side} and not judged"
    if ledger.pending:
        said += (
            f"; {ledger.pending:,} {plural(ledger.pending, 'offset')} at or above the last stable"
            " offset, not judged yet"
        )
    return said


def threshold_warnings(ledger: Ledger) -> tuple[str, ...]:
    """Lists what exceeds the contract's thresholds."""
    warn, said = ledger.agreed.warn, []
    if warn.pending is not None and ledger.pending > warn.pending:
        said.append(
            f"{ledger.pending:,} offsets are pending, and the contract warns above"
            f" {warn.pending:,}."
        )
    stable = ledger.aborted + ledger.committed
    share = ledger.aborted / stable if stable else 0.0
    if warn.aborted_share is not None and share > warn.aborted_share:
        said.append(
            f"{share:.1%} of the records are aborted; the contract warns above"
            f" {warn.aborted_share:.1%}."
        )
    return tuple(said)


def unchecked_filter(ledger: Ledger) -> tuple[str, ...]:
    """Warns if inputs without an output may be lost, unless the contract takes them for
    filtered."""
    count = ledger.inputs_count - ledger.outputs_count
    open_ = ledger.expected.kind is Expect.ZERO_OR_ONE and ledger.expected.count is None
    if not open_ or ledger.agreed.filter_unchecked or count <= 0:
        return ()
    has = "has" if count == 1 else "have"
    return (
        f"{count:,} {plural(count, 'input')} {has} no output: filtered or lost, and zero_or_one"
        " without a count cannot tell. Give the contract a `count` of 0 or 1, or accept this with"
        " `filtered: unchecked`.",
    )


def of_sink_alone(sentence: str) -> str:
    """Returns a sentence about both topics as one about the sink, where nothing else is judged."""
    return sentence.replace(" of both topics", "").replace(
        ": `topicproof contract init` proposes an identity", ""
    )


def keeps_order(ledger: Ledger) -> bool:
    """Whether the order of records is judged."""
    return ledger.order is not Order.NONE


def plural(count: int, noun: str) -> str:
    """Returns the noun, with an s unless there is one."""
    return noun if count == 1 else f"{noun}s"


def _clause(finding: Finding) -> str:
    """Returns the finding's first sentence, for joining with others."""
    return finding.why.split(". ")[0].rstrip(".")
