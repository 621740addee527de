"""What a watch remembers on disk, so that a restart or a kill changes nothing: one file for each
cluster, replaced as a whole, with a checksum. One process at a time may have it.

The file has one JSON document in each line, the most important first: the head, alarms, notices
of the outbox and those that wait, topics, and the offsets of groups, which name topics by their
line. Bytes are counted as lines are made, so that no state is written that `read` would refuse,
whatever strangers call their groups. What has no room is left out of the file alone, and `write`
says so.

A small file beside it notes which of its notices were handed on since it was written. So a kill
loses none: what was not noted is handed on again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from topicproof.backend.errors import SetupError
from topicproof.backend.settings import Settings
from topicproof.backend.waiting import ask_until
from topicproof.backend.watch.alarms import (
    NO_ALARMS,
    Alarm,
    AlarmState,
    Notice,
    after_sending,
    alarm_from_json,
    importance,
    notice_from_json,
    stored,
)
from topicproof.backend.watch.conditions import NOTHING_BEFORE, Baseline
from topicproof.backend.watch.group_offsets import Place

FOLDER = "watch"
"""In the home."""
FORMAT = 2
BYTES_MAX = 64_000_000
"""Of a file. 25,000 offsets of 50 groups with long names take 1,000,000."""
SENT_BYTES_MAX = 100_000
"""Of the note of what was handed on."""
LOCK_TIMEOUT_S = 0.5
LEFT_OUT = (
    f"The state of this watch has room for {BYTES_MAX:,} bytes, and does not hold all. What is"
    " left out is not compared, or is told again, after a restart."
)


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
                content = file.read(BYTES_MAX + 1)
        except FileNotFoundError:
            return WatchState()
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from error
        if len(content) > BYTES_MAX:
            raise self._unusable(f"is larger than {BYTES_MAX:,} bytes: no watch wrote it")
        checksum, _, text = content.partition(b"\n")
        if checksum.decode("ascii", "replace") != hashlib.sha256(text).hexdigest():
            raise self._unusable("is damaged: it does not have its checksum")
        try:
            return self._without_sent(_state_of(text), checksum.decode())
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise self._unusable("was written by another version of Topicproof") from error

    def write(self, state: WatchState) -> str:
        """Replace the file: after a kill it holds this state or the one before. Returns a sentence
        if it does not hold all, else an empty text. Raises SetupError."""
        text, is_whole = _text_of(state)
        checksum = hashlib.sha256(text).hexdigest()
        # Most looks at a quiet cluster change nothing.
        if checksum != self._checksum or not self.path.exists():
            self._replace(self.path, checksum.encode() + b"\n" + text)
            self._checksum = checksum
        return "" if is_whole else LEFT_OUT

    def note_sent(self, places: Iterable[int], *, is_told: bool = False) -> None:
        """Note the places of the notices that wait in the file and were sent. `is_told`: those of
        its outbox were handed on, too. The file itself may be large. Raises SetupError."""
        note = [self._checksum, sorted(places), is_told]
        self._replace(self._sent, json.dumps(note).encode())

    def forget(self) -> None:
        """Begin anew."""
        for path in (self.path, self._sent, *self.pairs.parent.glob(f"{self.pairs.name}*")):
            path.unlink(missing_ok=True)

    @property
    def _sent(self) -> Path:
        return self.path.with_suffix(".sent")

    def _without_sent(self, state: WatchState, checksum: str) -> WatchState:
        """Return the state without the notices that were handed on after it was written."""
        self._checksum = checksum
        try:
            with self._sent.open("rb") as file:
                written_for, places, is_told = json.loads(file.read(SENT_BYTES_MAX))
        except (OSError, ValueError, TypeError):
            # None, or of an earlier version: what it noted is handed on again.
            return state
        if written_for != checksum:
            return state
        alarms = after_sending(state.alarms, [int(place) for place in places])
        return replace(state, alarms=replace(alarms, outbox=() if is_told else alarms.outbox))

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
    name = state_name(cluster)
    folder = settings.home / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / f"{name}.lock").open("wb")
    except OSError as error:
        raise SetupError(f"{folder} cannot be used: {error.strerror}.") from error
    with lock:
        # `is_watched` has it for a moment.
        if not ask_until(lambda: _is_taken(lock, fcntl.LOCK_EX), bool, LOCK_TIMEOUT_S):
            raise SetupError(
                f"Another process already watches this cluster with the home {settings.home}."
                " Stop it first, or set TOPICPROOF_HOME."
            )
        yield StateFile(folder / f"{name}.json")


def state_name(cluster: str) -> str:
    """Return the name of a cluster's files. A cluster's id is whatever its brokers answer, never a
    path."""
    return hashlib.sha256(cluster.encode(errors="surrogatepass")).hexdigest()[:16]


def is_watched(settings: Settings, cluster: str) -> bool:
    """Whether a process watches a cluster, given by its id, from this home."""
    try:
        lock = (settings.home / FOLDER / f"{state_name(cluster)}.lock").open("rb")
    except OSError:
        return False
    with lock:
        return not _is_taken(lock, fcntl.LOCK_SH)


def _is_taken(lock: IO[bytes], how: int) -> bool:
    """Take a lock of a file, unless another process has it."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True


