"""A folder of evidence: complete, hashed, judged again from itself alone, and copied without what
records said."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from html import unescape
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xmlschema
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase
from pyspark.sql import SparkSession

from tests.backend.evidence.evidence import judged, mend
from tests.validators.history import history
from topicproof.backend.commands.show import report_lines
from topicproof.backend.commands.terminal import plain_text
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.copy import copy_evidence, zip_evidence
from topicproof.backend.evidence.folder import read_report
from topicproof.backend.evidence.manifest import (
    NO_FILE,
    Difference,
    Payloads,
    differences,
    manifest_hash,
    read_manifest,
    write_manifest,
)
from topicproof.backend.evidence.page import write_page
from topicproof.backend.evidence.read_limits import require_readable
from topicproof.backend.evidence.signed import entry_hash
from topicproof.backend.judging.capture_store import (
    Capture,
    RunAccounts,
    keep_capture,
    read_capture,
)
from topicproof.backend.kafka.coordination.attribution import KEPT_MAX, kept_ids
from topicproof.backend.kafka.coordination.unstable import HOLDERS_MAX
from topicproof.backend.kafka.look import LIMITS
from topicproof.backend.sink.entries import Declared, FaultFired, TaskStarted, TransactionEnded
from topicproof.backend.verifying.derived import report_contradictions
from topicproof.backend.verifying.unchanged import unchanged
from topicproof.backend.verifying.verify import SecondJudgement, compare, judge_again, verify
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.coordinator import (
    NAME_KEPT_MAX,
    AbortReason,
    Attribution,
    Coordinator,
    OpenTransaction,
    UnstableOffset,
    short_name,
)
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Bounds, Guarantee, Order, Origin, Outcome, PartitionBounds
from topicproof.validators.kinds.wrong_value import WRONG
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.question import Question
from topicproof.validators.report import Report
from topicproof.validators.thresholds import Thresholds

XSD = Path(__file__).with_name("junit.xsd")
HEALTHY = ("0 1 C 2 A 2 C", "1.0 1.1 C")
BROKEN = ("0 0 1 C 3 C", "1.0 1.1 C")
"""Input 0 twice, input 2 missing."""
CONTRACT = "source: {topic: numbers}\nsink: {topic: squares}\nwarn: {pending: 0}\n"
WARNS = ContractTerms(warn=Thresholds(pending=0))
ORIGIN = Origin("cluster-1", {"numbers": "AAAAAAAAAAAAAAAAAAAAAQ", "squares": None})


@pytest.fixture(scope="module")
def healthy(
    spark_sessions: Callable[[], SparkSession], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("healthy") / "evidence"
    return folder, judged(spark_sessions(), folder, history(*HEALTHY, inputs=[3, 2]))


@pytest.fixture(scope="module")
def broken(
    spark_sessions: Callable[[], SparkSession], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("broken") / "evidence"
    return folder, judged(
        spark_sessions(),
        folder,
        history(*BROKEN, inputs=[4, 2]),
        CONTRACT,
        ORIGIN,
        run="squares-1",
        agreed=WARNS,
    )


@pytest.fixture(scope="module")
def second(
    broken: tuple[Path, Report],
    spark_sessions: Callable[[], SparkSession],
    tmp_path_factory: pytest.TempPathFactory,
) -> SecondJudgement:
    """The readings of the violated check, judged again: the first half of `verify`."""
    return judge_again(spark_sessions(), broken[0], tmp_path_factory.mktemp("rejudged"))


@pytest.fixture
def copied(broken: tuple[Path, Report], tmp_path: Path) -> Path:
    """A copy to do harm to."""
    copy_evidence(broken[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_a_folder_holds_all_that_proves_its_report(broken: tuple[Path, Report]) -> None:
    """Story: QA opens the folder of a violated check. Report, page, JUnit, findings, plan and
    readings are there, and the rows of the findings are the ones that the report counts."""
    folder, report = broken
    assert report.verdict is Outcome.VIOLATED
    there = set(read_manifest(folder).files)
    assert {
        "report.json",
        "report.html",
        "junit.xml",
        "findings.csv",
        "plan.json",
        "taken.json",
    } <= there
    assert differences(folder) == []
    rows = pq.read_table(folder / "findings.parquet").to_pandas()
    counts = {one.kind: one.count for one in report.findings if one.count}
    assert counts["duplicate"] == 1 and counts["gap"] == 1
    assert rows.groupby("kind").size().to_dict() == counts
    assert len((folder / "findings.csv").read_text().splitlines()) == len(rows) + 1
    assert read_report(folder) == report


def test_a_report_names_its_cluster_and_its_topics(broken: tuple[Path, Report]) -> None:
    """Story: two clusters have topics of the same names. The report says by id which ones it is
    about, for programs, on its page and in a terminal; a topic of a broker without ids has none."""
    folder, report = broken
    said = json.loads((folder / "report.json").read_text())
    jsonschema.validate(said, json.loads(Path("docs/report.schema.json").read_text()))
    assert said["origin"] == {"cluster": "cluster-1", "topics": dict(ORIGIN.topics)}
    assert Report.from_json(report.to_json()) == report
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Cluster cluster-1" in page and "AAAAAAAAAAAAAAAAAAAAAQ" in page
    told = "cluster cluster-1, topic ids: numbers AAAAAAAAAAAAAAAAAAAAAQ, squares without an id"
    assert told in list(map(plain_text, report_lines(report)))


def test_a_report_says_what_records_were_matched_by(
    broken: tuple[Path, Report], tmp_path: Path
) -> None:
    """Story: orders are matched by their ids. Whoever signs reads so in the page and in the
    terminal; a report of an earlier version, which does not say, gives the page that it gave."""
    folder, report = broken
    assert json.loads((folder / "report.json").read_text())["identity"] == "lineage"
    assert "Records matched by lineage" in (folder / "report.html").read_text(encoding="utf-8")
    by_id = replace(report, identity="json $.id = json $.order.id")
    write_page(tmp_path / "by_id.html", by_id, "2026-01-31 12:00:00 UTC")
    assert f"Records matched by {by_id.identity}" in (tmp_path / "by_id.html").read_text("utf-8")
    assert f"matched by: {by_id.identity}" in list(map(plain_text, report_lines(by_id)))
    earlier = replace(report, identity=None)
    assert "identity" not in json.loads(earlier.to_json())
    write_page(tmp_path / "earlier.html", earlier, "2026-01-31 12:00:00 UTC")
    assert "Records matched by" not in (tmp_path / "earlier.html").read_text("utf-8")
    assert Report.from_json(by_id.to_json()) == by_id and Report.from_json(earlier.to_json())


@pytest.mark.parametrize("which", ["healthy", "broken"])
def test_it_is_judged_again_from_itself_alone(
    which: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Story: an auditor gets the folder, and has no Kafka. The same verdict, kind by kind, comes
    out again."""
    folder, report = request.getfixturevalue(which)
    copy_evidence(folder, tmp_path / "auditor")
    found = verify(spark, tmp_path / "auditor")
    assert found.differences == () and found.contradictions == ()
    assert found.judged is not None and found.judged.findings == report.findings
    assert found.exit_code == report.exit_code == {"healthy": 0, "broken": 1}[which]
    assert differences(tmp_path / "auditor") == [], "judging again leaves no trace in the folder"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


