"""Files: what is asked for, what is given up, and that two parsers agree."""

from __future__ import annotations

import gzip
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from topicproof.backend.runs import files_again
from topicproof.backend.runs.download_limits import Limits
from topicproof.backend.runs.file_server import bad, name, payments, requests, serving
from topicproof.backend.runs.files import BadFile, download, new_client, outputs, parse
from topicproof.backend.services.local_servers import HOST

HEAD = b"id,account,amount\n"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a.csv",
        "http://127.0.0.1.example.com/a.csv",
        "http://127.0.0.1@example.com/a.csv",
    ],
)
def test_a_host_that_is_not_allowed_is_not_asked(url: str) -> None:
    """Story: a record names a host of somebody else. No request leaves: the client would raise if
    one did."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"asked {request.url}")

    with httpx.Client(transport=httpx.MockTransport(refuse)) as client:
        with pytest.raises(BadFile, match=r"refused: host .*example\.com is not allowed"):
            download(client, Limits(), url)
        (letter,) = outputs(client, Limits(), "dead", url.encode())
    assert letter["topic"] == "dead" and letter["value"] == url.encode()


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"no url", b"file:///etc/passwd", b"http://[::1/a.csv"]
)
def test_what_is_no_url_is_a_dead_letter(value: bytes | None) -> None:
    """Story: a record holds no URL of a file. It is a dead letter, and the pipeline continues."""
    with httpx.Client() as client:
        (letter,) = outputs(client, Limits(), "dead", value)
    assert letter["topic"] == "dead" and letter["headers"][0]["value"].startswith(b"malformed: ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("deep.jsonl", b"[" * 200_000),
        ("long.jsonl", b"1" * 5_000),
        ("long.csv", b'"' + b"x" * 200_000),
        ("open.csv", b'"id'),
        ("return.csv", b"id,account,amount\rx"),
        ("nothing.csv", b""),
    ],
)
def test_a_file_that_breaks_its_parser_is_bad(path: str, body: bytes) -> None:
    """Story: the server behind an allowed host sends a file that no parser takes. It is a dead
    letter; an error of another kind would end the run, and each of its resumes."""
    with pytest.raises(BadFile, match=r"^malformed: "):
        parse(f"http://{HOST}/{path}", body)


def test_a_redirect_is_not_followed() -> None:
    """Story: an allowed host redirects to another one. That answer is no file."""

    def redirect(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "http://example.com/a.csv"})

    with (
        httpx.Client(transport=httpx.MockTransport(redirect)) as client,
        pytest.raises(BadFile, match="missing: the server answered 302"),
    ):
        download(client, Limits(), "http://127.0.0.1/a.csv")


def test_a_packed_answer_is_not_unpacked() -> None:
    """Story: the server packs a file twice, so that a small answer becomes gigabytes. It was asked
    not to."""

    def bomb(request: httpx.Request) -> httpx.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        body = gzip.compress(gzip.compress(bytes(10_000_000)))
        return httpx.Response(200, headers={"Content-Encoding": "gzip, gzip"}, stream=Once(body))

    class Once(httpx.SyncByteStream):
        def __init__(self, body: bytes) -> None:
            self.body = body

        def __iter__(self) -> Iterator[bytes]:
            yield self.body

    with (
        httpx.Client(transport=httpx.MockTransport(bomb)) as client,
        pytest.raises(BadFile, match="the server packed it"),
    ):
        download(client, Limits(), "http://127.0.0.1/a.csv")


def test_a_server_that_recovers_is_asked_again() -> None:
    """Story: the first answer is a 503, the second one is the file."""
    answers = iter([httpx.Response(503), httpx.Response(200, content=HEAD)])
    with httpx.Client(transport=httpx.MockTransport(lambda _request: next(answers))) as client:
        assert download(client, Limits(), "http://127.0.0.1/a.csv") == HEAD


@pytest.mark.parametrize(
    "start", [b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n" + HEAD], ids=["head", "body"]
)
def test_a_server_that_never_ends_is_slow(start: bytes) -> None:
    """Story: the server behind an allowed host sends a byte from time to time, in a header or in a
    file. Neither download waits for it."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(65_536)
                self.request.sendall(start)
                # Readable once the client has gone.
                while not select.select([self.request], [], [], 0.05)[0]:
                    self.request.sendall(b"a")

    limits = Limits(timeout_s=0.3, attempts=1)
    with ThreadingTCPServer((HOST, 0), Handler) as server, new_client(limits) as client:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        url = f"http://{HOST}:{server.server_address[1]}/a.csv"
        with pytest.raises(BadFile, match="slow: not there"):
            download(client, limits, url)
        assert files_again.counts(limits, [url.encode()]) == [1]
        server.shutdown()


