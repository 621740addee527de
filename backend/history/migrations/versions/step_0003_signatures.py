"""Signatures of sign-offs. Earlier sign-offs have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("signoffs", sa.Column("envelope", sa.Text()))
