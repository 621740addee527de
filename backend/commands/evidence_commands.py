"""Evidence: copy it, verify it, sign it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from topicproof.backend.commands.run_options import Out, PayloadsKept, out_folder
from topicproof.backend.commands.shared_options import Json, RunId, settings_of
from topicproof.backend.commands.terminal import emit, out, say
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.copy import content_of
from topicproof.backend.evidence.manifest import Payloads, require_unchanged
from topicproof.backend.history import signoff as signoffs_of
from topicproof.backend.history.evidence_export import export_folder
from topicproof.backend.history.run_reports import run_evidence
from topicproof.backend.history.signoff import Decision
from topicproof.backend.history.store import History
from topicproof.backend.judging.selftest import before_signoff
from topicproof.backend.storage import is_url


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


def _day(text: str | None) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise UsageError(
            f"--until {text}: expected a day such as {datetime.now(UTC):%Y-%m-%d}."
        ) from error
