"""Runs the steps on the connection that `topicproof.backend.history.store` hands over, within its
transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
