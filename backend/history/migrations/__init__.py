"""Migrations of the history database, one file per step, applied by Alembic.

A released step never changes. `topicproof.backend.history.store.REVISION` names the newest.
"""
