"""Files: a source record names a URL. Its file is downloaded inside the Spark task and becomes one
output per payment.

The work stays in the task that holds the row: no shuffle, one row in and one row out. A file that
cannot be downloaded or parsed becomes one output to the dead letters, with its reason in a header.
Its source offset is committed with that output, and the pipeline continues. A file's outputs belong
to one input, so all or none are committed.

Downloads are side effects: if Spark runs a task again, it downloads again. The output is
exactly-once, the downloads are not.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
from pyspark.sql import DataFrame
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from topicproof.backend.http_deadline import SocketDeadline
from topicproof.backend.runs.download_limits import FIELD_MAX, Limits

REASON_HEADER = "topicproof-reason"
"""Header of a dead letter with its reason."""

UNPACKED = {"Accept-Encoding": "identity"}
CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")
"""Events of httpx after which there is a socket."""
AT_ONCE = 8
"""Concurrent downloads per task, and files passed on at a time."""

FIELDS = ("id", "account", "amount")
_AMOUNT = re.compile(r"-?[0-9]+(\.[0-9]+)?")

ROWS = (
    "topic string, partition int, offset long, "
    "outputs array<struct<key: binary, value: binary, "
    "headers: array<struct<key: string, value: binary>>, topic: string>>"
)
_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        (
            "outputs",
            pa.list_(
                pa.struct(
                    [
                        ("key", pa.binary()),
                        ("value", pa.binary()),
                        (
                            "headers",
                            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                        ),
                        ("topic", pa.string()),
                    ]
                )
            ),
        ),
    ]
)


class BadFile(Exception):
    """A file that becomes a dead letter; the message is the reason."""


class _Again(BadFile):
    """A failure worth another attempt."""


def with_payments(rows: DataFrame, limits: Limits, dead_letters: str) -> DataFrame:
    """Turn source rows into rows for the sink, by downloads within the tasks."""
    urls = rows.select("topic", "partition", "offset", "value")
    return urls.mapInArrow(partial(_rows, limits, dead_letters), ROWS)


def _rows(
    limits: Limits, dead_letters: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with (
        new_client(limits) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        for batch in batches:
            for first in range(0, batch.num_rows, AT_ONCE):
                some = batch.slice(first, AT_ONCE).to_pylist()
                outputs_by_row = pool.map(
                    lambda row: outputs(client, limits, dead_letters, row["value"]), some
                )
                rows = [
                    {**row, "outputs": row_outputs}
                    for row, row_outputs in zip(some, outputs_by_row, strict=True)
                ]
                yield pa.RecordBatch.from_pylist(rows, _ARROW)


def new_client(limits: Limits) -> httpx.Client:
    """Return a client for downloads. Each has a connection of its own, which ends with it."""
    # No proxy from the environment: it would receive requests for forbidden hosts.
    return httpx.Client(
        timeout=limits.timeout_s,
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    )


def outputs(
    client: httpx.Client, limits: Limits, dead_letters: str, value: bytes | None
) -> list[dict[str, Any]]:
    """Return one output per payment, keyed by the URL, or one dead letter."""
    try:
        url = (value or b"").decode()
        payments = parse(url, download(client, limits, url))
    except (BadFile, UnicodeDecodeError) as error:
        why = (
            "malformed: the URL is not text"
            if isinstance(error, UnicodeDecodeError)
            else str(error)
        )
        header = {"key": REASON_HEADER, "value": why.encode()}
        return [{"key": value, "value": value, "headers": [header], "topic": dead_letters}]
    return [{"key": value, "value": json.dumps(payment).encode()} for payment in payments]


def download(client: httpx.Client, limits: Limits, url: str) -> bytes:
    """Download a file. Raises BadFile if that fails within the limits."""
    require_allowed(limits, url)
    retrying = Retrying(
        retry=retry_if_exception_type(_Again),
        stop=stop_after_attempt(limits.attempts),
        wait=wait_exponential(0.1, max=2),
        reraise=True,
    )
    return retrying(_download, client, limits, url)


def require_allowed(limits: Limits, url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise BadFile(f"malformed: not a URL ({error})") from error
    if parts.scheme not in ("http", "https") or not host:
        raise BadFile("malformed: not a URL of http or https")
    if host not in limits.hosts:
        raise BadFile(f"refused: host {host} is not allowed")


def _download(client: httpx.Client, limits: Limits, url: str) -> bytes:
    late = f"slow: not there after {limits.timeout_s:g} s"
    with SocketDeadline(limits.timeout_s) as deadline:
        try:
            body = _answer(client, limits, url, deadline)
        except httpx.TimeoutException as error:
            raise _Again(late) from error
        except httpx.RemoteProtocolError as error:
            why = "half-sent: the connection ended in the middle"
            raise _Again(late if deadline.is_over else why) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = f"missing: {type(error).__name__}"
            raise _Again(late if deadline.is_over else why) from error
    if deadline.is_over:
        raise _Again(late)
    return body


def _answer(client: httpx.Client, limits: Limits, url: str, deadline: SocketDeadline) -> bytes:
    def trace(event: str, facts: Mapping[str, Any]) -> None:
        if event in CONNECTED:
            deadline.watch(facts["return_value"].get_extra_info("socket"))

    body = bytearray()
    with client.stream("GET", url, headers=UNPACKED, extensions={"trace": trace}) as answer:
        if answer.status_code >= 500:
            raise _Again(f"missing: the server answered {answer.status_code}")
        if answer.status_code != 200:
            raise BadFile(f"missing: the server answered {answer.status_code}")
        if int(answer.headers.get("Content-Length", "0")) > limits.bytes_max:
            raise BadFile(f"oversized: more than {limits.bytes_max:,} bytes")
        # A piece of a packed answer is unpacked at once, however large it becomes.
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise BadFile("malformed: the server packed it, although it was asked not to")
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > limits.bytes_max:
                raise BadFile(f"oversized: more than {limits.bytes_max:,} bytes")
    return bytes(body)


def parse(url: str, body: bytes) -> list[dict[str, str]]:
    """Parse payments from CSV or JSON lines, by the suffix of the URL's path. Raises BadFile."""
    path = urlsplit(url).path
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile("malformed: not UTF-8 text") from error
    if path.endswith(".csv"):
        return [_payment(number, row) for number, row in enumerate(_csv(text), 1)]
    if path.endswith(".jsonl"):
        return [_payment(number, row) for number, row in enumerate(_json_lines(text), 1)]
    raise BadFile("malformed: the URL ends in neither .csv nor .jsonl")


