"""Verify evidence. Hashes and signatures need neither Spark nor the history, so what judges again
is loaded when they are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from topicproof.backend.address import Address
from topicproof.backend.commands.shared_options import (
    SAME_CLUSTER,
    AllKinds,
    Json,
    SourceTarget,
    Target,
    settings_of,
)
from topicproof.backend.commands.terminal import Styled, emit, out, say
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.attestation import Trust
from topicproof.backend.evidence.folder import BESIDE_SHOWN, names_beside
from topicproof.backend.evidence.private_copy import private_evidence
from topicproof.backend.evidence.read_limits import UNPACKED_BYTES_MAX, plain_name
from topicproof.backend.evidence.signoff_trust import SignoffTrust
from topicproof.backend.evidence.unpacking import unpacked
from topicproof.backend.exit_codes import worst
from topicproof.backend.settings import Settings
from topicproof.backend.storage import downloaded, is_url
from topicproof.backend.trust.keyring import keyring_folders, read_keyring
from topicproof.backend.verifying.unchanged import Verification, unchanged_parts
from topicproof.validators.expectation import merge


@dataclass(frozen=True)
class JudgedTarget(Target):
    """Options that name the judged cluster."""

    bootstrap: Annotated[
        str | None,
        typer.Option(
            help="host:port of the judged cluster, to compare ids and raw logs with it too.",
            metavar="B",
        ),
    ] = None


NOT_COMPARED = JudgedTarget()


def verify(
    folder: Annotated[
        str,
        typer.Argument(
            help="A folder of evidence or of a run, its URL, or a zip file of one.",
            metavar="DIR|URL|ZIP",
        ),
    ],
    judged: Annotated[
        bool,
        typer.Option(
            "--judge/--hashes-only",
            help="Judge again, or only compare the files with their hashes.",
        ),
    ] = True,
    target: JudgedTarget = NOT_COMPARED,
    signature_required: Annotated[
        bool,
        typer.Option(
            "--require-signature",
            help="Refuse evidence, and sign-offs beside it, for which no trusted key vouches, also"
            " unsigned ones.",
        ),
    ] = False,
    source_target: SourceTarget = SAME_CLUSTER,
    all_kinds: AllKinds = False,
    json_: Json = None,
) -> None:
    """Compare evidence with its hashes and its signature, judge it again, and derive every other
    file again, without Kafka.

    The exit code is the verdict's, as for `check`. It is 4 if a file was changed, if the signature
    belongs to other evidence or to a revoked key, or if judging again contradicts a file. It is 3
    at best if the signing key is unknown here.

    Example: `topicproof verify proof`
    """
    settings = settings_of(target)
    address = settings.address if target.is_named else None
    source = settings_of(source_target.target).address if source_target.target.is_named else None
    if (address or source) and not judged:
        raise UsageError(
            "--hashes-only does not compare evidence with a cluster. Remove --hashes-only, or the"
            " options that name a cluster."
        )
    strict = signature_required or settings.require_signature
    with _at_hand(folder) as place:
        verifications = unchanged_parts(place, read_keyring(settings), strict)
        beside = names_beside(place)
        if judged and not any(verification.refused for verification in verifications):
            verifications = _judged_again(settings, verifications, address, source)
    if Path(folder).is_dir() and not is_url(folder):
        # A private copy is shown as the folder that it was made of.
        received = Path(folder).absolute()
        verifications = [
            replace(verification, folder=received / verification.folder.relative_to(place))
            for verification in verifications
        ]
        place = received
    folders = keyring_folders(settings)
    answers = [
        {**_verified_json(verification), "keyrings": list(map(str, folders)), "beside": beside}
        for verification in verifications
    ]
    emit(json_, answers if len(answers) > 1 else answers[0])
    if json_ != "-":
        trusted = " and ".join(map(str, folders))
        out.line(f"Trusted keys are those in {trusted}.")
        if beside:
            names = ", ".join(map(plain_name, beside[:BESIDE_SHOWN]))
            more = f" and {len(beside) - BESIDE_SHOWN:,} more" if len(beside) > BESIDE_SHOWN else ""
            out.line(
                Styled("Not verified", "yellow"),
                f": what lies beside the evidence. That is {names}{more}.",
            )
        for verification in verifications:
            if len(verifications) > 1:
                # Ours comes first: a folder may be called like a line of ours.
                out.line(f"Folder {verification.folder.relative_to(place)}:")
            _print_verified(verification, judged, all_kinds)
        _print_whole(verifications)
    code = worst(
        verification.exit_code if judged else verification.trust_code
        for verification in verifications
    )
    if judged or code:
        raise typer.Exit(code)


def _judged_again(
    settings: Settings,
    verifications: Sequence[Verification],
    address: Address | None,
    source: Address | None,
) -> list[Verification]:
    from topicproof.backend.services.keeper import services
    from topicproof.backend.services.spark_session import spark_session
    from topicproof.backend.verifying.verify import verify as verify_evidence

    with (
        services(settings, kafka=False, say=say) as up,
        spark_session(up.spark_remote, up.storage) as spark,
    ):
        return [
            verify_evidence(spark, verification.folder, address, source, verification)
            for verification in verifications
        ]


def _at_hand(place: str) -> AbstractContextManager[Path]:
    """Give the folder of evidence, which nobody else can change: as it is, a copy of a folder or of
    what is at a URL, or unpacked."""
    if is_url(place):
        return downloaded(place, UNPACKED_BYTES_MAX)
    path = Path(place)
    return unpacked(path) if path.is_file() else private_evidence(path)


def _verified_json(verification: Verification) -> dict[str, Any]:
    return {
        "folder": str(verification.folder),
        "manifest": verification.hash,
        "of": verification.manifest.of,
        "run": verification.manifest.run,
        "payloads": verification.manifest.payloads,
        "files": len(verification.manifest.files),
        "differences": [difference._asdict() for difference in verification.differences],
        "vouched": None if verification.vouched is None else asdict(verification.vouched),
        "signoffs": [asdict(entry) for entry in verification.signoffs],
        "verdict": verification.manifest.verdict,
        "judged_again": verification.judged.verdict if verification.judged else None,
        "contradictions": [*verification.contradictions, *verification.forged],
        "unsettled": list(verification.unsettled),
        "notes": list(verification.notes),
        "report": json.loads(verification.judged.to_json()) if verification.judged else None,
    }


def _print_verified(verification: Verification, judged: bool, all_kinds: bool) -> None:
    if verification.differences:
        out.line(Styled("Changed since it was written", "bold red"), f" {verification.folder}")
        for difference in verification.differences:
            out.line(f"  {difference.how:8} {difference.file}")
        return
    out.line(
        f"All {len(verification.manifest.files)} files match the manifest ({verification.hash})."
    )
    _print_vouched(verification)
    _print_signoffs(verification)
    if not judged or verification.refused:
        for sentence in verification.forged:
            out.line(Styled("contradiction", "bold red"), f" {sentence}")
        return
    for sentence in (*verification.contradictions, *verification.forged):
        out.line(Styled("contradiction", "bold red"), f" {sentence}")
    for sentence in verification.unsettled:
        out.line(Styled("not compared", "yellow"), f" {sentence}")
    for sentence in verification.notes:
        out.line(f"note: {sentence}")
    if verification.contradictions and verification.masked:
        out.line(
            f"The copy has payloads {verification.manifest.payloads}: missing payloads may"
            " explain the contradiction."
        )
    if verification.judged is not None:
        from topicproof.backend.commands.outcome import print_report

        doubted = verification.contradictions or verification.forged or verification.unsettled
        out.line("Judged again:" if doubted else "Judged again, with the same result:")
        print_report(verification.judged, all_kinds)


def _print_whole(verifications: Sequence[Verification]) -> None:
    """Say the verdict of several folders as one."""
    again = [
        verification.judged.verdict
        for verification in verifications
        if verification.judged is not None
    ]
    if len(verifications) > 1 and len(again) == len(verifications):
        genuine = sum(
            not verification.contradictions and not verification.forged
            for verification in verifications
        )
        out.line(
            f"Judged again as a whole: {merge(again)}. {genuine} of {len(verifications)} folders"
            " have the same result."
        )


def _print_vouched(verification: Verification) -> None:
    if verification.vouched is None:
        return
    refused = Styled("refused", "bold red")
    words = {
        Trust.VOUCHED: Styled("signed", "green"),
        Trust.UNSIGNED: Styled("not trusted", "yellow"),
        Trust.STRANGER: Styled("not trusted", "yellow"),
    }
    word = refused if verification.refused else words.get(verification.vouched.trust, refused)
    out.line(word, f" {verification.vouched.says}")


def _print_signoffs(verification: Verification) -> None:
    refused = Styled("refused sign-off", "bold red")
    words = {
        SignoffTrust.VOUCHED: Styled("sign-off", "green"),
        SignoffTrust.REVOKED: refused,
        SignoffTrust.BROKEN: refused,
        SignoffTrust.OTHER: Styled("sign-off that does not count", "yellow"),
    }
    for entry in verification.signoffs:
        word = words.get(entry.trust, Styled("sign-off that is not trusted", "yellow"))
        strict = verification.signature_required and not entry.trust.by_trusted
        out.line(refused if strict else word, f" {entry.text}")
        out.line(f"  {entry.says}")
    if (
        verification.signoffs
        and verification.vouched is not None
        and verification.vouched.trust is not Trust.VOUCHED
    ):
        out.line("No trusted key vouches for the list of sign-offs: some may have been taken out.")
