"""The matrix: what theory expects of every guarantee under every fault, and how a cell that differs
is reported."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from topicproof.backend.commands.show_matrix import heat_map, line, markdown, summary
from topicproof.backend.errors import UsageError
from topicproof.backend.faults.proxy import IN_NEXT
from topicproof.backend.history.store import History
from topicproof.backend.matrix.cells import (
    RESULTS,
    Result,
    read_results,
    run_cells,
    saved_results,
    surprises,
)
from topicproof.backend.matrix.choice import Cell, cells, in_real_time
from topicproof.backend.matrix.first_copy_reader import first_of_each
from topicproof.backend.matrix.matrix_table import BROKERS, TABLE
from topicproof.backend.matrix.promises import PROMISES, Damage
from topicproof.backend.matrix.proofs import Trial
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.sink.entries import FaultPhase, FaultReport
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.lineage.headers import LINEAGE_HEADER
from topicproof.validators.readings import COLUMNS
from topicproof.validators.report import Report

HARM = {
    Damage.DUPLICATES,
    Damage.GAPS,
    Damage.INVERSIONS,
    Damage.PHANTOMS,
    Damage.HANGING,
    Damage.MISATTRIBUTED,
}


def result(
    guarantee: str, fault: str, found: Mapping[str, int] | None = None, *surprising: str
) -> Result:
    plan = next(
        cell.plan
        for cell in cells([f"guarantee={guarantee},fault={fault}"])
        if cell.guarantee == guarantee
    )
    return Result(
        guarantee,
        fault,
        plan,
        "squares-aaaaaa",
        "HOLDS",
        found or {},
        "exact",
        "it did",
        surprising,
        6.0,
    )


def cell(guarantee: str, fault: str) -> Cell:
    return next(
        one for one in cells([f"guarantee={guarantee},fault={fault}"]) if one.guarantee == guarantee
    )


def test_the_table_has_an_answer_for_every_cell_and_a_plan_that_can_run() -> None:
    """Story: a fault is added to the table. It must say what it does to each guarantee, and be a
    fault there is."""
    for trouble in TABLE:
        assert len(trouble.expected) == sum(promise.like is None for promise in PROMISES), (
            trouble.name
        )
    for promise in PROMISES:
        assert promise.under <= {trouble.name for trouble in TABLE}
    for one in cells():
        assert make_plan(dict(one.plan)).records >= 600


def test_exactly_once_is_expected_to_be_exact_under_every_fault() -> None:
    """Story: somebody lets the table excuse damage. Exactly-once has no excuse but one: Kafka
    itself loses what it acknowledged."""
    exact = [one for one in cells() if one.guarantee == "exactly_once"]
    assert len(exact) == len(TABLE)
    (lossy,) = [one for one in exact if one.fault == "unclean"]
    assert not lossy.must
    assert lossy.may & HARM == HARM - {Damage.INVERSIONS, Damage.PHANTOMS}
    # A marker that Kafka has lost, and the next one of the producer in its place.
    replaced = ({Damage.MISATTRIBUTED: 1}, Outcome.VIOLATED, "", None, "it fired")
    assert surprises(lossy, *replaced) == []
    assert surprises(cell("exactly_once", "none"), *replaced) == [
        "1 misattributed, but none were expected"
    ]
    exact.remove(lossy)
    assert [one.fault for one in exact if not one.refused and (one.must | one.may) & HARM] == []
    assert [
        one.fault for one in exact if one.refused and (one.must | one.may) & HARM - {Damage.GAPS}
    ] == []


def test_what_drops_repeats_is_expected_to_be_exact() -> None:
    """Story: at-least-once repeats records, and a later step drops the repeats. Under every fault
    it must be exact, and under most there is something to drop."""
    plain = {
        one.fault: one
        for one in cells(["guarantee=at_least_once"])
        if one.guarantee == "at_least_once"
    }
    own = [promise.name for promise in PROMISES if promise.like is not None]
    dropped = [one for one in cells() if one.guarantee in own]
    assert [one.fault for one in dropped if (one.must | one.may) & HARM] == []
    assert sum(Damage.DUPLICATES in plain[one.fault].must for one in dropped) > len(dropped) / 2


def test_cells_that_strike_brokers_need_three_of_them() -> None:
    """Story: the matrix is asked of a Kafka with one broker. What would leave no broker at all is
    not tried; asked for by name, it is refused with what it needs."""
    alone = cells(brokers=1)
    assert {one.fault for one in cells()} - {one.fault for one in alone} == {
        f"broker-{role}-{how}"
        for role in ("source", "sink", "transactions", "offsets")
        for how in ("kill", "pause", "isolate")
    } | {"unclean"}
    with pytest.raises(UsageError, match=f"Add --brokers {BROKERS}"):
        cells(["fault=broker"], brokers=1)


def test_cells_are_chosen_by_guarantee_and_fault() -> None:
    """Story: only the crashes of one guarantee are wanted; a name that fits nothing is refused with
    those that do."""
    chosen = cells(["guarantee=at_most_once-unacknowledged,fault=crash"])
    assert {one.guarantee for one in chosen} == {"at_most_once-unacknowledged"}
    assert {one.fault.split("-")[0] for one in chosen} == {"crash"} and len(chosen) == 5
    assert len(cells(["guarantee=exactly_once,fault=crash"])) == 6
    assert {one.guarantee for one in cells(["guarantee=at_least_once"])} == {
        one.name for one in PROMISES if one.name.startswith("at_least_once")
    }
    assert len(cells(["fault=none", "fault=abort"])) == 2 * len(PROMISES)
    with pytest.raises(UsageError, match=r"no fault 'flood'. Known: none, abort"):
        cells(["fault=flood"])
    with pytest.raises(UsageError, match="expected guarantee=NAME"):
        cells(["crash"])


def test_what_differs_from_the_table_is_a_surprise() -> None:
    """Story: a cell shows what was expected, then too much, then too little, then no proof that
    anything happened."""
    repeats, holds = cell("at_least_once", "crash-produced"), (Outcome.HOLDS, "as promised", None)
    assert surprises(repeats, {Damage.DUPLICATES: 200}, *holds, "it fired") == []
    too_much = {Damage.DUPLICATES: 200, Damage.GAPS: 7}
    violated = (Outcome.VIOLATED, "7 are missing", None)
    assert surprises(repeats, too_much, *violated, "it fired") == ["7 gaps, but none were expected"]
    assert surprises(repeats, {}, *holds, "it fired") == ["no duplicates, which were expected"]
    assert surprises(repeats, {Damage.DUPLICATES: 200}, *holds, None) == [
        "nothing shows that the fault fired"
    ]
    failed = (Outcome.UNKNOWN, "nobody was heard", "no broker")
    assert surprises(repeats, {Damage.DUPLICATES: 200}, *failed, "it fired") == [
        "the run failed: no broker",
        "the verdict is UNKNOWN: nobody was heard",
    ]
    # One input has no order: a run that was refused right after it is not judged.
    early = (Outcome.UNKNOWN, "there are no pairs", "offsets moved")
    assert surprises(repeats, {Damage.DUPLICATES: 1}, *early, "it fired", single=True) == [
        "the run failed: offsets moved"
    ]


def test_a_verdict_must_agree_with_what_was_found() -> None:
    """Story: nothing fences a zombie of at_most_once; its duplicates are expected, and so is the
    verdict they make. A verdict that holds anyway is a surprise."""
    zombie, found = cell("at_most_once", "zombie"), {Damage.DUPLICATES: 100}
    assert surprises(zombie, found, Outcome.VIOLATED, "100 inputs twice", None, "it fired") == []
    assert surprises(zombie, found, Outcome.HOLDS, "as promised", None, "it fired") == [
        "the verdict is HOLDS: as promised"
    ]


def test_a_refusal_must_come_where_it_is_expected() -> None:
    """Story: the group's offset is moved. The sink must refuse to continue. What it leaves
    unprocessed is not lost, and no record may be repeated."""
    moved = cell("exactly_once", "offsets-rewound")
    assert (
        surprises(
            moved, {}, Outcome.HOLDS, "300 are not processed", "somebody moved it", "it fired"
        )
        == []
    )
    assert surprises(
        moved, {Damage.GAPS: 300}, Outcome.VIOLATED, "", "somebody moved it", "it fired"
    ) == ["300 gaps, but none were expected"]
    assert surprises(moved, {}, Outcome.HOLDS, "as promised", None, "it fired") == [
        "the sink continued, although it should have refused to"
    ]
    repeated = {Damage.DUPLICATES: 1}
    assert surprises(moved, repeated, Outcome.VIOLATED, "", "somebody moved it", "it fired") == [
        "1 duplicates, but none were expected"
    ]


def test_in_real_time_a_failed_task_may_show_what_a_restart_shows() -> None:
    """Story: the matrix runs in real time, where a worker that dies ends its whole query. What
    other tasks were doing is then repeated by at-least-once, and hidden by exactly-once. Where
    nothing strikes, nothing is excused. No cell writes a table."""
    usual = {(one.guarantee, one.fault): one for one in cells()}
    found = {(one.guarantee, one.fault): one for one in in_real_time(cells())}
    assert {one.plan["trigger"] for one in found.values()} == {"real_time"}
    assert usual.keys() - found.keys() == {
        name for name in usual if name[0] == "at_least_once-upsert"
    }
    assert Damage.DUPLICATES in found["at_least_once", "error-begun"].may
    for name, one in found.items():
        added = one.may - usual[name].may
        assert one.must == usual[name].must
        assert name[0] != "exactly_once" or added <= {Damage.HIDDEN}
        assert name[1] not in ("none", "abort") or not added


def test_a_ghost_proves_itself_only_in_the_next_transaction() -> None:
    """Story: a ghost was struck and arrived when its time was over. Under exactly-once, that shows
    nothing."""
    ghost = cell("exactly_once", "ghost-end")
    (name, _) = make_plan(dict(ghost.plan)).faults
    report = cast(Report, SimpleNamespace(guarantee=Guarantee.EXACTLY_ONCE))
    struck = FaultReport(name, FaultPhase.STRUCK, "END_TXN ghost, 1 of 1")
    for when, proves in (("at the end of its time", False), (IN_NEXT, True)):
        arrived = FaultReport(name, FaultPhase.HEALED, f"END_TXN arrived {when}: NO_ERROR")
        assert ghost.trouble.proof(Trial([struck], report, 1)) is None
        assert bool(ghost.trouble.proof(Trial([struck, arrived], report, 1))) is proves


def test_results_answer_only_the_cells_they_were_made_for(tmp_path: Path) -> None:
    """Story: a matrix is resumed after the table has changed. Cells with an unchanged plan are
    kept."""
    settings = read_settings(home=tmp_path)
    made = [
        result("exactly_once", "none"),
        replace(result("exactly_once", "abort"), plan={"records": 1}),
    ]
    path = tmp_path / RESULTS
    path.parent.mkdir()
    path.write_text(json.dumps([vars(one) for one in made]))
    assert read_results(settings) == made
    assert saved_results(settings, cells(["guarantee=exactly_once"])) == made[:1]
    path.write_text("{")
    with pytest.raises(UsageError, match="Delete it and run the matrix again"):
        read_results(settings)


class _Cells(HTMLParser):
    """The classes of a page's table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self.found += [value or "" for name, value in attributes if name == "class"]


