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
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.errors import ContractError, SetupError, UsageError
from topicproof.backend.history.audit import allow
from topicproof.backend.history.kept_contracts import require_keepable
from topicproof.backend.history.store import History
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.watch.state_file import FOLDER
from topicproof.backend.watch.watchable import (
    ContractsToWatch,
    RefusedContract,
    WatchedContract,
    watched_contracts,
)

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
            if is_here and matches & _matches(other):
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


def _matches(contract: ListedContract) -> set[str]:
    """Return the state names of a contract; none of one that cannot be watched any more."""
    try:
        return {each.state_name for each in contract.watched()}
    except ContractError:
        return set()


def unlist_contract(history: History, contract: ListedContract) -> None:
    """Take a contract off the list. Raises NotPermitted, SetupError."""
    allow(history, Action.UNWATCH, contract.name)
    _change(
        history.settings,
        lambda contracts: tuple(each for each in contracts if each.place != contract.place),
    )


def watched_of_list(
    settings: Settings, cluster_id: str, contracts: Sequence[WatchedContract] = ()
) -> ContractsToWatch:
    """Return what a watch of this cluster judges: its own contracts, and those on the list. One on
    the list whose name is taken gets another one. Refused is one that cannot be watched, and one of
    topics that another contract watches by other terms. Raises SetupError."""
    watched = {each.name: each for each in contracts}
    refused: list[RefusedContract] = []

    def free_name(name: str) -> str:
        taken = {*watched, *(each.name for each in refused)}
        names = (f"{name} (listed{number})" for number in ("", *range(2, LISTED_MAX)))
        return next(each for each in (name, *names) if each not in taken)

    for listed in read_list(settings):
        if listed.cluster_id != cluster_id:
            continue
        try:
            of_listed = listed.watched()
        except ContractError as error:
            refused.append(RefusedContract(free_name(listed.name), str(error), listed.name))
            continue
        for each in of_listed:
            same = next((it for it in watched.values() if it.state_name == each.state_name), None)
            if same is None:
                name = free_name(each.name)
                watched[name] = replace(each, name=name, listed=listed.name)
            elif same.is_judged_as(each):
                watched[same.name] = replace(same, listed=listed.name)
            else:
                why = (
                    f"{same.name} matches the same topics by other terms, and is judged in its"
                    " place."
                )
                name = free_name(each.name)
                refused.append(RefusedContract(name, why, listed.name, each.source, each.sink))
    return ContractsToWatch(tuple(watched.values()), tuple(refused))


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
