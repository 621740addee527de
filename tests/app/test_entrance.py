"""With a login configured, a stranger gets nothing but the way to the login."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings, strategies as some
from streamlit.auth_util import set_cookie_with_chunks
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.web.server.starlette.starlette_app import create_streamlit_routes
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.backend.trust.people import ISSUER
from tests.ports import free_ports
from topicproof.app.shell import entrance
from topicproof.app.shell.entrance import (
    CONNECTIONS_MAX,
    COOKIE,
    OPEN,
    START,
    WANTED,
    Entrance,
    clears_caches,
    secrets_of,
)
from topicproof.app.shell.launch import MESSAGE_BYTES_MAX
from topicproof.app.shell.login_log import (
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    LINES_OF_ALL_MAX,
    NO_HTTP,
    PERIOD_S,
    StrangerLines,
    asked_by,
)
from topicproof.backend.characters import has_control
from topicproof.backend.errors import UsageError
from topicproof.backend.services.connection_limits import WAITING_MAX
from topicproof.backend.services.dashboard import (
    dashboard,
    host_names,
    require_closed,
    require_peers,
)
from topicproof.backend.settings import Settings
from topicproof.backend.trust.keys import cookie_secret
from topicproof.backend.trust.login import Login, Provider, dashboard_provider, read_login

SECRET = "a secret of these tests alone"
NOW_S = 1_800_000_000.0
ADDRESS = "https://proof.example"
CLAIMS = {
    "iss": ISSUER,
    "sub": "42",
    "iat": NOW_S - 60,
    "name": "Ada Lovelace",
    "roles": ["viewer"],
    "origin": ADDRESS,
    "is_logged_in": True,
}
HTML = {"accept": "text/html,*/*"}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "get_cookie_secret", lambda: SECRET)


@pytest.fixture
def openid(tmp_path: Path) -> Login:
    text = f"openid: {{issuer: '{ISSUER}', client_id: t, address: '{ADDRESS}'}}\nhours: 12"
    return _login(tmp_path, text)


@pytest.fixture
def proxy(tmp_path: Path) -> Login:
    return _login(tmp_path, "proxy: {user: X-User, groups: X-Groups, from: [127.0.0.1]}")


def _login(tmp_path: Path, text: str) -> Login:
    path = tmp_path / "login.yaml"
    path.write_text(text)
    return read_login(path)


def cookie(claims: Mapping[str, Any], secret: str = SECRET) -> str:
    """The header Cookie of a browser to which Streamlit gave these claims."""
    made: dict[str, str] = {}

    def signed(name: str, value: str) -> bytes:
        return create_signed_value(secret, name, value)

    def keep(name: str, value: str) -> None:
        made[name] = signed(name, value).decode()

    set_cookie_with_chunks(keep, signed, COOKIE, dict(claims), cookie_attr_size=80)
    return "; ".join(f"{name}={value}" for name, value in made.items())


TOO_LARGE = 1009
"""Of RFC 6455, why a websocket ends."""


def sent_by(
    login: Login,
    headers: Mapping[str, str] | list[tuple[str, str]] = {},  # noqa: B006 - never changed
    path: str = "/",
    kind: str = "http",
    method: str = "GET",
    peer: str = "127.0.0.1",
    query: str = "",
    cookies: tuple[str, ...] = (),
    messages: tuple[bytes, ...] = (),
) -> list[dict[str, Any]]:
    """What comes back for a request. The dashboard behind the entrance answers with 299, or takes
    the websocket and one message. `messages` come before it."""
    sent: list[dict[str, Any]] = []
    came: list[dict[str, Any]] = [
        {"type": f"{kind}.connect"},
        *({"type": f"{kind}.receive", "bytes": message} for message in messages),
        {"type": f"{kind}.receive", "bytes": b"press"},
    ]

    async def dashboard(_scope: Any, receive: Any, send: Any) -> None:
        if kind == "http":
            given = [(b"set-cookie", one.encode()) for one in cookies]
            await send({"type": "http.response.start", "status": 299, "headers": given})
            return
        await receive()
        await send({"type": "websocket.accept"})
        await send(await receive())

    async def receive() -> dict[str, Any]:
        return came.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = headers if isinstance(headers, list) else list(headers.items())
    raw = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": raw,
        "client": (peer, 1),
        "server": ("127.0.0.1", 8501),
        "scheme": "http",
    }
    asyncio.run(Entrance(dashboard, login, lambda: NOW_S)(scope, receive, send))
    return sent


def status(*args: Any, **more: Any) -> int:
    return int(sent_by(*args, **more)[0]["status"])


def header(sent: list[dict[str, Any]], name: str) -> str:
    found = [value for key, value in sent[0]["headers"] if key == name.encode()]
    return b"\n".join(found).decode()


def test_a_stranger_gets_no_route_of_the_dashboard(openid: Login) -> None:
    """Story: somebody walks all routes that Streamlit has, with each of their methods. Three lead
    to the login, and the rest is refused before it is reached: pages, files, media, uploads,
    metrics, health."""
    held: Any = SimpleNamespace()
    held.media_file_mgr = held.uploaded_file_mgr = SimpleNamespace(_storage=None)
    held.component_registry = held.bidi_component_registry = held.stats_mgr = None
    routes = cast(list[Any], create_streamlit_routes(held))
    paths = {re.sub(r"\{[^}]*\}", "x", one.path) or "/": one for one in routes}
    assert len(paths) >= 15 and set(OPEN) < set(paths)
    for path, route in paths.items():
        if path in OPEN:
            continue
        for method in getattr(route, "methods", None) or {"GET"}:
            assert status(openid, path=path, method=method) == 401, (method, path)
            assert status(openid, HTML, path=path, method=method) == 401, (method, path)
        assert [one["type"] for one in sent_by(openid, path=path, kind="websocket")] == [
            "websocket.close"
        ]


@settings(max_examples=50, deadline=None)
@given(
    some.text(max_size=40), some.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
)
def test_no_other_path_leads_in(rest: str, method: str) -> None:
    """Story: a path that looks like the login's is not."""
    provider = Provider(ISSUER, "t", None, ADDRESS, "t")
    login = Login(provider, None, "roles", {}, 12)
    for path in (f"/{rest}", *(f"{one}{rest}" for one in OPEN), f"{START}/{rest}"):
        if path not in (*OPEN, START):
            assert status(login, path=path, method=method) == 401


def test_the_login_itself_is_served(openid: Login) -> None:
    """Story: the page for strangers leads to Streamlit's login, whose cookies are for https alone.
    A websocket has no login."""
    assert [status(openid, path=path) for path in OPEN] == [299, 299, 299]
    given = sent_by(openid, path=OPEN[2], cookies=("a=1; Path=/", "b=2; Secure"))
    assert header(given, "set-cookie").splitlines() == ["a=1; Path=/; Secure", "b=2; Secure"]
    begun = sent_by(openid, path=START)
    assert begun[0]["status"] == 303 and header(begun, "location").startswith(
        "/auth/login?provider="
    )
    for path in (*OPEN, START):
        assert sent_by(openid, path=path, kind="websocket")[0]["type"] == "websocket.close"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 299),
        ({"padding": "x" * 9_000}, 299),
        ({"origin": "http://127.0.0.1:8501"}, 401),
        ({"is_logged_in": False}, 401),
        ({"iat": NOW_S - 13 * 3600}, 401),
        ({"iss": "https://evil.example"}, 401),
        ({"roles": ["somebody"]}, 401),
    ],
)
def test_the_cookie_must_be_of_this_login(
    changed: dict[str, Any], expected: int, openid: Login
) -> None:
    """Story: a cookie of Streamlit's, whole or in pieces; of another address, expired, or of
    somebody without a role."""
    assert status(openid, {"cookie": cookie({**CLAIMS, **changed})}) == expected


def test_a_forged_cookie_is_none(openid: Login) -> None:
    good = cookie(CLAIMS)
    for wrong in (
        cookie(CLAIMS, "another secret"),
        good[:-2],
        good.replace(f"{COOKIE}=", f"{COOKIE}=x"),
        f"{COOKIE}=ä",
        f"{COOKIE}={CLAIMS}",
        cookie({}),
    ):
        assert status(openid, {"cookie": wrong}, path="/metrics") == 401
        assert sent_by(openid, {"cookie": wrong}, kind="websocket")[0]["type"] == "websocket.close"


