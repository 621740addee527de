"""Turns a ledger into a verdict: which kinds count under a guarantee, and what each one found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from topicproof.validators.expectation import (
    BY_CONTRACT,
    CONTRADICTIONS,
    COVERAGE,
    EXEMPT,
    MEANINGLESS,
    MEANINGLESS_OF_TABLE,
    OF_AGGREGATE,
    OF_LOG,
    PREMISES,
    PROMISES,
    REQUIRED,
    covers,
    judge_rows,
    looked_for,
    merge,
    reason_not_required,
    required_of_table,
)
from topicproof.validators.expected import Expect
from topicproof.validators.finding import (
    Check,
    Finding,
    Guarantee,
    JudgedInputs,
    NotChecked,
    Order,
    Outcome,
    Witness,
)
from topicproof.validators.found_rows import FoundRows, find_rows
from topicproof.validators.kinds import (
    both_outcomes,
    duplicate,
    gap,
    identity_change,
    identity_missing,
    identity_repeated,
    letter_repeated,
    order,
    recreated,
    zombie_write,
)
from topicproof.validators.kinds.catalogue import VALIDATORS, Validator
from topicproof.validators.ledger.group_totals import is_moving
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.report import Report
from topicproof.validators.sentences import capitalized, counted, of_rows
from topicproof.validators.thresholds import threshold_warnings
from topicproof.validators.verdict_sentence import (
    finding_sentence,
    inputs_clause,
    keeps_order,
    outcomes_note,
    outcomes_of,
    pending_inputs,
    remedy_sentence,
    replaced_sentence,
    unchecked_filter,
    verdict_sentence,
    writers_clause,
)

OF_LETTERS = (both_outcomes.NAME, letter_repeated.NAME)
"""Kinds about dead letters. A verdict without these does not name them, as in earlier versions."""
OF_SOURCE = ("source_removed", "source_pending", "identity_repeated", "identity_disjoint")
"""Kinds about a source, which a contract about the sink alone does not have."""


def judge(
    ledger: Ledger,
    guarantee: Guarantee,
    require: Sequence[str] | None = None,
    not_processed: int = 0,
    run: str | None = None,
    versions: Mapping[str, str] | None = None,
    validators: Sequence[Validator] = VALIDATORS,
) -> Report:
    """Judges a ledger under a guarantee.

    `require` names the kinds that make the verdict; then no other kind is looked for. Otherwise
    they are the guarantee's own, the ones that the contract asks for, and every contradiction found
    (validators/expectation.py). `not_processed` is the number of inputs beyond the judged range.
    Raises ValueError for a required kind that does not exist, and for an empty `require`. Raises
    ReadingsNeeded if a ledger of folded readings is not enough.

    Pending offsets never hold: until their transactions end, a missing record may still arrive and
    a repeated one may still be committed. Existing violations remain.
    """
    began = time.monotonic()
    if ledger.question.agreed.letters is None:
        validators = [each for each in validators if each.NAME not in OF_LETTERS]
    is_aggregate = ledger.question.agreed.aggregate is not None
    if not is_aggregate:
        validators = [each for each in validators if each.NAME not in OF_AGGREGATE]
    is_table = ledger.question.agreed.table is not None
    meaningless = MEANINGLESS if is_aggregate else MEANINGLESS_OF_TABLE if is_table else {}
    required = _required(guarantee, require, ledger, validators)
    unheard = {
        validator.NAME: reason
        for validator in validators
        if (reason := _unheard(validator, ledger))
    }
    contradictions = OF_LOG if is_aggregate else CONTRADICTIONS[guarantee] * (require is None)
    rested_on = {
        premise
        for validator in VALIDATORS
        if validator.NAME in required
        for premise in validator.TRAITS.premises
        if premise not in meaningless
    }
    premises = [kind for kind in PREMISES if kind in rested_on and _asked(kind, ledger)]
    candidates = validators
    if is_table:
        candidates = [validator for validator in validators if validator.NAME not in meaningless]
        contradictions = tuple(kind for kind in contradictions if kind not in meaningless)
    selection = [
        validator
        for validator in candidates
        if validator.NAME in required
        or validator.NAME in premises
        or (is_aggregate and validator.NAME in contradictions)
        or (validator.NAME in COVERAGE and _asked(validator.NAME, ledger))
        or (validator.NAME in EXEMPT[guarantee] and _requested(validator.NAME, ledger))
        or (
            require is None
            and looked_for(validator.NAME, guarantee)
            and _requested(validator.NAME, ledger)
        )
    ]
    rows_by_kind = find_rows(
        [validator for validator in selection if validator.NAME not in unheard], ledger
    )
    findings, checked = [], []
    for validator in selection:
        finding = _judge_kind(
            validator,
            ledger,
            guarantee,
            rows_by_kind.get(validator.NAME),
            unheard.get(validator.NAME),
        )
        findings.append(finding)
        if validator.NAME not in unheard:
            witnesses = tuple(
                witness
                for group in validator.WITNESSES
                for witness in group
                if witness in ledger.accounts.heard
            )
            checked.append(
                Check(validator.NAME, validator.covered(ledger), validator.UNIT, witnesses)
            )
    counting = [
        finding
        for finding in findings
        if finding.kind in required
        or (finding.kind in contradictions and finding.outcome is Outcome.VIOLATED)
        or (finding.kind in premises and finding.count and finding.outcome is Outcome.UNKNOWN)
    ]
    verdict = _verdict(ledger, counting)
    # What a table cannot be asked takes nothing from what is promised of it.
    promised = (*required, *meaningless) if is_table else required
    whole = covers(guarantee, promised, keeps_order(ledger))
    return Report(
        verdict=verdict,
        guarantee=guarantee,
        why=verdict_sentence(
            verdict,
            ledger,
            promise=PROMISES[guarantee] if whole else None,
            counting=counting,
            findings=findings,
            not_processed=not_processed,
        ),
        source=ledger.question.source,
        inputs=JudgedInputs(ledger.counts.inputs.judged, outcomes_of(ledger)),
        sink=ledger.sink_bounds,
        balance=ledger.balance,
        transactions=ledger.transactions,
        findings=tuple(findings),
        checked=tuple(checked),
        not_checked=(
            *(
                NotChecked(
                    validator.NAME,
                    meaningless.get(
                        validator.NAME,
                        reason_not_required(validator.NAME, guarantee, require is not None),
                    ),
                )
                for validator in validators
                if validator.NAME not in (*required, *contradictions, *premises)
            ),
            *(
                NotChecked(finding.kind, finding.why)
                for finding in findings
                if finding.kind in (*contradictions, *premises)
                and finding.outcome is Outcome.UNKNOWN
                and not finding.count
            ),
        ),
        doubts=ledger.doubts,
        not_processed=not_processed,
        run=run,
        took_s=round(ledger.took_s + time.monotonic() - began, 3),
        versions=versions or {},
        identity=ledger.question.matched_by,
        notes=outcomes_note(ledger),
        warnings=(
            *threshold_warnings(ledger.question.agreed.warn, ledger),
            *(unchecked_filter(ledger) if verdict is Outcome.HOLDS and "gap" in required else ()),
        ),
    )


def _required(
    guarantee: Guarantee,
    require: Sequence[str] | None,
    ledger: Ledger,
    validators: Sequence[Validator],
) -> tuple[str, ...]:
    required = tuple(require or ())
    if require is None:
        more = [kind for kind in ledger.question.agreed.kinds if kind not in EXEMPT[guarantee]]
        of_table = ledger.question.agreed.table is not None
        promised = required_of_table(guarantee) if of_table else REQUIRED[guarantee]
        required = (*(kind for kind in promised if kind != "order" or keeps_order(ledger)), *more)
    names = [validator.NAME for validator in validators]
    unknown = [kind for kind in required if kind not in names]
    if unknown or not required:
        raise ValueError(
            f"Unknown kinds required: {', '.join(unknown) or 'none at all'}. Known:"
            f" {', '.join(names)}."
        )
    return required


def _asked(premise: str, ledger: Ledger) -> bool:
    """Whether a premise, or what a verdict leaves out, applies to this verdict at all."""
    if ledger.question.agreed.unique and premise in OF_SOURCE:
        return False
    match premise:
        case "undecodable":
            agreed = ledger.question.agreed
            return bool(agreed.source_fields) or agreed.needs_decoded_sink
        case "identity_missing" | "identity_repeated":
            return ledger.by_key
        case "recreated":
            return not ledger.by_key or bool(ledger.circumstances.replaced)
        case "outputs_alike":
            return ledger.by_key and ledger.question.expected.kind is Expect.ONE_TO_MANY
        case "key_spread":
            return ledger.question.order is Order.PER_KEY
        case _:
            return True


def _requested(kind: str, ledger: Ledger) -> bool:
    """Whether a contract-only kind is required by the contract; true of all other kinds."""
    return kind not in BY_CONTRACT or kind in ledger.question.agreed.kinds


def _unheard(validator: Validator, ledger: Ledger) -> str | None:
    """Explains why this validator cannot run, if a witness is missing."""
    missing = [
        " or ".join(group)
        for group in validator.WITNESSES
        if not set(group) & ledger.accounts.heard
    ]
    return f"Not judged: a witness is missing ({', '.join(missing)})." if missing else None


def _judge_kind(
    validator: Validator,
    ledger: Ledger,
    guarantee: Guarantee,
    rows: FoundRows | None,
    unheard: str | None,
) -> Finding:
    if rows is None or rows.error is not None:
        failure = rows.error if rows else "it was not run"
        why = unheard or f"Not judged: the check itself failed ({failure})."
        return Finding(validator.NAME, Outcome.UNKNOWN, 0, 0, None, (), why)
    covered = validator.covered(ledger)
    causes = _certain_causes(validator.NAME, rows.causes, ledger)
    count, primary = sum(causes.values()), causes.get(None, 0)
    others = {cause: number for cause, number in causes.items() if cause is not None}
    explained_by = max(others, key=lambda cause: others[cause]) if others else None
    outcome = judge_rows(validator.NAME, causes, guarantee)
    by_whom = writers_clause(validator.NAME, primary or count, rows.writers)
    if validator.NAME == gap.NAME and count:
        # A lost output lies nowhere in the sink. Its input is where to look.
        suspects = rows.causes.get(None, 0) or count
        is_certain = suspects == (primary or count)
        by_whom = inputs_clause(rows.examples[:suspects], is_certain=is_certain) + by_whom
    if rows.incident is not None:
        by_whom += rows.incident.clause
    is_zombie = validator.NAME == zombie_write.NAME and count
    words = zombie_write.words(ledger) if is_zombie else validator.WORDS
    if ledger.question.agreed.table is not None:
        words = of_rows(words)
    why = finding_sentence(validator.NAME, words, causes, covered, by_whom)
    if primary < rows.causes.get(None, 0):
        why = f"At least {why}"
    if validator.NAME == recreated.NAME and ledger.circumstances.replaced:
        why = capitalized(replaced_sentence(ledger.circumstances))
    elif validator.NAME in PREMISES and outcome is Outcome.UNKNOWN and primary:
        why += f" {remedy_sentence(validator.NAME, ledger)}"
    left_out = _left_out(validator.NAME, ledger) if covered else ""
    is_allowed = validator.NAME in EXEMPT[guarantee]
    if left_out and outcome is Outcome.HOLDS and not is_allowed:
        # What is left out may be a copy, or lack its output.
        outcome = Outcome.UNKNOWN
        why = f"Not all can be judged. Of what can: {why[:1].lower()}{why[1:]}"
    why += left_out
    if outcome is Outcome.HOLDS and covered == 0:
        without_pairs = order.without_pairs(ledger) if validator.NAME == order.NAME else None
        hidden = _hidden(validator, ledger)
        if without_pairs is not None:
            why = f"{without_pairs}."
        elif hidden:
            outcome, why = Outcome.UNKNOWN, f"Not judged. {hidden}"
        else:
            outcome, why = Outcome.UNKNOWN, f"Nothing to look at: {_nothing(validator, ledger)}."
    if primary and is_allowed:
        why += f" Allowed: {EXEMPT[guarantee][validator.NAME]}."
    return Finding(
        kind=validator.NAME,
        outcome=outcome,
        count=count,
        primary=primary,
        explained_by=explained_by,
        examples=rows.examples,
        why=why,
        story=rows.incident.story if rows.incident else "",
        next_step=(
            rows.incident.next_step if rows.incident and outcome is Outcome.VIOLATED else ""
        ),
    )


def _certain_causes(
    kind: str, causes: Mapping[str | None, int], ledger: Ledger
) -> Mapping[str | None, int]:
    """Returns a kind's rows by cause, with those alone as primary that are certain. If more outputs
    are missing than there are records without an identity, some are missing for certain, but each
    of those records may be one of them."""
    primary, nameless = causes.get(None, 0), ledger.unidentified_outputs
    if kind != gap.NAME or not primary or not nameless or ledger.sink_incomplete:
        return causes
    certain = max(1, primary - nameless)
    unclear = causes.get(identity_missing.NAME, 0) + primary - certain
    return {**causes, None: certain, identity_missing.NAME: unclear}


def _nothing(validator: Validator, ledger: Ledger) -> str:
    """Explains why a kind has a denominator of zero. The log may hold transactions that nothing
    names, and records that were matched with no input."""
    transactions = ledger.transactions
    inside = (transactions.committed or 0) + (transactions.aborted or 0) + (transactions.open or 0)
    if validator.NAME == identity_change.NAME and inside and transactions.told_by == "raw_log":
        return (
            f"the log holds {counted(inside, 'transaction')}, but neither a header nor a"
            " coordinator names a transactional id"
        )
    if validator.UNIT == "transactions" and inside and transactions.told_by == "raw_log":
        return f"the log holds {counted(inside, 'transaction')}, but no header or journal names one"
    if validator.NAME == identity_repeated.NAME and ledger.counts.identities.records:
        return "no input holds an identity"
    of_pairs = validator.NAME in (duplicate.NAME, order.NAME) and ledger.committed
    if of_pairs and not duplicate.covered(ledger):
        return "no committed record was matched with an input"
    if of_pairs and ledger.question.order is Order.PER_KEY and not ledger.counts.keys.all:
        return "no committed output has a key"
    if validator.NAME == gap.NAME and ledger.counts.inputs.judged:
        has = " with an identity" if ledger.counts.identities.missing else ""
        return f"no output is expected of an input{has}"
    return f"there are no {validator.UNIT}"


def _hidden(validator: Validator, ledger: Ledger) -> str:
    """Formulates a sentence about what the coordinators did not tell of a kind; empty if nothing,
    and for kinds that do not need them."""
    coordinator = ledger.accounts.coordinator
    if coordinator is None or validator.WITNESSES != ((Witness.COORDINATOR,),):
        return ""
    if coordinator.hides and not coordinator.left_out_note:
        return "Coordinators hide an open transaction from this client."
    return coordinator.left_out_note


def _left_out(kind: str, ledger: Ledger) -> str:
    """Formulates which inputs and records a kind's denominator leaves out, a sentence each; empty
    if none."""
    if kind in OF_AGGREGATE:
        return _left_out_of_groups(ledger)
    if kind not in (duplicate.NAME, gap.NAME) or ledger.question.agreed.unique:
        return ""
    sentences = ""
    if nameless := ledger.counts.identities.missing:
        is_single = nameless == 1
        sentences += (
            f" {counted(nameless, 'input')} {'has' if is_single else 'have'} no known identity, so"
            f" {'its' if is_single else 'their'} outputs could not be looked for."
        )
    if kind == duplicate.NAME and (unmatched := ledger.unidentified_outputs):
        verb = "has" if unmatched == 1 else "have"
        sentences += (
            f" {counted(unmatched, 'record')} of the sink {verb} no known identity, and may repeat"
            " another."
        )
    return sentences


def _left_out_of_groups(ledger: Ledger) -> str:
    """Formulates why the inputs of a group may not be all, a sentence each; empty if they are."""
    circumstances = ledger.circumstances
    sentences = ""
    if is_moving(circumstances):
        sentences += (
            " The topics grew during the check, and nothing tells which inputs an output has to"
            " count: name the program's consumer group under `group:` in the contract."
        )
    pending = pending_inputs(ledger)
    if pending and not circumstances.moving:
        verb = "is" if pending == 1 else "are"
        sentences += (
            f" {counted(pending, 'offset')} of the source {verb} pending, and may still belong to"
            " any group."
        )
    return sentences


def _verdict(ledger: Ledger, counting: Iterable[Finding]) -> Outcome:
    if ledger.doubts or ledger.circumstances.replaced:
        return Outcome.UNKNOWN
    # In a moving topic, pending offsets are not judged yet; what is due and pending is UNKNOWN
    # anyway.
    pending = [Outcome.UNKNOWN] if ledger.pending and not ledger.circumstances.moving else []
    return merge([*(finding.outcome for finding in counting), *pending])
