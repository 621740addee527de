"""Runs the migrations on the connection from `topicproof.backend.history.store`, within its
transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
