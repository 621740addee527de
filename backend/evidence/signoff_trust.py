"""Whether the sign-offs beside evidence are what they seem.

An entry counts if a trusted key signed exactly what it shows, and if it speaks of this run and this
evidence. Without a signature anyone may have written it: its own hash has no key. So each entry is
compared with its envelope, and the envelope with the keyring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topicproof.backend.evidence.attestation import revoked_says, signers_of
from topicproof.backend.evidence.signed import (
    Entries,
    entry_contradiction,
    entry_number,
    orders,
    parse_entry_envelope,
    sentence_on,
    signoff_text,
    statement_fields,
)
from topicproof.backend.trust.keyring import Keyring

KEY_SHOWN = 16


class SignoffTrust(StrEnum):
    """What an entry beside evidence is worth."""

    VOUCHED = "signed by a trusted key"
    UNPROVEN = "signed by a trusted key, perhaps about other evidence"
    """Neither the original manifest nor the same key says that the copy is one of the evidence that
    the entry names."""
    OTHER = "about other evidence"
    """About earlier evidence of this run, or about more than this part of it: it does not count."""
    UNSIGNED = "not signed"
    STRANGER = "signed by an unknown key"
    REVOKED = "signed by a revoked key"
    BROKEN = "not what was signed"

    @property
    def refused(self) -> bool:
        """Whether evidence beside such an entry is refused in any case."""
        return self in (SignoffTrust.REVOKED, SignoffTrust.BROKEN)

    @property
    def by_trusted(self) -> bool:
        """Whether a trusted key vouches for what the entry says, and it is known what about."""
        return self in (SignoffTrust.VOUCHED, SignoffTrust.OTHER)


Proof = frozenset[str] | None
"""Why a copy is known to be the evidence whose hash its manifest names. None: the original manifest
lies in it and fits. Else the ids of the trusted keys that vouch for the copy. What such a key says
of the original counts for its own sign-offs alone: it may not put another key's name under evidence
which that key never saw."""


@dataclass(frozen=True)
class Subject:
    """What the sign-offs beside evidence must speak of."""

    run: str | None
    evidence: Mapping[str, Proof]
    """The hash of the original manifest, and that of all stages together if they are there, each
    with its proof."""


@dataclass(frozen=True)
class SignoffVouching:
    """One entry beside evidence, and who vouches for it."""

    number: int | None
    trust: SignoffTrust
    text: str
    """Who decided what and when: the words that were signed, if anything was."""
    says: str
    """One sentence about the signature."""
    key: str | None = None
    """The id of the key that signed, if it is known here."""
    name: str | None = None
    """Who holds the key, in the words of this installation."""


def vouched_signoffs(
    entries: Entries, subject: Subject, keyring: Keyring
) -> tuple[SignoffVouching, ...]:
    """Return what each entry is worth, in their order."""
    return tuple(
        _vouched(entry, in_order, subject, keyring)
        for entry, in_order in zip(entries, orders(entries), strict=True)
    )


def _vouched(
    entry: Mapping[str, Any], in_order: bool, subject: Subject, keyring: Keyring
) -> SignoffVouching:
    text = signoff_text(entry)
    problem = entry_contradiction(entry, in_order)
    if problem is not None:
        return _answer(entry, SignoffTrust.BROKEN, text, sentence_on(entry, problem))
    fields = statement_fields(entry) or entry
    # The hash covers the manifest, which names the run that was judged, so it decides.
    evidence = fields.get("evidence")
    about_this = isinstance(evidence, str) and evidence in subject.evidence
    if fields.get("run") != subject.run and not about_this:
        problem = "speaks of another run than this evidence."
        return _answer(entry, SignoffTrust.BROKEN, text, sentence_on(entry, problem))
    if entry.get("envelope") is None:
        says = "It is not signed: anyone who had this copy may have written it."
        return _answer(entry, SignoffTrust.UNSIGNED, text, says)
    proof = subject.evidence.get(str(fields.get("evidence")))
    return _by_key(entry, text, keyring, about_this=about_this, proof=proof)


def _by_key(
    entry: Mapping[str, Any], text: str, keyring: Keyring, *, about_this: bool, proof: Proof
) -> SignoffVouching:
    envelope = parse_entry_envelope(entry)
    holder, hint = signers_of(envelope, keyring)
    if holder is None and any(each.key_id in keyring for each in envelope.signatures):
        problem = "names a key that is known here and that did not sign it."
        return _answer(entry, SignoffTrust.BROKEN, text, sentence_on(entry, problem))
    if holder is None:
        says = (
            f"It is signed by a key that is not known here ({_key_shown(hint)}). Trust that key"
            " with `topicproof keys import` if its owner gave it to you."
        )
        return _answer(entry, SignoffTrust.STRANGER, text, says)
    by = f"It is signed by {holder.name} (key {holder.id[:KEY_SHOWN]})"
    if holder.revoked is not None:
        trust, says = SignoffTrust.REVOKED, f"{by}. {revoked_says(holder)}"
    elif not about_this:
        trust = SignoffTrust.OTHER
        says = f"{by}, and it speaks of other evidence than this, so it does not count here."
    elif proof is not None and holder.id not in proof:
        trust = SignoffTrust.UNPROVEN
        says = (
            f"{by}, and that key does not vouch that this copy is the evidence that it speaks of:"
            " the copy itself, or another part of it, is not signed by the same key."
        )
    else:
        trust, says = SignoffTrust.VOUCHED, f"{by}."
    return SignoffVouching(entry_number(entry), trust, text, says, holder.id, holder.name)


def _answer(entry: Mapping[str, Any], trust: SignoffTrust, text: str, says: str) -> SignoffVouching:
    return SignoffVouching(entry_number(entry), trust, text, says)


def _key_shown(hint: str) -> str:
    return "".join(letter for letter in hint[:KEY_SHOWN] if letter.isalnum()) or "without an id"