def test_a_matrix_is_shown_with_its_surprises_and_proofs() -> None:
    """Story: somebody reads the matrix as a table, as a heat map and in the terminal; each says
    what surprised."""
    shown = [
        result("exactly_once", "none"),
        result("exactly_once", "abort", {"hidden": 400}),
        result("at_least_once", "none", {"duplicates": 3}, "3 duplicates, but none were expected"),
        result("at_least_once", "abort", {"duplicates": 100}),
    ]
    assert summary(shown) == "3 of 4 cells agree with what theory expects; 1 is a surprise (24 s)."
    assert "2 more were not tried." in markdown(shown, 6)
    table = markdown(shown)
    assert "not tried" not in table
    assert "| `none`: nothing goes wrong | exact | **3 duplicates (surprise)** |" in table
    assert (
        "| `abort`: transactions fail at random, by the seed | 400 hidden | 100 duplicates |"
        in table
    )
    assert (
        "- `at_least_once` under `none` (run squares-aaaaaa): 3 duplicates, but none were"
        " expected" in table
    )
    page = _Cells()
    page.feed(heat_map(shown))
    assert page.found == ["exact", "surprise", "exact", "damaged"]
    assert "SURPRISE" in line(shown[2]) and "SURPRISE" not in line(shown[3])


def test_a_reader_who_drops_repeats_keeps_the_first_of_each(spark: SparkSession) -> None:
    """Story: an output is there three times, once in another partition, and two foreign records
    have no lineage. The reader of a partition keeps the first of what is alike, and what he cannot
    compare."""
    lineage = [{"key": "other", "value": b"1"}, {"key": LINEAGE_HEADER, "value": b"numbers/0/7/0"}]
    records = [
        (0, 4, lineage),
        (0, 5, None),
        (0, 6, []),
        (0, 8, lineage),
        (0, 9, lineage[1:]),
        (1, 3, lineage),
    ]
    rows = [
        (partition, offset, None, b"k", b"v", headers) for partition, offset, headers in records
    ]
    kept = first_of_each(spark.createDataFrame(rows, COLUMNS)).collect()
    assert {(row["partition"], row["offset"]) for row in kept} == {(0, 4), (0, 5), (0, 6), (1, 3)}


