"""How the history database came to its present shape, one file a step, applied by Alembic.

A step is never changed once it was released. `topicproof.backend.history.store.REVISION` names the
newest.
"""
