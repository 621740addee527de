"""A model of the sink's protocol, explored exhaustively: one source partition, its worker, a second
worker that takes over while the first still runs (a zombie), the coordinator, the log, the group's
offset, and requests that arrive late (ghosts).

    python -m tests.model.protocol [--losses 2]      prints a counter-example for each safety step

A worker fences, reads the committed offset, and then commits one input in each transaction. A
request may be answered, may get lost on its way and be repeated by the client, or may end the
attempt without an answer. A lost request may arrive at any later moment. Workers crash, and the
coordinator aborts a transaction that has outlived its time-out.

Sources: KIP-98 (transactions), KIP-360 and KIP-890 (epochs; verification of partitions),
KAFKA-17754 (a late EndTxn ends the next transaction).
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

FENCE = "fences before it writes"
FENCE_FIRST = "fences before it reads the committed offset"
SKIP = "skips what the committed offset covers"
INSIDE = "sends the offset inside the transaction"
NEW_EPOCH = "takes a new epoch after an answer that did not come"
NOTICE = "takes a new epoch after a request that the client repeated by itself"
READ_AGAIN = "reads the committed offset again with the new epoch"
VERIFY = "the broker verifies that a partition belongs to the transaction"
STEPS = (FENCE, FENCE_FIRST, SKIP, INSIDE, NEW_EPOCH, NOTICE, READ_AGAIN, VERIFY)

INPUTS = 2
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
NEW, FENCED, READY, BEGUN, PRODUCED, SENT, ENDED, DEAD = (
    *("new", "fenced", "ready", "begun", "produced", "offset sent", "ended", "dead"),
)


class Record(NamedTuple):
    """An output in the log; `sequence` numbers what its worker produced in an epoch."""

    given: int
    epoch: int
    sequence: int
    fate: str = OPEN


class Request(NamedTuple):
    kind: str
    epoch: int
    number: int = 0
    """The input of a produce, the offset of an offset commit."""
    sequence: int = 0


class Worker(NamedTuple):
    at: str = NEW
    epoch: int = 0
    next: int = 0
    """The offset of the input that it processes."""
    sequence: int = 0
    doubt: bool = False
    """Whether an answer did not come since it has this epoch."""


class State(NamedTuple):
    workers: tuple[Worker, ...] = (Worker(),)
    epoch: int = 0
    """The coordinator's."""
    is_open: bool = False
    """Whether the coordinator has a transaction under way."""
    pending: int | None = None
    """The offset in the transaction."""
    offset: int = 0
    """The group's committed one."""
    log: tuple[Record, ...] = ()
    ghosts: tuple[Request, ...] = ()
    losses: int = 1
    """How many requests may still get lost."""
    crashes: int = 1
    timeouts: int = 1


Move = tuple[str, State]


def initial(state: State) -> State:
    """What InitProducerId does: the epoch rises, and what is open is aborted."""
    return end(state, False)._replace(epoch=state.epoch + 1)


def end(state: State, commits: bool) -> State:
    fate = COMMITTED if commits else ABORTED
    log = tuple(one._replace(fate=fate) if one.fate == OPEN else one for one in state.log)
    reached = state.pending if commits and state.pending is not None else state.offset
    return state._replace(log=log, is_open=False, pending=None, offset=reached)


def arrive(state: State, request: Request, rules: frozenset[str]) -> State | None:
    """The state after a request has reached its broker; None where it is refused."""
    if request.kind == "commit offset":  # outside any transaction, so nobody fences it
        return state._replace(offset=request.number)
    if request.kind == "produce":
        known = any(one[1:3] == (request.epoch, request.sequence) for one in state.log)
        if known:
            return state  # the sequence tells that it is a repetition
        seen = max((one.epoch for one in state.log), default=0)
        fits = state.is_open and request.epoch == state.epoch
        if not (fits if VERIFY in rules else request.epoch >= seen):
            return None
        record = Record(request.number, request.epoch, request.sequence)
        return state._replace(log=(*state.log, record))
    if request.epoch != state.epoch:
        return None
    if request.kind == "add partition":
        return state._replace(is_open=True)
    if request.kind == "send offset":
        return state._replace(is_open=True, pending=request.number)
    return end(state, request.kind == "commit") if state.is_open else state


def moves(state: State, rules: frozenset[str]) -> Iterator[Move]:
    for number, worker in enumerate(state.workers):
        for told, found in act(state, number, worker, rules):
            yield f"worker {number + 1} {told}", found
        if worker.at != DEAD and state.crashes:
            dead = put(state, number, worker._replace(at=DEAD))
            yield f"worker {number + 1} crashes", dead._replace(crashes=state.crashes - 1)
    if len(state.workers) == 1 and state.workers[0].at != NEW:
        # Spark hands the rows of its batch out again.
        yield "worker 2 is started", state._replace(workers=(*state.workers, Worker()))
    if state.is_open and state.timeouts:
        spent = state._replace(timeouts=state.timeouts - 1)
        yield "the coordinator aborts on time-out", initial(spent)
    for number, ghost in enumerate(state.ghosts):
        rest = state._replace(ghosts=state.ghosts[:number] + state.ghosts[number + 1 :])
        arrived = arrive(rest, ghost, rules)
        yield f"a late {ghost.kind} arrives", arrived if arrived is not None else rest