def wanted_order(wanted: Sequence[Cell]) -> Callable[[Result], int]:
    names = [(one.guarantee, one.fault) for one in wanted]
    return lambda result: names.index((result.guarantee, result.fault))


def test_a_small_matrix_agrees_and_leaves_nothing_behind(
    settings: Settings, cluster: Services
) -> None:
    """Story: the handful of cells that tell most. Each agrees with theory, each fault is proven, no
    run is left."""
    wanted, seen = cells(small=True), list[Result]()
    before = {one.id for one in History(settings).list()}
    run_cells(settings, cluster, wanted, threading.Event(), seen.append)
    assert [one.surprises for one in seen] == [()] * len(wanted)
    assert all(one.fired for one in seen)
    # Two run at a time, so that they end in any order.
    assert sorted(seen, key=wanted_order(wanted)) == saved_results(settings, wanted)
    assert {one.id for one in History(settings).list()} == before


def test_a_fault_that_never_fires_and_damage_that_is_missing_are_surprises(
    settings: Settings, cluster: Services
) -> None:
    """Story: the fault waits for a transaction that never comes. The run is exact, and its cell is
    a surprise; the run is kept for inspection."""
    repeats = cell("at_least_once", "crash-produced")
    never = replace(repeats, plan={**repeats.plan, "faults": ["crash@transaction=99"]})
    seen: list[Result] = []
    run_cells(settings, cluster, [never], threading.Event(), seen.append)
    assert seen[0].surprises == (
        "nothing shows that the fault fired",
        "no duplicates, which were expected",
    )
    assert History(settings).get(seen[0].run).verdict == "HOLDS"
