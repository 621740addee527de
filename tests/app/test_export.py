"""Downloads: every record with its offset and fate, as three kinds of file that are read back, and
charts as pages."""

from __future__ import annotations

import io
import json

import pandas as pd
import plotly.graph_objects as go
import pytest

from tests.app.conftest import OpenPage
from tests.runs import Finished
from topicproof.app.shell import downloads
from topicproof.app.topic import payload
from topicproof.backend.kafka.browse.records import Record
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.finding import Fate

HOSTILE = b"\xff\x00<script>"
RECORDS = (
    Record(
        0,
        5,
        1_700_000_000_123,
        b"k\xc3\xa9y",
        HOSTILE,
        (("h", None), ("h", b"=1+1")),
        Fate.ABORTED,
        False,
        "t/1",
        "",
    ),
    Record(0, 6, None, None, None, (), Fate.MARKER, False, "t/1", "", marker=True),
    Row(1, 7, 0, None, b'a,"b"\nc', (), 7, Fate.COMMITTED, 42),
)


@pytest.mark.parametrize(
    "timestamp_ms", [-(2**63), -62_135_596_800_001, 253_402_300_800_000, 2**63 - 1]
)
def test_a_record_whose_time_is_no_date_is_exported(timestamp_ms: int) -> None:
    """Story: a producer writes a timestamp before the year 1 or after 9999, which brokers accept.
    The window around it is exported all the same."""
    row = Row(1, 7, timestamp_ms, None, b"a", (), 1, Fate.COMMITTED, 42)
    frame = downloads.record_frame("numbers", [row, RECORDS[0]])
    assert frame["timestamp"].tolist()[0] == f"{timestamp_ms} ms, which is not a date"
    for write in (downloads.as_csv, downloads.as_json, downloads.as_parquet):
        assert str(timestamp_ms).encode() in write(frame)


def test_each_kind_of_file_reads_back_as_it_was_written() -> None:
    """Story: bytes that are not text, a comma, a line break, a marker: nothing is lost in any of
    the three."""
    frame = downloads.record_frame("numbers", RECORDS)
    assert frame["offset"].tolist() == [5, 6, 7] and frame["fate"].tolist() == [
        "ABORTED",
        "MARKER",
        "COMMITTED",
    ]
    assert frame["timestamp"].tolist() == [
        "2023-11-14T22:13:20.123+00:00",
        None,
        "1970-01-01T00:00:00.000+00:00",
    ]
    assert frame["value"].tolist() == ["base64:/wA8c2NyaXB0Pg==", None, 'a,"b"\nc']
    assert json.loads(frame["headers"][0]) == [["h", None], ["h", "=1+1"]]
    assert frame["size"].tolist() == [4 + 10 + 1 + 1 + 4, 0, 7]
    assert frame["transaction"].tolist() == ["t/1", "t/1", "producer 42"]
    wanted = frame.to_dict("records")
    lines = [json.loads(line) for line in downloads.as_json(frame).decode().splitlines()]
    parquet = pd.read_parquet(io.BytesIO(downloads.as_parquet(frame)))
    csv = pd.read_csv(io.BytesIO(downloads.as_csv(frame)), keep_default_na=False)
    assert lines == wanted
    assert parquet.to_dict("records") == wanted
    assert csv.to_dict("records") == frame.fillna("").to_dict("records")


def test_a_chart_is_a_page_that_needs_no_network() -> None:
    """Story: somebody mails a chart. The page holds its script and fetches nothing."""
    page = downloads.as_page(go.Figure(go.Bar(y=[1]))).decode()
    assert "Plotly.newPlot" in page and 'src="http' not in page


def test_the_pages_offer_it_unless_it_is_switched_off(
    open_page: OpenPage, finished: Finished, at_home: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: Compare and Topics offer what they show; a house that forbids downloads switches them
    off."""
    assert at_home
    sink = finished.run.facts.sink
    for name in ("compare", "topics"):
        app = open_page(name, topic=sink)
        assert not app.exception
        assert {"CSV", "JSON lines", "Parquet"} <= {
            one.proto.label for one in app.get("download_button")
        }, name
    monkeypatch.setattr(payload, "exports_allowed", lambda: False)
    app = open_page("compare", topic=sink)
    assert not app.exception and not app.get("download_button")