def _csv(text: str) -> Iterator[Any]:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        if tuple(rows.fieldnames or ()) != FIELDS:
            raise BadFile(f"malformed: the first line is not {','.join(FIELDS)}")
        yield from rows
    except csv.Error as error:
        raise BadFile(f"malformed: {error}") from error


def _json_lines(text: str) -> Iterator[Any]:
    # Text has more kinds of line ends than JSON lines have: U+2028 may be within a field.
    for number, line in enumerate(text.encode().splitlines(), 1):
        if line.strip(b" \t"):
            try:
                yield json.loads(line.decode(), object_pairs_hook=_object)
            except (ValueError, RecursionError) as error:
                raise BadFile(f"malformed: line {number} is not JSON") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a name that comes twice, and for half a character."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    for text in fields.values():
        if isinstance(text, str):
            text.encode()
    return fields


def _payment(number: int, row: Any) -> dict[str, str]:
    """Return a payment's three fields as text. Raises BadFile if any is missing or there are
    others."""
    if (
        not isinstance(row, dict)
        or set(row) != set(FIELDS)
        or not all(isinstance(field, str) for field in row.values())
    ):
        raise BadFile(
            f"malformed: payment {number} has not exactly {', '.join(FIELDS)}, each a text"
        )
    if not _AMOUNT.fullmatch(row["amount"]):
        raise BadFile(f"malformed: the amount of payment {number} is not a number")
    if not row["id"] or not row["account"]:
        raise BadFile(f"malformed: payment {number} lacks its id or its account")
    if any(len(row[name]) > FIELD_MAX for name in FIELDS):
        raise BadFile(f"malformed: a field of payment {number} exceeds {FIELD_MAX:,} characters")
    return {name: row[name] for name in FIELDS}
