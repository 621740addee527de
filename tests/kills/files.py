"""Kills while something is written: evidence, a copy of it, a sign-off, a key, a migration.

A fork of this process works until it is killed. The next process must find all of it or nothing.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.app.test_history_page import HELD
from tests.backend.history.test_migrations import BEFORE
from tests.kills.kill import Kill
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.attestation import Trust, attest, vouching
from topicproof.backend.evidence.copy import copy_all
from topicproof.backend.evidence.folder import complete, read_report
from topicproof.backend.evidence.manifest import Payloads, require_unchanged
from topicproof.backend.history.signoff import Decision, read_chain, sign, signoffs
from topicproof.backend.history.store import History
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.trust.keyring import read_keyring, signing_key

ROW = (
    "insert into runs values ('old', 'run', '2026-01-01 10:00:00', '2026-01-01 10:01:00', 'done',"
    " null, null, false, '{}', '{}', '{}', 'HOLDS', 'all of it', null)"
)


@dataclass(frozen=True)
class Writing:
    """Something that is written."""

    prepare: Callable[[Settings], object]
    work: Callable[[Settings], object]
    wrong: Callable[[Settings], str]
    """What the next process finds wrong; empty if all is well. It also writes once more."""


def kill_writing(home: Path, victim: str, chance: random.Random) -> Kill:
    """Kill a fork that writes, at a random moment of the time that it needs."""
    writing = WRITINGS[victim]
    settings = read_settings(home=home / "tried")
    writing.prepare(settings)
    began = time.monotonic()
    _end(_fork(writing, settings), None)
    needed_s = time.monotonic() - began
    settings = read_settings(home=home / "killed")
    writing.prepare(settings)
    delay = chance.uniform(0, needed_s)
    began = time.monotonic()
    _end(_fork(writing, settings), delay)
    try:
        surprise = writing.wrong(settings)
    except Exception as error:
        surprise = f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - began - delay
    return Kill(victim, f"{1000 * delay:.0f} of {1000 * needed_s:.0f} ms", took_s, "", surprise)


def _fork(writing: Writing, settings: Settings) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            writing.work(settings)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def _end(pid: int, after_s: float | None) -> None:
    """Wait for a fork, or kill it after a time. Raises AssertionError if it failed by itself."""
    if after_s is not None:
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)


def _folder(settings: Settings) -> Path:
    folder = settings.home / "evidence"
    (folder / "ledger").mkdir(parents=True, exist_ok=True)
    return folder


def _write(settings: Settings) -> None:
    complete(_folder(settings), replace(HELD, run="squares-a"), {"plan.json": {}})
    attest(settings, _folder(settings))


def _is_whole(settings: Settings, folder: Path) -> bool:
    """Whether a folder passes as evidence. Raises nothing else than EvidenceError."""
    try:
        require_unchanged(folder)
        read_report(folder)
    except EvidenceError:
        return False
    return vouching(folder, read_keyring(settings)).trust is Trust.VOUCHED


def _evidence_wrong(settings: Settings) -> str:
    folder = _folder(settings)
    _is_whole(settings, folder)
    _write(settings)
    return "" if _is_whole(settings, folder) else "it cannot be written again"


def _copy(settings: Settings) -> None:
    copy_all(_folder(settings), settings.home / "copy", Payloads.MASKED, settings=settings)


def _copy_wrong(settings: Settings) -> str:
    copy = settings.home / "copy"
    with suppress(EvidenceError):
        require_unchanged(copy)
        if read_report(copy) != read_report(_folder(settings)):
            return "a copy that passes differs from the original"
    again = settings.home / "again"
    copy_all(_folder(settings), again, Payloads.MASKED, settings=settings)
    require_unchanged(again)
    return "" if _is_whole(settings, _folder(settings)) else "the original was damaged"


def _sign(settings: Settings, times: int = 5) -> None:
    history = History(settings)
    for number in range(times):
        sign(history, "squares-a", [HELD], "e1", Decision.ACCEPT, f"Grace {number}")
    history.engine.dispose()


def _sign_wrong(settings: Settings) -> str:
    history = History(settings)
    before = len(signoffs(history))
    sign(history, "squares-a", [HELD], "e1", Decision.ACCEPT, "Kurt")
    chain = read_chain(history)
    history.engine.dispose()
    if len(chain.entries) != before + 1 or chain.broken is not None:
        return "the chain is broken"
    return f"entries without a signature: {chain.unanchored}" if chain.unanchored else ""


def _key_wrong(settings: Settings) -> str:
    first, second = (signing_key(settings).id for _ in range(2))
    return "" if first == second else "the key changes"


def _old_history(settings: Settings) -> None:
    with closing(sqlite3.connect(settings.home / "history.db")) as database:
        database.execute(BEFORE.format(time="datetime"))
        database.execute(ROW)
        database.commit()


def _migrate(settings: Settings) -> None:
    History(settings).engine.dispose()


def _migration_wrong(settings: Settings) -> str:
    history = History(settings)
    kept, entries = history.get("old"), signoffs(history)
    history.create("run", "squares", {})
    history.engine.dispose()
    return "" if kept.why == "all of it" and entries == [] else "the old run is not as it was"


WRITINGS = {
    "evidence": Writing(signing_key, _write, _evidence_wrong),
    "copy": Writing(_write, _copy, _copy_wrong),
    "sign-off": Writing(_sign, _sign, _sign_wrong),
    "key": Writing(lambda _settings: None, signing_key, _key_wrong),
    "migration": Writing(_old_history, _migrate, _migration_wrong),
}
