"""Sign-offs: rows can be added, but not changed or removed. Database triggers prevent accidents by
programs or people. If somebody drops the triggers first, the hash chain still exposes the
change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

REFUSAL = "signoffs are append-only"


def upgrade() -> None:
    op.create_table(
        "signoffs",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("run", sa.String(), nullable=False, index=True),
        sa.Column("made_at", sa.DateTime(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("kind", sa.String()),
        sa.Column("until", sa.Date()),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("evidence", sa.String(), nullable=False),
        sa.Column("previous", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        for change in ("update", "delete"):
            op.execute(
                f"create trigger signoffs_refuse_{change} before {change} on signoffs "
                f"begin select raise(abort, '{REFUSAL}'); end"
            )
    else:
        op.execute(
            "create function signoffs_refuse() returns trigger language plpgsql as "
            f"$$ begin raise exception '{REFUSAL}'; end $$"
        )
        op.execute(
            "create trigger signoffs_refuse before update or delete on signoffs "
            "for each row execute function signoffs_refuse()"
        )
