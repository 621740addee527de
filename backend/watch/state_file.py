"""What a watch remembers on disk, so that a restart or a kill changes nothing: one file for each
cluster, replaced as a whole, with a checksum. One process at a time may have it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from topicproof.backend.errors import SetupError
from topicproof.backend.settings import Settings
from topicproof.backend.watch.alarms import (
    NO_ALARMS,
    AlarmState,
    alarm_from_json,
    notice_from_json,
    stored,
)
from topicproof.backend.watch.conditions import NOTHING_BEFORE, Baseline
from topicproof.backend.watch.group_offsets import Place

FOLDER = "watch"
"""In the home."""
FORMAT = 1
BYTES_MAX = 64_000_000
"""A larger file is not ours: a state has at most some 20,000,000 bytes."""


@dataclass(frozen=True)
class WatchState:
    """All that a watch knows of the past."""

    alarms: AlarmState = NO_ALARMS
    baseline: Baseline = NOTHING_BEFORE


class StateFile:
    """The state of one cluster's watch. Nobody else has it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checksum = ""

    @property
    def pairs(self) -> Path:
        """The file of the contracts' pairs, beside this one."""
        return self.path.with_suffix(".pairs")

    def read(self) -> WatchState:
        """Return the state; an empty one at the first time. Raises SetupError if it is damaged."""
        try:
            with self.path.open("rb") as file:
                content = file.read(BYTES_MAX)
        except FileNotFoundError:
            return WatchState()
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from error
        checksum, _, text = content.partition(b"\n")
        if checksum.decode("ascii", "replace") != hashlib.sha256(text).hexdigest():
            raise self._unusable("is damaged: it does not have its checksum")
        try:
            return self._without_sent(_state_of(text), checksum.decode())
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._unusable("was written by another version of Topicproof") from error

    def write(self, state: WatchState) -> None:
        """Replace the file: after a kill it holds this state or the one before. Raises
        SetupError."""
        text = json.dumps(_fields_of(state)).encode()
        self._checksum = hashlib.sha256(text).hexdigest()
        self._replace(self.path, self._checksum.encode() + b"\n" + text)

    def note_sent(self, count: int) -> None:
        """Note how many of the notices that wait in the file were sent. The file itself may be
        large. Raises SetupError."""
        self._replace(self._sent, f"{self._checksum} {count}".encode())

    def forget(self) -> None:
        """Begin anew."""
        for path in (self.path, self._sent, *self.pairs.parent.glob(f"{self.pairs.name}*")):
            path.unlink(missing_ok=True)

    @property
    def _sent(self) -> Path:
        return self.path.with_suffix(".sent")

    def _without_sent(self, state: WatchState, checksum: str) -> WatchState:
        """Return the state without the notices that were sent after it was written."""
        self._checksum = checksum
        try:
            of, _, count = self._sent.read_bytes()[:200].decode("ascii", "replace").partition(" ")
        except OSError:
            return state
        sent = int(count) if of == checksum else 0
        waiting = state.alarms.waiting[sent:]
        return replace(state, alarms=replace(state.alarms, waiting=waiting))

    def _replace(self, path: Path, content: bytes) -> None:
        new = self.path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror}") from error

    def _unusable(self, why: str) -> SetupError:
        return SetupError(
            f"The state of this watch, {self.path}, {why}. `topicproof watch --anew` begins"
            " without it: what lasts is then told again."
        )


@contextmanager
def state_file(settings: Settings, cluster: str) -> Iterator[StateFile]:
    """Open the state of a cluster, given by its id, for this process alone. Raises SetupError if
    another process watches the cluster from the same home, or the folder cannot be made."""
    # A cluster's id is whatever its brokers answer, never a path.
    name = hashlib.sha256(cluster.encode(errors="surrogatepass")).hexdigest()[:16]
    folder = settings.home / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / f"{name}.lock").open("wb")
    except OSError as error:
        raise SetupError(f"{folder} cannot be used: {error.strerror}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise SetupError(
                f"Another process already watches this cluster with the home {settings.home}."
                " Stop it first, or set TOPICPROOF_HOME."
            ) from error
        yield StateFile(folder / f"{name}.json")


def _fields_of(state: WatchState) -> dict[str, object]:
    return {
        "format": FORMAT,
        "alarms": [stored(alarm) for alarm in state.alarms.alarms.values()],
        "waiting": [stored(notice) for notice in state.alarms.waiting],
        "dropped": state.alarms.dropped,
        "offsets": [[*place, offset] for place, offset in state.baseline.offsets.items()],
        "topic_ids": dict(state.baseline.topic_ids),
        "log_starts": [[*place, start] for place, start in state.baseline.log_starts.items()],
    }


def _state_of(text: bytes) -> WatchState:
    fields = json.loads(text)
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']}")
    alarms = [alarm_from_json(alarm) for alarm in fields["alarms"]]
    return WatchState(
        alarms=AlarmState(
            alarms={alarm.condition.key: alarm for alarm in alarms},
            waiting=tuple(notice_from_json(notice) for notice in fields["waiting"]),
            dropped=int(fields["dropped"]),
        ),
        baseline=Baseline(
            offsets={
                Place(str(group), str(topic), int(partition)): int(offset)
                for group, topic, partition, offset in fields["offsets"]
            },
            topic_ids={str(name): str(topic_id) for name, topic_id in fields["topic_ids"].items()},
            log_starts={
                (str(topic), int(partition)): int(start)
                for topic, partition, start in fields["log_starts"]
            },
        ),
    )
