"""Keys that never leave where they are: on a PKCS#11 token in software, and in a service that
speaks as AWS KMS does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from securesystemslib.dsse import Envelope
from securesystemslib.signer import HSMSigner, SSlibKey

from tests.backend.evidence.test_attestation import looked, made
from tests.kms import kms
from tests.s3 import moto
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.attestation import Trust, attest
from topicproof.backend.evidence.manifest import ATTESTATION
from topicproof.backend.settings import ROOT, Settings
from topicproof.backend.trust.keyring import OWN, revoke, signing_key
from topicproof.backend.trust.keys import key_id, public_pem, read_public

MODULE = "/usr/lib/softhsm/libsofthsm2.so"
PIN = "4711-hidden"
TOKEN = "hsm:2?label=topicproof"
ALIAS = "alias/topicproof"
MAKE_KEY = f"""
import base64, boto3
kms = boto3.client("kms")
made = kms.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")["KeyMetadata"]["KeyId"]
kms.create_alias(AliasName="{ALIAS}", TargetKeyId=made)
public = base64.encodebytes(kms.get_public_key(KeyId=made)["PublicKey"]).decode()
print(f"-----BEGIN PUBLIC KEY-----\\n{{public}}-----END PUBLIC KEY-----")
"""
# The AWS SDK is in moto's environment. What both environments have is taken from this one.
SIGN = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from topicproof.backend.evidence.attestation import attest
from topicproof.backend.errors import TopicproofError
from topicproof.backend.settings import ROOT, Settings
folder, home, uri, public = sys.argv[2:]
given = {"signing_uri": uri, "signing_public_key": public}
try:
    attest(Settings(home=home, signer="ada@lab", **given), Path(folder))
except TopicproofError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a token that holds an ECDSA key, its public key, and the PIN."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "store").mkdir()
    config = folder / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {folder / 'store'}\n")
    with pytest.MonkeyPatch.context() as patch:
        # Read once by the module, in this process.
        patch.setenv("SOFTHSM2_CONF", str(config))
        patch.setenv("PYKCS11LIB", MODULE)
        made = ("--init-token", "--free", "--label", "topicproof", "--so-pin", PIN, "--pin", PIN)
        subprocess.run(["softhsm2-util", *made], check=True, capture_output=True)
        private = folder / "key.pem"
        curve = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", *curve, "-out", private],
            check=True,
            capture_output=True,
        )
        kept = ("--import", private, "--token", "topicproof", "--label", "key", "--id", "02")
        subprocess.run(["softhsm2-util", *kept, "--pin", PIN], check=True, capture_output=True)
        private.unlink()
        _, public = HSMSigner.import_(2, "topicproof", lambda _: PIN)
        (folder / "public.pem").write_text(public.keyval["public"])
        pin = folder / "pin"
        pin.write_text(PIN + "\n")
        pin.chmod(0o600)
        yield folder


@pytest.fixture
def token(tokens: Path, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        signer="ada@lab",
        signing_uri=TOKEN,
        signing_public_key=tokens / "public.pem",
        signing_pin_file=tokens / "pin",
    )


def verified_by_another_tool(folder: Path, public: Path) -> bool:
    key = read_public(public)
    envelope = Envelope.from_dict(json.loads((folder / ATTESTATION).read_bytes()))
    return bool(envelope.verify([SSlibKey.from_crypto(key, key_id(key))], 1))


def test_a_token_signs_evidence(token: Settings, tokens: Path, tmp_path: Path) -> None:
    """Story: the key is on a token and nowhere else. A folder is signed with it, and verifies
    without the token, also by another tool. The PIN is in no file. Once the key is revoked, the
    folder is refused, and nothing is deleted."""
    folder = made(tmp_path / "evidence")
    attest(token, folder)
    without = token.model_copy(update={"signing_pin_file": None})
    found, vouched = looked(without, folder, required=True)
    assert vouched.trust is Trust.VOUCHED and vouched.name == OWN and not found.refused
    assert verified_by_another_tool(folder, tokens / "public.pem")
    assert not any(PIN.encode() in one.read_bytes() for one in folder.rglob("*") if one.is_file())
    revoke(token, OWN, "token lost")
    assert looked(token, folder)[1].trust is Trust.REVOKED


@pytest.mark.services
def test_a_key_of_a_service_signs_evidence(settings: Settings, tmp_path: Path) -> None:
    """Story: the key is in AWS KMS. A folder is signed there, and verifies without the service,
    also by another tool. A key that is not there, and the public key of another one, are errors
    with the key's name, and sign nothing."""
    folder, home = made(tmp_path / "evidence"), tmp_path / "home"
    public, other = tmp_path / "public.pem", tmp_path / "other.pem"
    other.write_text(public_pem(ec.generate_private_key(ec.SECP256R1()).public_key()))
    python = moto(settings)
    (packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    with kms(settings, tmp_path) as there:

        def run(*command: str | Path) -> str:
            answer = subprocess.run(
                command, env=there, cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert there["AWS_SECRET_ACCESS_KEY"] not in answer.stdout + answer.stderr
            return answer.stdout if answer.returncode == 0 else answer.stderr

        public.write_text(run(python, "-c", MAKE_KEY))
        sign = sys.executable, "-c", SIGN, packages, folder, home
        none = run(*sign, "awskms:alias/none", public)
        assert "EvidenceError: The key awskms:alias/none did not sign (" in none
        assert f"UsageError: The key awskms:{ALIAS} is not the" in run(
            *sign, f"awskms:{ALIAS}", other
        )
        assert not (folder / ATTESTATION).exists()
        assert run(*sign, f"awskms:{ALIAS}", public) == ""
    own = Settings(home=home, signing_uri=f"awskms:{ALIAS}", signing_public_key=public)
    found, vouched = looked(own, folder, required=True)
    assert vouched.trust is Trust.VOUCHED and vouched.name == OWN and not found.refused
    assert verified_by_another_tool(folder, public)


def test_a_key_that_does_not_sign_says_why(token: Settings, tmp_path: Path) -> None:
    """Story: a wrong PIN, no PIN, a token that is not there, the public key of another key, none,
    and an address of no service. Each is a sentence, and none shows the PIN."""
    other, same_type, wrong = (tmp_path / name for name in ("other.pem", "type.pem", "pin"))
    same_type.write_text(public_pem(ec.generate_private_key(ec.SECP256R1()).public_key()))
    other.write_text(public_pem(signing_key(Settings(home=tmp_path / "own")).public))
    wrong.write_text("1234")
    wrong.chmod(0o600)
    cases: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"signing_pin_file": wrong}, EvidenceError, "did not sign .PinIncorrect"),
        ({"signing_pin_file": None}, UsageError, "TOPICPROOF_SIGNING_PIN_FILE"),
        ({"signing_uri": "hsm:2?label=none"}, EvidenceError, "No PKCS#11 token found"),
        ({"signing_uri": "hsm:3?label=topicproof"}, EvidenceError, "could not find ECDSA"),
        ({"signing_public_key": same_type}, UsageError, "is not the one in"),
        ({"signing_public_key": other}, EvidenceError, "unsupported scheme"),
        ({"signing_public_key": None}, UsageError, "TOPICPROOF_SIGNING_PUBLIC_KEY"),
        ({"signing_uri": "file:key.pem"}, UsageError, "must begin with hsm"),
        ({"signing_uri": "gcpkms:x"}, UsageError, r"securesystemslib\[gcpkms\]"),
    ]
    for changed, kind, why in cases:
        with pytest.raises(kind, match=why) as refused:
            signing_key(token.model_copy(update=changed)).sign(b"text")
        assert PIN not in str(refused.value) and "1234" not in str(refused.value)