def test_a_websocket_ends_with_the_login(openid: Login) -> None:
    """Story: Ada leaves her browser open over night. The first message after her login has ended
    closes the connection, and is not heard."""
    mine = {"cookie": cookie(CLAIMS)}
    assert [one["type"] for one in sent_by(openid, mine, kind="websocket")] == [
        "websocket.accept",
        "websocket.receive",
    ]
    times = iter((NOW_S, NOW_S + 12 * 3600))
    sent: list[Any] = []
    came = iter(({"type": "websocket.connect"}, {"type": "websocket.receive", "bytes": b"press"}))

    async def dashboard(_scope: Any, receive: Any, _send: Any) -> None:
        sent.extend([await receive(), await receive()])

    async def receive() -> Any:
        return next(came)

    raw = [(b"cookie", mine["cookie"].encode())]
    scope = {"type": "websocket", "path": "/_stcore/stream", "headers": raw, "query_string": b""}
    asyncio.run(Entrance(dashboard, openid, lambda: next(times))(scope, receive, cast(Any, None)))
    assert [one["type"] for one in sent] == ["websocket.connect", "websocket.disconnect"]


def test_nobody_clears_the_caches_of_all(openid: Login) -> None:
    """Story: a viewer sends Streamlit's message that clears the caches, again and again. It does
    not arrive; the next one does."""
    clear = BackMsg(clear_cache=True).SerializeToString()
    sent = sent_by(openid, {"cookie": cookie(CLAIMS)}, kind="websocket", messages=(clear, clear))
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.receive"]
    assert sent[1]["bytes"] == b"press"
    assert not clears_caches({"bytes": b"\xff"}) and not clears_caches({"text": "x"})


def test_the_page_that_was_wanted_opens_after_the_login(openid: Login) -> None:
    """Story: Ada follows a link to a verdict, signs in, and is there. A link to another server
    stays here."""
    refused = sent_by(openid, HTML, path="/verdict", query="run=squares-a")
    assert refused[0]["status"] == 401 and b'href="/login"' in refused[1]["body"]
    kept = header(refused, "set-cookie").split(";")[0]
    assert kept == f"{WANTED}={quote('/verdict?run=squares-a', safe='')}"
    back = sent_by(openid, {"cookie": f"{kept}; {cookie(CLAIMS)}"})
    assert back[0]["status"] == 303 and header(back, "location") == "/verdict?run=squares-a"
    assert f'{WANTED}=""' in header(back, "set-cookie")
    for evil in ("//evil.example", "/\\evil.example", "https://evil.example", "/", "/a\nb"):
        assert status(openid, {"cookie": f"{WANTED}={quote(evil)}; {cookie(CLAIMS)}"}) == 299
    nobody = {**HTML, "cookie": cookie({**CLAIMS, "roles": [], "name": "<b>Alan</b>"})}
    told = sent_by(openid, nobody)[1]["body"].decode()
    assert "&lt;b&gt;Alan&lt;/b&gt; is known, but has no role here" in told and OPEN[1] in told


def test_a_proxy_is_believed_and_nobody_else(proxy: Login) -> None:
    """Story: the header that names the person comes from the proxy, from another machine, twice, or
    not at all. Then there is no page of ours to sign in, either."""
    ada = {"x-user": "ada", "x-groups": "viewer"}
    assert status(proxy, ada) == 299
    assert status(proxy, {"x-user": "ada", "x-groups": "nobody"}) == 403
    assert status(proxy, ada, peer="192.0.2.7") == 403
    assert status(proxy, {**ada, "x-forwarded-for": "127.0.0.1"}, peer="192.0.2.7") == 403
    assert status(proxy, [*ada.items(), ("x-user", "root")]) == 403
    assert status(proxy, {"cookie": cookie(CLAIMS)}) == 403
    for path in (*OPEN, START):
        assert status(proxy, HTML, path=path) == 403
    assert sent_by(proxy, ada, kind="websocket")[0]["type"] == "websocket.accept"
    with pytest.raises(UsageError, match="anybody could claim to be the proxy"):
        require_peers(proxy)
    assert sent_by(proxy, ada, kind="websocket", peer="192.0.2.7")[0]["type"] == "websocket.close"


