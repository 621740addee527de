"""What the history keeps of a run is read again, also where another version wrote it."""

from __future__ import annotations

from topicproof.backend.history.run_state import (
    Facts,
    Names,
    Progress,
    RanOn,
    RunResults,
    StageVerdict,
    facts_json,
    progress_fields,
    progress_json,
    read_facts,
    read_progress,
)
from topicproof.validators.finding import Outcome, PartitionBounds

KEPT_BY_0_2_0 = """{"topics": {"numbers": "r-numbers", "squares": "r-squares"},
"source": "r-numbers", "sink": "r-squares", "journal": "r-journal", "group": "r-square",
"stages": [{"stage": "square",
"sources": ["r-numbers"], "sinks": ["r-squares"], "journal": "r-journal", "group": "r-square",
"prefix": "r-square", "database": null}], "made": ["r-journal", "r-numbers", "r-squares"],
"cluster": {"bootstrap": null, "brokers": 1}, "floor": {"square": {"r-numbers": {"0": 0, "1": 7}}},
"sink_from": {"r-squares": {"0": 0}}, "database": null, "filled": true, "served": "",
"session": null, "verdicts": {"square": {"verdict": "HOLDS", "why": "All is well."}},
"values": {}, "accounts": 2, "wrong_by": {"a": 250}, "of_a_later_version": [1]}"""
SEEN_BY_0_2_0 = """{"stage": "processing", "filled": 9, "processed": 5, "total": 9, "committed": 1,
"aborted": 0, "fenced": 0, "faults": 0, "records_per_s": 2.5, "seconds_left": 1.6, "sink":
[{"partition": 0, "start": 0, "lso": 6, "hw": 8}], "kept": 5, "attempted": 5, "downloads": null,
"downloaded": 0, "stages": [], "trouble": null}"""


def test_facts_of_an_earlier_version_are_read() -> None:
    """Story: a history of version 0.2.0 is opened. Every field has its place, and one that this
    version does not know is passed over. What is kept again reads the same."""
    facts = read_facts(KEPT_BY_0_2_0)
    names = Names("square", ("r-numbers",), ("r-squares",), *("r-journal", "r-square", "r-square"))
    assert facts == Facts(
        source="r-numbers",
        sink="r-squares",
        journal="r-journal",
        group="r-square",
        topics={"numbers": "r-numbers", "squares": "r-squares"},
        stages=(names,),
        made=("r-journal", "r-numbers", "r-squares"),
        cluster=RanOn(None, 1),
        initial_offsets={"square": {"r-numbers": {"0": 0, "1": 7}}},
        sink_from={"r-squares": {"0": 0}},
        filled=True,
        results=RunResults(
            verdicts={"square": StageVerdict(Outcome.HOLDS, "All is well.")},
            accounts=2,
            wrong_by={"a": 250},
        ),
    )
    assert facts.of_stage("square") == {"r-numbers": {"0": 0, "1": 7}}
    assert read_facts(facts_json(facts)) == facts and '"floor"' in facts_json(facts)


def test_a_run_that_has_decided_nothing_keeps_nothing() -> None:
    assert (facts_json(Facts()), read_facts("{}")) == ("{}", Facts())
    assert (read_progress("{}"), progress_fields(Progress())) == (Progress(), {})


def test_live_figures_of_an_earlier_version_are_read() -> None:
    seen = read_progress(SEEN_BY_0_2_0)
    assert (seen.stage, seen.processed, seen.sink) == (
        "processing",
        5,
        (PartitionBounds(0, 0, 6, 8),),
    )
    assert read_progress(progress_json(seen)) == seen
    assert progress_fields(seen)["sink"] == [{"partition": 0, "start": 0, "lso": 6, "hw": 8}]
