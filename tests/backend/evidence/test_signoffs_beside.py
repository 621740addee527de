"""Sign-offs beside evidence: what people read there is what a trusted key signed, about this run
and this evidence, or `verify` says that it is not."""

from __future__ import annotations

import base64
import gc
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st

from tests.app.test_history_page import HELD, TWICE
from tests.backend.evidence.evidence import mend
from tests.backend.evidence.test_attestation import made
from topicproof.backend.cli import main
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.attestation import attest, sign_statement
from topicproof.backend.evidence.copy import copy_evidence
from topicproof.backend.evidence.folder import EVIDENCE, names_beside, original_hash, read_report
from topicproof.backend.evidence.manifest import (
    Payloads,
    manifest_hash,
    read_manifest,
    write_manifest,
)
from topicproof.backend.evidence.page import write_page
from topicproof.backend.evidence.signed import (
    ORIGINAL,
    SIGNOFFS,
    entry_hash,
    read_signoffs,
    signoff_contradictions,
    write_signoffs,
)
from topicproof.backend.evidence.signoff_trust import SignoffTrust
from topicproof.backend.history.evidence_export import export_folder
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.signoff import (
    Decision,
    broken,
    read_chain,
    sign,
    signable,
    signoffs,
)
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.judging.judge import versions
from topicproof.backend.settings import Settings
from topicproof.backend.trust.dsse import format_envelope, parse_envelope
from topicproof.backend.trust.identity import How, Identity, Role
from topicproof.backend.trust.keyring import OWN, import_key, read_keyring, revoke, signing_key
from topicproof.backend.trust.keys import from_private, public_pem
from topicproof.backend.verifying.derived import report_contradictions
from topicproof.backend.verifying.unchanged import Verification, unchanged, unchanged_parts

ISSUER = "https://sso.example/realms/team"
KURT = Identity("Kurt Gödel", ISSUER, "kurt", frozenset({Role.SIGNER}), How.OPENID)
GRACE = {
    "name": "Grace Hopper",
    "issuer": ISSUER,
    "subject": "grace",
    "roles": ["signer"],
    "how": "OpenID Connect",
}
Entry = dict[str, Any]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    (tmp_path / "home").mkdir()
    opened = History(Settings(home=tmp_path / "home", signer="ada@lab"))
    yield opened
    opened.engine.dispose()
    gc.collect()


def run_of(history: History) -> Run:
    """A run that ended, with evidence that this installation signed."""
    run = history.create("run", "squares", {})
    folder = history.settings.runs / run.id / EVIDENCE
    made(folder, replace(HELD, run=run.id))
    attest(history.settings, folder)
    history.remember(run.id, Facts(source="numbers", sink="squares"))
    history.end(run.id, State.DONE, "HOLDS", "x")
    return history.get(run.id)


def decided(history: History, run: Run, decision: Decision) -> None:
    reports, digest = signable(history.settings, run)
    by = history.acted_on_by(KURT)
    sign(by, run.id, reports, digest, decision, comment="It lost payments.")


def test_other_evidence_than_was_shown_is_not_signed(history: History) -> None:
    """Story: a run is judged anew between the look at its verdict and the click."""
    run = run_of(history)
    _, shown = signable(history.settings, run)
    assert signable(history.settings, run, shown)[1] == shown
    folder = run.folder(history.settings) / EVIDENCE
    shutil.rmtree(folder)
    made(folder, replace(TWICE, run=run.id))
    with pytest.raises(UsageError, match="is another one by now"):
        signable(history.settings, run, shown)


def exported(history: History, run: Run, target: Path, payloads: Payloads = Payloads.ALL) -> Path:
    export_folder(history, run, target, payloads)
    return target


@pytest.fixture
def rejected(history: History, tmp_path: Path) -> Path:
    """A signed copy of the evidence of a run that was rejected."""
    run = run_of(history)
    decided(history, run, Decision.REJECT)
    return exported(history, run, tmp_path / "copy")


