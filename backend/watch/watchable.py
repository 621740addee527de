"""Which contracts can be judged increment by increment, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from topicproof.backend.contracts.contract import Contract, mistake
from topicproof.backend.errors import ContractError, Mistake
from topicproof.backend.yaml_fields import Place
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Order
from topicproof.validators.increments.watch_verdict import WATCHED, WatchTerms
from topicproof.validators.lineage.identity import Identity

DECODED = ("json", "field", "key_field")
"""Identities that Spark takes out of a record."""
OUTPUTS_MAX = 64
"""Outputs of an input. Each takes a bit for each input."""


@dataclass(frozen=True)
class WatchedContract:
    """A contract for one sink that can be watched."""

    name: str
    """What people call it: a label of metrics, and its name in alarms."""
    contract: Contract
    listed: str = field(default="", compare=False)
    """What the list of the home calls it, or the contract of which it is one sink; empty if it is
    not on the list."""

    @property
    def source(self) -> str:
        return self.contract.source.names[0]

    @property
    def sink(self) -> str:
        return self.contract.of.names[0]

    @property
    def by_key(self) -> bool:
        return self.contract.by is Identity.KEY

    @property
    def outputs(self) -> int:
        """Expected of each input."""
        return int(self.contract.count or 1)

    @property
    def terms(self) -> WatchTerms:
        contract = self.contract
        return WatchTerms(contract.guarantee, contract.kinds, contract.range == "retained")

    @property
    def state_name(self) -> str:
        """What its state is kept under: another reading of the topics is another one."""
        match = self.contract.terms(None).match
        how = f"{match.source} {match.sink}" if self.by_key else "lineage"
        return f"{self.source} {self.sink} {how} {self.outputs}"

    @property
    def has_other_name(self) -> bool:
        """Whether the list calls it otherwise."""
        return bool(self.listed) and not is_named(self.name, self.listed)

    def is_judged_as(self, other: WatchedContract) -> bool:
        """Whether both match the same topics by the same terms."""
        return (self.state_name, self.terms, self.contract.within, self.contract.remember) == (
            other.state_name,
            other.terms,
            other.contract.within,
            other.contract.remember,
        )


@dataclass(frozen=True)
class RefusedContract:
    """A contract on the list that a watch does not judge."""

    name: str
    """No contract that is judged has it."""
    why: str
    """In sentences."""
    listed: str
    """What the list calls it, or the contract of which it is one sink."""
    source: str = ""
    """Its topics; empty if the contract cannot be read."""
    sink: str = ""


def is_named(name: str, listed: str) -> bool:
    """Whether a watch calls a contract, or one of its sinks, as the list does."""
    return name == listed or name.startswith(f"{listed}:")


class ContractsToWatch(NamedTuple):
    """What one watch is asked to judge."""

    watched: tuple[WatchedContract, ...]
    refused: tuple[RefusedContract, ...] = ()


def watched_contracts(name: str, contract: Contract) -> tuple[WatchedContract, ...]:
    """Return a contract for each of its sinks. Raises ContractError naming each term that cannot be
    watched."""
    mistakes = [
        mistake(contract.yaml_fields, place, f"it cannot be watched: {why}")
        for place, why in _reasons(contract)
    ]
    if mistakes:
        raise ContractError(*_once(mistakes))
    each = contract.each()
    return tuple(
        WatchedContract(name if len(each) == 1 else f"{name}:{terms.of.names[0]}", terms)
        for terms in each
    )


def _once(mistakes: list[Mistake]) -> list[Mistake]:
    return list(dict.fromkeys(mistakes))


def _reasons(contract: Contract) -> Iterator[tuple[Place, str]]:
    """Yield the terms that only a check can judge, with the reason."""
    if contract.unique is not None:
        yield ("unique",), "a sink alone is judged over all time. `topicproof check` does that"
        return
    if contract.aggregate is not None:
        why = "an aggregate is of all inputs since the beginning. `topicproof check` judges it"
        yield ("aggregate",), why
        return
    if contract.table is not None:
        why = "a watch reads topics, and a table has no offsets to go on from. Use a check instead"
        yield ("sink", "table"), why
        return
    for side, topic in (("source", contract.source), ("sink", contract.sink)):
        if topic is not None and len(topic.names) > 1:
            yield (side, "topics"), "several topics as one are judged by `topicproof check`"
        if topic is not None and topic.cluster is not None:
            yield (side, "cluster"), "a watch is about the one cluster that its options name"
    if contract.group is not None:
        yield ("group",), "`within:` says what is due. Remove the group"
    if contract.dead_letters is not None:
        why = "a watch reads no dead letters, so their inputs would be gaps. Use `topicproof check`"
        yield ("dead_letters",), why
    for number, terms in enumerate(contract.each()):
        at: Place = () if contract.sinks is None else ("sinks", number)
        yield from _reasons_of_sink(terms, at)


def _reasons_of_sink(contract: Contract, at: Place) -> Iterator[tuple[Place, str]]:
    if contract.value is not None:
        yield (*at, "value"), "Spark computes its expressions, and a watch has none"
    if contract.count is not None and not (
        contract.count.isdecimal() and 1 <= int(contract.count) <= OUTPUTS_MAX
    ):
        yield (*at, "count"), f"a watch takes a whole number from 1 to {OUTPUTS_MAX}"
    elif contract.expect is not Expect.ONE_TO_ONE and contract.by is Identity.KEY:
        why = "outputs of one input are told apart by lineage alone, not by what they hold"
        yield (*at, "expect"), why
    elif contract.expect is Expect.ZERO_OR_ONE and "gap" in contract.kinds:
        yield (*at, "expect"), "nothing tells in time whether an input is filtered or late"
    if contract.order is Order.PER_KEY and "order" in contract.kinds:
        yield (*at, "order"), "the last output of every key would have to be remembered"
    match = contract.terms(None).match
    for side in (match.source, match.sink):
        if side.partition(":")[0] in DECODED:
            yield (*at, "identity"), "a watch decodes no record. Name key, value or a header"
            break
    unwatched = [kind for kind in contract.require or () if kind not in WATCHED]
    if unwatched:
        yield ("require",), f"a watch does not judge {', '.join(unwatched)}"
