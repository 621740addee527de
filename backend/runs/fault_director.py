"""The director causes damage outside the worker, and heals it. It is part of the run's process.

It follows the journal. A worker claims a fault of side `run` and waits (rendezvous.py). The
director strikes, writes to the journal, and heals after the fault's time or at the run's end. Its
journal entries are evidence that a fault fired. It also strikes when somebody asks for it by hand
(by_hand.py), and claims that in the journal itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from topicproof.backend.errors import ClusterError, TopicproofError, UsageError
from topicproof.backend.faults.by_hand import (
    Freeze,
    Kill,
    Strike,
    Workers,
    require_nearby,
    stopped,
    strikes,
)
from topicproof.backend.faults.cluster_faults import allow_again, deny, leader
from topicproof.backend.faults.fault import Fault, Side
from topicproof.backend.faults.hanging_transaction import LONGEST_TIMEOUT_MS, leave_open
from topicproof.backend.faults.kinds import (
    BROKER,
    ISOLATED,
    MEMBER,
    NETWORK,
    OPEN,
    RELEASE,
    RESTART,
    RIGHTS,
    UNCLEAN,
    parse_fault,
)
from topicproof.backend.faults.member import join
from topicproof.backend.faults.proxy import How, Proxy, Rule
from topicproof.backend.faults.requests import Api
from topicproof.backend.faults.unclean import lose_the_follower
from topicproof.backend.history.run_state import Names
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.strikes import requests
from topicproof.backend.services.keeper import brokers
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import EVERY_PARTITION, FaultFired, FaultPhase, FaultReport
from topicproof.backend.sink.journal import JournalReader, JournalWriter, read_journal

LOOK_S = 0.05

REQUESTS = {
    "produce": (Api.PRODUCE, Api.PRODUCE),
    "partitions": (Api.ADD_PARTITIONS_TO_TXN, None),
    "offset": (Api.TXN_OFFSET_COMMIT, Api.OFFSET_COMMIT),
    "end": (Api.END_TXN, None),
    "abort": (Api.END_TXN, None),
}
"""APIs by the fault's name of a request: with and without transactions."""


@dataclass(frozen=True)
class StrikeTarget:
    """The run that the director strikes."""

    settings: Settings
    cluster: Cluster
    names: Names
    transactional: bool
    released: Callable[[], bool] = lambda: True
    """Whether what is held open until somebody ends it may end."""
    requests: Path | None = None
    """Folder of the requests to strike by hand; None: the plan does not allow them."""

    @property
    def freezes(self) -> bool:
        """Whether the network can be frozen by hand: only workers on this machine reach a proxy,
        and it cannot read encrypted connections."""
        nearby = self.settings.spark_remote is None
        return self.requests is not None and nearby and not self.cluster.address.encrypted


