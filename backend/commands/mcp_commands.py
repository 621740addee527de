"""Serve agents over the Model Context Protocol."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from topicproof.backend.address import Address
from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    Brokers,
    Json,
    Target,
    kafka_settings,
)
from topicproof.backend.commands.terminal import Styled, emit, end_at_once, out, say, stopping
from topicproof.backend.errors import SetupError, UsageError
from topicproof.backend.services.keeper import require_topics, services
from topicproof.backend.settings import Settings

if TYPE_CHECKING:
    from topicproof.backend.history.store import History

STOPPED = 130


def mcp(
    http: Annotated[
        int | None,
        typer.Option(
            help="Serve HTTP at this port of 127.0.0.1, to bearers of a token; 0: any free port."
            " Default: one agent, over standard input and output.",
            metavar="PORT",
            min=0,
            max=65535,
        ),
    ] = None,
    payloads: Annotated[
        bool,
        typer.Option(
            "--payloads",
            help="Also show records, to people who may look at payloads, without what is masked"
            " for them.",
        ),
    ] = False,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Let an agent ask what `status`, `inspect` and `transactions` tell, explain an offset, draft a
    contract, and check by a kept one (Model Context Protocol). Nothing changes the cluster.

    Example: `topicproof mcp --bootstrap broker:9092`
    """
    if find_spec("mcp") is None:
        raise SetupError("topicproof mcp needs a package more: pip install 'topicproof[mcp]'")
    if http is None and json_ == "-":
        raise UsageError("Standard output belongs to the protocol. Write to a file: --json FILE.")
    settings = kafka_settings(target, brokers)
    require_topics(settings)
    # late: the protocol takes a second to load
    from topicproof.backend.history.store import History

    history = History(settings)
    with stopping("answer") as stop, services(settings, spark=False, say=say) as running:
        if http is None:
            _serve_stdio(settings, running.address, history, payloads, stop, json_)
        else:
            _serve_http(settings, running.address, history, payloads, stop, json_, http)


def _serve_stdio(
    settings: Settings,
    address: Address,
    history: History,
    payloads: bool,
    stop: threading.Event,
    json_: str | None,
) -> None:
    from topicproof.backend.mcp_server.desk import Desk
    from topicproof.backend.mcp_server.people import CommandLinePerson
    from topicproof.backend.mcp_server.server import make_server

    person = CommandLinePerson(settings)
    desk = Desk(settings, address, history, person, payloads)

    def end() -> None:
        stop.wait()
        desk.stop_checks(say)
        end_at_once(STOPPED)

    # A thread waits for the next line of standard input, and nothing else would end that.
    threading.Thread(target=end, name="end", daemon=True).start()
    say(f"An agent may ask, as {person().shown}.")
    emit(json_, {"transport": "stdio"})
    try:
        make_server(desk).run("stdio")
    finally:
        desk.stop_checks(say)


def _serve_http(
    settings: Settings,
    address: Address,
    history: History,
    payloads: bool,
    stop: threading.Event,
    json_: str | None,
    port: int,
) -> None:
    from topicproof.backend.mcp_server.desk import Desk
    from topicproof.backend.mcp_server.people import Bearers, bearer, local_token
    from topicproof.backend.mcp_server.server import bound_socket, serve_http, url_of

    secret = local_token(settings)
    bearers = Bearers(settings, None if secret is None else secret.token, say)
    desk = Desk(settings, address, history, bearer, payloads)
    with bound_socket(port) as listener:
        url = url_of(listener)
        token_file = None if secret is None else str(secret.path)
        emit(json_, {"transport": "http", "address": url, "token_file": token_file})
        out.line(Styled(f"Agents may ask at {url}", "bold"))
        if secret is None:
            out.line("Each request needs an ID token of the login: Authorization: Bearer TOKEN")
        elif secret.is_new:
            out.line(f"Each request needs the header Authorization: Bearer {secret.token}")
            out.line(f"The token is in {secret.path}, and is not printed again.")
        else:
            out.line(f"Each request needs the token in {secret.path}: Authorization: Bearer TOKEN")
        out.line("Ctrl-C stops it.")
        try:
            serve_http(desk, bearers, listener, stop)
        finally:
            desk.stop_checks(say)
