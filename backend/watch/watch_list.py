"""The contracts that somebody has put on the list of a home: each watch of their cluster judges
them, beside those of its command.

One file for the home. A watch reads it before each look, so a contract is watched, or no longer
watched, without a restart.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.errors import SetupError, UsageError
from topicproof.backend.history.audit import allow
from topicproof.backend.history.kept_contracts import require_keepable
from topicproof.backend.history.store import History
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.watch.state_file import FOLDER
from topicproof.backend.watch.watchable import WatchedContract, watched_contracts

LISTED_MAX = 200
"""Contracts of a list, over all clusters."""
BYTES_MAX = 20_000_000
"""Of the file."""


@dataclass(frozen=True)
class ListedContract:
    """A contract on the list."""

    name: str
    """One of a cluster has it."""
    text: str
    """The contract as YAML."""
    cluster_id: str
    """What its cluster calls itself."""
    cluster: str = ""
    """The name of its cluster in the settings; empty without one."""
    bootstrap: str = ""
    """Its address there; empty for the embedded Kafka."""

    @classmethod
    def at(cls, settings: Settings, cluster_id: str, name: str, text: str) -> ListedContract:
        """Return a contract of the cluster of these settings."""
        return cls(name, text, cluster_id, settings.cluster or "", settings.bootstrap or "")

    @property
    def place(self) -> tuple[str, str]:
        """Its cluster and name: no other contract of the list has both."""
        return self.cluster_id, self.name

    def is_of(self, settings: Settings) -> bool:
        """Whether it was put on the list for the cluster of these settings, by name and address. No
        cluster has to answer for that."""
        return (self.cluster, self.bootstrap) == (settings.cluster or "", settings.bootstrap or "")

    def has_standing(self, name: str) -> bool:
        """Whether a watch calls this contract, or one of its sinks, by that name."""
        return name == self.name or name.startswith(f"{self.name}:")

    def watched(self) -> tuple[WatchedContract, ...]:
        """Return a contract for each of its sinks. Raises ContractError."""
        return _watched(self.name, self.text)


@lru_cache(maxsize=2 * LISTED_MAX)
def _watched(name: str, text: str) -> tuple[WatchedContract, ...]:
    """Cached: a watch reads the list before each look."""
    return watched_contracts(name, make_contract(parse_fields(text, name)))


_LIST = TypeAdapter(tuple[ListedContract, ...])


def read_list(settings: Settings) -> tuple[ListedContract, ...]:
    """Return the list of a home. Raises SetupError if it cannot be read."""
    path = _path(settings)
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise ValueError("it is too large")
        return _LIST.validate_json(content)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        why = "it is damaged" if isinstance(error, ValidationError) else error
        raise SetupError(
            f"The list of watched contracts, {path}, cannot be read: {why}. Delete it, and begin"
            " the watches again."
        ) from error


def list_contract(history: History, contract: ListedContract) -> None:
    """Put a contract on the list, in place of one with its name. Raises ContractError naming each
    term that cannot be watched, UsageError for a name that is not allowed, for topics that are
    listed under another name and for a full list; NotPermitted, SetupError."""
    allow(history, Action.WATCH, contract.name)
    require_keepable(history, contract.name, contract.text)
    matches = {each.state_name for each in contract.watched()}

    def added(contracts: Sequence[ListedContract]) -> tuple[ListedContract, ...]:
        others = [each for each in contracts if each.place != contract.place]
        for other in others:
            is_here = other.cluster_id == contract.cluster_id
            if is_here and matches & {each.state_name for each in other.watched()}:
                raise UsageError(
                    f"The contract {other.name} already watches the same topics. Stop its watch"
                    " first."
                )
        if len(others) >= LISTED_MAX:
            raise UsageError(
                f"{LISTED_MAX} contracts are watched, which is the most. Stop one of them first."
            )
        return (*others, contract)

    _change(history.settings, added)


def unlist_contract(history: History, contract: ListedContract) -> None:
    """Take a contract off the list. Raises NotPermitted, SetupError."""
    allow(history, Action.UNWATCH, contract.name)
    _change(
        history.settings,
        lambda contracts: tuple(each for each in contracts if each.place != contract.place),
    )


def watched_of_list(
    settings: Settings, cluster_id: str, contracts: Sequence[WatchedContract] = ()
) -> tuple[WatchedContract, ...]:
    """Return what a watch of this cluster judges: its own contracts, and those on the list that
    match other topics under other names. Raises SetupError, ContractError."""
    watched = list(contracts)
    for listed in read_list(settings):
        if listed.cluster_id != cluster_id:
            continue
        names = {each.name for each in watched}
        matches = {each.state_name for each in watched}
        watched += [
            each
            for each in listed.watched()
            if each.name not in names and each.state_name not in matches
        ]
    return tuple(watched)


def _path(settings: Settings) -> Path:
    return settings.home / FOLDER / "list.json"


def _change(
    settings: Settings,
    change: Callable[[Sequence[ListedContract]], tuple[ListedContract, ...]],
) -> None:
    """Replace the list. Of two who change it at once, one waits for the other."""
    path = _path(settings)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            contracts = change(read_list(settings))
            new = path.with_suffix(".new")
            new.write_text(json.dumps([asdict(each) for each in contracts]), encoding="utf-8")
            new.replace(path)
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}.") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