class Director(threading.Thread):
    """Use as a context manager, and let the sink connect to `director.bootstrap`."""

    def __init__(self, struck: StrikeTarget, faults: Sequence[str]) -> None:
        super().__init__(name="director", daemon=True)
        self.struck = struck
        parsed = [parse_fault(text) for text in faults]
        self.faults = {str(fault): fault for fault in parsed if fault.kind.side is Side.RUN}
        self.proxy: Proxy | None = None
        self.done: set[str] = set()
        """Faults that were struck. A resumed run knows earlier ones from its journal."""
        self.ended = threading.Event()
        self.opened = ExitStack()
        self.handle: Callable[[int, str], str] = lambda _node, _do: ""
        """Damages and heals embedded brokers, if a fault needs it."""
        self.heals: dict[str, Callable[[], str]] = {}
        self.held: set[str] = set()
        """Faults that heal when they are released."""
        self.restarts: SimpleQueue[Fault] = SimpleQueue()
        """Restarts whose worker waits."""
        self.lock = threading.Lock()
        self.claims: deque[FaultFired] = deque()
        self.workers = Workers()
        self.strikes = 0
        """Strikes by hand so far."""
        self.frozen: str | None = None
        """The strike that has frozen the network."""
        planned = any(fault.kind in (NETWORK, ISOLATED) for fault in self.faults.values())
        if planned or struck.freezes:
            self.proxy = Proxy(struck.cluster.address.bootstrap)

    @property
    def bootstrap(self) -> str:
        """The sink's broker address: the proxy, if a fault needs one."""
        return self.struck.cluster.address.bootstrap if self.proxy is None else self.proxy.bootstrap

    def __enter__(self) -> Self:
        """Raises SetupError if the proxy cannot listen, UsageError if the brokers are not
        embedded."""
        if not self.faults and self.struck.requests is None:
            return self
        cluster, journal = self.struck.cluster, self.struck.names.journal
        with ExitStack() as stack:
            if self.proxy is not None:
                stack.enter_context(self.proxy)
            if any(fault.kind in (BROKER, UNCLEAN) for fault in self.faults.values()):
                self.handle = stack.enter_context(brokers(self.struck.settings))
            for fault in self.faults.values():
                if fault.kind == RIGHTS:  # A run that was killed could not give it back.
                    allow_again(cluster, *self._right(fault))
            self.writer = JournalWriter(cluster.address, journal)
            stack.callback(self.writer.close)
            entries = read_journal(cluster.address, journal)
            self.done = {entry.fault for entry in entries if isinstance(entry, FaultReport)}
            self.strikes = len(strikes(entries))
            for path, _ in self._requests():
                path.unlink()  # They asked a process that is gone.
            self.reader = JournalReader(cluster.address, journal)
            stack.callback(self.reader.close)
            stack.callback(self._heal_all)
            stack.callback(self._end)
            self.opened = stack.pop_all()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.held.clear()  # A pipeline that failed waits for nobody.
        self.opened.__exit__(kind, error, trace)

    @property
    def restart_due(self) -> bool:
        """Whether the query must stop, because a fault asks for another start."""
        return not self.restarts.empty()

    def take_restart(self) -> Fault | None:
        """Return the restart that stopped the query, if one did. Its worker still waits."""
        return None if self.restarts.empty() else self.restarts.get()

    def restarted(self, fault: Fault) -> None:
        """Release the worker of the stopped query: everything is ready for the next start."""
        checkpoint, partitions = fault.word("checkpoint"), fault.word("partitions")
        self._tell(
            str(fault),
            FaultPhase.DONE,
            f"the query was stopped; checkpoint: {checkpoint}, partitions: {partitions}",
        )

    def run(self) -> None:
        while not self.ended.wait(LOOK_S):
            if self.struck.released():
                if self.held:
                    self._heal(self.held.pop())
                if self.frozen is not None:
                    self._heal(self.frozen)  # Workers that are frozen cannot stop.
            try:
                self._listen()
                for path, strike in self._requests():
                    if self._strike_by_hand(strike):
                        path.unlink()
            except ClusterError:
                continue  # A fault may have struck the brokers.
            while self.claims:
                claim = self.claims.popleft()
                name = claim.fault
                if name in self.faults and name not in self.done:
                    self.done.add(name)
                    if self.faults[name].kind == RESTART:
                        # The worker waits until the query has stopped.
                        self.restarts.put(self.faults[name])
                    else:
                        self._strike(name, self.faults[name], claim)

    def _listen(self) -> None:
        for entry in self.reader.news():
            self.workers.hear(entry)
            if isinstance(entry, FaultFired):
                self.claims.append(entry)

    def _requests(self) -> list[tuple[Path, Strike]]:
        folder = self.struck.requests
        return [] if folder is None else list(requests(folder))

    def _strike_by_hand(self, strike: Strike) -> bool:
        """Strike. Returns False if the strike has to wait for a worker. Raises ClusterError before
        anything was struck."""
        name = strike.name(self.strikes + 1)
        try:
            if isinstance(strike, Freeze):
                self._freeze(name, strike)
                return True
            return self._kill(name, strike)
        except UsageError as error:
            self._tell(name, FaultPhase.FAILED, str(error))
            return True

    def _kill(self, name: str, strike: Kill) -> bool:
        place = strike.topic or self.struck.names.source, strike.partition
        worker = self.workers.of(*place)
        if worker is None:
            return False
        require_nearby(worker)
        with stopped(worker) as process:
            if process is None:
                self.workers.forget(worker)
                return False
            self._listen()
            if self.workers.of(*place) is not worker:
                return False  # Its task has just ended.
            self._claim(FaultFired(worker.task, name, *place, 0))
            process.kill()
        self.workers.forget(worker)
        self._tell(name, FaultPhase.DONE, f"process {worker.pid} was killed")
        return True

    def _freeze(self, name: str, strike: Freeze) -> None:
        if not self.struck.freezes:
            raise UsageError(
                "the network of these workers cannot be frozen: they connect to the brokers"
                " encrypted, or from a Spark server that the run did not start"
            )
        if self.frozen is not None:
            raise UsageError("the network is already frozen")
        self._claim(FaultFired("", name, self.struck.names.source, EVERY_PARTITION, 0))
        self.frozen = name
        self._tell(name, FaultPhase.DONE, self._isolate(name, strike.seconds, "every worker"))

    def _claim(self, claim: FaultFired) -> None:
        self.writer.append_acknowledged(claim)
        self.strikes += 1

    def _strike(self, name: str, fault: Fault, claim: FaultFired) -> None:
        try:
            report = self._do(name, fault, claim)
        except TopicproofError as error:
            self._tell(name, FaultPhase.FAILED, str(error))
        else:
            self._tell(name, FaultPhase.DONE, report)

    def _do(self, name: str, fault: Fault, claim: FaultFired) -> str:
        """Do the damage. Returns a description of it."""
        if fault.kind == NETWORK:
            return self._arm(name, fault, claim)
        if fault.kind == OPEN:
            return self._leave_open(name, fault)
        if fault.kind == BROKER:
            return self._strike_broker(name, fault)
        if fault.kind == UNCLEAN:
            return self._lose_the_follower(name, fault)
        if fault.kind == MEMBER:
            return self._join(name, fault)
        if fault.kind == RIGHTS:
            return self._deny(name, fault)
        if fault.kind == ISOLATED:
            return self._isolate(name, fault.number("seconds"))
        raise AssertionError(f"the director cannot do {fault}")

    def _arm(self, name: str, fault: Fault, claim: FaultFired) -> str:
        assert self.proxy is not None
        request = fault.word("request")
        inside, outside = REQUESTS[request]
        api = inside if self.struck.transactional else outside
        if api is None:
            raise ClusterError(
                "there is no such request without transactions. Choose exactly_once, or another"
                f" request than {request}."
            )
        topic = self.struck.names.sink if api is Api.PRODUCE else None
        times, seconds = fault.number("times"), float(fault.number("seconds"))
        rule = Rule(api, How(fault.word("how")), times, topic, seconds, aborts=request == "abort")
        if self.struck.transactional:
            # Only for the waiting worker: other workers continue.
            rule.writer = f"-{claim.source_topic}-{claim.source_partition}"
        rule.arrived = lambda arrival: self._tell(
            name, FaultPhase.HEALED, f"{api.name} arrived {arrival}"
        )
        rule.heard = lambda: self._tell(
            name, FaultPhase.STRUCK, f"{api.name} {rule.how}, {rule.struck} of {times}"
        )
        self.proxy.arm(rule)
        return f"the next {times} of {api.name} will be {rule.how}"

    def _strike_broker(self, name: str, fault: Fault) -> str:
        names, role = self.struck.names, fault.word("role")
        topic = names.source if role == "source" else names.sink
        key = names.group if role == "offsets" else f"{names.prefix}-{names.source}-0"
        node = leader(self.struck.cluster, role, topic, key)
        report = self.handle(node, fault.word("how"))
        self._later(name, fault.number("seconds"), lambda: self.handle(node, "heal"))
        return report

    def _lose_the_follower(self, name: str, fault: Fault) -> str:
        sink, seconds = self.struck.names.sink, fault.number("seconds")
        self._later(name, seconds, lose_the_follower(self.struck.cluster, sink, self.handle))
        return f"the follower of {sink}-0 was killed, and its leader acknowledges alone"

    def _isolate(self, name: str, seconds: int, who: str = "the worker") -> str:
        proxy = self.proxy
        assert proxy is not None

        def heal() -> str:
            proxy.heal()
            return f"{who} reaches the brokers again"

        # The worker must receive the answer before its connection is cut.
        self._later(name, seconds, heal)
        proxy.isolate()
        return f"{who} is cut off from the brokers for {seconds} s"

    def _leave_open(self, name: str, fault: Fault) -> str:
        cluster, sink, seconds = (
            self.struck.cluster,
            self.struck.names.sink,
            fault.number("seconds"),
        )
        if fault.word("end") == RELEASE:
            self.heals[name] = leave_open(cluster, sink, timeout_ms=LONGEST_TIMEOUT_MS)
            self.held.add(name)
        else:
            end = leave_open(cluster, sink, seconds if fault.word("end") == "expiry" else None)
            self._later(name, seconds, end)
        return f"a foreign transaction is open in every partition of {sink}"

    def _join(self, name: str, fault: Fault) -> str:
        names = self.struck.names
        leave = join(self.struck.cluster, names.group, names.source)
        self._later(name, fault.number("seconds"), leave)
        return f"another consumer joined group {names.group}"

    def _deny(self, name: str, fault: Fault) -> str:
        (to, resource), seconds = self._right(fault), fault.number("seconds")
        self._later(name, seconds, deny(self.struck.cluster, to, resource))
        return f"the right to the {to} {resource} is denied for {seconds} s"

    def _right(self, fault: Fault) -> tuple[str, str]:
        """Return the kind of resource that the fault denies, and its name."""
        names, to = self.struck.names, fault.word("to")
        return to, {"sink": names.sink, "id": names.prefix, "group": names.group}[to]

    def _later(self, name: str, seconds: float, heal: Callable[[], str]) -> None:
        """Heal after this time, or at the run's end if that is sooner."""
        self.heals[name] = heal
        timer = threading.Timer(seconds, self._heal, [name])
        timer.start()
        self.opened.callback(timer.join)
        self.opened.callback(timer.cancel)

    def _heal(self, name: str) -> None:
        """Heal once, even if called several times."""
        with self.lock:
            heal = self.heals.pop(name, None)
        if heal is None:
            return
        try:
            self._tell(name, FaultPhase.HEALED, heal())
        except TopicproofError as error:
            self._tell(name, FaultPhase.FAILED, str(error))
        if name == self.frozen:
            self.frozen = None

    def _heal_all(self) -> None:
        if self.proxy is not None:
            self.proxy.heal()
        for name in list(self.heals):
            self._heal(name)
        for path, strike in self._requests():
            self._tell(strike.name(self.strikes + 1), FaultPhase.FAILED, "the run has ended before")
            path.unlink()

    def _end(self) -> None:
        while self.held and not self.ended.wait(LOOK_S):
            pass  # The run goes on until they are released.
        self.ended.set()
        self.join()

    def _tell(self, fault: str, phase: FaultPhase, report: str) -> None:
        self.writer.append(FaultReport(fault, phase, report))
