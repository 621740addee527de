"""What this person may not see of records and reports, by the rules of the login."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from topicproof.app.session.access import page_identity
from topicproof.backend.errors import NotPermitted
from topicproof.backend.kafka.browse.records import Record
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.settings import Settings
from topicproof.backend.trust.login import configured_login
from topicproof.backend.trust.masking import Field, masked_fields, masked_headers, masked_part


def hidden_fields(settings: Settings, *topics: str | None) -> tuple[Field, ...]:
    """Returns what this person does not see of these topics, by the rules of the login."""
    login = configured_login(settings)
    if login is None or not login.masks:
        return ()
    by = page_identity(settings)
    return tuple(one for topic in topics if topic for one in masked_fields(login.masks, topic, by))


Shown = TypeVar("Shown", Record, Row)


def mask_records(fields: Sequence[Field], rows: Sequence[Shown]) -> tuple[Shown, ...]:
    """Returns the records without the `hidden_fields`."""
    if not fields:
        return tuple(rows)
    return tuple(
        replace(
            one,
            key=masked_part("key", one.key, fields),
            value=masked_part("value", one.value, fields),
            headers=masked_headers(one.headers, fields),
        )
        for one in rows
    )


def require_unmasked(settings: Settings, *topics: str | None) -> None:
    """Raises NotPermitted if parts of the topics are masked for this person."""
    if hidden_fields(settings, *topics):
        names = ", ".join(dict.fromkeys(filter(None, topics)))
        raise NotPermitted(
            f"Parts of the payloads of {names} are masked for your role. What depends on whole"
            " payloads is not shown: searches by content, drafts and previews of contracts."
        )
