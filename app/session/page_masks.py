"""What this person may not see of records and reports, by the rules of the login."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from topicproof.app.session.access import page_identity
from topicproof.backend.errors import EvidenceError, NotPermitted
from topicproof.backend.evidence.copy import OURS
from topicproof.backend.history.evidence_export import hidden_of
from topicproof.backend.history.store import Run
from topicproof.backend.kafka.browse.records import Record
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.settings import Settings
from topicproof.backend.trust.login import configured_login
from topicproof.backend.trust.masking import MASKED, Field, masked_headers, masked_part


def hidden_fields(settings: Settings, *topics: str | None) -> tuple[Field, ...]:
    """Returns what this person does not see of these topics, by the rules of the login. Of unknown
    topics: what any rule masks."""
    login = configured_login(settings)
    if login is None or not login.masks:
        return ()
    return login.hidden(page_identity(settings), *topics)


Shown = TypeVar("Shown", Record, Row)


def hides_parts(settings: Settings, run: Run) -> bool:
    """Whether parts of the payloads that a run or check read are masked for this person. True, too,
    where rules mask anything for them and its topics are unknown: its row is damaged or names none,
    or its evidence cannot be read. Raises NotPermitted."""
    login = configured_login(settings)
    if login is None:
        return False
    try:
        return bool(hidden_of(login, settings, page_identity(settings), run))
    except EvidenceError:
        return True


def shown_error(settings: Settings, run: Run) -> str | None:
    """Returns the run's error; to somebody who does not see all of its topics only that there is
    one, because an error may quote a record."""
    if run.error is None or not hides_parts(settings, run):
        return run.error
    return (
        "Its error may quote payloads that are masked for your role. Ask somebody who sees them to"
        " open this page."
    )


def mask_records(fields: Sequence[Field], rows: Sequence[Shown]) -> tuple[Shown, ...]:
    """Returns the records without the `hidden_fields`."""
    return tuple(_masked(row, fields) for row in rows) if fields else tuple(rows)


def hides_our_headers(fields: Sequence[Field]) -> bool:
    """Whether lineage and transactions, which our sink writes as headers, are masked."""
    return any(
        field.part == "headers" or (field.part == "header" and field.path[0] in OURS)
        for field in fields
    )


def _masked(row: Shown, fields: Sequence[Field]) -> Shown:
    parts: dict[str, Any] = {
        "key": masked_part("key", row.key, fields),
        "value": masked_part("value", row.value, fields),
        "headers": masked_headers(row.headers, fields),
    }
    if isinstance(row, Record) and hides_our_headers(fields):
        # Read from headers of this record or of its transaction.
        parts["transaction"] = None if row.transaction is None else MASKED.decode()
    return replace(row, **parts)


def require_unmasked(settings: Settings, *topics: str | None) -> None:
    """Raises NotPermitted if parts of the topics are masked for this person."""
    if hidden_fields(settings, *topics):
        names = ", ".join(dict.fromkeys(filter(None, topics))) or "unknown topics"
        raise NotPermitted(
            f"Parts of the payloads of {names} are masked for your role. What depends on whole"
            " payloads is not shown: searches by content, drafts and previews of contracts."
        )
