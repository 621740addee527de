"""Which verdicts are of one pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topicproof.backend.history.contract_of_run import changed_terms
from topicproof.backend.history.kept_contracts import keep
from topicproof.backend.history.pipelines import checked_pipelines, default_name, verdict_before
from topicproof.backend.history.run_state import Facts, RanOn
from topicproof.backend.history.store import History, Kind, Run, State
from topicproof.backend.settings import read_settings

PAIR = Facts(source="orders", sink="lines")
TERMS = "source: {topic: orders}\nsink: {topic: lines}\nidentity: key\n"


def ended(
    history: History, plan: dict[str, Any], verdict: str | None = "HOLDS", facts: Facts = PAIR
) -> Run:
    kind = "run" if "scenario" in plan else "check"
    run = history.create(kind, kind, plan)
    history.remember(run.id, facts)
    history.end(run.id, State.DONE if verdict else State.FAILED, verdict, "x", None)
    return history.get(run.id)


def test_the_verdict_before_is_of_the_same_pipeline(database: str) -> None:
    """Story: two topics are checked with and without a contract, by its versions, on two clusters,
    and between them others are. Only verdicts on the same pipeline are compared, and a check that
    failed is none."""
    assert database
    history = History(read_settings())
    assert default_name("lines", "lines.yaml") == default_name("lines", None) == "lines"
    first = ended(history, {})
    east = ended(history, {}, facts=Facts(source="orders", sink="lines", cluster=RanOn(name="e")))
    ended(history, {"contract": "monthly"})
    ended(history, {}, facts=Facts(source="orders", sink="lines-2"))
    ended(history, {}, None)
    versions = [
        ended(history, {"contract": "lines", "contract_version": number}) for number in (1, 2)
    ]
    again = ended(history, {"contract": "lines.yaml"})
    runs = [
        ended(history, {"scenario": "squares", "guarantee": guarantee})
        for guarantee in ("exactly_once", "at_least_once", "exactly_once")
    ]
    before = {run.id: verdict_before(history, run) for run in (*versions, again, *runs, east)}
    assert {run: other and other.id for run, other in before.items()} == {
        versions[0].id: first.id,
        versions[1].id: versions[0].id,
        again.id: versions[1].id,
        runs[0].id: None,
        runs[1].id: None,
        runs[2].id: runs[0].id,
        east.id: None,
    }
    failed = ended(history, {}, None)
    pipelines = checked_pipelines(history.list(kind=Kind.CHECK))
    assert [each.pipeline.name for each in pipelines] == [*("lines", "lines-2", "monthly", "lines")]
    newest = pipelines[0]
    assert newest.newest.id == failed.id and newest.judged is not None
    assert newest.judged.id == again.id and newest.before is not None
    assert newest.before.id == versions[1].id
    history.engine.dispose()


def test_the_terms_that_changed(tmp_path: Path, monkeypatch: Any) -> None:
    """Story: a contract gets a second version. Two checks of one version have the same terms; of
    two versions it is named what changed; and of a contract that is gone nothing is known."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    history = History(read_settings())
    for text in (TERMS, TERMS.replace("key", "{json: $.id}")):
        keep(history, "lines", text)
    plans = [{"contract": "lines", "contract_version": number} for number in (1, 1, 2)]
    old, same, new = (ended(history, plan) for plan in plans)
    assert changed_terms(history, old, same) == ()
    terms = changed_terms(history, old, new)
    assert terms is not None and [(each.name, each.before) for each in terms] == [
        ("identity", "key")
    ]
    damaged = ended(history, {"contract": "lines"})
    folder = damaged.folder(history.settings) / "evidence"
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(TERMS)
    assert changed_terms(history, old, damaged) is None, "no manifest vouches for it"
    history.engine.dispose()