def test_only_files_are_counted(tmp_path: Path) -> None:
    """Story: another user of the machine asks the demo's server for what is no file."""
    log = tmp_path / "log"
    with serving(0, log) as server:
        for path in (b"/\xb2.csv", b"/" + b"9" * 5_000, b"/../log", b"/0000004.csv"):
            with socket.create_connection((HOST, server.server_port), 20) as connection:
                connection.sendall(b"GET " + path + b" HTTP/1.0\r\n\r\n")
                assert connection.makefile("rb").readline().split()[1] == b"404"
    assert not requests(log)


def test_the_server_counts_what_it_is_asked_for(tmp_path: Path) -> None:
    """Story: a file is downloaded twice and looked at once by the judge. The count is two."""
    with serving(0, tmp_path / "log") as server, httpx.Client() as client:
        url = f"http://{HOST}:{server.server_address[1]}/{name(4)}"
        found = [len(outputs(client, Limits(), "dead", url.encode())) for _ in range(2)]
        assert found == [len(payments(4))] * 2 == files_again.counts(Limits(), [url.encode()]) * 2
    assert requests(tmp_path / "log") == {f"/{name(4)}": 2}
    assert [n for n in range(40) if bad(n)] == [13, 33]


def line(**fields: object) -> bytes:
    return json.dumps({"id": "1", "account": "a", "amount": "2", **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("a.csv", HEAD + b"1,a,2\n2,b,-3.50\n", 2),
        ("a.csv", HEAD, 0),
        ("a.csv", b"\xef\xbb\xbf" + HEAD + b"1,a,2\n", 1),
        ("a.csv", HEAD + b'1,"a, b",2\n', 1),
        ("a.csv", b"", None),
        ("a.csv", b"account,id,amount\na,1,2\n", None),
        ("a.csv", HEAD + b"1,a\n", None),
        ("a.csv", HEAD + b"1,a,2,3\n", None),
        ("a.csv", HEAD + b"1,a,1_000\n", None),
        ("a.csv", HEAD + b"1,a,nan\n", None),
        ("a.csv", HEAD + b",a,2\n", None),
        ("a.csv", HEAD + b"\xff,a,2\n", None),
        ("a.jsonl", line() + b"\n" + line(id="2"), 2),
        ("a.jsonl", b"", 0),
        ("a.jsonl", line() + b"{\n", None),
        ("a.jsonl", line(more="x"), None),
        ("a.jsonl", line(amount=2), None),
        ("a.jsonl", line(amount=None), None),
        ("a.jsonl", line(account=""), None),
        ("a.jsonl", b"[1]\n", None),
        ("a.jsonl", b'{"id": "1", "account": "a\xe2\x80\xa8b\xc2\x85", "amount": "2"}', 1),
        ("a.jsonl", line()[:-1] + line(id="2"), None),
        ("a.jsonl", line().replace(b",", b",\n"), None),
        ("a.jsonl", line().replace(b"{", b'{"id": "0", '), None),
        ("a.jsonl", line(id="\ud800"), None),
        ("a.jsonl", line(id="a" * 10_000), 1),
        ("a.jsonl", line(id="a" * 10_001), None),
        ("a.csv", HEAD + b"1,a,2\r3,b,4\r", 2),
        ("a.csv", HEAD + b'1,"a"b,2\n', None),
        ("a.csv", HEAD + b"1," + b"a" * 200_000 + b",2\n", None),
        ("a.txt", HEAD, None),
    ],
    ids=lambda part: str(part)[:60],
)
def test_two_parsers_agree_on_what_a_file_holds(path: str, body: bytes, count: int | None) -> None:
    """Story: a file is parsed by the pipeline and again by the judge, with other code. Both say the
    same: so many payments, or (None) a dead letter."""
    assert parsed_twice(path, body) == (count, count)


PIECES = (
    *(b"\n", b"\r", b"\r\n", b",", b'"', b'""', b" ", b"\t", b"\x00", b"\xff", b"\\", b"{", b"}"),
    *("\u2028".encode(), "\u0085".encode(), b"\x0b", b"\x0c", b"\x1c", b"\xef\xbb\xbf", b"1", b"a"),
    *(line(), line()[:-1], b"1,a,2\n", b'1,"a",2\n', b'"id": "2", ', b"null", b"[]"),
)


@given(
    start=st.sampled_from((("a.csv", HEAD), ("a.csv", HEAD + b"1,a,2\n"), ("a.jsonl", line()))),
    pieces=st.lists(st.sampled_from(PIECES), max_size=8),
)
def test_two_parsers_agree_on_any_file(start: tuple[str, bytes], pieces: list[bytes]) -> None:
    """Story: whoever serves the files looks for one that the pipeline and the judge read
    differently, so that a faithful run seems to have lost it."""
    path, first = start
    pipeline, judge = parsed_twice(path, first + b"".join(pieces))
    assert pipeline == judge


def parsed_twice(path: str, body: bytes) -> tuple[int | None, int | None]:
    """Return the payments by the pipeline's parser and by the judge's."""
    try:
        first: int | None = len(parse(f"http://127.0.0.1/{path}", body))
    except BadFile:
        first = None
    try:
        return first, files_again.payments_of(f"/{path}", body)
    except (pa.ArrowException, ValueError):
        return first, None
