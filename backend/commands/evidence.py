"""Evidence: copy it, verify it, sign it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from topicproof.backend.commands.options import (
    ClusterName,
    Config,
    Json,
    RunId,
    SourceBootstrap,
    SourceCluster,
    SourceConfig,
    settings_of,
)
from topicproof.backend.commands.outcome import print_report
from topicproof.backend.commands.run_options import (
    Out,
    PayloadsKept,
    out_folder,
)
from topicproof.backend.commands.terminal import Styled, emit, out, say
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.attestation import Trust
from topicproof.backend.evidence.folder import (
    BESIDE_SHOWN,
    evidence_hash,
    evidence_in,
    names_beside,
)
from topicproof.backend.evidence.limits import UNPACKED_BYTES_MAX, plain_name
from topicproof.backend.evidence.manifest import Payloads, read_manifest, require_unchanged
from topicproof.backend.evidence.signoff_trust import SignoffTrust
from topicproof.backend.evidence.unpacking import unpacked
from topicproof.backend.exit_codes import worst
from topicproof.backend.history import signoff as signoffs_of
from topicproof.backend.history.export import export_folder
from topicproof.backend.history.signoff import Decision
from topicproof.backend.history.store import History
from topicproof.backend.judging.selftest import before_signoff
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark import spark_session
from topicproof.backend.storage import downloaded, is_url
from topicproof.backend.trust.keyring import keyring_folders, read_keyring
from topicproof.backend.verifying.verify import Verification, unchanged_parts
from topicproof.backend.verifying.verify import verify as verify_evidence
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
    found = history.get(run_id)
    place = found.folder(settings)
    for one in evidence_in(place):
        require_unchanged(one)
    with ExitStack() as opened:
        if folder is not None:
            place = opened.enter_context(out_folder(folder))
            export_folder(history, found, place, payloads)
        shown = folder if folder is not None and is_url(folder) else str(place)
        manifests = {
            str(one).replace(str(place), shown, 1): read_manifest(one) for one in evidence_in(place)
        }
        digest = evidence_hash(place)
    size = sum(entry.bytes for manifest in manifests.values() for entry in manifest.files.values())
    count = sum(len(manifest.files) for manifest in manifests.values())
    emit(
        json_,
        {
            "run": run_id,
            "folders": list(manifests),
            "manifest": digest,
            "files": count,
            "bytes": size,
        },
    )
    for name in manifests:
        out.line(name)
    out.line(f"{count} files, {size / 1e6:,.1f} MB, manifest {digest}")


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
    bootstrap: Annotated[
        str | None,
        typer.Option(
            help="host:port of the judged cluster, to compare ids and raw logs with it too.",
            metavar="B",
        ),
    ] = None,
    config: Config = None,
    signature_required: Annotated[
        bool,
        typer.Option(
            "--require-signature",
            help="Refuse evidence, and sign-offs beside it, for which no trusted key vouches, also"
            " unsigned ones.",
        ),
    ] = False,
    cluster: ClusterName = None,
    source_bootstrap: SourceBootstrap = None,
    source_config: SourceConfig = None,
    source_cluster: SourceCluster = None,
    json_: Json = None,
) -> None:
    """Compare evidence with its hashes and its signature, judge it again, and derive every other
    file again, without Kafka.

    The exit code is the verdict's, as for `check`. It is 4 if a file was changed, if the signature
    belongs to other evidence or to a revoked key, or if judging again contradicts a file. It is 3
    at best if the signing key is unknown here.

    Example: `topicproof verify proof`
    """
    settings = settings_of(bootstrap, config, cluster=cluster)
    address = settings.address if bootstrap or cluster else None
    source = None
    if source_bootstrap or source_cluster:
        source = settings_of(source_bootstrap, source_config, cluster=source_cluster).address
    if (address or source) and not judged:
        raise UsageError(
            "--hashes-only does not compare evidence with a cluster. Remove --hashes-only, or the"
            " options that name a cluster."
        )
    strict = signature_required or settings.require_signature
    with _at_hand(folder) as place:
        found = unchanged_parts(place, read_keyring(settings), strict)
        beside = names_beside(place)
        if judged and not any(one.refused for one in found):
            with (
                services(settings, kafka=False, say=say) as up,
                spark_session(up.spark_remote, up.storage) as spark,
            ):
                found = [verify_evidence(spark, one.folder, address, source, one) for one in found]
    folders = keyring_folders(settings)
    answers = [
        {**_verified_json(one), "keyrings": list(map(str, folders)), "beside": beside}
        for one in found
    ]
    emit(json_, answers if len(answers) > 1 else answers[0])
    if json_ != "-":
        trusted = " and ".join(map(str, folders))
        out.line(f"Trusted keys are those in {trusted}.")
        if beside:
            shown = ", ".join(map(plain_name, beside[:BESIDE_SHOWN]))
            more = f" and {len(beside) - BESIDE_SHOWN:,} more" if len(beside) > BESIDE_SHOWN else ""
            out.line(
                Styled("Not verified", "yellow"),
                f": what lies beside the evidence. That is {shown}{more}.",
            )
        for one in found:
            if len(found) > 1:
                # Ours comes first: a folder may be called like a line of ours.
                out.line(f"Folder {one.folder.relative_to(place)}:")
            _print_verified(one, judged)
        _print_whole(found)
    code = worst(one.exit_code if judged else one.trust_code for one in found)
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
    json_: Json = None,
) -> None:
    """Sign a report. The decision is permanent and bound to the evidence as it is now.

    Before a report is accepted, the judge tests itself on it: faults injected into copies of its
    readings must be caught.

    Example: `topicproof signoff squares-k3f9a2 --decision accept --by "Grace Hopper"`
    """
    settings = settings_of()
    history = History(settings)
    found = history.get(run_id)
    reports, digest = signoffs_of.signable(settings, found)
    signoffs_of.require_signer(history, run_id, digest, decision, by)
    if decision is Decision.ACCEPT:
        caught = before_signoff(settings, found.folder(settings), comment, say)
        say(f"self-test: {', '.join(caught) or 'nothing'} injected and caught")
    made = signoffs_of.sign(
        history, run_id, reports, digest, decision, by, comment, kind, _day(until)
    )
    emit(json_, made.as_json())
    out.line(made.said)
    out.line(f"entry {made.number}, evidence {digest}")


def _at_hand(place: str) -> AbstractContextManager[Path]:
    """Give the folder of evidence: as it is, unpacked, or a copy of what is at a URL."""
    if is_url(place):
        return downloaded(place, UNPACKED_BYTES_MAX)
    path = Path(place)
    return unpacked(path) if path.is_file() else nullcontext(path.absolute())


def _day(text: str | None) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise UsageError(
            f"--until {text}: expected a day such as {datetime.now(UTC):%Y-%m-%d}."
        ) from error


def _verified_json(found: Verification) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "manifest": found.hash,
        "of": found.manifest.of,
        "run": found.manifest.run,
        "payloads": found.manifest.payloads,
        "files": len(found.manifest.files),
        "differences": [one._asdict() for one in found.differences],
        "vouched": None if found.vouched is None else asdict(found.vouched),
        "signoffs": [asdict(entry) for entry in found.signoffs],
        "verdict": found.manifest.verdict,
        "judged_again": found.judged.verdict if found.judged else None,
        "contradictions": [*found.contradictions, *found.forged],
        "unsettled": list(found.unsettled),
        "notes": list(found.notes),
        "report": json.loads(found.judged.to_json()) if found.judged else None,
    }


def _print_verified(found: Verification, judged: bool) -> None:
    if found.differences:
        out.line(Styled("Changed since it was written", "bold red"), f" {found.folder}")
        for one in found.differences:
            out.line(f"  {one.how:8} {one.file}")
        return
    out.line(f"All {len(found.manifest.files)} files match the manifest ({found.hash}).")
    _print_vouched(found)
    _print_signoffs(found)
    if not judged or found.refused:
        for sentence in found.forged:
            out.line(Styled("contradiction", "bold red"), f" {sentence}")
        return
    for sentence in (*found.contradictions, *found.forged):
        out.line(Styled("contradiction", "bold red"), f" {sentence}")
    for sentence in found.unsettled:
        out.line(Styled("not compared", "yellow"), f" {sentence}")
    for sentence in found.notes:
        out.line(f"note: {sentence}")
    if found.contradictions and found.masked:
        out.line(
            f"The copy has payloads {found.manifest.payloads}: missing payloads may explain the"
            " contradiction."
        )
    if found.judged is not None:
        doubted = found.contradictions or found.forged or found.unsettled
        out.line("Judged again:" if doubted else "Judged again, with the same result:")
        print_report(found.judged)


def _print_whole(found: Sequence[Verification]) -> None:
    """Say the verdict of several folders as one."""
    again = [one.judged.verdict for one in found if one.judged is not None]
    if len(found) > 1 and len(again) == len(found):
        genuine = sum(not one.contradictions and not one.forged for one in found)
        out.line(
            f"Judged again as a whole: {merge(again)}. {genuine} of {len(found)} folders have the"
            " same result."
        )


def _print_vouched(found: Verification) -> None:
    if found.vouched is None:
        return
    refused = Styled("refused", "bold red")
    words = {
        Trust.VOUCHED: Styled("signed", "green"),
        Trust.UNSIGNED: Styled("not trusted", "yellow"),
        Trust.STRANGER: Styled("not trusted", "yellow"),
    }
    word = refused if found.refused else words.get(found.vouched.trust, refused)
    out.line(word, f" {found.vouched.says}")


def _print_signoffs(found: Verification) -> None:
    refused = Styled("refused sign-off", "bold red")
    words = {
        SignoffTrust.VOUCHED: Styled("sign-off", "green"),
        SignoffTrust.REVOKED: refused,
        SignoffTrust.BROKEN: refused,
        SignoffTrust.OTHER: Styled("sign-off that does not count", "yellow"),
    }
    for entry in found.signoffs:
        word = words.get(entry.trust, Styled("sign-off that is not trusted", "yellow"))
        strict = found.signature_required and not entry.trust.by_trusted
        out.line(refused if strict else word, f" {entry.text}")
        out.line(f"  {entry.says}")
    if found.signoffs and found.vouched is not None and found.vouched.trust is not Trust.VOUCHED:
        out.line("No trusted key vouches for the list of sign-offs: some may have been taken out.")
