"""Starts Streamlit's web server with bounds on what a browser may send at once, and on idle
connections.

Streamlit has one limit for messages in both directions, and a page may be large. What a browser
sends is a form: less than `server.maxWidgetStateSize`. uvicorn takes its limit before it loads the
application, so it cannot be set there.
"""

from __future__ import annotations

from streamlit.web import cli
from streamlit.web.server.starlette import starlette_server

from topicproof.backend.services.connection_limits import LimitedProtocol
from topicproof.backend.services.processes import require_open_files

MESSAGE_BYTES_MAX = 2_000_000
"""Of a message from a browser. A longer one ends the connection before it is in memory."""


def launch() -> None:
    starlette_server.get_max_message_size_bytes = (  # type: ignore[attr-defined]
        lambda: MESSAGE_BYTES_MAX
    )
    uvicorn_settings = starlette_server._get_uvicorn_config_kwargs
    starlette_server._get_uvicorn_config_kwargs = lambda: {
        **uvicorn_settings(),
        "http": LimitedProtocol,
    }
    require_open_files()
    cli.main(prog_name="streamlit")


if __name__ == "__main__":
    launch()