def act(state: State, number: int, worker: Worker, rules: frozenset[str]) -> Iterator[Move]:
    """What a worker does next."""
    if worker.at == NEW:
        if FENCE not in rules:
            yield "joins without fencing", join(state, number, worker)
        elif FENCE_FIRST in rules:
            yield "fences", fence(state, number, worker._replace(at=FENCED))
        else:
            yield "reads the offset", put(state, number, read(state, worker, rules, FENCED))
    elif worker.at == FENCED:
        if FENCE_FIRST in rules or FENCE not in rules:
            yield "reads the offset", put(state, number, read(state, worker, rules, READY))
        else:
            yield "fences", fence(state, number, worker._replace(at=READY))
    elif worker.at == READY and worker.next < INPUTS:
        yield from ask(state, number, worker, Request("add partition", worker.epoch), BEGUN, rules)
    elif worker.at == BEGUN:
        request = Request("produce", worker.epoch, worker.next, worker.sequence)
        later = worker._replace(sequence=worker.sequence + 1)
        yield from ask(state, number, later, request, PRODUCED, rules)
    elif worker.at == PRODUCED:
        kind = "send offset" if INSIDE in rules else "commit offset"
        request = Request(kind, worker.epoch, worker.next + 1)
        yield from ask(state, number, worker, request, SENT, rules)
    elif worker.at == SENT:
        yield from ask(state, number, worker, Request("commit", worker.epoch), ENDED, rules)
    elif worker.at == ENDED:
        done = worker._replace(next=worker.next + 1, at=READY)
        unsure = worker.doubt and NOTICE in rules
        yield "goes on", put(state, number, Worker(next=done.next) if unsure else done)


def ask(
    state: State, number: int, worker: Worker, request: Request, then: str, rules: frozenset[str]
) -> Iterator[Move]:
    """A request and its answer, which may not come."""
    arrived = arrive(state, request, rules)
    if arrived is None:
        yield f"is fenced at {request.kind}", put(state, number, worker._replace(at=DEAD))
        return
    yield request.kind, put(arrived, number, worker._replace(at=then))
    if state.losses:
        doubtful = worker._replace(doubt=True)
        lost = state._replace(losses=state.losses - 1, ghosts=(*state.ghosts, request))
        again = arrive(lost, request, rules)
        if again is not None:
            told = f"{request.kind}: lost, and repeated"
            yield told, put(again, number, doubtful._replace(at=then))
        yield f"{request.kind}: lost, and given up", give_up(lost, number, doubtful, rules)
        heard = arrived._replace(losses=state.losses - 1)
        yield f"{request.kind}: no answer", give_up(heard, number, doubtful, rules)


def give_up(state: State, number: int, worker: Worker, rules: frozenset[str]) -> State:
    """The outcome is unknown. Without a new epoch, the worker aborts and tries again."""
    if NEW_EPOCH in rules:
        return put(state, number, Worker(next=worker.next))
    aborted = end(state, False) if worker.epoch == state.epoch else state
    return put(aborted, number, worker._replace(at=READY))


def fence(state: State, number: int, worker: Worker) -> State:
    found = initial(state)
    return put(found, number, worker._replace(epoch=found.epoch, sequence=0, doubt=False))


def join(state: State, number: int, worker: Worker) -> State:
    """Continues with the current epoch, as a client without a fence would."""
    found = state if state.epoch else initial(state)
    return put(found, number, worker._replace(at=FENCED, epoch=found.epoch, sequence=number * 10))


def read(state: State, worker: Worker, rules: frozenset[str], then: str) -> Worker:
    """A new worker is handed the rows from offset 0 on. One that has begun knows where it is."""
    starts = worker.next == 0
    trusts = SKIP not in rules if starts else READ_AGAIN not in rules
    return worker._replace(at=then, next=worker.next if trusts else state.offset)


def put(state: State, number: int, worker: Worker) -> State:
    before, after = state.workers[:number], state.workers[number + 1 :]
    return state._replace(workers=(*before, worker, *after))


def broken(state: State) -> str | None:
    """Which invariant does not hold."""
    done = [one.given for one in state.log if one.fate == COMMITTED]
    for given in range(INPUTS):
        if done.count(given) > 1:
            return f"input {given} is committed twice"
    if set(done) != set(range(state.offset)):
        return f"the group's offset is {state.offset}, and committed are {sorted(set(done))}"
    return None


class Explored(NamedTuple):
    states: int
    finished: int
    """States in which every input is committed and nothing is under way."""
    wrong: str | None
    path: tuple[str, ...]
    """The shortest way to what is wrong."""


def explore(rules: frozenset[str], losses: int = 1) -> Explored:
    """Every state that can be reached, breadth first, up to the first one that is wrong."""
    first = State(losses=losses)
    came: dict[State, tuple[State, str] | None] = {first: None}
    waiting, finished = deque([first]), 0
    while waiting:
        state = waiting.popleft()
        wrong = broken(state)
        if wrong is not None:
            return Explored(len(came), finished, wrong, path_to(came, state))
        finished += state.offset == INPUTS and not state.is_open
        for told, found in moves(state, rules):
            if found not in came:
                came[found] = state, told
                waiting.append(found)
    return Explored(len(came), finished, None, ())


def path_to(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came[state]) is not None:
        state, told = before
        steps.append(told)
    return tuple(reversed(steps))


def main() -> None:
    options = argparse.ArgumentParser(description="Explore the sink's protocol.")
    options.add_argument("--losses", type=int, default=1, help="requests that may get lost")
    whole = explore(frozenset(STEPS), options.parse_args().losses)
    sys.stdout.write(
        f"with every step: {whole.states:,} states, {whole.wrong or 'nothing wrong'}\n"
    )
    for step in STEPS:
        found = explore(frozenset(STEPS) - {step})
        sys.stdout.write(f"\nwithout `{step}`: {found.wrong or 'NOTHING WRONG'}\n")
        sys.stdout.writelines(f"  {number}. {told}\n" for number, told in enumerate(found.path, 1))


if __name__ == "__main__":
    main()
