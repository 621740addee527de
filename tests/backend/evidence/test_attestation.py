"""Who vouches for a folder: the signer, nobody, a stranger, or a key that no longer counts."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from tests.app.test_history_page import HELD, TWICE
from tests.backend.evidence.evidence import mend
from topicproof.backend.evidence.attestation import (
    PREDICATE,
    Trust,
    Vouching,
    attest,
    attest_copy,
    sign_statement,
    statement_of,
    write_attestation,
)
from topicproof.backend.evidence.copy import copy_evidence, zip_evidence
from topicproof.backend.evidence.folder import EVIDENCE, complete, evidence_in
from topicproof.backend.evidence.manifest import ATTESTATION, MANIFEST, Payloads, manifest_hash
from topicproof.backend.settings import Settings
from topicproof.backend.trust.dsse import STATEMENT
from topicproof.backend.trust.identity import How, Identity, Role
from topicproof.backend.trust.keyring import OWN, import_key, read_keyring, revoke, signing_key
from topicproof.backend.trust.keys import from_private, key_id, public_pem
from topicproof.backend.verifying.unchanged import Verification, unchanged
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", signer="ada@lab")


def made(folder: Path, report: Report = TWICE) -> Path:
    """Evidence as a check leaves it, but for its readings."""
    folder.mkdir(parents=True)
    complete(folder, report, {"plan.json": {"sink": report.sink.topic}})
    return folder


@pytest.fixture
def signed(settings: Settings, tmp_path: Path) -> Path:
    folder = made(tmp_path / "run" / EVIDENCE)
    attest(settings, folder)
    return folder


def looked(
    settings: Settings, folder: Path, required: bool = False
) -> tuple[Verification, Vouching]:
    found = unchanged(folder, read_keyring(settings), required)
    assert found.vouched is not None
    return found, found.vouched


def test_a_folder_says_who_vouches_for_it(settings: Settings, signed: Path) -> None:
    """Story: a check ends. Its folder is signed, with the verdict in in-toto's words, and verifying
    names the signer."""
    found, vouched = looked(settings, signed, required=True)
    assert vouched.trust is Trust.VOUCHED and found.trust_code == 0 and not found.refused
    assert vouched.says.startswith(f"{OWN} (key {vouched.key[:16]}, by ada@lab at 20")  # type: ignore[index]
    said = statement_of(settings, signed)
    assert (said["_type"], said["predicateType"]) == (STATEMENT, PREDICATE)
    assert said["subject"] == [{"name": MANIFEST, "digest": {"sha256": manifest_hash(signed)}}]
    predicate = said["predicate"]
    assert (predicate["result"], predicate["verdict"]) == ("FAILED", Outcome.VIOLATED)
    assert "duplicate" in predicate["failedTests"]
    assert [one["name"] for one in predicate["configuration"]] == ["plan.json"]


def test_in_totos_result_never_passes_what_is_open(settings: Settings, tmp_path: Path) -> None:
    told = {
        "holds": HELD,
        "warns": replace(HELD, warnings=("12 offsets are pending.",)),
        "open": replace(HELD, verdict=Outcome.UNKNOWN),
    }
    results = [
        statement_of(settings, made(tmp_path / name, report))["predicate"]["result"]
        for name, report in told.items()
    ]
    assert results == ["PASSED", "WARNED", "FAILED"]


def test_another_tool_verifies_a_folder(settings: Settings, signed: Path) -> None:
    """Story: an auditor has securesystemslib, our public key and `sha256sum`."""
    public = signing_key(settings).public
    key = SSlibKey.from_crypto(public, key_id(public))
    envelope = Envelope.from_dict(json.loads((signed / ATTESTATION).read_bytes()))
    assert envelope.verify([key], 1)
    (subject,) = json.loads(envelope.payload)["subject"]
    assert subject["digest"]["sha256"] == manifest_hash(signed)


def _resign(settings: Settings, folder: Path) -> None:
    key = from_private(Ed25519PrivateKey.generate())
    write_attestation(folder, sign_statement(key, statement_of(settings, folder)))


def _keep_signature(harm: Callable[[Path], object]) -> Callable[[Settings, Path], None]:
    def forge(_: Settings, folder: Path) -> None:
        kept = (folder / ATTESTATION).read_bytes()
        harm(folder)
        (folder / ATTESTATION).write_bytes(kept)

    return forge


def _claim(settings: Settings, folder: Path) -> None:
    """Sign with another key, and name ours."""
    _resign(settings, folder)
    said = json.loads((folder / ATTESTATION).read_text())
    said["signatures"][0]["keyid"] = key_id(signing_key(settings).public)
    (folder / ATTESTATION).write_text(json.dumps(said))


def _edit_payload(_: Settings, folder: Path) -> None:
    said = json.loads((folder / ATTESTATION).read_text())
    said["payload"] = "e30="
    (folder / ATTESTATION).write_text(json.dumps(said))


def _link(_: Settings, folder: Path) -> None:
    kept = folder.parent / "signature.json"
    (folder / ATTESTATION).rename(kept)
    (folder / ATTESTATION).symlink_to(kept)


FORGED: dict[str, tuple[Callable[[Settings, Path], None], Trust, str, int]] = {
    "hashes mended": (_keep_signature(mend), Trust.BROKEN, "changed after it was signed", 4),
    "signature removed": (
        lambda _, folder: (folder / ATTESTATION).unlink(),
        Trust.UNSIGNED,
        "Nobody vouches for it: it has no signature.",
        0,
    ),
    "signed again by a stranger": (_resign, Trust.STRANGER, "keys import", 3),
    "signed again in our name": (_claim, Trust.BROKEN, "which did not sign it", 4),
    "another statement": (_edit_payload, Trust.BROKEN, "no in-toto statement", 4),
    "signature is a link": (_link, Trust.BROKEN, "it is a link", 4),
    "signature is no envelope": (
        lambda _, folder: (folder / ATTESTATION).write_text("[" * 10**5),  # type: ignore[dict-item]
        Trust.BROKEN,
        "not JSON",
        4,
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_folder_is_refused_with_the_reason(
    how: str, settings: Settings, signed: Path
) -> None:
    """Story: somebody edits the report, mends the manifest and its hashes, and packs the folder
    again. Verifying says why that is not what was signed. Without any signature nobody vouches,
    which a strict reader refuses as well."""
    forge, trust, says, code = FORGED[how]
    text = (signed / "report.json").read_text().replace("VIOLATED", "HOLDS")
    (signed / "report.json").write_text(text)
    kept = (signed / ATTESTATION).read_bytes()
    mend(signed)
    (signed / ATTESTATION).write_bytes(kept)
    forge(settings, signed)
    found, vouched = looked(settings, signed)
    assert found.differences == (), "the hashes were mended"
    assert vouched.trust is trust and says in vouched.says and found.trust_code == code
    assert looked(settings, signed, required=True)[0].trust_code == 4


def test_a_signature_of_another_folder_does_not_count(
    settings: Settings, signed: Path, tmp_path: Path
) -> None:
    other = made(tmp_path / "other", HELD)
    attest(settings, other)
    (signed / ATTESTATION).write_bytes((other / ATTESTATION).read_bytes())
    assert looked(settings, signed)[1].trust is Trust.BROKEN


def test_a_folder_of_before_a_revocation_says_so(
    settings: Settings, signed: Path, tmp_path: Path
) -> None:
    """Story: Grace signs a folder. Ada trusts her key, and says today that it was stolen. The
    folder of yesterday is refused, with both times; it does not become merely unknown."""
    ada = Settings(home=tmp_path / "ada")
    pem = tmp_path / "grace.pem"
    pem.write_text(public_pem(signing_key(settings).public))
    assert looked(ada, signed)[1].trust is Trust.STRANGER
    import_key(ada, pem, "grace")
    assert looked(ada, signed)[1].says.startswith("grace (key ")
    revoke(ada, "grace", "laptop stolen")
    found, vouched = looked(ada, signed)
    assert vouched.trust is Trust.REVOKED and found.trust_code == 4 and found.refused
    assert "by ada@lab at 20" in vouched.says and "That key was revoked on 20" in vouched.says
    assert "laptop stolen" in vouched.says and vouched.signed_at


@pytest.mark.parametrize("payloads", Payloads)
def test_a_copy_is_signed_if_its_original_is(
    payloads: Payloads, settings: Settings, signed: Path, tmp_path: Path
) -> None:
    """Story: a copy without payloads has other hashes. It is signed again, unless nobody vouches
    for the original: signing a copy must not wash a forgery clean. It still says who launched the
    run."""
    grace = Identity("Grace", "https://sso.example", "g1", frozenset({Role.OPERATOR}), How.OPENID)
    attest(settings, signed, [grace.as_json()])
    for name, trust in (("good", Trust.VOUCHED), ("bad", Trust.UNSIGNED)):
        copied = copy_evidence(signed, tmp_path / name, payloads)
        attest_copy(settings, signed, tmp_path / name, copied)
        assert looked(settings, tmp_path / name)[1].trust is trust
        mend(signed)


def test_a_download_is_signed(settings: Settings, signed: Path, tmp_path: Path) -> None:
    zip_evidence(signed.parent, tmp_path / "run.zip", Payloads.MASKED, "run", settings=settings)
    with zipfile.ZipFile(tmp_path / "run.zip") as packed:
        packed.extractall(tmp_path / "unpacked")
    found, vouched = looked(settings, tmp_path / "unpacked" / "run", required=True)
    assert vouched.trust is Trust.VOUCHED and found.trust_code == 0


def test_the_folder_of_several_sinks_holds_evidence_of_each(tmp_path: Path) -> None:
    """Story: a check of two sinks wrote one folder for each topic, one of them on a named cluster.
    Verifying the whole finds both; a run's folder is still that of its own evidence."""
    places = [made(tmp_path / "proof" / "squares"), made(tmp_path / "proof" / "west" / "cubes")]
    assert evidence_in(tmp_path / "proof") == places
    made(tmp_path / "proof" / EVIDENCE)
    assert evidence_in(tmp_path / "proof") == [tmp_path / "proof" / EVIDENCE]
