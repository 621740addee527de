"""A second look at files, for the judge: the number of outputs due for each.

It shares no code with files.py but the limits. It uses another HTTP client and other parsers, so
the two can contradict each other. A readable file counts its payments; any other file counts 1, its
dead letter.
"""

from __future__ import annotations

import io
import re
import ssl
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json

from topicproof.backend.http_deadline import SocketDeadline, WatchedHandler
from topicproof.backend.runs.download_limits import FIELD_MAX, Limits

AT_ONCE = 16
AGENT = "topicproof-judge"
"""User agent of the second look. The server leaves its requests out of the pipeline's side
effects."""
_COLUMNS = pa.schema([("id", pa.string()), ("account", pa.string()), ("amount", pa.string())])
_CSV = re.compile(rb"""(?:(?:"(?:[^"]++|"")*+"|[^",\r\n][^,\r\n]*+|)(?:,|\r\n?|\n|\Z))*+""")
"""RFC 4180: Arrow's parser passes over text behind a closing quote."""
BOM = b"\xef\xbb\xbf"
JSON_SPACE = b" \t\r\n"
_URL = re.compile(r"https?://(\[[^\]@]+\]|[^/:@?#]+)(:\d+)?(/[^?#]*)?([?#].*)?", re.DOTALL)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_given: Any) -> None:
        """Follow no redirect: it counts as an answer other than 200."""


def counts(limits: Limits, urls: Iterable[bytes | None]) -> list[int]:
    """Count the outputs due for each URL."""
    context = ssl.create_default_context()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda url: _count(context, limits, url), urls))


def _count(context: ssl.SSLContext, limits: Limits, url: bytes | None) -> int:
    looks = (_look(context, limits, url) for _ in range(limits.attempts))
    return next((count for count in looks if count is not None), 1)


def _look(context: ssl.SSLContext, limits: Limits, url: bytes | None) -> int | None:
    """Download and count once. None means a dead letter."""
    try:
        text = (url or b"").decode()
        # To the end: urllib would read `http://allowed@.other.example/` as a name of its own.
        parts = _URL.fullmatch(text)
        if parts is None or parts.group(1).strip("[]").lower() not in limits.hosts:
            return None
        request = urllib.request.Request(text, headers={"User-Agent": AGENT})
        with SocketDeadline(limits.timeout_s) as deadline:
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), _NoRedirects(), WatchedHandler(context, deadline)
            )
            with opener.open(request, timeout=limits.timeout_s) as answer:
                body = _read(answer, limits)
        if body is None or deadline.is_over:
            return None
        return payments_of(parts.group(3) or "", body)
    except (OSError, HTTPException, UnicodeError, pa.ArrowException, ValueError):
        return None


def _read(answer: HTTPResponse, limits: Limits) -> bytes | None:
    """Read a body. None if it is incomplete or too large."""
    body = answer.read(limits.bytes_max + 1)
    announced = answer.headers["Content-Length"]
    is_whole = announced is None or len(body) == int(announced)
    return body if is_whole and len(body) <= limits.bytes_max else None


def payments_of(path: str, body: bytes) -> int | None:
    """Count the payments in a file; None if it is malformed. Raises ArrowException or ValueError
    for some malformed files."""
    body.decode()
    # In one piece: no line may lie across two.
    block = max(len(body), 1)
    if path.endswith(".csv"):
        if not _CSV.fullmatch(body):
            return None
        table = csv.read_csv(
            io.BytesIO(body),
            read_options=csv.ReadOptions(block_size=block),
            convert_options=csv.ConvertOptions(column_types=_COLUMNS, strings_can_be_null=False),
        )
    elif not path.endswith(".jsonl"):
        return None
    elif not body.removeprefix(BOM).strip(JSON_SPACE):
        return 0
    else:
        table = json.read_json(
            io.BytesIO(body),
            read_options=json.ReadOptions(block_size=block),
            parse_options=json.ParseOptions(
                explicit_schema=_COLUMNS, unexpected_field_behavior="error"
            ),
        )
        if not _has_one_object_a_line(body, table.num_rows):
            return None
    if table.column_names != _COLUMNS.names or any(column.null_count for column in table.columns):
        return None
    sound = pc.and_(
        pc.match_substring_regex(table["amount"], r"^-?[0-9]+(\.[0-9]+)?$"),
        pc.and_(pc.not_equal(table["id"], ""), pc.not_equal(table["account"], "")),
    )
    longest = [pc.max(pc.utf8_length(column)).as_py() or 0 for column in table.columns]
    if max(longest) > FIELD_MAX:
        return None
    return table.num_rows if pc.all(sound, min_count=0).as_py() else None


def _has_one_object_a_line(body: bytes, count: int) -> bool:
    """Return whether each line is empty or an object: Arrow's parser sees no lines."""
    lines = [line.strip(JSON_SPACE) for line in body.removeprefix(BOM).splitlines()]
    objects = [line for line in lines if line]
    return len(objects) == count and all(line[:1] + line[-1:] == b"{}" for line in objects)
