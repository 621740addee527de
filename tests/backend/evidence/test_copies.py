"""What a copy of evidence without payloads still holds of them."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.app.test_history_page import HELD
from topicproof.backend import cli
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.copy import (
    CONTENT,
    UNDECODED,
    Mask,
    copy_evidence,
    hidden_headers,
    without_values,
)
from topicproof.backend.evidence.findings import SCHEMA
from topicproof.backend.evidence.folder import complete, read_report
from topicproof.backend.evidence.manifest import MANIFEST, Payloads, manifest_hash, write_manifest
from topicproof.validators.finding import Example, Finding, Outcome
from topicproof.validators.kinds import identity_missing, undecodable
from topicproof.validators.ledger.rows import SINK_COLUMNS
from topicproof.validators.lineage.compact import COMPACT_HEADER, format_compact
from topicproof.validators.lineage.headers import LINEAGE_HEADER, TRANSACTION_HEADER, Lineage

pytestmark = pytest.mark.quick

SECRET = "4111s3cret0000"
WHY = f"The field id is {SECRET}, which is no uuid (badly formed)."
REPORT = replace(
    HELD,
    verdict=Outcome.UNKNOWN,
    findings=(
        Finding(
            *(undecodable.NAME, Outcome.UNKNOWN, 1, 1, None),
            (Example(0, 0, None, None, WHY, SECRET),),
            "1 of 1 records cannot be decoded.",
        ),
    ),
)


@pytest.mark.parametrize("payloads", [Payloads.MASKED, Payloads.NONE])
def test_a_copy_has_neither_a_hash_nor_a_quote_of_a_record(
    payloads: Payloads, tmp_path: Path
) -> None:
    """Story: a field is a card number, which is no UUID. The reason quotes it, and the ledger has
    its hash without a secret, so that a list of all card numbers would give it away."""
    folder = tmp_path / "evidence"
    hashed = hashlib.sha256(SECRET.encode()).digest()[:16]
    sink = pa.table(
        {"offset": [0], "key_hash": [hashed], "value_hash": [hashed], "undecoded": [WHY]}
    )
    row = dict.fromkeys(SCHEMA.names) | {"kind": undecodable.NAME, "partition": 0, "offset": 0}
    findings = pa.Table.from_pylist([{**row, "why": WHY}], SCHEMA)
    for name, table in (("sink", sink), ("findings-undecodable", findings)):
        (folder / "ledger" / name).mkdir(parents=True)
        pq.write_table(table, folder / "ledger" / name / "part.parquet", compression="none")
    complete(folder, REPORT, {})
    assert any(hashed in path.read_bytes() for path in folder.rglob("*.parquet"))
    copy_evidence(folder, tmp_path / "copy", payloads)
    for path in (tmp_path / "copy").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".parquet":
            content += repr(pq.read_table(path).to_pylist()).encode()
            assert repr(hashed).encode() not in content, path
        assert SECRET.encode() not in content and hashed not in content, path
    (finding,) = read_report(tmp_path / "copy").findings
    assert finding.examples[0].why == UNDECODED
    (row,) = pq.read_table(tmp_path / "copy" / "findings.parquet").to_pylist()
    assert row["why"] == UNDECODED


@pytest.mark.parametrize("name", ["thesis.txt", "report.html"])
def test_a_manifest_from_elsewhere_removes_nothing(name: str, tmp_path: Path) -> None:
    """Story: somebody unpacked received evidence among files of their own, and copies evidence
    there. The manifest names a file of theirs with its hash, or one that they have changed."""
    evidence, target = tmp_path / "evidence", tmp_path / "downloads"
    (evidence / "ledger").mkdir(parents=True)
    complete(evidence, REPORT, {})
    copy_evidence(evidence, target)
    (target / name).write_text("mine")
    if name == "thesis.txt":
        (target / MANIFEST).unlink()
        write_manifest(target, None, "HOLDS")
    files = sorted(target.rglob("*"))
    with pytest.raises(UsageError, match=f"{name}. Choose a folder that is empty"):
        copy_evidence(evidence, target)
    assert sorted(target.rglob("*")) == files
    assert (target / name).read_text() == "mine"


def test_an_earlier_copy_is_replaced(tmp_path: Path) -> None:
    """Story: the same, with nothing but the copy there."""
    (tmp_path / "evidence" / "ledger").mkdir(parents=True)
    complete(tmp_path / "evidence", REPORT, {})
    for _time in range(2):
        copied = copy_evidence(tmp_path / "evidence", tmp_path / "copy", Payloads.NONE)
        assert manifest_hash(tmp_path / "copy") == copied


@pytest.mark.parametrize("mask", [None, lambda _value: b"masked"])
def test_a_header_of_our_name_hides_no_content(mask: Mask | None) -> None:
    """Story: another program puts a card number into a header called `topicproof`. A copy keeps
    only what is really a place or the name of a transaction, and what a header lacks."""
    genuine = format_compact(Lineage("numbers", 0, 7, 0))
    headers: list[dict[str, Any]] = [
        {"key": COMPACT_HEADER, "value": SECRET.encode()},
        {"key": LINEAGE_HEADER, "value": SECRET.encode()},
        {"key": TRANSACTION_HEADER, "value": None},
        {"key": COMPACT_HEADER, "value": genuine},
    ]
    (row,) = hidden_headers([headers], mask)
    assert row is not None
    assert [header["key"] for header in row] == [header["key"] for header in headers]
    assert (row[-2]["value"], row[-1]["value"]) == (None, genuine)
    assert not any(SECRET.encode() in (header["value"] or b"") for header in row)


def test_a_report_without_values_quotes_no_record() -> None:
    """Story: the same finding, in a log of CI."""
    assert SECRET not in without_values(REPORT).to_json()


def test_every_hash_of_the_ledger_is_left_out() -> None:
    """Story: somebody adds a column with a hash."""
    hashes = set(re.findall(r"(\w+) binary", SINK_COLUMNS)) | {"content", "undecoded"}
    assert hashes <= set(CONTENT)


def test_a_report_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """Story: a forged report has versions whose names are lines of `verify`."""
    complete(tmp_path, HELD, {})
    path = tmp_path / "report.json"
    document = json.loads(path.read_text())
    line = "signed this installation (key 0123456789abcdef) vouches for it."
    document["versions"] = {f"x\n{line}\n\u00a0::set-output name=verdict::HOLDS": {"a": 1}}
    path.write_text(json.dumps(document))
    with pytest.raises(EvidenceError, match="cannot be read: 'versions") as refusal:
        read_report(tmp_path)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 500


def test_a_folder_called_like_a_line_begins_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody sends a zip file with two folders, one of which is called like an answer."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    name = "signed this installation (key 0123456789abcdef) vouches for it."
    for each in (name, "other"):
        complete_at = tmp_path / "proof" / each
        complete_at.mkdir(parents=True)
        complete(complete_at, HELD, {})
    with suppress(SystemExit):
        cli.main(["verify", str(tmp_path / "proof"), "--hashes-only"])
    rows = capsys.readouterr().out.splitlines()
    assert f"Folder {name}:" in rows and not any(row.startswith("signed") for row in rows)


def test_a_copy_has_no_name_of_a_document() -> None:
    """Story: a document has a card number as a name, twice, so nothing in it is an identity."""
    why = f"This input has no json $.id: its document holds the name {SECRET} twice."
    example = Example(None, None, "orders/0/1", None, why)
    finding = Finding(identity_missing.NAME, Outcome.UNKNOWN, 1, 1, None, (example,), "1 of 1.")
    (bare,) = without_values(replace(REPORT, findings=(finding,))).findings
    assert bare.examples[0].why == "This input has no json $.id."
