"""Every door that shows payloads, opened by every role: a masked secret comes out of none.

`DOORS` lists them. docs/TRUST.md has the same table, and a page or a reader of payloads that is
missing here is noticed. A test that fails shows the row that the table should have.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import streamlit as st
from confluent_kafka import Producer

from tests.app.conftest import OpenPage
from tests.app.test_history_page import HELD
from tests.app.test_masking import sent
from tests.backend.trust.people import ADA, EMMY, GRACE, ISSUER, KURT
from topicproof.app.session import access
from topicproof.backend.address import Address
from topicproof.backend.commands.record_commands import listed
from topicproof.backend.errors import NotPermitted
from topicproof.backend.evidence.findings import SCHEMA
from topicproof.backend.evidence.folder import EVIDENCE, REPORT, complete
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.evidence_export import export_folder, export_zip
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.browse.field_conditions import parse_conditions
from topicproof.backend.kafka.browse.search import RecordQuery
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.mcp_server.cluster_tools import ClusterTools
from topicproof.backend.mcp_server.desk import Desk
from topicproof.backend.mcp_server.history_tools import HistoryTools
from topicproof.backend.runs.launch import LOG
from topicproof.backend.runs.totals import total_text
from topicproof.backend.settings import ROOT, Settings, read_settings
from topicproof.backend.trust.identity import Identity
from topicproof.validators.finding import Bounds, Example, Finding, Outcome, PartitionBounds
from topicproof.validators.kinds.wrong_value import NAME, WRONG
from topicproof.validators.merged_topics import join

SECRET = "4111s3cret0000"
"""Without a character that Markdown escapes."""
RULES = f"""
openid: {{issuer: '{ISSUER}', client_id: t}}
masks:
  - topics: payments-*
    fields: [key, value.card.number, header.token]
    shown_to: [admin]
