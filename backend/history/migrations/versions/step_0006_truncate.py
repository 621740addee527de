"""Sign-offs and the audit log refuse two more ways to remove rows. PostgreSQL's TRUNCATE is no
DELETE. SQLite's INSERT OR REPLACE deletes a row without its delete triggers, unless a connection
has the pragma recursive_triggers."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"

REFUSALS = {"signoffs": "signoffs are append-only", "audit": "audit is append-only"}


def upgrade() -> None:
    for table, refusal in REFUSALS.items():
        if op.get_bind().dialect.name == "sqlite":
            op.execute(
                f"create trigger {table}_refuse_replace before insert on {table} "
                f"when exists (select 1 from {table} where number = new.number) "
                f"begin select raise(abort, '{refusal}'); end"
            )
        else:
            op.execute(
                f"create trigger {table}_refuse_truncate before truncate on {table} "
                f"for each statement execute function {table}_refuse()"
            )
