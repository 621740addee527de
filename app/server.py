"""The dashboard's web server: Streamlit behind the checks of doors.py, with a login behind those of
entrance.py, and without one for the user who started it.

`python -P -m topicproof.app.shell.launch run app/server.py`; `topicproof up` does so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.middleware import Middleware

from topicproof.app.shell.doors import Doors, OwnerOnly
from topicproof.app.shell.entrance import Entrance, secrets_of
from topicproof.app.shell.login_log import bound_lines
from topicproof.app.shell.stored_files import use_own_storage
from topicproof.backend.services.dashboard import (
    STDIN_HELD,
    host_names,
    require_closed,
    require_peers,
)
from topicproof.backend.settings import close_files, read_settings
from topicproof.backend.trust.keys import cookie_secret
from topicproof.backend.trust.login import configured_login, dashboard_provider


@asynccontextmanager
async def with_parent(_app: st.App) -> AsyncIterator[None]:
    """End this process when `topicproof up` is gone, however that ended."""
    if os.environ.get(STDIN_HELD):
        threading.Thread(target=_end_with_stdin, name="parent", daemon=True).start()
    yield


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


close_files()
settings = read_settings()
require_closed(settings, str(st.get_option("server.address") or "0.0.0.0"))
login = configured_login(settings)
middleware = [Middleware(Doors, hosts=host_names(settings))]
secrets = None
if login is None and not settings.insecure:
    middleware.insert(0, Middleware(OwnerOnly))
if login is not None:
    require_peers(login)
    middleware.append(Middleware(Entrance, login=login))
    if login.provider is not None:
        secrets = secrets_of(dashboard_provider(login), cookie_secret(settings))
use_own_storage()
bound_lines()
app = st.App("main.py", secrets=secrets, middleware=middleware, lifespan=with_parent)
