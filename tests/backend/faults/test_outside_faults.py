"""Faults from outside the worker: the run's own process does the damage when the worker reaches the
step, and heals it."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import wait_until
from tests.runs import Finished, read_all, run_to_end
from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.history.store import History, State
from topicproof.backend.runs.context import make_context, release
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import FaultPhase, FaultReport, TaskStarted
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.finding import Outcome

RECORDS, PARTITIONS, PER_TRANSACTION = 300, 2, 50


def run(
    settings: Settings,
    cluster: Services,
    fault: str,
    guarantee: str = "exactly_once",
    **plan: object,
) -> Finished:
    plan = {
        "records": RECORDS,
        "partitions": PARTITIONS,
        "per_transaction": PER_TRANSACTION,
        **plan,
    }
    return run_to_end(settings, cluster, guarantee=guarantee, faults=[fault], **plan)


def copies(cluster: Services, done: Finished) -> tuple[int, int]:
    """How many outputs a plain client gets once too often, and how many never."""
    got = Counter(message.value for message in read_all(cluster.bootstrap, done.sink))
    expected = {str(n * n).encode() for n in range(RECORDS)}
    return sum(got[value] - 1 for value in expected & set(got)), len(expected - set(got))


def told(cluster: Services, done: Finished, what: FaultPhase) -> list[str]:
    entries = read_journal(Address(cluster.bootstrap), str(done.run.facts.journal))
    return [
        entry.said for entry in entries if isinstance(entry, FaultReport) and entry.what is what
    ]


@pytest.mark.parametrize("request_", ["end", "partitions"])
def test_a_request_that_is_never_made_cannot_be_hurt(request_: str) -> None:
    """Story: somebody wants to lose the request that ends a transaction where there are none. The
    plan is refused."""
    fault = f"network@transaction=2,request={request_}"
    assert make_plan({"faults": [fault]}).faults == (fault,)
    with pytest.raises(
        UsageError, match=f"{fault} strikes transactions, but at_least_once has none"
    ):
        make_plan({"faults": [fault], "guarantee": "at_least_once"})


def test_an_unanswered_commit_is_settled_once(settings: Settings, cluster: Services) -> None:
    """Story: the brokers commit a transaction and their answer is lost. It is asked again, and the
    sink is exact."""
    done = run(settings, cluster, "network@transaction=2,request=end")
    assert told(cluster, done, FaultPhase.STRUCK) == ["END_TXN unanswered, 1 of 1"]
    assert (done.report.verdict, copies(cluster, done)) == (Outcome.HOLDS, (0, 0)), done.report.why


@pytest.mark.parametrize("idempotence", [True, False])
def test_an_unanswered_produce_repeats_only_without_idempotence(
    settings: Settings, cluster: Services, idempotence: bool
) -> None:
    """Story: the brokers take records and their acknowledgement is lost. The producer sends them
    again; the second copy is refused where producers are idempotent, and is in the log where they
    are not."""
    fault = "network@transaction=2,request=produce"
    done = run(settings, cluster, fault, "at_least_once", idempotence=idempotence)
    assert told(cluster, done, FaultPhase.STRUCK) == ["PRODUCE unanswered, 1 of 1"]
    repeated, lost = copies(cluster, done)
    assert (repeated > 0, lost) == (not idempotence, 0)
    assert done.report.verdict is Outcome.HOLDS


def test_a_worker_cut_off_for_longer_than_its_transaction_may_last_ends_exact(
    settings: Settings, cluster: Services
) -> None:
    """Story: in the middle of a transaction the workers cannot reach the brokers, until these have
    aborted it. Healed, the worker finds itself fenced, and its successor continues from the
    committed offset."""
    done = run(settings, cluster, "isolated@transaction=2,seconds=8", transaction_timeout_ms=2_000)
    assert told(cluster, done, FaultPhase.HEALED) == ["the worker reaches the brokers again"]
    assert (done.report.verdict, copies(cluster, done)) == (Outcome.HOLDS, (0, 0)), done.report.why
    assert done.report.fates["aborted"] and done.run.state is State.DONE


@pytest.mark.parametrize(
    ("fault", "ended"), [("seconds=1", "aborted"), ("end=expiry,seconds=1", "expired")]
)
def test_a_foreign_open_transaction_withholds_records_and_nothing_else(
    settings: Settings, cluster: Services, fault: str, ended: str
) -> None:
    """Story: somebody leaves a transaction open in the sink. Until it is aborted, or the
    coordinator aborts it because its time is over, nobody gets past it; then all do."""
    done = run(settings, cluster, f"open@transaction=2,{fault}")
    (said,) = told(cluster, done, FaultPhase.HEALED)
    assert f"and was {ended}" in said and "withheld 0" not in said
    assert (done.report.verdict, copies(cluster, done)) == (Outcome.HOLDS, (0, 0)), done.report.why
    assert done.report.fates["aborted"] == PARTITIONS


def test_a_foreign_transaction_stays_open_until_it_is_released(
    settings: Settings, cluster: Services
) -> None:
    """Story: a demo shows an open transaction. The pipeline has long processed its input, and the
    transaction stays open until the viewer ends it. Then the run ends, exact."""
    plan = {
        "records": RECORDS,
        "partitions": PARTITIONS,
        "per_transaction": PER_TRANSACTION,
        "faults": ["open@transaction=2,end=release"],
    }
    history = History(settings)
    made = create(settings, cluster, history, make_plan(plan))
    context = make_context(settings, cluster, history, made)
    with pytest.raises(UsageError, match="holds nothing open"):
        release(history, made)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(execute, context)

        def withheld() -> bool:
            sink = context.cluster.bounds(context.names.sink)
            processed = context.cluster.committed(context.names.group, context.names.source)
            stuck = all(p.lso < p.hw for p in sink.partitions)
            return stuck and sum(processed.values()) == RECORDS

        wait_until(lambda: done.done() or withheld(), 120, "the end of the input")
        assert not done.done()
        release(history, history.get(made.id))
        report = done.result()
    assert report is not None and report.verdict is Outcome.HOLDS, report
    assert context.cluster.bounds(context.names.sink).offsets > RECORDS


def test_a_member_of_the_group_hurts_no_transaction(settings: Settings, cluster: Services) -> None:
    """Story: in the middle of a transaction another consumer joins the run's group, owns its source
    partitions and leaves. The run is exact."""
    done = run(settings, cluster, "member@transaction=2,seconds=1")
    assert done.report.verdict is Outcome.HOLDS and done.run.error is None, done.report.why
    (left,) = told(cluster, done, FaultPhase.HEALED)
    assert f"owned {PARTITIONS} partitions of {done.source}" in left


@pytest.mark.parametrize(
    ("words", "partitions"),
    [("checkpoint=kept", PARTITIONS), ("checkpoint=lost,partitions=more", PARTITIONS + 1)],
)
def test_a_query_that_is_started_again_goes_on_exactly(
    settings: Settings, cluster: Services, words: str, partitions: int
) -> None:
    """Story: the query is stopped in the middle of a transaction, while its worker lives. It starts
    again with its checkpoint, or without it and with one more partition on each side. What the
    stopped worker left open is aborted, and the run is exact."""
    done = run(settings, cluster, f"restart@transaction=2,{words}")
    assert done.report.verdict is Outcome.HOLDS and done.run.error is None, done.report.why
    assert len(done.report.source.partitions) == len(done.report.sink.partitions) == partitions
    assert len(told(cluster, done, FaultPhase.DONE)) == 1
    starts = [
        entry
        for entry in read_journal(Address(cluster.bootstrap), str(done.run.facts.journal))
        if isinstance(entry, TaskStarted) and entry.source_partition == 0
    ]
    assert len(starts) >= 2