def test_a_session_is_not_handed_on_to_another_person(proxy: Login) -> None:
    """Story: an administrator closes a tab. Somebody else connects in it, whom the proxy names now,
    and the browser asks for the session of before, with all that it shows."""
    offered: list[tuple[bytes, list[str]]] = []

    async def dashboard(scope: Any, _receive: Any, _send: Any) -> None:
        offered.append((dict(scope["headers"])[b"sec-websocket-protocol"], scope["subprotocols"]))

    names = ["streamlit", "token", "session-of-ada"]
    scope = {
        "type": "websocket",
        "path": "/_stcore/stream",
        "headers": [
            (b"x-user", b"alan"),
            (b"x-groups", b"viewer"),
            (b"sec-websocket-protocol", ", ".join(names).encode()),
        ],
        "subprotocols": names,
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(Entrance(dashboard, proxy, lambda: NOW_S)(scope, cast(Any, None), cast(Any, None)))
    assert offered == [(b"streamlit, token", ["streamlit", "token"])]
    assert scope["subprotocols"] == names, "the server's own scope was changed"


def test_a_person_has_so_many_connections_and_no_more(proxy: Login) -> None:
    """Story: a viewer opens websockets without end. Another person's are not counted among them,
    and a closed one makes room."""
    answers: list[str] = []

    async def story() -> None:
        answered, ended = asyncio.Event(), asyncio.Event()

        async def dashboard(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "websocket.accept"})
            await ended.wait()

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            answers.append(message["type"])
            if len(answers) == CONNECTIONS_MAX + 2:
                answered.set()

        guarded = Entrance(dashboard, proxy, lambda: NOW_S)

        async def open_tab(person: str) -> None:
            raw = [(b"x-user", person.encode()), (b"x-groups", b"viewer")]
            scope = {"type": "websocket", "path": "/", "headers": raw, "client": ("127.0.0.1", 1)}
            await guarded(scope, receive, send)

        people = ["ada"] * (CONNECTIONS_MAX + 1) + ["alan"]
        tabs = [asyncio.create_task(open_tab(person)) for person in people]
        await answered.wait()
        ended.set()
        await asyncio.gather(*tabs)
        await open_tab("ada")

    asyncio.run(story())
    assert answers.count("websocket.close") == 1 and answers[-1] == "websocket.accept"


def test_only_people_who_may_keep_contracts_upload(proxy: Login) -> None:
    """Story: a viewer sends files to Streamlit's route for uploads, which no page offers them."""
    path = "/_stcore/upload_file/session/file"
    for role, answer in (("viewer", 403), ("signer", 403), ("operator", 299), ("admin", 299)):
        ada = {"x-user": "ada", "x-groups": role}
        assert status(proxy, ada, path=path, method="PUT") == answer, role


def test_a_dashboard_with_a_login_may_listen_for_others(tmp_path: Path) -> None:
    """Story: a team shares the dashboard. With a login it may listen beyond loopback, under the
    address that the login names; a login without its secret is none. Streamlit gets the secrets in
    memory, and the cookies' secret stays over a restart."""
    secret = tmp_path / "secret.txt"
    secret.write_text("hush-hush")
    secret.chmod(0o600)
    whole = tmp_path / "login.yaml"
    start = f"openid: {{issuer: '{ISSUER}', client_id: t"
    whole.write_text(f"{start}, address: '{ADDRESS}', client_secret_file: secret.txt}}")
    shared = Settings(home=tmp_path, login=whole)
    require_closed(shared, "0.0.0.0")
    assert "proof.example" in host_names(shared)
    provider = dashboard_provider(read_login(whole))
    first = cookie_secret(shared)
    told = secrets_of(provider, first)["auth"]
    assert told["client_secret"] == "hush-hush" and told["cookie_secret"] == cookie_secret(shared)
    assert told["redirect_uri"] == f"{ADDRESS}/oauth2callback" and len(first) == 64
    half = tmp_path / "half.yaml"
    half.write_text(f"{start}}}")
    with pytest.raises(UsageError, match="client secret"):
        require_closed(Settings(home=tmp_path, login=half), "127.0.0.1")


