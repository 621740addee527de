"""Contracts by name and version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "contracts",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("kept_at", sa.DateTime(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )
