"""Rows and offset in one transaction of a database. At-least-once upserts the rows first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from topicproof.backend.errors import Fenced, NotDelivered, OffsetMissing, SinkError
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.group import GroupPosition, earlier_generation
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.position import Position
from topicproof.backend.sink.table import LINEAGE, OFFSETS, answering, rows_of, said, shown
from topicproof.backend.sink.task import SinkTask
from topicproof.validators.finding import Guarantee


class DatabasePosition(GroupPosition):
    """The group's offset in the database. Kafka is asked only about holes in the source."""

    def __init__(self, task: SinkTask, engine: Engine) -> None:
        super().__init__(task)
        self.engine = engine

    def read(self) -> Position:
        task = self.task
        query = select(OFFSETS.c.next_offset, OFFSETS.c.sequence, OFFSETS.c.generation)
        with answering(self.engine), self.engine.connect() as connection:
            row = connection.execute(query.where(*own_offset(task))).one_or_none()
        if row is None:
            raise OffsetMissing(
                f"Group {task.sink.group} has no offset for {task.where} in {shown(self.engine)},"
                " so it is unknown what was processed. Set where it begins (make_tables) and start"
                " with an empty table."
            )
        if row.generation > task.sink.generation > 0:
            raise earlier_generation(task)
        return Position(row.sequence, row.next_offset)


class DatabaseDelivery:
    """Compares and sets the offset. This fences, so nothing is taken over beforehand."""

    def __init__(self, task: SinkTask, engine: Engine) -> None:
        self.task, self.engine = task, engine
        self.appends = task.sink.guarantee is Guarantee.EXACTLY_ONCE
        self.table = rows_of(str(task.sink.topic))

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.engine.dispose()

    def prepare(self, contents: Contents) -> None:
        pass

    def attempt(self, contents: Contents, attempt: int) -> None:
        try:
            with self.engine.begin() as connection:
                self.task.step(Step.BEGUN, contents, self.flush)
                self._write(connection, contents)
                if self.appends:
                    self._written(contents, attempt)
                    self._set_offset(connection, contents)
                    self.task.step(Step.OFFSET_SENT, contents, self.flush)
            if not self.appends:
                # The rows are visible. If this worker dies now, the next one upserts them again.
                self._written(contents, attempt)
                with self.engine.begin() as connection:
                    self._set_offset(connection, contents)
                self.task.step(Step.OFFSET_SENT, contents, self.flush)
        except DBAPIError as error:
            # The commit or its answer may be lost. The next attempt's comparison decides.
            raise NotDelivered(f"{shown(self.engine)}: {said(error)}.") from error

    def after_failure(self, contents: Contents, error: SinkError) -> Contents:  # noqa: ARG002
        return contents

    def flush(self) -> None:
        pass

    def _written(self, contents: Contents, attempt: int) -> None:
        self.task.step(Step.PRODUCED, contents, self.flush)
        self.task.hooks.maybe_abort(contents.sequence, attempt, self.flush)

    def _write(self, connection: Connection, contents: Contents) -> None:
        rows = [
            dict(zip(LINEAGE, (*self.task.source, offset, index), strict=True))
            | {"key": key, "value": value}
            for offset, index, _topic, key, value, _headers in contents.outputs
        ]
        half = len(rows) // 2
        self._insert(connection, rows[:half])
        self.task.step(Step.PRODUCING, contents, self.flush)
        self._insert(connection, rows[half:])

    def _insert(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        if self.appends:
            connection.execute(insert(self.table), rows)
            return
        dialect = postgresql if self.engine.dialect.name == "postgresql" else sqlite
        upsert = dialect.insert(self.table)
        values = {name: upsert.excluded[name] for name in ("key", "value")}
        connection.execute(upsert.on_conflict_do_update(index_elements=LINEAGE, set_=values), rows)

    def _set_offset(self, connection: Connection, contents: Contents) -> None:
        sink = self.task.sink
        generation = (OFFSETS.c.generation == sink.generation,) if sink.generation else ()
        moved = (
            update(OFFSETS)
            .where(*own_offset(self.task), OFFSETS.c.next_offset == contents.first, *generation)
            .values(next_offset=contents.following, sequence=contents.sequence)
        )
        if connection.execute(moved).rowcount != 1:
            raise Fenced(
                f"{self.task.where}: another writer of group {sink.group} has already continued"
                f" from {contents.first}, or the query was stopped or restarted in the meantime."
            )


def own_offset(task: SinkTask) -> tuple[Any, ...]:
    """Select the row of this group and source partition."""
    topic, partition = task.source
    columns = OFFSETS.c
    return (
        columns.group_id == task.sink.group,
        columns.topic == topic,
        columns.partition == partition,
    )