@pytest.mark.services
def test_no_header_replaces_the_peer(tmp_path: Path) -> None:
    """Story: the proxy is at 127.0.0.2 and tells for whom it asks. Somebody at 127.0.0.1 claims to
    come from there, and claims to be an administrator. On the wire, because the web server has an
    opinion of its own on such headers, of idle connections, and of the length of a message, which
    must not be in memory before it is refused."""
    path = tmp_path / "login.yaml"
    path.write_text("proxy: {user: X-User, groups: X-Groups, from: [127.0.0.2]}")
    (port,) = free_ports(1)
    root = {"x-user": "root", "x-groups": "admin"}
    with dashboard(Settings(home=tmp_path, login=path), port) as address:
        health = f"{address}/_stcore/health"
        near = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=near) as proxy:
            assert proxy.get(health).status_code == 403
            told = {**root, "x-forwarded-for": "192.0.2.7"}
            assert proxy.get(health, headers=told).status_code == 200
        for claimed in ("127.0.0.2", "127.0.0.2, 127.0.0.1"):
            answer = httpx.get(health, headers={**root, "x-forwarded-for": claimed})
            assert answer.status_code == 403 and "through its proxy" in answer.text
        with ExitStack() as stack:
            idle = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
                for _ in range(WAITING_MAX + 1)
            ]
            assert idle[0].recv(1) == b"", "the eldest connection without a request ends"
        near_socket = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
        with connect(
            f"ws://127.0.0.1:{port}/_stcore/stream",
            sock=near_socket,
            additional_headers=root,
            max_size=None,
        ) as websocket:
            with pytest.raises(ConnectionClosed) as closed:
                _send_without_end(websocket)
            # Closed with bytes on their way, the connection may be reset before the reason arrives.
            assert closed.value.rcvd is None or closed.value.rcvd.code == TOO_LARGE


@pytest.mark.services
def test_a_stranger_writes_a_few_short_lines_into_the_log(tmp_path: Path) -> None:
    """Story: somebody without a login calls the addresses of the login with errors of their own
    making, thousands of characters long and with commands for a terminal, and sends what is no
    HTTP. The log gets a few lines of each address, none with a control character, and goes on
    telling what the dashboard itself has to say."""
    provider_port, port = free_ports(2)
    secret = tmp_path / "secret.txt"
    secret.write_text("hush-hush")
    secret.chmod(0o600)
    path = tmp_path / "login.yaml"
    path.write_text(
        f"openid: {{issuer: 'http://127.0.0.1:{provider_port}', client_id: t,"
        f" address: 'http://127.0.0.1:{port}', client_secret_file: secret.txt}}"
    )
    made_up = {"state": "x", "error": "\x1b[2J" + "e" * 5_000, "error_description": "\u202e\x07"}
    with dashboard(Settings(home=tmp_path, login=path), port) as address:
        with httpx.Client(base_url=address, follow_redirects=False) as stranger:
            for _ in range(LINES_MAX):
                assert stranger.get(OPEN[2], params=made_up).status_code == 302
                assert stranger.get(OPEN[2], params={"state": "x", "code": "y"}).status_code == 302
                # The provider does not answer.
                assert stranger.get(stranger.get(START).headers["location"]).status_code == 400
        for _ in range(2 * LINES_MAX):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"\x1b[2J\r\n\r\n")
                assert b"400" in connection.recv(1_000)
    text = (tmp_path / "dashboard.log").read_text()
    assert not has_control(text.replace("\n", "")) and "\u202e" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) < 2 * LINE_CHARACTERS_MAX
    for by in ("127.0.0.1: ", f"{NO_HTTP}: "):
        of_stranger = [line for line in lines if by in line]
        assert len(of_stranger) == LINES_MAX and "left out for an hour" in of_stranger[-1]
    assert "Traceback" not in text


def test_many_addresses_write_no_more_than_some() -> None:
    """Story: a stranger has as many addresses as there are. The lines of all together are bounded,
    and so is what is remembered of them; an hour later there are some again."""
    now = [0.0]
    lines = StrangerLines(now_s=lambda: now[0])

    def passed(address: str) -> bool:
        record = logging.LogRecord("auth", logging.ERROR, "", 0, "wrong %s", ("\x1b",), None)
        with asked_by(address):
            return lines.filter(record)

    addresses = [f"2001:db8::{number:x}" for number in range(2 * LINES_OF_ALL_MAX)]
    assert sum(map(passed, addresses)) == len(lines.lines) == LINES_OF_ALL_MAX
    now[0] = PERIOD_S
    assert passed(addresses[0])
    error = OSError("no space"), None
    ours = logging.LogRecord("server", logging.ERROR, "", 0, "broken", None, (OSError, *error))
    assert all(lines.filter(ours) for _ in range(2 * LINES_MAX)) and ours.exc_info is not None


def _send_without_end(websocket: ClientConnection) -> None:
    """Sends one message of many frames, and waits for the answer."""
    websocket.send(bytes(100_000) for _ in range(2 * MESSAGE_BYTES_MAX // 100_000))
    websocket.recv()
