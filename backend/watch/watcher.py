"""Looks at a cluster again and again, and tells what begins, ends and happens."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from kafka.errors import KafkaError

from topicproof.backend.address import Address
from topicproof.backend.errors import (
    ClusterError,
    SetupError,
    TopicError,
    TopicproofError,
    UsageError,
)
from topicproof.backend.kafka.browse.overview import Overview
from topicproof.backend.kafka.log.client import cluster_error
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.watch.alarms import (
    Notice,
    after_look,
    after_sending,
    replaced_alarms,
    without_contracts,
)
from topicproof.backend.watch.cluster_look import listed_ids, look_at, own_client
from topicproof.backend.watch.conditions import PATIENCE_S, ClusterLook, Condition, conditions
from topicproof.backend.watch.contract_watch import (
    OFFSETS_AT_ONCE,
    REFUSED_STEP,
    ContractFigures,
    ContractWatch,
    refused,
    unread,
)
from topicproof.backend.watch.metrics import WatchFigures, metrics_server
from topicproof.backend.watch.pair_store import PairStore
from topicproof.backend.watch.standings import Standing, State
from topicproof.backend.watch.state_file import StateFile, WatchState
from topicproof.backend.watch.waivers import Waivers, silenced
from topicproof.backend.watch.watchable import ContractsToWatch, RefusedContract, WatchedContract
from topicproof.backend.watch.webhook import Webhook
from topicproof.validators.finding import Bounds
from topicproof.validators.sentences import counted

LOG = logging.getLogger("topicproof.watch")
EVERY_S = 10.0
"""Default time from one look to the next."""
BEHIND_LOOKS = 3
"""A watch is behind when its last look is older than so many."""

LISTED_TOPIC_PATIENCE_S = 0.1
"""How long a broker may not know a topic that another one has just listed. If the topic was deleted
since, the other contracts wait for that."""
UNREAD_LOOKS = 3
"""A contract whose topics could not be read at so many looks, one after the other, is an alarm."""
TROUBLE_EVERY_S = 600.0
"""From one sentence of a trouble that lasts to the next, if it differs."""
DELIVERIES_MAX = 100
"""Notices that are sent after one look. The others wait for the next one."""
WAIVERS_EVERY_S = 60.0
"""From one reading of the waivers to the next."""
REFUSALS_MAX = 5
"""Looks at which a webhook may refuse a notice, while it takes others, before it is given up."""
FOLDED = (
    "There are too many alarms of a kind to tell each: one alarm stands for those beyond the limit,"
    " and counts them."
)


@dataclass(frozen=True)
class WatchOptions:
    """How to watch."""

    every_s: float = EVERY_S
    patience_s: float = PATIENCE_S
    """From which age on an open transaction is wrong that a group waits for."""
    webhook: Webhook | None = None
    cluster_options: str = ""
    """Those that name the cluster on a command line, each after a space."""
    contracts: tuple[WatchedContract, ...] = ()
    """Those that are judged at each look."""
    offsets_per_second: int | None = None
    """The most offsets that are read for contracts; None for as many as come."""
    cluster: str = ""
    """The name of the cluster in the settings; empty without one."""
    bootstrap: str = ""
    """Its address there; empty for the embedded Kafka."""


class Trouble(NamedTuple):
    """A trouble that lasts, as it was told."""

    sentence: str
    cause: str
    at: float
    """When, in seconds of the monotonic clock."""


class Watcher:
    """One watch of one cluster."""

    def __init__(
        self,
        address: Address,
        file: StateFile,
        options: WatchOptions,
        *,
        on_notice: Callable[[Notice, str], None],
        on_trouble: Callable[[str], None],
        store: PairStore | None = None,
        read_contracts: Callable[[], ContractsToWatch] | None = None,
        read_waivers: Callable[[Sequence[WatchedContract]], Waivers] = lambda _contracts: {},
    ) -> None:
        """`on_notice` gets each new notice and the cluster's id, and again one that a killed watch
        may have handed on. `on_trouble` gets a sentence when a look or a delivery begins to fail,
        and when it works again. `store` has the contracts' pairs. `read_contracts` returns those to
        judge from the next look on; without it they are those of the options. `read_waivers`
        returns the waivers of contracts that count now. Both may raise TopicproofError. Raises
        SetupError as `StateFile.read`."""
        self.address = address
        self.file = file
        self.options = options
        self.on_notice = on_notice
        self.on_trouble = on_trouble
        self.store = store
        self.read_contracts = read_contracts
        self.read_waivers = read_waivers
        self.watched = options.contracts
        """The contracts that are judged."""
        self.refused: tuple[RefusedContract, ...] = ()
        """Those on the list that are not."""
        self._unlisted: frozenset[str] = frozenset()
        """Names of those that are not judged any more, until their alarms have ended."""
        self._other_names: dict[str, str] = {}
        """What the list calls contracts that are watched by other names."""
        self._waivers: Waivers = {}
        self._waivers_at: float | None = None
        self.state = file.read()
        self.contracts: dict[str, ContractWatch] = {}
        """Those whose topics were there, by name."""
        self.stop = threading.Event()
        self.figures = WatchFigures(alarms=self.state.alarms)
        self._looked_at: float | None = None
        self._turn = 0
        """Which contract is read first, of those that have something to read."""
        self._troubles: dict[str, Trouble] = {}
        """As they were told last."""
        self._refusals: Counter[Notice] = Counter()

    @property
    def is_looking(self) -> bool:
        """Whether the last look that succeeded is recent enough."""
        return (
            self._looked_at is not None
            and time.monotonic() - self._looked_at < BEHIND_LOOKS * self.options.every_s
        )

    @property
    def unready(self) -> str:
        """Why it is not caught up, in words without names. Empty while it is looking, and all of
        its contracts' topics is judged. Nobody knows that while their list cannot be read, or one
        of them is refused."""
        judged = self.figures.contracts
        late = [
            each.name
            for each in self.watched
            if each.name not in judged or not judged[each.name].is_caught_up
        ]
        if not self.is_looking:
            return "the cluster was not looked at lately"
        if "list" in self._troubles:
            return "the list of contracts cannot be read"
        if self.refused:
            return f"{counted(len(self.refused), 'contract')} refused"
        return f"{counted(len(late), 'contract')} behind" if late else ""

    @property
    def is_caught_up(self) -> bool:
        return not self.unready

    def watch(self, stop: threading.Event, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look until somebody sets the event, or it is over after a look. Raises SetupError if the
        state cannot be written."""
        self.stop = stop
        while not stop.is_set():
            began = time.monotonic()
            self.look()
            if is_over():
                return
            stop.wait(max(0.0, self.options.every_s - (time.monotonic() - began)))

    def look(self) -> None:
        """Look once. A cluster that does not answer changes no alarm: what is not seen is neither
        wrong nor all clear. Contracts whose topics answer are judged all the same."""
        began = time.monotonic()
        self._take_contracts()
        try:
            look = look_at(self.address)
        except ClusterError as error:
            self.figures.is_up = False
            self.figures.failed += 1
            sentence = f"The cluster cannot be looked at: {error}"
            self._trouble("look", sentence, cause=type(error).__name__)
            unseen = self._topics_of_contracts(sentence)
            if unseen is not None:
                self._go_on(unseen)
                self._judge_contracts(unseen, began)
                self._take_in(unseen, is_seen=False)
            self._note_standings("" if unseen is not None else sentence)
            if unseen is not None:
                self._unlisted = frozenset()
        else:
            self._trouble("look", " ".join((*look.notes, *look.overview.not_heard)))
            self._go_on(look)
            self._judge_contracts(look, began)
            self._take_in(look)
            self._note_standings()
            self._unlisted = frozenset()
            self._looked_at = time.monotonic()
            self.figures.looked_s = self._looked_at - began
        self._deliver()

    def _take_contracts(self) -> None:
        """Read which contracts are to be judged. One whose terms changed begins again, where its
        state ends."""
        if self.read_contracts is None:
            return
        try:
            watched, refused_now = self.read_contracts()
        except TopicproofError as error:
            self._trouble("list", f"The contracts stay what they were: {error}")
            return
        self._trouble("list", "")
        before = _by_name(self.watched, self.refused)
        after = _by_name(watched, refused_now)
        for name in before.keys() | after.keys():
            if before.get(name) != after.get(name):
                self.contracts.pop(name, None)
                self.figures.contracts.pop(name, None)
                self._troubles.pop(f"contract {name}", None)
        # What an earlier process has left of contracts that were taken off the list meanwhile, too.
        alarmed = {alarm.condition.contract for alarm in self.state.alarms.alarms.values()} - {""}
        standing = set() if self.store is None else self.store.standing_names()
        gone = (before.keys() | alarmed | standing) - after.keys() - self._unlisted
        for name in sorted(gone):
            self.on_trouble(f"Contract {name} is not watched any more.")
        if watched != self.watched:
            self._waivers_at = None
        self._tell_other_names(watched)
        self.watched, self.refused = watched, refused_now
        self._unlisted = (self._unlisted | gone) - after.keys()
        for contract in refused_now:
            figures = self.figures.contracts.setdefault(contract.name, ContractFigures())
            figures.trouble = contract.why
            self._trouble(f"contract {contract.name}", refused(contract).sentence)

    def _tell_other_names(self, watched: Sequence[WatchedContract]) -> None:
        """Tell of each contract on the list that is watched by another name than the list's."""
        other_names = {each.name: each.listed for each in watched if each.has_other_name}
        for name, listed in other_names.items():
            if self._other_names.get(name) != listed:
                self.on_trouble(f"Contract {listed} of the list is watched as {name}.")
        self._other_names = other_names

    def _topics_of_contracts(self, why: str) -> ClusterLook | None:
        """Return a look at a cluster that shows nothing but the ids of the contracts' topics; None
        without a contract, or if no broker answers. `why`: the reason why it shows no more."""
        if self.store is None or not self.watched:
            return None
        try:
            with connect(self.address) as kafka:
                answer = kafka.with_retries(kafka.metadata_of_all)
        except ClusterError:
            return None
        # A topic that is missing is taken for the one that it was: reading it shows the rest.
        topic_ids: dict[str, str] = {}
        for watch in self.contracts.values():
            topic_ids |= {topic: each for topic, each in watch.topic_ids.items() if each}
        topic_ids |= listed_ids(answer)
        nothing = Overview(datetime.now(UTC), answer.cluster_id, 0, (), None, (why,))
        return ClusterLook(nothing, {}, topic_ids, (why,))

    def _go_on(self, look: ClusterLook) -> None:
        """Tell first what an earlier process has judged, and was killed before it told. What is
        read next may end it. Of the cluster nothing is told before the end of the look: it is
        compared with the look before, and that once."""
        if self.contracts or self.store is None:
            return
        for contract in self.watched:
            try:
                self._ids_of(contract, look.topic_ids)
                self._begin(contract, look.topic_ids, self.store)
            except SetupError:
                raise
            except Exception:
                # It is judged next, which fails likewise, and tells.
                continue
        if any(watch.pair.sources for watch in self.contracts.values()):
            self._take_in(look, is_seen=False)

    def _begin(
        self, contract: WatchedContract, topic_ids: Mapping[str, str], store: PairStore
    ) -> ContractWatch:
        watch = ContractWatch.begin(contract, store, topic_ids)
        self.contracts[contract.name] = watch
        self.figures.contracts[contract.name] = watch.figures
        return watch

    def _judge_contracts(self, look: ClusterLook, began: float) -> None:
        """Read and judge what is new of each contract's topics, until all are caught up or the time
        of this look is over. `began`: when the look began."""
        topic_ids = look.topic_ids
        bounds = {topic.topic: topic.bounds for topic in look.overview.topics}
        open_contracts = [
            contract
            for contract in self.watched
            if not self._is_passed_over(contract, topic_ids, bounds, began)
        ]
        if not open_contracts:
            return
        # Otherwise whoever floods a topic of the first contract would use up what may be read of
        # the others.
        self._turn += 1
        turn = self._turn % len(open_contracts)
        open_contracts = open_contracts[turn:] + open_contracts[:turn]
        for contract in open_contracts:
            self._note_behind(contract, bounds)
        until = time.monotonic() + self.options.every_s
        rate = self.options.offsets_per_second
        left = None if rate is None else max(1, int(rate * self.options.every_s))
        with ExitStack() as stack:
            try:
                kafka = stack.enter_context(
                    connect(own_client(self.address), LISTED_TOPIC_PATIENCE_S)
                )
            except ClusterError as error:
                for contract in open_contracts:
                    self._fail(contract, error)
                return
            while open_contracts and not self.stop.is_set():
                for contract in tuple(open_contracts):
                    offsets_max = OFFSETS_AT_ONCE
                    if left is not None:
                        offsets_max = min(max(1, left // len(open_contracts)), OFFSETS_AT_ONCE)
                    read = self._judge(kafka, contract, topic_ids, offsets_max)
                    left = None if left is None else left - read
                    figures = self.figures.contracts[contract.name]
                    if not read or not figures.behind or figures.trouble:
                        open_contracts.remove(contract)
                    if self.stop.is_set() or (left is not None and left <= 0):
                        return
                if time.monotonic() > until:
                    return

    def _note_behind(self, contract: WatchedContract, bounds: Mapping[str, Bounds]) -> None:
        """Count what is not read of a contract that may have no turn at this look."""
        watch = self.contracts.get(contract.name)
        source, sink = bounds.get(contract.source), bounds.get(contract.sink)
        if watch is not None and source is not None and sink is not None:
            watch.note_behind(source, sink)

    def _is_passed_over(
        self,
        contract: WatchedContract,
        topic_ids: Mapping[str, str],
        bounds: Mapping[str, Bounds],
        began: float,
    ) -> bool:
        watch = self.contracts.get(contract.name)
        ids = {topic: topic_ids.get(topic, "") for topic in (contract.source, contract.sink)}
        try:
            return watch is not None and watch.topic_ids == ids and watch.pass_over(bounds, began)
        except ClusterError:
            # The look at it says so.
            return False

    def _judge(
        self,
        kafka: Connection,
        contract: WatchedContract,
        topic_ids: Mapping[str, str],
        offsets_max: int,
    ) -> int:
        """Judge a contract. Returns how many offsets were read; 0 if that failed. Raises SetupError
        if the state cannot be written. No other error of a contract ends the watch of the
        others."""
        store = self.store
        assert store is not None, "contracts have a store"
        try:
            ids = self._ids_of(contract, topic_ids)
            watch = self.contracts.get(contract.name)
            if watch is None or watch.topic_ids != ids:
                watch = self._begin(contract, topic_ids, store)
            read = watch.look(kafka, time.time_ns() // 1_000_000, offsets_max)
        except SetupError:
            raise
        except Exception as error:
            self._fail(contract, error)
            return 0
        watch.figures.trouble, watch.figures.failed_looks = "", 0
        watch.figures.is_read = True
        self._trouble(f"contract {contract.name}", "")
        return read

    def _ids_of(self, contract: WatchedContract, topic_ids: Mapping[str, str]) -> Mapping[str, str]:
        """Return the ids of a contract's topics; empty ones on a cluster without ids. A topic that
        is not listed is no new topic: it may be listed again. Raises TopicError."""
        ids = {topic: topic_ids.get(topic, "") for topic in (contract.source, contract.sink)}
        watch = self.contracts.get(contract.name)
        watched_ids = {} if watch is None else watch.topic_ids
        has_ids = bool(topic_ids or self.state.baseline.topic_ids or any(watched_ids.values()))
        missing = [topic for topic, topic_id in ids.items() if has_ids and not topic_id]
        if missing:
            raise TopicError(
                f"The cluster does not list the topic {missing[0]}: it was deleted, or this client"
                " may not describe it."
            )
        return ids

    def _fail(self, contract: WatchedContract, error: Exception) -> None:
        figures = self.figures.contracts.setdefault(contract.name, ContractFigures())
        why: object = error
        if isinstance(error, KafkaError):
            why = cluster_error(self.address, error)
        elif not isinstance(error, TopicproofError):
            # What the error says is in the log alone: it may quote a record.
            why = f"{type(error).__name__}: this is a fault of Topicproof, and is in its log."
            if not figures.failed_looks:
                LOG.error("the contract %s cannot be judged", contract.name, exc_info=error)
        figures.trouble, figures.is_read = str(why), False
        figures.failed_looks += 1
        sentence = f"Contract {contract.name} is behind: {why}"
        self._trouble(f"contract {contract.name}", sentence, cause=type(error).__name__)

    def _unread(self) -> Iterator[Condition]:
        """Yield a condition for each contract that is not judged any more, so that whoever waits
        for its alarms hears of it."""
        for contract in self.watched:
            figures = self.figures.contracts.get(contract.name)
            if figures is not None and figures.failed_looks >= UNREAD_LOOKS:
                yield unread(contract, figures)

    def _take_in(self, look: ClusterLook, *, is_seen: bool = True) -> None:
        """`is_seen`: whether to take in the cluster, or its contracts alone."""
        self._take_waivers()
        of_cluster: tuple[Condition, ...] = ()
        if is_seen:
            of_cluster = conditions(
                self.state.baseline,
                look,
                patience_s=self.options.patience_s,
                options=self.options.cluster_options,
            )
        current = (
            *of_cluster,
            *(
                each
                for watch in self.contracts.values()
                for each in watch.conditions()
                if (each.contract, each.finding) not in self._waivers
            ),
            *self._unread(),
            *map(refused, self.refused),
        )
        topics = {each.name: (each.source, each.sink) for each in self.watched}
        replaced = replaced_alarms(self.state.alarms, topics)
        silent = silenced(self.state.alarms, self._waivers)
        alarms, notices = after_look(
            without_contracts(silent, self._unlisted, replaced),
            current,
            look.overview.taken_at,
            clear_kinds=look.clear_kinds if is_seen else (),
            left_out=look.left_out,
            # Of a contract that could not be read nothing ends.
            contracts=self._unlisted.union(
                name for name, figures in self.figures.contracts.items() if figures.is_read
            ),
            # A waiver ends an alarm whatever is known.
            unknown=frozenset().union(*(watch.unknown for watch in self.contracts.values()))
            - self._waivers.keys(),
            replaced=replaced,
        )
        if self.options.webhook is None:
            # Nobody will take them. What waits since an earlier start stays.
            before = self.state.alarms
            alarms = replace(alarms, waiting=before.waiting, dropped=before.dropped)
        # Before anybody is told: after a kill, a notice is told again rather than never.
        baseline = self.state.baseline
        self._keep(WatchState(alarms, baseline.after(look) if is_seen else baseline))
        self._hand_on(look.overview.cluster)
        are_folded = any(alarm.condition.count > 1 for alarm in alarms.alarms.values())
        self._trouble("alarms", FOLDED if are_folded else "")
        if is_seen:
            self.figures.take_in(look)
        self.figures.notices.update(
            (notice.alarm.condition.kind, notice.change) for notice in notices
        )

    def _take_waivers(self) -> None:
        """Read from time to time which kinds are waived, and tell what begins and ends to be."""
        now = time.monotonic()
        is_due = self._waivers_at is None or now - self._waivers_at >= WAIVERS_EVERY_S
        waivers = self._waivers
        if self.watched and is_due:
            self._waivers_at = now
            try:
                waivers = self.read_waivers(self.watched)
                self._trouble("waivers", "")
            except TopicproofError as error:
                # What was silent stays so until its last day, and somebody is told.
                self._trouble("waivers", f"Waivers cannot be read: {error}")
        today = datetime.now(UTC).date()
        waivers = {place: waiver for place, waiver in waivers.items() if today <= waiver.until}
        for place in self._waivers.keys() - waivers.keys():
            contract, kind = place
            self.on_trouble(f"Contract {contract}, {kind}: no waiver counts any more.")
        for place, waiver in waivers.items():
            if waiver != self._waivers.get(place):
                self.on_trouble(waiver.sentence)
        self._waivers = waivers
        for name, figures in self.figures.contracts.items():
            figures.waived = tuple(kind for contract, kind in waivers if contract == name)

    def _note_standings(self, trouble: str = "") -> None:
        """Write for the dashboard how each contract stands. `trouble`: why nothing was looked
        at."""
        if self.store is None or not (self.watched or self.refused or self._unlisted):
            return
        standings = [
            *(self._standing(contract, trouble) for contract in self.watched),
            *map(self._refused_standing, self.refused),
        ]
        self.store.note(standings, int(time.time()), self._unlisted)

    def _standing(self, contract: WatchedContract, trouble: str) -> Standing:
        figures = self.figures.contracts.get(contract.name, ContractFigures())
        watch = self.contracts.get(contract.name)
        wrong = watch.conditions() if watch is not None else []
        place = next((each.offsets[0] for each in wrong if each.offsets), None)
        verdict = "It is not judged yet." if figures.verdict is None else figures.verdict.why
        why = trouble or figures.trouble
        is_unread = bool(why) and figures.state is not State.VIOLATED
        return Standing(
            name=contract.name,
            source=contract.source,
            sink=contract.sink,
            bootstrap=self.options.bootstrap,
            cluster=self.options.cluster,
            state=State.UNKNOWN if is_unread else figures.state,
            why=f"{why} {verdict}".strip(),
            next_step=wrong[0].next_step if wrong else "",
            due=figures.inputs_due,
            late=figures.inputs_late,
            withheld=figures.withheld,
            behind=figures.behind,
            delay_s=figures.delay_s,
            every_s=self.options.every_s,
            waived=figures.waived,
            place=place,
            listed=contract.listed,
        )

    def _refused_standing(self, contract: RefusedContract) -> Standing:
        return Standing(
            name=contract.name,
            source=contract.source,
            sink=contract.sink,
            bootstrap=self.options.bootstrap,
            cluster=self.options.cluster,
            state=State.REFUSED,
            why=f"It is not judged: {contract.why}",
            next_step=REFUSED_STEP,
            due=0,
            late=0,
            withheld=0,
            behind=0,
            delay_s=0.0,
            every_s=self.options.every_s,
            listed=contract.listed,
        )

    def _deliver(self) -> None:
        """Send notices that wait, in their order, until one is not taken, or the part of this look
        is sent: a slow webhook must not keep the watch from looking."""
        webhook = self.options.webhook
        if webhook is None or self.figures.look is None:
            return
        sent: list[int] = []
        refused: list[int] = []
        waiting = {*self.state.alarms.waiting}
        self._refusals = Counter({n: c for n, c in self._refusals.items() if n in waiting})
        until = time.monotonic() + self.options.every_s / 2
        for at, notice in enumerate(self.state.alarms.waiting):
            delivery = webhook.send(notice, self.figures.look.overview.cluster)
            if delivery.is_refused:
                self._refusals[notice] += 1
                if self._refusals[notice] >= REFUSALS_MAX:
                    refused.append(at)
                    del self._refusals[notice]
            elif delivery.why:
                why = delivery.why
                sentence = f"The webhook does not take notices: {why}."
                self._trouble("webhook", sentence, cause=why)
                break
            else:
                sent.append(at)
                # The state may be large, and only this has changed.
                self.file.note_sent(sent, is_told=True)
                self._trouble("webhook", "")
            if len(sent) + len(refused) >= DELIVERIES_MAX:
                break
            if self.stop.is_set() or time.monotonic() > until:
                break
        self._tell_refusals(len(refused))
        if sent or refused:
            alarms = after_sending(self.state.alarms, sent, refused)
            self._keep(replace(self.state, alarms=alarms))

    def _tell_refusals(self, given_up: int) -> None:
        """Tell that the webhook refuses notices; of those that are given up, too."""
        waiting = counted(len(self._refusals), "notice")
        self._trouble(
            "refusals",
            f"The webhook refuses {waiting}, and is asked again at the next look."
            if self._refusals
            else "",
        )
        if given_up:
            self.on_trouble(
                f"{counted(given_up, 'notice')} that the webhook has refused at {REFUSALS_MAX}"
                " looks will never be sent."
            )

    def _hand_on(self, cluster: str) -> None:
        """Hand on the notices of the outbox, and note that. A kill in between leaves them in it."""
        if not self.state.alarms.outbox:
            return
        for notice in self.state.alarms.outbox:
            self.on_notice(notice, cluster)
        self.file.note_sent((), is_told=True)
        self.state = replace(self.state, alarms=replace(self.state.alarms, outbox=()))
        self.figures.alarms = self.state.alarms

    def _keep(self, state: WatchState) -> None:
        self._trouble("state", self.file.write(state))
        self.state = state
        self.figures.alarms = state.alarms

    def _trouble(self, of: str, sentence: str, *, cause: str = "") -> None:
        """Tell a trouble once, and once that it is over. While it lasts, the names and counts in
        its sentence may differ from look to look: another sentence is told if the cause is another
        one too, or after `TROUBLE_EVERY_S`."""
        before, now = self._troubles.get(of), time.monotonic()
        if not sentence:
            if before is not None:
                del self._troubles[of]
                self.on_trouble(_OVER.get(of, f"{of.capitalize()} is judged again."))
            return
        is_new = before is None or before.cause != cause
        if before is not None and sentence != before.sentence:
            is_new |= now - before.at >= TROUBLE_EVERY_S
        if is_new:
            self._troubles[of] = Trouble(sentence, cause, now)
            self.on_trouble(sentence)


def _by_name(
    watched: Iterable[WatchedContract], refused_ones: Iterable[RefusedContract]
) -> dict[str, WatchedContract | RefusedContract]:
    return {each.name: each for each in watched} | {each.name: each for each in refused_ones}


_OVER = {
    "look": "The cluster is looked at in full again.",
    "alarms": "Each alarm is told by itself again.",
    "state": "The state of this watch holds all again.",
    "webhook": "The webhook takes notices again.",
    "waivers": "Waivers can be read again.",
    "refusals": "The webhook refuses no notice any more.",
    "list": "The list of contracts can be read again.",
}


@contextmanager
def served_metrics(watcher: Watcher, port: int | None) -> Iterator[None]:
    """Serve the metrics of a watch on loopback while the block runs; nothing without a port. Raises
    UsageError for a port that is taken."""
    if port is None:
        yield
        return
    try:
        server = metrics_server(port, watcher.figures, lambda: watcher.unready)
    except OSError as error:
        raise UsageError(f"Port {port} cannot be used for metrics: {error.strerror}.") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
