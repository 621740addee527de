"""Runs and checks. A history older than migrations already has this table, which is kept
unchanged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    if "runs" in sa.inspect(op.get_bind()).get_table_names():
        return
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("ended_at", sa.DateTime()),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("owner", sa.String()),
        sa.Column("renewed_at", sa.DateTime()),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("verdict", sa.String()),
        sa.Column("why", sa.Text()),
        sa.Column("error", sa.Text()),
    )