def verified(history: History, folder: Path, required: bool = False) -> Verification:
    return unchanged(folder, read_keyring(history.settings), required, original_hash(folder))


def trusts(history: History, folder: Path) -> list[SignoffTrust]:
    return [entry.trust for entry in verified(history, folder).signoffs]


def rewritten(folder: Path, entries: list[Entry]) -> None:
    """Replace the sign-offs, mend page and manifest, and take the signature off."""
    judged_at = (read_manifest(folder).judged_at or "").replace("T", " ")
    write_signoffs(folder, entries)
    write_page(folder / "report.html", read_report(folder), f"{judged_at} UTC", entries)
    mend(folder)


def rehashed(entry: Entry, **changes: Any) -> Entry:
    changed = {**entry, **changes}
    return {**changed, "hash": entry_hash(changed)}


def signed_anew(entry: Entry, key: Ed25519PrivateKey, hint: str | None = None) -> Entry:
    """The entry, signed by another key, perhaps with a false hint."""
    payload = json.loads(parse_envelope(entry["envelope"].encode()).payload)
    fields = {name: value for name, value in entry.items() if name not in ("hash", "envelope")}
    payload["predicate"] = {**payload["predicate"], **fields}
    payload["subject"][0]["digest"]["sha256"] = entry["hash"]
    envelope = sign_statement(from_private(key), payload)
    if hint is not None:
        envelope = envelope._replace(signatures=(envelope.signatures[0]._replace(key_id=hint),))
    return {**entry, "envelope": format_envelope(envelope)}


def entries_of(folder: Path) -> list[Entry]:
    return [dict(entry) for entry in read_signoffs(folder)]


def test_a_sign_off_names_its_key_in_each_answer(history: History, rejected: Path) -> None:
    """Story: a rejection was exported. Whoever verifies reads who decided, and whose key signed
    that. The page names the key and cannot check it."""
    answer = verified(history, rejected, required=True)
    (entry,) = answer.signoffs
    assert (entry.trust, entry.name, answer.trust_code) == (SignoffTrust.VOUCHED, OWN, 0)
    assert "Kurt Gödel (OpenID Connect, kurt at https://sso.example" in entry.text
    assert "rejected HOLDS: It lost payments." in entry.text
    assert asdict(entry)["trust"] == "signed by a trusted key"
    assert "names key" in (rejected / "report.html").read_text(encoding="utf-8")


def _as_grace(entry: Entry) -> Entry:
    return rehashed(
        entry, decision="accept", comment="All there.", name="Grace Hopper", identity=GRACE
    )


def _other_type(entry: Entry) -> Entry:
    envelope = parse_envelope(entry["envelope"].encode())._replace(payload_type="text/plain")
    return {**entry, "envelope": format_envelope(envelope)}


def _repeated_name(entry: Entry) -> Entry:
    """A payload that says `decision` twice: readers may take either."""
    text = parse_envelope(entry["envelope"].encode())
    payload = text.payload.replace(
        b'"decision": "reject"', b'"decision": "a", "decision": "reject"'
    )
    assert payload != text.payload
    return {**entry, "envelope": format_envelope(text._replace(payload=payload))}


