"""The fate of one offset, and a sentence that explains it."""

from __future__ import annotations

from dataclasses import dataclass

from topicproof.validators.finding import Fate


@dataclass(frozen=True)
class Transaction:
    """The raw log's account of one transaction on one partition."""

    first_offset: int
    marker_offset: int | None
    control: str | None
    """COMMIT or ABORT; None without a marker in the bounds."""


@dataclass(frozen=True)
class Account:
    """The raw log's account of one offset."""

    fate: Fate
    control: str | None
    held: bool
    """Whether the offset must hold a record."""
    thinned: bool
    """Whether compaction left only some records of the batch, so the offset may hold one."""
    transactional: bool
    transaction: int | None
    producer_id: int | None


def fate_of(account: Account, came: bool) -> Fate:
    """Return the fate of one offset: the range's, unless a committed or aborted record did not
    arrive."""
    if account.fate not in (Fate.COMMITTED, Fate.ABORTED) or came:
        return account.fate
    return Fate.UNEXPLAINED if account.held else Fate.GONE


def why(
    account: Account,
    fate: Fate,
    transaction: Transaction | None,
    delivered: bool,
    came: bool,
    lso: int,
) -> str:
    """Explain in one sentence why a read_committed consumer does or does not receive the offset."""
    marker = transaction.marker_offset if transaction else None
    at = f" (marker at {marker:,})" if marker is not None else ""
    if account.control is not None and (fate in (Fate.MARKER, Fate.PENDING)):
        ends = (
            f" for the transaction that began at {transaction.first_offset:,}"
            if transaction
            else ""
        )
        kind = {"COMMIT": "A commit marker", "ABORT": "An abort marker"}.get(
            account.control, "A control record"
        )
        return f"{kind}{ends}; no consumer ever gets one."
    if delivered != (fate == Fate.COMMITTED):
        outcome = "got it" if delivered else "did not get it"
        return (
            f"The raw log says {fate.lower()}{at}, but a read_committed consumer {outcome}: one of"
            " them is wrong."
        )
    if fate == Fate.COMMITTED:
        return (
            f"Delivered: its transaction committed{at}."
            if account.transactional
            else "Delivered: it is in no transaction."
        )
    if fate == Fate.ABORTED:
        return f"Not delivered: its transaction was aborted{at}."
    if fate == Fate.UNEXPLAINED:
        return (
            f"Below the last stable offset {lso:,}, but no marker says how its transaction ended."
            if came or not account.held
            else (
                "The batch headers said that a record is here, but no consumer got it: read the"
                " bounds again."
            )
        )
    if fate == Fate.GONE or not (came or account.held):
        return "Nothing is left here: it was compacted or deleted."
    return _why_pending(account, transaction, at, lso)


def _why_pending(account: Account, transaction: Transaction | None, at: str, lso: int) -> str:
    behind = f"the open transaction that holds the last stable offset at {lso:,}"
    if not account.transactional:
        return f"Not yet: it is in no transaction, but waits behind {behind}."
    if transaction is None or transaction.control is None:
        return f"Not yet: its transaction is open; the last stable offset is {lso:,}."
    if transaction.control == "COMMIT":
        return f"Not yet: its transaction committed{at}, but it waits behind {behind}."
    return f"Never: its transaction was aborted{at}; until then it waits behind {behind}."
