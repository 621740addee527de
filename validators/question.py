"""The question that one verdict answers. Contract, run, evidence and ledger use this one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topicproof.validators.contract_terms import NOTHING_MORE, ContractTerms
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Bounds, Guarantee, Order, Origins
from topicproof.validators.lineage.identity import Identity


@dataclass(frozen=True)
class Question:
    """What to judge."""

    source: Bounds
    """The judged range of the source: an input counts from `start` to below `lso`. The source
    itself ends at `hw`."""
    sink: str
    also: tuple[str, ...] = ()
    """Further topics with the same outputs, judged together with the sink
    (validators/merged_topics.py). The last one is that of the dead letters, if there are any."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    identity: Identity = Identity.LINEAGE
    expected: Expected = field(default_factory=Expected)
    """The required number of outputs per input."""
    order: Order = Order.PER_SOURCE_PARTITION
    agreed: ContractTerms = NOTHING_MORE
    """Further terms of a contract."""
    sink_from: Mapping[int, int] = field(default_factory=dict)
    """Sink offsets at which judging begins, by partition."""
    run: str | None = None
    not_processed: int = 0
    """Inputs beyond the judged range."""
    foreign: bool = False
    """Whether the topics do not belong to one of our runs. Then their whole range is judged, losses
    are looked for, and they may move: the source's bounds are taken again after the sink's."""
    group: str | None = None
    """The consumer group of `agreed.offsets`."""
    across: bool = False
    """Whether source and sink are on different clusters. Headers that name transactions are then
    copies from another log, and no witness of this one."""
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    """Ids that topics had when the outputs were written, as a run recorded them. Another id at
    judging is a deleted topic's name."""
    origins: Origins | None = None
    """The ids of the topics at the first look. None: they are asked for before the readings."""
    due: Mapping[int, int] | None = None
    """The source offsets below which outputs are due, by partition; a missing partition owes none.
    None: the whole judged range, or as far as outputs reach if the topics move."""

    @property
    def by_key(self) -> bool:
        return self.identity is Identity.KEY

    @property
    def matched_by(self) -> str | None:
        """What records are matched with their inputs by, in words; None for a sink alone, and for
        aggregates."""
        if self.agreed.unique or self.agreed.aggregate is not None:
            return None
        return self.agreed.match.words if self.by_key else str(Identity.LINEAGE)

    def first_of_letters(self, sink_bounds: Bounds) -> int | None:
        """Returns the number of the first partition of the dead letters among those of the sink
        and the topics in `also`; None without dead letters."""
        return None if self.agreed.letters is None else sink_bounds.parts[-1].first

    @property
    def compares_content(self) -> bool:
        """Whether only their content distinguishes the outputs of one input."""
        return self.by_key and self.expected.kind is Expect.ONE_TO_MANY
