"""Who signed, and the audit log, to which rows can only be added."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

REFUSAL = "audit is append-only"


def upgrade() -> None:
    op.add_column("signoffs", sa.Column("identity", sa.Text()))
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("made_at", sa.DateTime(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("allowed", sa.Boolean(), nullable=False),
        sa.Column("previous", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        for change in ("update", "delete"):
            op.execute(
                f"create trigger audit_refuse_{change} before {change} on audit "
                f"begin select raise(abort, '{REFUSAL}'); end"
            )
    else:
        op.execute(
            "create function audit_refuse() returns trigger language plpgsql as "
            f"$$ begin raise exception '{REFUSAL}'; end $$"
        )
        op.execute(
            "create trigger audit_refuse before update or delete on audit "
            "for each row execute function audit_refuse()"
        )
