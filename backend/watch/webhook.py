"""Sends notices to a webhook: plain JSON, or a message for Slack or Microsoft Teams.

Names of groups, topics and transactional ids are whatever strangers call them. So a message for a
chat is text without markup or mentions, and control characters are spelled out. Slack makes a link
of each address in such a text (its `verbatim` is for mrkdwn alone), so the colon of `://` and the
dot of `www.` are in brackets. Whether a chat makes a link of a bare `example.com` is up to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from topicproof.backend.characters import visible
from topicproof.backend.errors import UsageError
from topicproof.backend.trust.keys import read_secret
from topicproof.backend.watch.alarms import Change, Notice

TIMEOUT_S = 10.0
"""For each of connecting, writing and waiting for an answer."""
TEXT_MAX = 3_000
"""Characters of a message, the most that Slack takes."""
REFUSALS = frozenset({400, 413, 415, 422})
"""Answers that are about what was sent, and not about the address or the moment."""
_HEADS = {Change.BEGAN: "Alarm", Change.ENDED: "All clear", Change.HAPPENED: "Happened"}
_ADDRESS = re.compile(r"(:)(?=[/\\]{2})|(?<=\bwww)(\.)", re.IGNORECASE)
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class WebhookStyle(StrEnum):
    """What a webhook understands."""

    JSON = "json"
    SLACK = "slack"
    TEAMS = "teams"


class Delivery(NamedTuple):
    """What became of a notice."""

    why: str = ""
    """Why it was not delivered, without the address; empty if it was."""
    is_refused: bool = False
    """Whether another notice may be taken all the same."""


@dataclass(frozen=True)
class Webhook:
    """Where notices go. The address is a secret: whoever knows it can write there."""

    address: str
    style: WebhookStyle = WebhookStyle.JSON

    def send(self, notice: Notice, cluster: str) -> Delivery:
        """Send a notice. Returns what became of it."""
        try:
            # Its answer says nothing that matters, and may be of any length.
            with httpx.stream(
                "POST",
                self.address,
                content=content(notice, cluster, self.style),
                headers={"Content-Type": "application/json"},
                timeout=TIMEOUT_S,
                # Else a proxy of the environment gets the address.
                trust_env=False,
            ) as answer:
                if answer.is_success:
                    return Delivery()
                code = answer.status_code
                return Delivery(f"it answered {code}", is_refused=code in REFUSALS)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return Delivery(type(error).__name__)


def read_webhook(file: Path, style: WebhookStyle) -> Webhook:
    """Read the address of a webhook from a file of its own. Raises UsageError if it holds none, or
    if other users can read it."""
    address = read_secret(file)
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(address.split()) != 1:
        raise UsageError(f"The file {file} does not hold one http or https address.")
    return Webhook(address, style)


def content(notice: Notice, cluster: str, style: WebhookStyle) -> bytes:
    """Return the bytes of what is sent. Half of a surrogate pair, which no file and no client can
    write, is a question mark in them: a notice that cannot be sent would hold up all others."""
    return json.dumps(document(notice, cluster, style), ensure_ascii=False).encode(errors="replace")


def document(notice: Notice, cluster: str, style: WebhookStyle) -> Mapping[str, Any]:
    """Return what is sent. `cluster`: its id."""
    if style is WebhookStyle.JSON:
        return notice.to_json(cluster)
    text = _text(notice, cluster)
    if style is WebhookStyle.SLACK:
        return {"text": text.translate(_SLACK), "mrkdwn": False}
    # A TextRun has no Markdown, as a TextBlock has.
    body = {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text}]}
    card = {"type": "AdaptiveCard", "version": "1.4", "body": [body]}
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _text(notice: Notice, cluster: str) -> str:
    condition = notice.alarm.condition
    sentences = [f"{_HEADS[notice.change]}: {condition.sentence}"]
    if notice.change is not Change.ENDED and condition.next_step:
        sentences.append(f"Next: {condition.next_step}")
    sentences.append(f"Cluster {cluster}, alarm {notice.alarm.number}.")
    text = " ".join(map(visible, sentences))
    return _ADDRESS.sub(lambda match: f"[{match[0]}]", text)[:TEXT_MAX]