TAMPERED: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "one bit of the report": (lambda folder: _flip(folder / "report.json"), "changed"),
    "one bit of a reading": (
        lambda folder: _flip(next((folder / "sink-read_committed").glob("*.parquet"))),
        "changed",
    ),
    "one bit of the raw log": (lambda folder: _flip(folder / "sink-raw_log.parquet"), "changed"),
    "a file is gone": (lambda folder: (folder / "findings.csv").unlink(), "missing"),
    "a file is added": (
        lambda folder: (folder / "ledger" / "more.parquet").write_bytes(b""),
        "added",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_any_changed_byte_is_named(what: str, copied: Path, spark: SparkSession) -> None:
    """Story: somebody touches a file of the evidence. Verifying names that file, judges nothing,
    and ends with 4."""
    harm, how = TAMPERED[what]
    harm(copied)
    found = verify(spark, copied)
    assert [one.how for one in found.differences] == [how] and found.judged is None
    assert found.exit_code == 4
    with pytest.raises(EvidenceError, match=how):
        copy_evidence(copied, copied.parent / "another")


def test_a_link_out_of_the_folder_is_no_evidence(copied: Path) -> None:
    """Story: a file is replaced by a link to a file with the same content. That may change later,
    so it is named."""
    report = copied / "report.json"
    report.rename(copied.parent / "elsewhere.json")
    report.symlink_to(copied.parent / "elsewhere.json")
    assert differences(copied) == [Difference("report.json", "changed")]
    manifest = json.loads((copied / "manifest.json").read_text())
    for entry in ({"sha256": f"link to {report.readlink()}", "bytes": 0}, NO_FILE._asdict()):
        manifest["files"]["report.json"] = entry
        (copied / "manifest.json").write_text(json.dumps(manifest))
        assert differences(copied) == [Difference("report.json", "changed")]


def _rewrite(name: str, before: str, after: str) -> Callable[[Path], object]:
    """An edit of a text, which must be there."""

    def edit(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert before in text, f"{before} is not in {name}"
        (folder / name).write_text(text.replace(before, after, 1), encoding="utf-8")

    return edit


def _report(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """An edit of a field of report.json, which stays the text that Topicproof writes."""

    def edit(folder: Path) -> None:
        said = json.loads((folder / "report.json").read_text())
        change(said)
        (folder / "report.json").write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n")

    return edit


CODE = "reflect('java.lang.System', 'setProperty', 'topicproof.evaluated', 'yes')"


def _ask(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """An edit of the question in taken.json."""

    def edit(folder: Path) -> None:
        said = json.loads((folder / "taken.json").read_text())
        change(said)
        (folder / "taken.json").write_text(json.dumps(said))

    return edit


def _identity(place: str) -> Callable[[Path], object]:
    return _ask(
        lambda said: said["question"].update(
            identity="key", agreed={**said["question"]["agreed"], "match": {"sink": place}}
        )
    )


def _partition(number: int) -> dict[str, int]:
    return {"partition": number, "start": 0, "lso": 0, "hw": 0}


@_ask
def _many_incarnations(said: dict[str, Any]) -> None:
    """Each names one partition of a sink that has 100,000."""
    said["sink"]["partitions"] += [_partition(number) for number in range(2, 100_000)]
    earlier = {"topic": "numbers", "began_ms": 0, "ends": {"99999": 1}}
    said["circumstances"]["incarnations"] = [earlier] * 9


def _raw_log(**numbers: int) -> Callable[[Path], object]:
    """An edit of the first batch in the sink's raw log."""

    def edit(folder: Path) -> None:
        path = folder / "sink-raw_log.parquet"
        table = pq.read_table(path)
        rows = table.to_pylist()
        rows[0] |= numbers
        pq.write_table(pa.Table.from_pylist(rows, table.schema), path)

    return edit


def _many_rows(folder: Path) -> None:
    """Equal rows take next to nothing, however many they are."""
    (part,) = (folder / "sink-read_committed").glob("*.parquet")
    pq.write_table(pq.read_table(part).take([0] * 20_000), part)


HOSTILE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "value runs code": (
        _ask(lambda said: said["question"]["agreed"].update(value=CODE)),
        "value is not evaluated: the function reflect is not allowed",
    ),
    "count runs code": (
        _ask(
            lambda said: said.update(
                expect="one_to_many", count=CODE.replace("reflect", "java_method")
            )
        ),
        "count is not evaluated: the function java_method is not allowed",
    ),
    "value reads a file": (
        _ask(
            lambda said: said["question"]["agreed"].update(
                value="(select 1 from text.`/etc/passwd`)"
            )
        ),
        "value is not evaluated: a query is not allowed",
    ),
    "identity": (_identity("headers"), "'headers' names no identity"),
    "identity's path": (_identity("json:$.*"), "a path cannot hold a wildcard"),
    "offset of 5,000 digits": (
        lambda folder: (folder / "taken.json").write_text('{"question": ' + "9" * 5_000 + "}"),
        "cannot be read",
    ),
    "offset that Kafka does not have": (
        _ask(lambda said: said["sink"]["partitions"][0].update(hw=2**70)),
        "an offset that Kafka does not have",
    ),
    "partition of a sink that no topic has": (
        _ask(lambda said: said["sink"]["partitions"].append(_partition(50_000_000))),
        "a partition has the number 50,000,000, and there are 3",
    ),
    "partition of a source that no topic has": (
        _ask(lambda said: said["question"]["source"]["partitions"].append(_partition(2**31 - 1))),
        "a partition has the number 2,147,483,647, and there are 3",
    ),
    "first offset of such a partition": (
        _ask(lambda said: said["question"].update(sink_from={str(10**18): 0})),
        "a partition has the number 1,000,000,000,000,000,000, and there are 1",
    ),
    "due offset of such a partition": (
        _ask(lambda said: said["question"].update(due={"50000000": 0})),
        "a partition has the number 50,000,000",
    ),
    "agreed offset of such a partition": (
        _ask(lambda said: said["question"]["agreed"].update(offsets={"50000000": 0})),
        "a partition has the number 50,000,000",
    ),
    "later offset of such a partition": (
        _ask(lambda said: said["circumstances"].update(offsets_after={"50000000": 0})),
        "a partition has the number 50,000,000",
    ),
    "stable offset of a partition without bounds": (
        _ask(lambda said: said["circumstances"].update(source_lso={str(10**18): 0})),
        "last stable offsets are of partition 1000000000000000000, which has no bounds",
    ),
    "removed records of a partition without bounds": (
        _ask(lambda said: said["circumstances"].update(sink_removed={"2": {"below": 1}})),
        "the sink's removed records are of partition 2, which has no bounds",
    ),
    "earlier topic with a partition without bounds": (
        _ask(
            lambda said: said["circumstances"].update(
                incarnations=[{"topic": "numbers", "began_ms": 0, "ends": {"50000000": 1}}]
            )
        ),
        "it has 1 earlier topics, each of many partitions",
    ),
    "many earlier topics of many partitions": (_many_incarnations, "it has 9 earlier topics"),
    "abort in a partition without bounds": (
        _ask(lambda said: said["attribution"].update(reasons=[[2, 0, "timeout"]])),
        "aborted transactions are of partition 2, which has no bounds",
    ),
    "endless range": (
        _ask(lambda said: said["sink"]["partitions"][0].update(hw=2**62)),
        "4,611,686,018,427,387,",
    ),
    "half a character": (
        _ask(lambda said: said["question"].update(group="\ud800")),
        "surrogates not allowed",
    ),
    "sink that clears the screen": (
        _ask(lambda said: said["question"].update(sink="squares\x1b[2J")),
        r"'squares\x1b[2J' is no name of a topic",
    ),
    "source of two lines": (
        _ask(lambda said: said["question"]["source"].update(topic="numbers\nsigned Grace Hopper")),
        r"'numbers\nsigned Grace Hopper' is no name of a topic",
    ),
    "bounds of another name": (
        _ask(lambda said: said["sink"].update(topic="..")),
        "'..' is no name of a topic",
    ),
    "several topics in one": (
        _ask(
            lambda said: said["sink"].update(
                topic="squares + \u202ex",
                parts=[{"topic": "squares", "first": 0}, {"topic": "\u202ex", "first": 1}],
            )
        ),
        r"'\u202ex' is no name of a topic",
    ),
    "id of a topic that cannot be": (
        _ask(lambda said: said["origin"]["topics"].update({"a" * 250: None})),
        "is no name of a topic",
    ),
    "nested question": (
        lambda folder: (folder / "taken.json").write_text("[" * 100_000),
        "nested too deeply",
    ),
    "question is a list": (
        lambda folder: (folder / "taken.json").write_text("[]"),
        "cannot be read",
    ),
    "nested report": (
        lambda folder: (folder / "report.json").write_text("[" * 100_000),
        "cannot be read",
    ),
    "report of other types": (
        _report(lambda said: said.update(took_s="<script>")),
        "cannot be read",
    ),
    "rows without end": (_many_rows, "has 20,000 rows, and its range has"),
    "raw log is no table": (
        lambda folder: (folder / "sink-raw_log.parquet").write_bytes(b"PAR1" * 9),
        "cannot be read",
    ),
    "raw log of other columns": (
        lambda folder: pq.write_table(pa.table({"x": [1]}), folder / "sink-raw_log.parquet"),
        "cannot be judged: its files do not fit together",
    ),
    "batch without end": (
        _raw_log(last_offset=2**40),
        "a batch of sink-raw_log.parquet has more offsets than a broker takes",
    ),
    "batch that ends before it begins": (_raw_log(base_offset=2**40), "more offsets than a broker"),
    "batch beyond all offsets": (
        _raw_log(base_offset=-(2**62), last_offset=2**62),
        "cannot be read: ArrowInvalid: overflow",
    ),
    "journal": (
        lambda folder: (folder / "journal.jsonl").write_text('{"kind": []}'),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_folder_is_refused_in_a_sentence(
    what: str, copied: Path, spark: SparkSession
) -> None:
    """Story: an auditor verifies a folder from a stranger, with mended hashes. Nothing in it runs,
    and no limit is exceeded. One sentence, no traceback."""
    harm, says = HOSTILE[what]
    harm(copied)
    mend(copied)
    with pytest.raises(EvidenceError) as error:
        verify(spark, copied)
    assert says in str(error.value)
    asked = "select reflect('java.lang.System', 'getProperty', 'topicproof.evaluated')"
    assert spark.sql(asked).collect()[0][0] in (None, "null")


def _fewer_rows(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "findings.parquet").slice(1), folder / "findings.parquet")


def _all_findings_gone(folder: Path) -> None:
    """From the rows and from their text alike."""
    pq.write_table(
        pq.read_table(folder / "findings.parquet").slice(0, 0), folder / "findings.parquet"
    )
    (folder / "findings.csv").write_text(
        (folder / "findings.csv").read_text().splitlines()[0] + "\n"
    )


FORGED: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "verdict": (
        _report(lambda said: said.update(verdict="HOLDS")),
        "report.json: verdict is HOLDS; judged again it is VIOLATED.",
    ),
    "why": (
        _report(lambda said: said.update(why="All is well.")),
        "report.json: why is All is well.;",
    ),
    "count": (
        _report(
            lambda said: next(one for one in said["findings"] if one["kind"] == "gap").update(
                count=0
            )
        ),
        "report.json: findings.gap.count is 0; judged again it is 1.",
    ),
    "denominator": (
        _report(lambda said: said["checked"][0].update(records=10**6)),
        "report.json: checked.identity_disjoint.records is 1000000;",
    ),
    "finding left out": (
        _report(lambda said: said["findings"].pop(0)),
        "report.json: findings.identity_disjoint is not there;",
    ),
    "kind not counted": (
        _report(lambda said: said["not_checked"].append({"kind": "gap", "why": "Not required."})),
        "report.json: not_checked.gap is",
    ),
    "inputs": (
        _report(lambda said: said["source"].update(records=9)),
        "report.json: source.records is 9;",
    ),
    "bounds": (
        _report(lambda said: said["sink"]["bounds"][0].update(hw=9)),
        "report.json: sink.bounds.0.hw is 9;",
    ),
    "balance": (
        _report(lambda said: said["sink"]["balance"][0].update(aborted=3)),
        "report.json: sink.balance.0.aborted is 3;",
    ),
    "fates": (
        _report(lambda said: said["sink"]["fates"].update(aborted=3)),
        "report.json: it is not the text that Topicproof writes for its content.",
    ),
    "topic": (
        _report(lambda said: said["sink"].update(topic="invoices")),
        "report.json: sink.topic is invoices; judged again it is squares.",
    ),
    "topic id": (
        _report(lambda said: said["origin"]["topics"].update(numbers="BBBBBBBBBBBBBBBBBBBBBQ")),
        "report.json: origin.topics.numbers is BBBBBBBBBBBBBBBBBBBBBQ;",
    ),
    "cluster id": (
        _report(lambda said: said["origin"].update(cluster="prod")),
        "report.json: origin.cluster is prod; judged again it is cluster-1.",
    ),
    "run": (
        _report(lambda said: said.update(run="squares-2")),
        "report.json: run is squares-2; judged again it is squares-1.",
    ),
    "field twice": (
        _rewrite("report.json", "{\n", '{\n  "verdict": "HOLDS",\n'),
        "report.json: it is not the text that Topicproof writes for its content.",
    ),
    "time it took": (
        _report(lambda said: said.update(took_s=0.0)),
        "report.html: it is not what report.json gives.",
    ),
    "page": (
        _rewrite("report.html", "✕ VIOLATED", "✓ HOLDS"),
        "report.html: it is not what report.json gives.",
    ),
    "page's program": (
        _rewrite("report.html", "draw();", "draw();document.title='HOLDS';"),
        "report.html: it is not what report.json gives.",
    ),
    "page left out": (
        lambda folder: (folder / "report.html").unlink(),
        "report.html: it is missing.",
    ),
    "JUnit": (
        _rewrite("junit.xml", "<failure", "<skipped"),
        "junit.xml: it is not what report.json with the rows found again gives.",
    ),
    "rows as text": (
        lambda folder: (folder / "findings.csv").write_text("kind\n"),
        "findings.csv: it is not what findings.parquet gives.",
    ),
    "rows": (_fewer_rows, "findings.parquet: its rows differ from those found again."),
    "rows, both files": (
        _all_findings_gone,
        "findings.parquet: its rows differ from those found again.",
    ),
    "contract's guarantee": (
        _rewrite("contract.yaml", "source:", "guarantee: at_least_once\nsource:"),
        "contract.yaml: guarantee is at_least_once; the question in taken.json has exactly_once.",
    ),
    "contract's topic": (
        _rewrite("contract.yaml", "squares", "invoices"),
        'contract.yaml: sink is ["invoices"]; the question in taken.json has ["squares"].',
    ),
    "contract's threshold": (
        _rewrite("contract.yaml", "pending: 0", "pending: 9"),
        "contract.yaml: warn.pending is 9; the question in taken.json has 0.",
    ),
    "contract that is none": (
        _rewrite("contract.yaml", "source:", "sauce:"),
        "contract.yaml: it cannot be read:",
    ),
    "plan": (
        _rewrite("plan.json", "squares", "invoices"),
        "plan.json: first sink is invoices; the question in taken.json has squares.",
    ),
    "question": (
        _rewrite("taken.json", '"guarantee": "exactly_once"', '"guarantee": "at_most_once"'),
        "report.json: guarantee is exactly_once; judged again it is at_most_once.",
    ),
    "manifest": (
        lambda folder: write_manifest(folder, "squares-1", Outcome.HOLDS),
        "manifest.json: verdict is HOLDS; judged again it is VIOLATED.",
    ),
}
"""One forgery a row, and how `verify` names it."""
VERIFIED_WHOLE = ("verdict", "question")
"""Forgeries of the report and of the question. No other forgery touches a file that the judge
reads, so it is asked once for all of them."""
DERIVED = (
    *("report.json", "report.html", "junit.xml", "findings.csv", "findings.parquet"),
    *("contract.yaml", "plan.json"),
)
"""Files that the judge does not read."""


def _judged_files(folder: Path) -> dict[str, object]:
    """The files that the judge reads, with their hashes."""
    files = read_manifest(folder).files
    return {name: entry for name, entry in files.items() if name not in DERIVED}


@pytest.mark.parametrize("what", FORGED)
def test_a_forgery_is_contradicted_although_the_manifest_is_mended(
    what: str,
    copied: Path,
    broken: tuple[Path, Report],
    second: SecondJudgement,
    spark: SparkSession,
) -> None:
    """Story: somebody edits the evidence, hashes everything again, and hands it on. Every file that
    follows from the readings is derived again, and the forged one is named."""
    forge, names = FORGED[what]
    forge(copied)
    mend(copied)
    if what in VERIFIED_WHOLE:
        found = verify(spark, copied)
    else:
        assert _judged_files(copied) == _judged_files(broken[0])
        found = compare(spark, unchanged(copied), read_report(copied), second)
    said = (*found.contradictions, *found.forged)
    assert found.differences == () and found.exit_code == 4
    assert any(one.startswith(names) for one in said), said


def test_other_versions_are_a_note(
    copied: Path, second: SecondJudgement, spark: SparkSession
) -> None:
    """Story: evidence was written by an earlier version, whose page names it and whose catalogue
    lacked a kind. That is a note. A page that differs then may be another version's, and is never a
    pass."""
    earlier = replace(read_report(copied), versions={"topicproof": "0.0.1"})
    kept = tuple(one for one in earlier.findings if one.kind != "interleaving")
    uncounted = tuple(one for one in earlier.not_checked if one.kind != "interleaving")
    checked = tuple(one for one in earlier.checked if one.kind != "interleaving")
    assert len(kept) < len(earlier.findings)
    earlier = replace(earlier, findings=kept, not_checked=uncounted, checked=checked)
    (copied / "report.json").write_text(f"{earlier.to_json()}\n")
    mend(copied)
    found = compare(spark, unchanged(copied), read_report(copied), second)
    assert found.contradictions == () and found.forged == ()
    assert "topicproof 0.0.1 (now" in found.notes[0]
    assert [one.split(":")[0] for one in found.unsettled] == ["junit.xml", "report.html"]
    assert found.exit_code == 1, "a violation is worse than a page that cannot be compared"


def test_a_folder_without_a_manifest_is_no_evidence(tmp_path: Path, spark: SparkSession) -> None:
    """Story: the wrong folder is given, then one whose manifest is cut off. Each gets a
    sentence."""
    with pytest.raises(EvidenceError, match="holds no evidence"):
        verify(spark, tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": 1')
    with pytest.raises(EvidenceError, match="damaged"):
        verify(spark, tmp_path)


def _payloads(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_masked_copy_says_nothing_and_proves_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: evidence goes to a partner, who must not see a key or a value. Matched by key, it is
    judged with the same result, though none of the keys is in it. Without any payload only the
    lineage is left to judge by."""
    keys = {(0, offset): f"account-{offset}-of-somebody".encode() for offset in range(4)}
    made = history(*BROKEN, inputs=[4, 2], keys=keys)
    folder = tmp_path / "evidence"
    report = judged(spark, folder, made, identity=Identity.KEY)
    assert report.verdict is Outcome.VIOLATED
    table = csv.DictReader((folder / "findings.csv").read_text().splitlines())
    identities = {(row["kind"], row["identity"]) for row in table}
    assert {("duplicate", "account-0-of-somebody"), ("gap", "account-2-of-somebody")} <= identities
    assert verify(spark, folder).contradictions == (), "each row is found again with its identity"
    original = copy_evidence(folder, tmp_path / "all")
    assert original == copy_evidence(folder, tmp_path / "all"), (
        "a copy of everything is the same evidence"
    )

    masked = tmp_path / "masked"
    copy_evidence(folder, masked, Payloads.MASKED)
    assert read_manifest(masked).of == original
    said = [
        value
        for rows in (made.uncommitted, made.source)
        for row in rows
        for value in row[3:4]
        if len(value) > 8
    ]
    read = pq.read_table(masked / "source-read_committed").to_pylist()
    assert {len(one["key"]) for one in read} == {16} and not {one["key"] for one in read} & set(
        said
    )
    assert not any(key in _payloads(masked) for key in said), (
        "no sentence of a finding may quote a record"
    )
    assert (
        "content" not in pq.read_schema(next((masked / "ledger" / "sink").glob("*.parquet"))).names
    )
    assert "identity" not in pq.read_schema(masked / "findings.parquet").names
    found = verify(spark, masked)
    assert found.contradictions == () and found.exit_code == 1

    copy_evidence(folder, masked, Payloads.NONE)
    assert {one["key"] for one in pq.read_table(masked / "source-read_committed").to_pylist()} == {
        None
    }
    found = verify(spark, masked)
    assert found.masked and found.contradictions and found.exit_code == 3, (
        "not enough to judge by key: never a pass"
    )


@pytest.mark.parametrize("payloads", [Payloads.MASKED, Payloads.NONE])
def test_a_copy_shows_no_wrong_value(
    payloads: Payloads, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a row of a finding shows a wrong value and the expected one, which a partner must not
    see. The copy's report, page, JUnit file and rows say only that it is wrong, and are otherwise
    unchanged."""
    made = history(
        "0 1 2 C", inputs=3, keys={(0, offset): f"account-{offset}".encode() for offset in range(3)}
    )
    for reading in (made.committed, made.uncommitted):
        reading[:] = [
            (*row[:4], b"wrong-and-secret" if row[1] == 1 else row[3], row[5]) for row in reading
        ]
    folder = tmp_path / "evidence"
    report = judged(spark, folder, made, agreed=ContractTerms(value="key"))
    files = ("report.json", "report.html", "junit.xml", "findings.csv")
    secrets = ("wrong-and-secret", "account-1")
    assert report.verdict is Outcome.VIOLATED
    assert all(secret in (folder / name).read_text() for secret in secrets for name in files)
    copy_evidence(folder, tmp_path / "copy", payloads)
    assert not any(secret.encode() in _payloads(tmp_path / "copy") for secret in secrets)
    (row,) = pq.read_table(
        tmp_path / "copy" / "findings.parquet", filters=[("kind", "=", "wrong_value")]
    ).to_pylist()
    assert (row["offset"], row["why"]) == (1, f"{WRONG}.")
    assert all(f"{WRONG}." in unescape((tmp_path / "copy" / name).read_text()) for name in files)
    copied = read_report(tmp_path / "copy")
    assert (copied.verdict, copied.why) == (report.verdict, report.why)
    found = verify(spark, tmp_path / "copy")
    assert found.differences == () and found.exit_code == 3, (
        "an expression cannot be judged on digests"
    )


def test_a_copy_without_values_proves_no_value(spark: SparkSession, tmp_path: Path) -> None:
    """Story: each output has the value of its input. In a copy without payloads both are null, and
    null equals null. That is no proof, while digests of equal values are one."""
    folder, made = tmp_path / "evidence", history("0 C", inputs=1)
    made.source[:] = [(*row[:4], made.committed[0][4], row[5]) for row in made.source]
    report = judged(spark, folder, made, agreed=ContractTerms(value="value"))
    assert report.verdict is Outcome.HOLDS
    for payloads, code in ((Payloads.MASKED, 0), (Payloads.NONE, 3)):
        copy_evidence(folder, tmp_path / payloads, payloads)
        verification = verify(spark, tmp_path / payloads)
        assert (verification.contradictions, verification.forged) == ((), ())
        assert (verification.exit_code, bool(verification.unsettled)) == (code, code == 3)


def test_a_copy_mixes_with_nothing(healthy: tuple[Path, Report], tmp_path: Path) -> None:
    """Story: the folder for the copy holds somebody's files. They are neither mixed with the
    evidence nor removed."""
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        copy_evidence(healthy[0], tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_zip_holds_the_folder(healthy: tuple[Path, Report], tmp_path: Path) -> None:
    """Story: somebody downloads the evidence. Unpacked, it is what its manifest says."""
    import zipfile

    zip_evidence(healthy[0].parent, tmp_path / "evidence.zip", Payloads.ALL, "squares-1")
    with zipfile.ZipFile(tmp_path / "evidence.zip") as packed:
        packed.extractall(tmp_path)
    assert differences(tmp_path / "squares-1") == []


def test_a_signed_copy_shows_its_signatures(
    spark: SparkSession, healthy: tuple[Path, Report], tmp_path: Path
) -> None:
    """Story: evidence is downloaded after it was signed. The sign-off is in it and on its page, it
    names the signed manifest, and it can be verified. A changed sign-off is found."""
    entry = {
        "number": 1,
        "made_at": "2026-01-01T10:00:00",
        "name": "Grace <b>Hopper",
        "decision": "accept",
        "comment": "as expected",
        "verdict": "HOLDS",
        "evidence": manifest_hash(healthy[0]),
    }
    signed = {**entry, "hash": entry_hash(entry)}
    copy_evidence(healthy[0], tmp_path / "copy", Payloads.ALL, [signed])
    assert read_manifest(tmp_path / "copy").of == manifest_hash(healthy[0])
    page = (tmp_path / "copy" / "report.html").read_text()
    assert "Grace &lt;b&gt;Hopper" in page and "accepted HOLDS" in page
    found = verify(spark, tmp_path / "copy")
    assert (found.differences, found.contradictions, found.forged) == ((), (), ())

    copy_evidence(healthy[0], tmp_path / "forged", Payloads.ALL, [{**signed, "name": "Somebody"}])
    assert any("signoffs.json: entry 1" in one for one in verify(spark, tmp_path / "forged").forged)


def test_every_part_of_the_question_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a field is added to the question. It must come back from the evidence unchanged."""
    bounds = Bounds("numbers", (PartitionBounds(0, 1, 5, 7),))
    journal = (
        TaskStarted("task", "id", "numbers", 0, 1, 3),
        TransactionEnded("task", "id", "numbers", 0, 1, 1, Declared.ABORTED, "drawn", 2, 2, 5),
        FaultFired("task", "crash@transaction=1", "numbers", 0, 1),
    )
    question = Question(
        source=bounds,
        sink="squares",
        also=("dead-letters",),
        guarantee=Guarantee.AT_LEAST_ONCE,
        identity=Identity.KEY,
        expected=Expected(Expect.ONE_TO_MANY, "cast(`value` as int)"),
        order=Order.PER_KEY,
        agreed=ContractTerms(
            Match("value", "header:id"),
            "upper(`value`)",
            {0: 5},
            ("gap",),
            Thresholds(7, 0.5),
            True,
            True,
        ),
        sink_from={0: 7},
        run="squares-1",
        not_processed=3,
        foreign=True,
        group="squares-app",
        due={0: 5},
        across=True,
        topic_ids={"numbers": "id-of-numbers", "squares": None},
    )
    default = Question(bounds, "squares")
    same = [
        one.name
        for one in fields(Question)
        if getattr(question, one.name) == getattr(default, one.name)
    ]
    # The topics' ids at the first look end with the capture, which has an origin of its own.
    assert same == ["source", "sink", "origins"], "give every other field a value of its own here"
    opened = OpenTransaction(0, 7, 0, -1, 5, "id", "Ongoing", 10, 60_000, 2, 2, False)
    batches = history("0 C", inputs=1).batches
    folder = tmp_path / "evidence"
    judged(spark, folder, history("0 C", inputs=1))
    kept = read_capture(spark, folder)
    assert (
        kept.batches is not None
        and kept.batches.num_rows == len(batches)
        and kept.coordinator is None
    )
    run_accounts = RunAccounts(list(journal), pa.table({"session": ["s"], "poll": [1]}))
    taken = replace(
        kept,
        question=question,
        run_accounts=run_accounts,
        coordinator=Coordinator(1, (opened,), 2, ()),
    )
    keep_capture(taken, folder)
    back = read_capture(spark, folder)
    assert isinstance(back, Capture) and back.question == question
    assert back.run_accounts == run_accounts
    assert back.coordinator == taken.coordinator and back.sink == taken.sink
    counted = spark.createDataFrame([(0, 1, 2)], "partition int, offset long, count long")
    keep_capture(
        replace(taken, question=replace(question, expected=Expected(Expect.ONE_TO_MANY, counted))),
        folder,
    )
    frame = read_capture(spark, folder).question.expected.count
    assert not isinstance(frame, str) and frame is not None and frame.collect() == counted.collect()


def test_whatever_strangers_name_the_evidence_is_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: producers of the sink have transactional ids of 30 kB, and thousands of groups have an
    offset in an open transaction. 1,700 such ids made `taken.json` larger than what `verify`
    reads."""
    folder, long_name = tmp_path / "evidence", "\x01" * 30_000
    judged(spark, folder, history("0 C", inputs=1))
    ids = dict.fromkeys(range(2 * KEPT_MAX), long_name)
    reasons = tuple(AbortReason(9_999, 10**12 + at, "declared") for at in range(KEPT_MAX))
    name = short_name(long_name)
    opened = OpenTransaction(
        9_999, 10**12, 9_999, 9_999, 10**12, name, "PrepareCommit", 10**9, 10**9, 9, 9, False
    )
    most, topic = LIMITS.transactions, "t" * 249
    unstable = UnstableOffset(name, topic, 9_999, (opened,) * HOLDERS_MAX, most)
    before = read_capture(spark, folder)
    partitions = (*before.sink.partitions, PartitionBounds(9_999, start=0, lso=0, hw=0))
    capture = replace(
        before,
        sink=replace(before.sink, partitions=partitions),
        attribution=Attribution(kept_ids(ids, ids), reasons),
        coordinator=Coordinator(9_999, (opened,) * most, 10**9, (unstable,) * most),
    )
    keep_capture(capture, folder)
    require_readable(folder)
    assert read_capture(spark, folder).attribution == capture.attribution
    assert len(name) == NAME_KEPT_MAX and name != short_name(long_name + "\x01")
    with pytest.raises(EvidenceError, match="50,000,000 are allowed"):
        keep_capture(replace(capture, notes=("x" * 60_000_000,)), folder)


def test_junit_shows_one_case_per_kind_and_group(
    broken: tuple[Path, Report], healthy: tuple[Path, Report]
) -> None:
    """Story: a CI server reads the evidence. The cases of the partition with the damage fail, those
    of the other one pass; what does not count is skipped; the file is valid."""
    schema = xmlschema.XMLSchema(str(XSD))
    for folder, _ in (broken, healthy):
        schema.validate(str(folder / "junit.xml"))
    cases = _cases(broken[0])
    kinds = [one.kind for one in broken[1].findings]
    assert {f"{kind} [partition {p}]" for kind in kinds for p in (0, 1)} <= cases.keys()
    failed = {
        name for name, case in cases.items() if any(isinstance(one, Failure) for one in case.result)
    }
    assert {"verdict [exactly_once]", "duplicate [partition 0]", "gap [partition 0]"} <= failed
    assert not any("partition 1" in name for name in failed)
    assert "squares-0@1" in next(one.text for one in cases["duplicate [partition 0]"].result)
    assert isinstance(cases["aborted_volume [partition 0]"].result[0], Skipped)
    assert not any(
        isinstance(one, Failure | Error)
        for case in _cases(healthy[0]).values()
        for one in case.result
    )


def test_junit_of_a_verdict_that_is_unknown_is_no_pass(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a transaction is still open. No case may turn the build green; and a name that XML
    cannot hold is no reason to write a broken file."""
    made = history("0 C 1", inputs=2)
    report = judged(spark, tmp_path / "evidence", made, run="nul-\x00-bell-\x07-<&>")
    assert report.verdict is Outcome.UNKNOWN
    xmlschema.XMLSchema(str(XSD)).validate(str(tmp_path / "evidence" / "junit.xml"))
    case = _cases(tmp_path / "evidence")["verdict [exactly_once]"]
    assert isinstance(case.result[0], Error) and "pending" in (case.result[0].message or "")


def test_evidence_of_earlier_versions_still_verifies(
    healthy: tuple[Path, Report], spark: SparkSession, tmp_path: Path
) -> None:
    """Story: evidence was written before topics had ids in it, and before the manifest named the
    time of judging."""
    copy_evidence(healthy[0], tmp_path / "old")
    said = json.loads((tmp_path / "old" / "taken.json").read_text())
    assert said.pop("origin") is None and said.pop("notes") == []
    (tmp_path / "old" / "taken.json").write_text(json.dumps(said))
    assert "origin" not in json.loads((tmp_path / "old" / "report.json").read_text())
    manifest = read_manifest(healthy[0])
    write_manifest(tmp_path / "old", manifest.run, manifest.verdict)
    found = verify(spark, tmp_path / "old")
    assert (found.contradictions, found.forged, found.unsettled, found.exit_code) == ((), (), (), 0)


def test_evidence_that_an_earlier_version_wrote_still_verifies(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: version 0.1.0 kept the evidence of a run in which a crash repeated 100 outputs. Only
    its page is unlike: the chart library was cut from it, to keep it small."""
    with zipfile.ZipFile(Path(__file__).with_name("data") / "evidence-0.1.0.zip") as kept:
        kept.extractall(tmp_path)
    found = verify(spark, tmp_path)
    assert (found.differences, found.contradictions, found.forged) == ((), (), ())
    assert [one.split(":")[0] for one in found.unsettled] == [
        "report.html"
    ] and found.exit_code == 3
    assert found.judged is not None and found.judged.verdict is Outcome.HOLDS
    assert {one.kind: one.count for one in found.judged.findings}["duplicate"] == 100


def test_two_reports_that_differ_say_where(
    broken: tuple[Path, Report], healthy: tuple[Path, Report]
) -> None:
    """Story: the same readings are judged differently. Each field that differs is named, the
    verdict first."""

    def told(said: Report, found: Report) -> list[str]:
        return report_contradictions(f"{said.to_json()}\n", said, found)

    assert told(broken[1], broken[1]) == []
    said = told(healthy[1], broken[1])
    assert (
        "report.json: verdict is HOLDS; judged again it is VIOLATED." in said[:2]
        and len(said) == 21
    )
    earlier = replace(
        healthy[1], findings=tuple(one for one in healthy[1].findings if one.kind != "interleaving")
    )
    assert told(earlier, healthy[1])[0].startswith(
        "report.json: findings.interleaving is not there;"
    )
    assert told(healthy[1], earlier)[0].endswith("judged again it is not there.")
    (row, *rows) = broken[1].findings
    for invented in (row, replace(row, count=5_000, why="All written by team B.")):
        forged = replace(broken[1], findings=(invented, row, *rows))
        assert any("(row 2)" in text for text in told(forged, broken[1])), "no row hides another"


def test_the_page_needs_no_network(healthy: tuple[Path, Report]) -> None:
    """Story: the page is opened on a machine without a network. Nothing in it is fetched, and what
    the policy of the page allows is only what is in it. (tests/browser looks at it in Chromium.)"""
    text = (healthy[0] / "report.html").read_text(encoding="utf-8")
    before_library = text[: text.index("<script>")]
    assert "default-src 'none'" in before_library and "http" not in before_library.replace(
        "http-equiv", ""
    )
    assert healthy[1].why in before_library
    assert json.loads((healthy[0] / "plan.json").read_text()) == {"sink": "squares"}


def _cases(folder: Path) -> dict[str, TestCase]:
    return {
        case.name: case for suite in JUnitXml.fromfile(str(folder / "junit.xml")) for case in suite
    }
