"""Evidence: copy it, verify it, sign it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from topicproof.backend.commands.outcome import print_report
from topicproof.backend.commands.run_options import Out, PayloadsKept, out_folder
from topicproof.backend.commands.shared_options import (
    SAME_CLUSTER,
    AllKinds,
    Json,
    RunId,
    SourceTarget,
    Target,
    settings_of,
)
from topicproof.backend.commands.terminal import Styled, emit, out, say
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.attestation import Trust
from topicproof.backend.evidence.copy import content_of
from topicproof.backend.evidence.folder import BESIDE_SHOWN, names_beside
from topicproof.backend.evidence.manifest import Payloads, require_unchanged
from topicproof.backend.evidence.private_copy import private_evidence
from topicproof.backend.evidence.read_limits import UNPACKED_BYTES_MAX, plain_name
from topicproof.backend.evidence.signoff_trust import SignoffTrust
from topicproof.backend.evidence.unpacking import unpacked
from topicproof.backend.exit_codes import worst
from topicproof.backend.history import signoff as signoffs_of
from topicproof.backend.history.evidence_export import export_folder
from topicproof.backend.history.run_reports import run_evidence
from topicproof.backend.history.signoff import Decision
from topicproof.backend.history.store import History
from topicproof.backend.judging.selftest import before_signoff
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.storage import downloaded, is_url
from topicproof.backend.trust.keyring import keyring_folders, read_keyring
from topicproof.backend.verifying.verify import (
    Verification,
    unchanged_parts,
    verify as verify_evidence,
)
from topicproof.validators.expectation import merge


def evidence(
    run_id: RunId, folder: Out = None, payloads: PayloadsKept = Payloads.ALL, json_: Json = None
) -> None:
    """Show where a run's evidence is. With `--out`, copy it; `topicproof verify` can judge the copy
    anywhere.

    Example: `topicproof evidence squares-k3f9a2 --out proof --payloads masked`
    """
    settings = settings_of()
    history = History(settings)
    run = history.get(run_id)
    place = run.folder(settings)
    for part in run_evidence(settings, run):
        require_unchanged(part)
    if folder is None:
        content, root = content_of(place), str(place)
    else:
        with out_folder(folder) as target:
            content = export_folder(history, run, target, payloads)
        root = folder if is_url(folder) else str(Path(folder))
    manifests = {
        root if path == Path() else f"{root.rstrip('/')}/{path}": manifest
        for path, manifest in content.manifests.items()
    }
    entries = [entry for manifest in manifests.values() for entry in manifest.files.values()]
    count, size = len(entries), sum(entry.bytes for entry in entries)
    emit(
        json_,
        {
            "run": run_id,
            "folders": list(manifests),
            "manifest": content.hash,
            "files": count,
            "bytes": size,
        },
    )
    for name in manifests:
        out.line(name)
    out.line(f"{count} files, {size / 1e6:,.1f} MB, manifest {content.hash}")


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
            with (
                services(settings, kafka=False, say=say) as up,
                spark_session(up.spark_remote, up.storage) as spark,
            ):
                verifications = [
                    verify_evidence(spark, verification.folder, address, source, verification)
                    for verification in verifications
                ]
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


def signoff(
    run_id: RunId,
    decision: Annotated[
        Decision, typer.Option(help="accept, reject, or waive one kind of finding.")
    ],
    by: Annotated[
        str | None,
        typer.Option(
            help="Your name. Without `topicproof login` it is required, and the sign-off says that"
            " it is unauthenticated.",
            metavar="NAME",
        ),
    ] = None,
    comment: Annotated[
        str,
        typer.Option(
            help="The reason. Required for a waiver and for an UNKNOWN verdict.", metavar="TEXT"
        ),
    ] = "",
    kind: Annotated[str | None, typer.Option(help="The kind to waive.", metavar="KIND")] = None,
    until: Annotated[
        str | None, typer.Option(help="The last day of the waiver.", metavar="YYYY-MM-DD")
    ] = None,
    evidence_: Annotated[
        str | None,
        typer.Option(
            "--evidence",
            help="The evidence that you have looked at, by the hash that `topicproof evidence`"
            " prints. Other evidence is not signed.",
            metavar="HASH",
        ),
    ] = None,
    json_: Json = None,
) -> None:
    """Sign a report. The decision is permanent and bound to the evidence as it is now.

    Before a report is accepted, the judge tests itself on it: faults injected into copies of its
    readings must be caught.

    Example: `topicproof signoff squares-k3f9a2 --decision accept --by "Grace Hopper"`
    """
    settings = settings_of()
    history = History(settings)
    run = history.get(run_id)
    reports, digest = signoffs_of.signable(settings, run, evidence_)
    signoffs_of.require_signer(history, run_id, digest, decision, by)
    if decision is Decision.ACCEPT:
        signoffs_of.require_acceptable(history, run_id, reports, digest, comment)
        caught = before_signoff(settings, run.folder(settings), comment, say)
        say(f"self-test: {', '.join(caught) or 'nothing'} injected and caught")
    entry = signoffs_of.sign(
        history, run_id, reports, digest, decision, by, comment, kind, _day(until)
    )
    emit(json_, entry.as_json())
    out.line(entry.said)
    out.line(f"entry {entry.number}, evidence {digest}")


def _at_hand(place: str) -> AbstractContextManager[Path]:
    """Give the folder of evidence, which nobody else can change: as it is, a copy of a folder or of
    what is at a URL, or unpacked."""
    if is_url(place):
        return downloaded(place, UNPACKED_BYTES_MAX)
    path = Path(place)
    return unpacked(path) if path.is_file() else private_evidence(path)


def _day(text: str | None) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise UsageError(
            f"--until {text}: expected a day such as {datetime.now(UTC):%Y-%m-%d}."
        ) from error


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
