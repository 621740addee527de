"""Waivers that silence the alarms of watched contracts.

A waiver accepts one kind of finding of one check until a day. A watch takes those of the newest
check of the same topics, guarantee and cluster, if a trusted key vouches for them. Such a kind
still violates the contract; no alarm tells it until that day is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date

from topicproof.backend.evidence.folder import evidence_hash
from topicproof.backend.history.signoff import Signoff, read_chain, waived_kinds
from topicproof.backend.history.store import History, Run
from topicproof.backend.watch.alarms import AlarmState
from topicproof.backend.watch.watchable import WatchedContract

Waivers = Mapping[tuple[str, str], "WaivedKind"]
"""By contract and kind of finding."""
CHECKS_MAX = 1_000
"""The newest runs and checks among which a contract's are looked for."""


@dataclass(frozen=True)
class WaivedKind:
    """A kind of finding whose alarm a waiver silences."""

    contract: str
    """Its name in the watch."""
    kind: str
    until: date
    who: str
    comment: str

    @property
    def sentence(self) -> str:
        return (
            f"Contract {self.contract}, {self.kind}: waived until {self.until} by {self.who}"
            f" ({self.comment}). No alarm tells it until then; the verdict stays."
        )


def waived_of(history: History, contracts: Iterable[WatchedContract]) -> Waivers:
    """Return the waivers that count today, by contract and kind. Raises EvidenceError, and
    UsageError for a damaged keyring."""
    runs = history.list(CHECKS_MAX)
    chain = read_chain(history)
    waived: dict[tuple[str, str], WaivedKind] = {}
    for contract in contracts:
        check = next((run for run in runs if _is_of(run, contract, history)), None)
        evidence = None if check is None else evidence_hash(check.folder(history.settings))
        if check is None or evidence is None:
            continue
        signoffs = chain.of(check.id, check.verdict)
        kinds = waived_kinds(signoffs, evidence)
        for entry in signoffs.waivers(evidence):
            if entry.number not in signoffs.doubts and entry.kind in kinds:
                _add(waived, contract, entry)
    return waived


def _add(
    waived: dict[tuple[str, str], WaivedKind], contract: WatchedContract, entry: Signoff
) -> None:
    """Add a waiver. The longest of several of one kind counts."""
    assert entry.kind is not None and entry.until is not None, "a waiver has both"
    place = contract.name, entry.kind
    if place not in waived or waived[place].until < entry.until:
        waived[place] = WaivedKind(contract.name, entry.kind, entry.until, entry.who, entry.comment)


def _is_of(run: Run, contract: WatchedContract, history: History) -> bool:
    """Whether a run is an ended check of the contract's topics on this cluster."""
    settings, facts = history.settings, run.facts
    return (
        run.kind == "check"
        and run.verdict is not None
        and (facts.source, facts.sink) == (contract.source, contract.sink)
        and run.plan.get("guarantee") == contract.contract.guarantee
        and (facts.cluster.name, facts.cluster.bootstrap) == (settings.cluster, settings.bootstrap)
    )


def silenced(alarms: AlarmState, waivers: Waivers) -> AlarmState:
    """Return the alarms with the waiver in place of the sentence, where one silences an alarm that
    lasts: its end is no all-clear."""
    lasting = dict(alarms.alarms)
    for key, alarm in alarms.alarms.items():
        condition = alarm.condition
        waiver = waivers.get((condition.contract, condition.finding))
        if waiver is not None:
            lasting[key] = replace(alarm, condition=replace(condition, sentence=waiver.sentence))
    return replace(alarms, alarms=lasting)
