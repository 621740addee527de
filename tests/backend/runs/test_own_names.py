"""Names in a row of the history that are not the run's: `resume` uses none of them."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.history.run_state import Facts, Names
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.create import create
from topicproof.backend.runs.own_names import FILE, keep_names, require_own_names
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.resume import resume
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings, read_settings

NOWHERE = Address("127.0.0.1:1")


def _enter_run(settings: Settings, **changed: Any) -> Run:
    """Enter a run that another process has, with fields of its stage changed, as somebody with the
    database's password would."""
    history = History(settings)
    run = history.create("run", "squares", make_plan({"records": 10}).model_dump(mode="json"))
    id_ = run.id
    names = Names(
        *("square", (f"{id_}-numbers",), (f"{id_}-squares",), f"{id_}-journal"),
        *(f"{id_}-square", f"{id_}-square"),
    )
    facts = Facts(
        source=names.source,
        sink=names.sink,
        journal=names.journal,
        group=names.group,
        topics={"numbers": names.source, "squares": names.sink},
        stages=(names,),
        initial_offsets={"square": {names.source: {"0": 0}}},
    )
    keep_names(settings.runs / id_, facts)
    topics = changed.pop("topics", facts.topics)
    facts = replace(facts, stages=(replace(names, **changed),), topics=topics)
    history.remember(id_, facts)
    history.end(id_, State.STOPPED, None, None)
    parent = psutil.Process(os.getppid())
    owner = f"{socket.gethostname()}:{parent.pid}:{parent.create_time():.2f}"
    with history.session() as session:
        session.execute(sa.text("update runs set owner = :owner"), {"owner": owner})
    run = history.get(id_)
    history.engine.dispose()
    return run


@pytest.mark.parametrize(
    "changed",
    [
        {"prefix": "payments-settle"},
        {"group": "payments"},
        {"sinks": ("payments",)},
        {"journal": "payments-journal"},
        {"database": "sqlite:////tmp/others.db", "sinks": ("payments",)},
        {"topics": {"squares": "payments"}},
    ],
    ids=["transactional ids", "group", "sink", "journal", "table", "output topic"],
)
@pytest.mark.parametrize("has_file", [True, False], ids=["with its file", "of another home"])
def test_resume_uses_no_name_that_the_history_alone_has(
    tmp_path: Path, changed: dict[str, Any], has_file: bool
) -> None:
    """Story: somebody who can write to the history gives a run the names of other people's
    transactional ids, topics, groups or tables. `resume` fences and writes none of them, unless
    the person who resumes says that the history is believed."""
    settings = read_settings(home=tmp_path)
    run = _enter_run(settings, **changed)
    if not has_file:
        (settings.runs / run.id / FILE).unlink()
    services: Any = SimpleNamespace(address=NOWHERE, spark_remote=None)
    history = History(settings)
    with pytest.raises(UsageError, match=r"payments.*--names-from-history"):
        resume(settings, services, history, run.id)
    # It goes on to take the run, which another process has.
    with pytest.raises(UsageError, match="in use by another process"):
        resume(settings, services, history, run.id, names_from_history=True)
    history.engine.dispose()


@pytest.mark.parametrize("has_file", [True, False], ids=["with its file", "of another home"])
def test_a_run_keeps_its_own_names(tmp_path: Path, has_file: bool) -> None:
    """Story: nobody changed the history. The names are in the run's folder, or begin with its
    id."""
    settings = read_settings(home=tmp_path)
    run = _enter_run(settings)
    folder = settings.runs / run.id
    if not has_file:
        (folder / FILE).unlink()
    require_own_names(NOWHERE, run, folder)


def test_the_journal_confirms_a_source_that_the_plan_chose(
    settings: Settings, cluster: Services
) -> None:
    """Story: a run reads a topic of other people. Its folder is on another machine, and its journal
    is not. As a sink nothing there confirms that topic."""
    history, kafka = History(settings), Cluster(Address(cluster.bootstrap))
    chosen = f"orders-{uuid.uuid4().hex[:6]}"
    kafka.create_topic(chosen, 1)
    plan = make_plan({"source": {"topic": chosen}, "until_stopped": True})
    run = create(settings, cluster, history, plan)
    elsewhere = settings.runs / "of-another-machine"
    require_own_names(cluster.address, run, elsewhere)
    (names,) = run.facts.stages
    foreign = replace(run, facts=replace(run.facts, stages=(replace(names, sinks=(chosen,)),)))
    for folder in (elsewhere, settings.runs / run.id):
        with pytest.raises(UsageError, match=chosen):
            require_own_names(cluster.address, foreign, folder)