"""
ROLES: Mapping[str, Identity] = {"viewer": ADA, "operator": GRACE, "signer": KURT, "admin": EMMY}
BEGIN, END = "<!-- doors -->", "<!-- /doors -->"
WHOLE, MASKED, REFUSED, NOTHING = "whole", "masked", "refused", "not shown"


@dataclass(frozen=True)
class House:
    """A home with a topic that holds the secret, a check of it together with another topic, and a
    check that failed on it."""

    settings: Settings
    topic: str
    other: str
    judged: Run
    failed: Run
    totals: Run

    def as_(self, by: Identity) -> History:
        return History(self.settings).acted_on_by(by)


@pytest.fixture(scope="module")
def house(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    home = tmp_path_factory.mktemp("doors")
    (home / "login.yaml").write_text(RULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICPROOF_HOME", str(home))
        patch.setenv("TOPICPROOF_BOOTSTRAP", bootstrap)
        patch.setenv("TOPICPROOF_LOGIN", str(home / "login.yaml"))
        settings = read_settings()
        suffix = uuid.uuid4().hex[:6]
        payments, orders = f"payments-{suffix}", f"orders-{suffix}"
        for topic in (payments, orders):
            Cluster(Address(bootstrap)).create_topic(topic, 1, exists_ok=False)
        producer = Producer(idempotent_producer_config(Address(bootstrap)))
        value = json.dumps({"card": {"number": SECRET}}).encode()
        producer.produce(payments, key=SECRET, value=value, headers=[("token", SECRET.encode())])
        producer.produce(orders, key=SECRET, value=b"{}")
        assert producer.flush(30) == 0
        history = History(settings)
        judged, failed = (_check(history, payments, orders, ends) for ends in (True, False))
        yield House(settings, payments, orders, judged, failed, _totals(bootstrap, history))
        history.engine.dispose()


def _check(history: History, payments: str, orders: str, ends: bool) -> Run:
    """A check of two sources as one, whose report, error and process quote the secret."""
    run = history.create("check", "check", {"source": f"{orders} + {payments}", "sink": orders})
    history.remember(run.id, Facts(source=f"{orders} + {payments}", sink=orders))
    folder = run.folder(history.settings)
    evidence = folder / EVIDENCE
    (evidence / "ledger" / "findings-wrong").mkdir(parents=True)
    (folder / LOG).write_text(f"Traceback: {SECRET}\n")
    if not ends:
        history.end(run.id, State.FAILED, None, None, f"It failed on {SECRET}.")
        return history.get(run.id)
    why = f'{WRONG}: it is "{SECRET}", and "x" is expected.'
    row = dict.fromkeys(SCHEMA.names) | {"kind": NAME, "partition": 0, "offset": 0, "why": why}
    rows = pa.Table.from_pylist([row], SCHEMA)
    pq.write_table(rows, evidence / "ledger" / "findings-wrong" / "part.parquet")
    readings = evidence / "source-read_committed"
    readings.mkdir()
    columns = {"key": [SECRET.encode()], "value": [SECRET.encode()]}
    pq.write_table(pa.table(columns), readings / "part.parquet", compression="none")
    sources = [Bounds(name, (PartitionBounds(0, 0, 1, 1),)) for name in (orders, payments)]
    wrong = Finding(
        *(NAME, Outcome.VIOLATED, 1, 1, None),
        (Example(0, 0, None, None, why, f'"{SECRET}"'),),
        "1 of 1 committed outputs has a wrong value.",
    )
    sink = Bounds(orders, (PartitionBounds(0, 0, 1, 1),))
    report = replace(
        *(HELD,),
        verdict=Outcome.VIOLATED,
        source=join(sources),
        sink=sink,
        findings=(wrong,),
        run=run.id,
    )
    complete(evidence, report, {"plan.json": run.plan})
    (folder / REPORT).write_text(report.to_json())
    history.end(run.id, State.DONE, report.verdict, report.why)
    return history.get(run.id)


def _totals(bootstrap: str, history: History) -> Run:
    """A run of the scenario totals whose sink has the secret as an account."""
    sink = f"payments-totals-{uuid.uuid4().hex[:6]}"
    Cluster(Address(bootstrap)).create_topic(sink, 1, exists_ok=False)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    producer.produce(sink, key=SECRET, value=total_text("1", SECRET, 250, 250))
    assert producer.flush(30) == 0
    run = history.create("run", "totals", {"scenario": "totals", "faults": []})
    history.remember(run.id, Facts(source="payments-in", sink=sink))
    history.end(run.id, State.DONE, Outcome.HOLDS, "All are there.")
    return history.get(run.id)


Door = Callable[[House, Identity, OpenPage], bytes]


def page(
    name: str, *clicks: Callable[[House], str] | str, **params: Callable[[House], str] | str
) -> Door:
    """All that a page sends to a browser, and every file that its buttons save."""

    def opened(house: House, _by: Identity, open_page: OpenPage) -> bytes:
        given = {key: one if isinstance(one, str) else one(house) for key, one in params.items()}
        saved: list[Any] = []
        offer = st.download_button

        def button(label: str, data: Any, *rest: Any, **options: Any) -> bool:
            saved.append(data)
            return offer(label, data, *rest, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(st, "download_button", button)
            app = open_page(name, **given)
            for click in clicks:
                key = click if isinstance(click, str) else click(house)
                app.toggle(key=key).set_value(True).run()
        assert not app.exception, app.exception
        return b"\n".join([*sent(app._tree), *map(content, saved)])

    return opened


def exported_zip(payloads: Payloads) -> Door:
    def opened(house: House, by: Identity, _open_page: OpenPage) -> bytes:
        with tempfile.TemporaryDirectory() as place:
            target = Path(place) / "x.zip"
            export_zip(house.as_(by), house.judged, target, payloads)
            return unpacked(target.read_bytes())

    return opened


def exported_folder(house: House, by: Identity, _open_page: OpenPage) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        export_folder(house.as_(by), house.judged, Path(place) / "x", Payloads.ALL)
        files = [path for path in Path(place).rglob("*") if path.is_file()]
        return b"\n".join(unpacked(path.read_bytes()) for path in files)


def asked(tool: str, *names: Callable[[House], str], **options: Any) -> Door:
    """What an agent gets of a tool, by a server that was started with --payloads."""

    def opened(house: House, by: Identity, _open_page: OpenPage) -> bytes:
        desk = Desk(house.settings, house.settings.address, house.as_(by), lambda: by, True)
        tools = (ClusterTools(desk), HistoryTools(desk))
        (answer,) = (getattr(each, tool) for each in tools if hasattr(each, tool))
        return json.dumps(
            answer(*(name(house) for name in names), **options), default=vars
        ).encode()

    return opened


def listed_records(where: str) -> Door:
    """What `topicproof records` prints."""

    def opened(house: House, by: Identity, _open_page: OpenPage) -> bytes:
        query = RecordQuery(where=parse_conditions(where))
        listing = listed(house.settings, house.settings.address, house.as_(by), house.topic, query)
        place = b"".join(b"Offset %d" % row.offset for row in listing.rows)
        return json.dumps(listing.to_json()).encode() + place

    return opened


def content(data: Any) -> bytes:
    """The file that a button saves, which is made at once or when it is pressed."""
    made = data() if callable(data) else data
    return unpacked(made.encode() if isinstance(made, str) else made)


def unpacked(data: bytes) -> bytes:
    """A file, and what is in it: of an archive each file, of Parquet each cell."""
    if data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return b"\n".join(unpacked(archive.read(name)) for name in archive.namelist())
    if data[:4] == b"PAR1":
        return data + repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    return data


def topic(house: House) -> str:
    return house.topic


DOORS: Mapping[str, Door] = {
    "Home": page("home"),
    "Demos": page("demos"),
    "Matrix": page("matrix"),
    "Watch": page("watch"),
    "Run: output of a process": page("run", run=lambda house: house.judged.id),
    "Run: error, recent runs": page("run", run=lambda house: house.failed.id),
    "Run: totals of accounts": page(
        "run",
        lambda house: f"totals {house.totals.id}",
        run=lambda house: house.totals.id,
    ),
    "Check: pipelines": page("check"),
    "Check: draft and preview of a contract": page(
        "check", source=topic, sink=lambda house: house.other
    ),
    "Check: contract of a check, its end": page("check", run=lambda house: house.failed.id),
    "Verdict: findings, report, evidence": page("verdict", run=lambda house: house.judged.id),
    "Verdict: error": page("verdict", run=lambda house: house.failed.id),
    "History: list": page("history"),
    "History: two reports": page(
        "history", before=lambda house: house.judged.id, after=lambda house: house.judged.id
    ),
    "Compare: window, record, export": page("compare", topic=topic),
    "Topics: records, record, export": page("topics", topic=topic),
    "Topics: search by value": page("topics", topic=topic, value=SECRET),
    "Topics: search by key": page("topics", topic=topic, key=SECRET),
    "Topics: search by header": page("topics", topic=topic, header=f"token={SECRET}"),
    "Topics: search by field": page("topics", topic=topic, where=f"$.card.number = {SECRET}"),
    "Topics: live tail": page("topics", topic=topic, view="tail"),
    "Topics: live tail, paused, export": page("topics", "paused", topic=topic, view="tail"),
    "Topics: partitions": page("topics", topic=topic, view="partitions"),
    "Transactions": page("transactions", topic=topic),
    "evidence as a zip file": exported_zip(Payloads.ALL),
    "evidence as a zip file, digests": exported_zip(Payloads.MASKED),
    "evidence as a zip file, no payloads": exported_zip(Payloads.NONE),
    "evidence as a folder": exported_folder,
    "command: newest records": listed_records(""),
    "command: search by field": listed_records(f"$.card.number = {SECRET}"),
    "agent: newest records": asked("records", topic),
    "agent: records from an offset on": asked("records", topic, partition=0, offset=0),
    "agent: draft of a contract": asked("draft_contract", topic, lambda house: house.other),
    "agent: topic, offset": asked("explain_offset", topic, partition=0, offset=0),
    "agent: verdict": asked("verdict", lambda house: house.judged.id),
    "agent: error of a check": asked("verdict", lambda house: house.failed.id),
}


def spellings(secret: bytes) -> list[bytes]:
    """The secret as files and pages may spell it."""
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        secret.decode().encode("utf-16-le"),
        "".join(f"&#{byte};" for byte in secret).encode(),
        "".join(f"%{byte:02x}" for byte in secret).encode(),
        # Whatever stands before it in what is encoded; without the letters that depend on that.
        *(base64.b64encode(b"x" * before + secret)[4 if before else 0 : -4] for before in range(3)),
    ]


def seen(door: str, role: str, house: House, open_page: OpenPage) -> str:
    """What a role gets of the secret at a door."""
    by = ROLES[role]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "current_identity", lambda _login: by)
        try:
            output = DOORS[door](house, by, open_page)
        except NotPermitted as refusal:
            output = str(refusal).encode()
            assert not any(one in output for one in spellings(SECRET.encode()))
            return REFUSED
    # A search repeats what was typed: in its field, and in the address of the page.
    if "search by" not in door and any(one in output for one in spellings(SECRET.encode())):
        return WHOLE
    if b"masked for your role" in output:
        return REFUSED
    if "search by" in door:
        return WHOLE if b"Offset 0" in output else NOTHING
    return MASKED if b"(masked)" in output else NOTHING


def row(door: str, outcomes: Mapping[str, str]) -> str:
    return f"| {door} | {' | '.join(outcomes[role] for role in ROLES)} |"


def documented() -> list[tuple[str, str]]:
    """Return each door of the table with the row that it would have alone: doors of the same
    outcomes share one."""
    text = (ROOT / "docs" / "TRUST.md").read_text(encoding="utf-8")
    rows = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    return [
        (door, f"| {door} | {outcomes}")
        for doors, _, outcomes in (line.removeprefix("| ").partition(" | ") for line in rows)
        for door in doors.split("; ")
    ]


@pytest.mark.parametrize("door", DOORS)
def test_no_role_gets_a_masked_secret(door: str, house: House, open_page: OpenPage) -> None:
    """Story: payments are masked for all but administrators. Viewer, operator and signer open the
    door; the secret does not come out, in no spelling. docs/TRUST.md says what they get."""
    outcomes = {role: seen(door, role, house, open_page) for role in ROLES}
    assert WHOLE not in [outcomes[role] for role in ROLES if role != "admin"]
    assert (door, row(door, outcomes)) in documented(), row(door, outcomes)


def test_the_table_has_every_door() -> None:
    """Story: somebody adds a page. It is opened by every role, and so is each view of a topic."""
    assert sorted(door for door, _ in documented()) == sorted(DOORS)
    pages = {path.stem for path in (ROOT / "app" / "views").glob("[a-z]*.py")}
    assert pages == {door.partition(":")[0].lower() for door in DOORS if door[0].isupper()}


READERS = {
    *("read_window", "search", "search_all", "latest", "samples"),
    *(
        "read_report",
        "read_run_report",
        "run_evidence_reports",
        "report_text",
        "copy_all",
        "copy_evidence",
        "zip_evidence",
    ),
    *("draft", "explain_offset"),
    *("export_zip", "export_folder", "said", "unmasked_records", "search_results"),
    *("records_in_window", "parsed_report", "zipped_evidence", "current_totals"),
}
"""Functions that return payloads, or text that may quote some."""


def test_every_reader_of_payloads_is_behind_a_door() -> None:
    """Story: somebody reads payloads at another place of the dashboard or for agents. This list
    shows it, and they add a door above."""
    readers = {
        (str(path.relative_to(ROOT)), alias.name)
        for room in ("app", "backend/mcp_server")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in READERS
    }
    assert readers == {
        ("app/run/balances.py", "current_totals"),
        ("app/check/check_reads.py", "samples"),
        ("app/topic/record_browser.py", "search"),
        ("app/topic/record_browser.py", "search_results"),
        ("app/topic/record_detail.py", "records_in_window"),
        ("app/topic/record_detail.py", "unmasked_records"),
        ("app/session/record_reads.py", "read_window"),
        ("app/session/record_reads.py", "search_all"),
        ("app/session/run_reads.py", "export_zip"),
        ("app/verdict/signoff_form.py", "run_evidence_reports"),
        ("app/verdict/signoff_form.py", "zipped_evidence"),
        ("app/topic/tail.py", "search"),
        ("app/views/compare.py", "records_in_window"),
        ("app/views/transactions.py", "records_in_window"),
        ("app/views/run.py", "said"),
        ("app/views/verdict.py", "parsed_report"),
        ("app/views/verdict.py", "report_text"),
        ("backend/mcp_server/cluster_tools.py", "draft"),
        ("backend/mcp_server/cluster_tools.py", "explain_offset"),
        ("backend/mcp_server/cluster_tools.py", "latest"),
        ("backend/mcp_server/cluster_tools.py", "search"),
        ("backend/mcp_server/history_tools.py", "read_run_report"),
    }
