"""The dashboard's web server: `python -m streamlit run app/server.py`, from the root.

It is Streamlit's own. But by itself, a browser that opens `/compare` looks for Streamlit's services
below `/compare/` first, is told that nothing is there, and waits a tenth of a second before it
looks at the root. Here it is told where they are, as by those who put Streamlit's page on a server
of their own (`BACKEND_BASE_URL`).
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from topicproof.app.pages import PAGES

AT_ROOT = (
    '<script>window.__streamlit = {BACKEND_BASE_URL: new URL("/", location.href).href}</script>'
)
# Streamlit's page, which its programs fill. One without a head, of another version, is sent as it
# is.
INDEX = (Path(st.__file__).parent / "static" / "index.html").read_text(encoding="utf-8")
INDEX_AT_ROOT = INDEX.replace("<head>", f"<head>{AT_ROOT}", 1)


def index(_: Request) -> HTMLResponse:
    return HTMLResponse(INDEX_AT_ROOT, headers={"Cache-Control": "no-cache"})


# The start page is at the root itself.
app = st.App("main.py", routes=[Route(f"/{page.path}", index) for page in PAGES[1:]])