STRANGE = Ed25519PrivateKey.generate()
FORGED: Mapping[str, Callable[[Entry], Entry]] = {
    "a rejection becomes somebody's acceptance": _as_grace,
    "the hash is left": lambda entry: {**entry, "decision": "accept"},
    "only the name": lambda entry: rehashed(entry, name="Grace Hopper"),
    "only the comment": lambda entry: rehashed(entry, comment="All there."),
    "the time": lambda entry: rehashed(entry, made_at="2027-01-01T00:00:00"),
    "a field more": lambda entry: rehashed(entry, shown="accept"),
    "a field less": lambda entry: rehashed(
        {name: value for name, value in entry.items() if name != "identity"}
    ),
    "a number of another type": lambda entry: rehashed(entry, number=True),
    "an envelope that is no text": lambda entry: {**entry, "envelope": 7},
    "an envelope of another payload type": _other_type,
    "an envelope that says a name twice": _repeated_name,
    "a known key that did not sign": lambda entry: signed_anew(
        entry, STRANGE, parse_envelope(entry["envelope"].encode()).signatures[0].key_id
    ),
    "another run": lambda entry: rehashed(entry, run="squares-other"),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_is_read_is_what_was_signed(what: str, history: History, rejected: Path) -> None:
    """Story: somebody edits a sign-off in a copy and mends hash, page and manifest. Exit code 4,
    and the words on the screen stay those that were signed."""
    rewritten(rejected, [FORGED[what](entries_of(rejected)[0])])
    answer = verified(history, rejected)
    assert [entry.trust for entry in answer.signoffs] == [SignoffTrust.BROKEN]
    assert answer.trust_code == answer.exit_code == 4 and answer.refused
    assert "accepted" not in answer.signoffs[0].text or what == "the hash is left"


def test_the_words_are_those_of_the_envelope(history: History, rejected: Path) -> None:
    rewritten(rejected, [_as_grace(entries_of(rejected)[0])])
    (entry,) = verified(history, rejected).signoffs
    assert "Kurt Gödel" in entry.text and "rejected" in entry.text and "Grace" not in entry.text
    page = (rejected / "report.html").read_text(encoding="utf-8")
    assert "rejected HOLDS" in page and "Grace" not in page


@pytest.mark.parametrize("evidence", [[], {}, [[]], 1, None])
def test_an_entry_whose_evidence_is_no_text_is_called_unsigned(
    evidence: object, history: History, rejected: Path
) -> None:
    """Story: an invented entry names a list as its evidence. It is called unsigned in one sentence,
    as any other that somebody invents."""
    entry = rehashed(entries_of(rejected)[0], evidence=evidence)
    rewritten(rejected, [{**entry, "envelope": None}])
    assert trusts(history, rejected) == [SignoffTrust.UNSIGNED]


@pytest.mark.parametrize("how", ["stripped", "invented"])
def test_what_nobody_signed_is_called_that(how: str, history: History, rejected: Path) -> None:
    """Story: the envelope is taken off, or an entry is invented. It is not signed: it says so, and
    `--require-signature` refuses it."""
    entry = entries_of(rejected)[0]
    changed = _as_grace(entry) if how == "invented" else entry
    rewritten(rejected, [{**changed, "envelope": None}])
    answer = verified(history, rejected)
    assert trusts(history, rejected) == [SignoffTrust.UNSIGNED]
    assert "not signed: anyone" in answer.signoffs[0].says
    assert "not signed" in (rejected / "report.html").read_text(encoding="utf-8")
    attest(history.settings, rejected)
    assert verified(history, rejected).trust_code == 0
    assert verified(history, rejected, required=True).exit_code == 4


def test_an_unknown_key_is_called_that(history: History, rejected: Path, tmp_path: Path) -> None:
    """Story: a stranger signs what he invented. It is 3 at best until his key is imported."""
    rewritten(rejected, [signed_anew(_as_grace(entries_of(rejected)[0]), STRANGE)])
    answer = verified(history, rejected)
    assert trusts(history, rejected) == [SignoffTrust.STRANGER] and answer.trust_code == 3
    attest(history.settings, rejected)
    assert verified(history, rejected).trust_code == 3
    assert verified(history, rejected, required=True).trust_code == 4
    (tmp_path / "key.pem").write_text(public_pem(STRANGE.public_key()))
    import_key(history.settings, tmp_path / "key.pem", "Release team")
    assert [entry.name for entry in verified(history, rejected).signoffs] == ["Release team"]


def test_a_revoked_key_counts_for_nothing(history: History, rejected: Path) -> None:
    """Story: the key was stolen and revoked. What it ever signed is refused, whatever its date; and
    it is not exported again."""
    revoke(history.settings, OWN, "stolen")
    rewritten(rejected, entries_of(rejected))
    answer = verified(history, rejected)
    assert trusts(history, rejected) == [SignoffTrust.REVOKED] and answer.trust_code == 4
    run = history.get(signoffs(history)[0].run)
    with pytest.raises(EvidenceError, match=r"entry 1: .* was revoked"):
        exported(history, run, rejected.parent / "again")


@pytest.mark.parametrize("claimed", [False, True])
def test_a_genuine_acceptance_of_another_run_is_refused(
    claimed: bool, history: History, tmp_path: Path
) -> None:
    """Story: an acceptance of one run is pasted beside another one. The other one may even claim to
    be a copy of the first."""
    good, bad = run_of(history), run_of(history)
    decided(history, good, Decision.ACCEPT)
    decided(history, bad, Decision.REJECT)
    accepted = entries_of(exported(history, good, tmp_path / "good"))
    folder = exported(history, bad, tmp_path / "bad")
    if not claimed:
        rewritten(folder, accepted)
        assert trusts(history, folder) == [SignoffTrust.BROKEN]
        assert "speaks of another run" in verified(history, folder).signoffs[0].says
        return
    (folder / ORIGINAL).unlink()
    rewritten(folder, accepted)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"run": good.id, "of": manifest_hash(good.folder(history.settings) / EVIDENCE)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    answer = verified(history, folder)
    assert trusts(history, folder) == [SignoffTrust.UNPROVEN] and answer.trust_code == 3
    (folder / ORIGINAL).write_bytes((tmp_path / "good" / ORIGINAL).read_bytes())
    manifest["files"][ORIGINAL] = read_manifest(tmp_path / "good").files[ORIGINAL]._asdict()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert verified(history, folder).trust_code == 4, "the original lists other files"


def test_a_sign_off_of_earlier_evidence_does_not_count(history: History, rejected: Path) -> None:
    """Story: a run was accepted, resumed and judged again. Its old acceptance is about other
    evidence."""
    run = history.get(signoffs(history)[0].run)
    reports, _ = signable(history.settings, run)
    sign(history.acted_on_by(KURT), run.id, reports, "f" * 64, Decision.ACCEPT)
    folder = exported(history, run, rejected.parent / "both")
    assert trusts(history, folder) == [SignoffTrust.VOUCHED, SignoffTrust.OTHER]
    assert verified(history, folder, required=True).trust_code == 0
    rewritten(folder, entries_of(folder)[1:])
    assert verified(history, folder).trust_code == 3


@pytest.mark.parametrize("how", ["swapped", "doubled"])
def test_entries_stay_in_their_order(how: str, history: History, rejected: Path) -> None:
    run = history.get(signoffs(history)[0].run)
    decided(history, run, Decision.ACCEPT)
    folder = exported(history, run, rejected.parent / "two")
    first, second = entries_of(folder)
    rewritten(folder, [second, first] if how == "swapped" else [first, first, second])
    answer = verified(history, folder)
    assert SignoffTrust.BROKEN in trusts(history, folder) and answer.exit_code == 4


def test_a_million_empty_entries_are_refused_at_once(tmp_path: Path) -> None:
    """Story: a copy brings 3 MB of empty sign-offs. Before, each of them copied the numbers of all
    entries before it, which takes minutes for so many."""
    (tmp_path / SIGNOFFS).write_text(f"[{'{},' * 1_000_000}{{}}]")
    with pytest.raises(EvidenceError, match="1,000,001 sign-offs; 10,000 are allowed"):
        read_signoffs(tmp_path)
    entries: list[dict[str, Any]] = [{}] * 400_000
    assert len(signoff_contradictions(entries)) == len(entries)


def test_other_names_among_the_versions_are_contradicted() -> None:
    """Story: a forger adds "certified by" to the versions, all of which the page shows."""
    genuine = replace(HELD, versions=versions())
    forged = replace(HELD, versions={**versions(), "certified by": "Grace Hopper"})
    assert report_contradictions(f"{genuine.to_json()}\n", genuine, genuine) == []
    (sentence,) = report_contradictions(f"{forged.to_json()}\n", forged, genuine)
    assert "certified by" in sentence


def test_a_name_that_is_there_twice_is_refused(history: History, rejected: Path) -> None:
    path = rejected / SIGNOFFS
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"decision"', '"decision": "accept",\n  "decision"', 1))
    mend(rejected)
    with pytest.raises(EvidenceError, match="twice"):
        verified(history, rejected)


def test_a_masked_copy_rests_on_its_own_signature(history: History, rejected: Path) -> None:
    """Story: a masked copy cannot hold the original manifest, whose hashes could be guessed. As
    long as a trusted key vouches for the copy, its sign-offs count."""
    run = history.get(signoffs(history)[0].run)
    folder = exported(history, run, rejected.parent / "masked", Payloads.MASKED)
    assert not (folder / ORIGINAL).exists()
    assert trusts(history, folder) == [SignoffTrust.VOUCHED]
    rewritten(folder, entries_of(folder))
    assert trusts(history, folder) == [SignoffTrust.UNPROVEN]
    rewritten(rejected, entries_of(rejected))
    assert trusts(history, rejected) == [SignoffTrust.VOUCHED], "the original manifest proves it"


def test_a_trusted_key_speaks_for_no_other(
    history: History, rejected: Path, tmp_path: Path
) -> None:
    """Story: the keys of a pipeline and of a person are trusted. The pipeline's owner puts the
    person's genuine sign-off beside other evidence, whose manifest he lets name the hash of hers,
    and signs the folder. Her words are about other evidence, so a required signature is missing."""
    bob = Settings(home=tmp_path / "bob", signer="bob@pipeline")
    bob.home.mkdir()
    public = tmp_path / "bob.pem"
    public.write_text(public_pem(signing_key(bob).public))
    import_key(history.settings, public, "Bob")
    true = read_manifest(rejected)
    forged = made(tmp_path / "forged", replace(HELD, run=true.run, why="1,000,000 of 1,000,000."))
    write_signoffs(forged, entries_of(rejected))
    write_manifest(forged, true.run, true.verdict, Payloads.MASKED, true.of, true.judged_at)
    attest(bob, forged)
    answer = verified(history, forged)
    assert answer.vouched is not None and answer.vouched.name == "Bob"
    assert [entry.trust for entry in answer.signoffs] == [SignoffTrust.UNPROVEN]
    assert "that key does not vouch that this copy" in answer.signoffs[0].says
    assert (answer.trust_code, verified(history, forged, required=True).trust_code) == (3, 4)


def test_sign_offs_of_all_stages_count_in_the_whole(history: History, tmp_path: Path) -> None:
    """Story: a run of two stages is signed as one. The whole copy says so; one stage alone cannot
    say what the signature is about."""
    run = history.create("run", "squares", {})
    for stage in ("first", "second"):
        folder = history.settings.runs / run.id / "stages" / stage / EVIDENCE
        made(folder, replace(HELD, run=run.id))
        attest(history.settings, folder)
    history.end(run.id, State.DONE, "HOLDS", "x")
    decided(history, history.get(run.id), Decision.REJECT)
    whole = exported(history, history.get(run.id), tmp_path / "whole")
    keyring, digest = read_keyring(history.settings), original_hash(whole)
    stages = sorted(whole.glob(f"stages/*/{EVIDENCE}"))
    alone = [trusts(history, stage) for stage in stages]
    together = [unchanged(stage, keyring, True, digest).signoffs[0].trust for stage in stages]
    assert together == [SignoffTrust.VOUCHED] * 2 and alone == [[SignoffTrust.OTHER]] * 2


def test_a_sign_off_of_all_stages_rests_on_each_of_them(history: History, tmp_path: Path) -> None:
    """Story: one of two signed stages is replaced by another evidence, which nobody signed and
    which names the hash of the true one. The sign-off on the whole run is not about that."""
    run = history.create("run", "chain", {})
    for place in (EVIDENCE, f"stages/double/{EVIDENCE}"):
        folder = history.settings.runs / run.id / place
        made(folder, replace(HELD, run=run.id))
        attest(history.settings, folder)
    history.end(run.id, State.DONE, "HOLDS", "x")
    decided(history, history.get(run.id), Decision.REJECT)
    whole = exported(history, history.get(run.id), tmp_path / "whole")
    keyring = read_keyring(history.settings)
    genuine = unchanged_parts(whole, keyring)
    assert [part.signoffs[0].trust for part in genuine] == [SignoffTrust.VOUCHED] * 2
    assert [part.trust_code for part in genuine] == [0, 0]
    true = read_manifest(whole / EVIDENCE)
    shutil.rmtree(whole / EVIDENCE)
    forged = made(whole / EVIDENCE, replace(HELD, run=run.id, why="1,000,000 of 1,000,000."))
    write_manifest(forged, true.run, true.verdict, Payloads.ALL, true.of, true.judged_at)
    stage = unchanged_parts(whole, keyring)[1]
    assert stage.signoffs[0].trust is SignoffTrust.UNPROVEN and stage.trust_code == 3
    assert "or another part of it" in stage.signoffs[0].says


def test_the_name_of_a_part_holds_no_line_of_another(history: History) -> None:
    """Story: a signed part is taken out, and the name of another part's folder ends in its line.
    Hashes of several parts are put together by such lines."""
    run = history.create("run", "chain", {})
    for place in (EVIDENCE, f"stages/double/{EVIDENCE}"):
        made(history.settings.runs / run.id / place, replace(HELD, run=run.id))
    folder = history.settings.runs / run.id
    digest = manifest_hash(folder / "stages" / "double" / EVIDENCE)
    shutil.rmtree(folder / "stages")
    forged = folder / f"{EVIDENCE}\n{digest}  stages" / "double"
    forged.mkdir(parents=True)
    (folder / EVIDENCE).rename(forged / EVIDENCE)
    with pytest.raises(EvidenceError, match="as no evidence has"):
        original_hash(folder)


@pytest.mark.parametrize("how", ["unsigned", "signed before", "unsigned below a later one"])
def test_an_export_signs_nothing_that_the_chain_rejects(
    how: str, history: History, tmp_path: Path
) -> None:
    """Story: an administrator of the database makes an acceptance of a rejection. The next export
    would sign it with the key of the installation: it is refused, and names the entry."""
    run = run_of(history)
    decided(history, run, Decision.REJECT)
    entry = signoffs(history)[0]
    forged = replace(
        entry,
        decision=Decision.ACCEPT,
        envelope=entry.envelope if how == "signed before" else None,
    )
    forged = replace(forged, hash=forged.hashed())
    if how == "unsigned below a later one":
        decided(history, run_of(history), Decision.REJECT)
    with history.session() as session:
        session.execute(sa.text("drop trigger signoffs_refuse_update"))
        session.execute(
            sa.text("update signoffs set decision = 'accept', hash = :hash, envelope = :envelope"
                    " where number = 1"),
            {"hash": forged.hash, "envelope": forged.envelope},
        )  # fmt: skip
    with pytest.raises(EvidenceError, match=r"not exported with its sign-offs, because of entry 1"):
        exported(history, run, tmp_path / "laundered")
    assert not (tmp_path / "laundered").exists()


def test_the_next_sign_off_covers_no_entry_that_was_appended(
    history: History, tmp_path: Path
) -> None:
    """Story: an administrator of the database appends an acceptance in Grace's name, which nobody
    signed. Then somebody signs off another run. The entry stays without a signature."""
    honest, run = run_of(history), run_of(history)
    decided(history, honest, Decision.REJECT)
    last = signoffs(history)[-1]
    forged = replace(
        last,
        number=2,
        run=run.id,
        decision=Decision.ACCEPT,
        evidence=signable(history.settings, run)[1],
        previous=last.hash,
        envelope=None,
    )
    forged = replace(forged, hash=forged.hashed())
    row = {**asdict(forged), "identity": json.dumps(KURT.as_json(), sort_keys=True)}
    names = [column["name"] for column in sa.inspect(history.engine).get_columns("signoffs")]
    with history.session() as session:
        session.execute(
            sa.text(
                f"insert into signoffs({', '.join(names)})"
                f" values({', '.join(f':{name}' for name in names)})"
            ),
            {name: row[name] for name in names},
        )
    decided(history, honest, Decision.REJECT)
    assert broken(signoffs(history)) is None
    assert [doubt.number for doubt in read_chain(history).unanchored] == [2]
    with pytest.raises(EvidenceError, match="because of entry 2: Nobody vouches for it"):
        exported(history, run, tmp_path / "laundered")


def test_an_export_notices_that_an_entry_was_removed(history: History, tmp_path: Path) -> None:
    """Story: the rejection that was entered last is deleted, so that an older acceptance counts."""
    run = run_of(history)
    decided(history, run, Decision.ACCEPT)
    decided(history, run, Decision.REJECT)
    with history.session() as session:
        session.execute(sa.text("drop trigger signoffs_refuse_delete"))
        session.execute(sa.text("delete from signoffs where number = 2"))
    with pytest.raises(EvidenceError, match="because of entry 1: This installation signed entry 2"):
        exported(history, run, tmp_path / "laundered")


def test_copies_of_earlier_versions_stay_valid(history: History, rejected: Path) -> None:
    """Story: a copy of a version whose page had no column with signatures, and no original
    manifest. Its sign-offs count as before if the copy is signed."""
    entries = entries_of(rejected)
    (rejected / ORIGINAL).unlink()
    judged_at = (read_manifest(rejected).judged_at or "").replace("T", " ")
    write_page(rejected / "report.html", read_report(rejected), f"{judged_at} UTC", entries, False)
    mend(rejected)
    attest(history.settings, rejected)
    assert verified(history, rejected, required=True).trust_code == 0
    assert trusts(history, rejected) == [SignoffTrust.VOUCHED]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_other_entry_is_ever_vouched_for(
    data: st.DataObject, history: History, rejected: Path
) -> None:
    """Story: any field of a signed entry is set to anything, or a byte of its envelope is changed.
    It is never vouched for unless it is the same entry."""
    (entry,) = entries_of(rejected)
    name = data.draw(st.sampled_from(sorted(entry)))
    if name == "envelope" and data.draw(st.booleans()):
        envelope = parse_envelope(entry["envelope"].encode())
        payload = bytearray(envelope.payload)
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
        said = json.loads(entry["envelope"]) | {"payload": base64.b64encode(payload).decode()}
        changed = {**entry, "envelope": json.dumps(said)}
    else:
        changed = rehashed({**entry, name: data.draw(VALUES)})
    same = json.dumps(changed, sort_keys=True) == json.dumps(entry, sort_keys=True)
    before = entries_of(rejected)
    try:
        rewritten(rejected, [changed])
        answer = verified(history, rejected)
        assert same or answer.exit_code == 4 or changed["envelope"] is None
        assert same or not any(one.trust.by_trusted for one in answer.signoffs)
    finally:
        rewritten(rejected, before)


def test_copies_hold_what_their_manifest_says(history: History, rejected: Path) -> None:
    """Story: a copy of a copy keeps the file with the original manifest."""
    copy_evidence(rejected, rejected.parent / "second")
    assert trusts(history, rejected.parent / "second") == [SignoffTrust.VOUCHED]


def test_what_lies_beside_evidence_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a genuine folder of evidence comes with a forged page above it, and with another one
    whose verdict nobody looked at. Both are named, with nothing that a terminal obeys."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    made(tmp_path / "run" / EVIDENCE, HELD)
    assert names_beside(tmp_path / "run") == []
    (tmp_path / "run" / "squares2").mkdir()
    for name in ("report.html", "a\x1b[2J.txt", "squares2/manifest.json"):
        (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--hashes-only", str(tmp_path / "run")])
    assert ended.value.code == 0
    answer = " ".join(capsys.readouterr().out.split())
    assert "Not verified: what lies beside the evidence. That is 'a\\x1b[2J.txt'" in answer
    assert "report.html, squares2/manifest.json." in answer and "\x1b[2J" not in answer