def _text_of(state: WatchState) -> tuple[bytes, bool]:
    """Return the lines, and whether they hold all. A line that has no room is left out with all
    behind it of its kind: notices are sent in their order, and lines are numbered."""
    room = BYTES_MAX - hashlib.sha256().digest_size * 2 - 1
    lines: list[bytes] = []
    is_whole = True
    for of_kind in _documents_of(state):
        for document in of_kind:
            # A character outside of ASCII takes 4 bytes at most, and its escape takes 12.
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            line = text.encode(errors="surrogatepass") + b"\n"
            if len(line) > room:
                is_whole = False
                break
            room -= len(line)
            lines.append(line)
    return b"".join(lines), is_whole


def _documents_of(state: WatchState) -> Iterator[Iterable[list[object]]]:
    """Yield what lies in lines, by kind. Each name of a group or a topic is in it once."""
    alarms, baseline = state.alarms, state.baseline
    yield [["format", FORMAT, alarms.dropped]]
    yield (["alarm", stored(alarm)] for alarm in sorted(alarms.alarms.values(), key=importance))
    yield (["outbox", stored(notice)] for notice in alarms.outbox)
    yield (["waiting", stored(notice)] for notice in alarms.waiting)
    starts: dict[str, list[int]] = {}
    for (topic, partition), start in baseline.log_starts.items():
        starts.setdefault(topic, []).extend((partition, start))
    groups: dict[str, dict[str, list[int]]] = {}
    for (group, topic, partition), offset in baseline.offsets.items():
        groups.setdefault(group, {}).setdefault(topic, []).extend((partition, offset))
    of_groups = (topic for topics in groups.values() for topic in topics)
    numbers = {
        topic: number
        for number, topic in enumerate(dict.fromkeys([*baseline.topic_ids, *starts, *of_groups]))
    }
    yield (
        ["topic", topic, baseline.topic_ids.get(topic), starts.get(topic, [])] for topic in numbers
    )
    yield (
        ["group", group, [[numbers[topic], *offsets] for topic, offsets in topics.items()]]
        for group, topics in groups.items()
    )


def _state_of(text: bytes) -> WatchState:
    """Raises ValueError, KeyError, TypeError, IndexError, RecursionError."""
    head, *documents = (json.loads(line) for line in text.splitlines())
    if head[:2] != ["format", FORMAT]:
        raise ValueError(f"format {head}")
    alarms: dict[str, Alarm] = {}
    waiting: list[Notice] = []
    outbox: list[Notice] = []
    topics: list[str] = []
    topic_ids: dict[str, str] = {}
    log_starts: dict[tuple[str, int], int] = {}
    offsets: dict[Place, int] = {}
    for kind, *fields in documents:
        if kind == "alarm":
            alarm = alarm_from_json(fields[0])
            alarms[alarm.condition.key] = alarm
        elif kind == "waiting":
            waiting.append(notice_from_json(fields[0]))
        elif kind == "outbox":
            outbox.append(notice_from_json(fields[0]))
        elif kind == "topic":
            topic, topic_id, starts = fields
            topics.append(str(topic))
            if topic_id is not None:
                topic_ids[topic] = str(topic_id)
            log_starts |= {(topic, partition): start for partition, start in _pairs(starts)}
        elif kind == "group":
            group, places = fields
            for number, *numbers in places:
                # A topic that had no room has no number, and a group of it is not compared.
                if number < len(topics):
                    offsets |= {
                        Place(str(group), topics[number], partition): offset
                        for partition, offset in _pairs(numbers)
                    }
        else:
            raise ValueError(f"a line of {kind}")
    return WatchState(
        AlarmState(alarms, tuple(waiting), int(head[2]), tuple(outbox)),
        Baseline(offsets, topic_ids, log_starts),
    )


def _pairs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Partitions, each with an offset. Raises ValueError."""
    return ((int(a), int(b)) for a, b in zip(numbers[::2], numbers[1::2], strict=True))
