"""Folders and their twins in a storage, which is a folder here; tests/topology has a bucket."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.test_cli import call
from topicproof.backend import storage as storage_module
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.copy import is_copy
from topicproof.backend.services.keeper import storage_of
from topicproof.backend.settings import read_settings
from topicproof.backend.storage import Storage, download, publish, uploading, withdraw


def names(folder: Path) -> set[str]:
    return {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage((tmp_path / "far").as_uri(), tmp_path / "home")


def test_the_twin_of_a_folder_has_exactly_its_files(storage: Storage, tmp_path: Path) -> None:
    """Story: evidence is judged a second time. Nothing of the first time stays in the storage."""
    here, far = storage.home / "runs" / "a b", tmp_path / "far" / "runs" / "a b"
    (here / "ledger").mkdir(parents=True)
    for name in ("report.json", "ledger/words"):
        (here / name).write_text(name)
    (far / "old").mkdir(parents=True)
    (far / "old" / "findings").write_text("of the first time")
    publish(storage, here)
    assert names(far) == {"report.json", "ledger/words"}
    assert (far / "report.json").read_text() == "report.json"
    assert storage.here(storage.twin(here / "ledger")) == here / "ledger"
    withdraw(storage, here)
    assert names(far) == set()


@pytest.mark.parametrize("name", ["report.json", "ledger"])
def test_no_link_in_a_storage_on_disk_is_followed(
    name: str, storage: Storage, tmp_path: Path
) -> None:
    """Story: others may write the storage too. They lay a link to a file or a folder of the user's
    with the name of a file or a folder of evidence."""
    here, far = storage.home / "evidence", tmp_path / "far" / "evidence"
    (here / "ledger").mkdir(parents=True)
    for path in ("report.json", "ledger/words"):
        (here / path).write_text(path)
    mine = tmp_path / "ada"
    mine.mkdir()
    for path in ("words", "wages.csv"):
        (mine / path).write_text("mine")
    far.mkdir(parents=True)
    (far / name).symlink_to(mine / "wages.csv" if name == "report.json" else mine)
    with suppress(EvidenceError):
        publish(storage, here)
    with suppress(EvidenceError):
        withdraw(storage, here)
    assert {path.name: path.read_text() for path in mine.iterdir()} == {
        "words": "mine",
        "wages.csv": "mine",
    }


def test_temporary_folders_have_twins_of_this_session(storage: Storage, tmp_path: Path) -> None:
    """Story: evidence from elsewhere is verified. Spark sees a copy of it, which does not stay."""
    (tmp_path / "proof").mkdir()
    (tmp_path / "proof" / "taken.json").write_text("{}")
    publish(storage, tmp_path / "proof")
    assert storage.here(storage.twin(tmp_path / "proof")) == tmp_path / "proof"
    assert len(names(tmp_path / "far")) == 1
    storage.close()
    assert names(tmp_path / "far") == set()


def test_what_is_not_ours_is_not_replaced(storage: Storage, tmp_path: Path) -> None:
    """Story: somebody names the wrong folder for a copy, or one that is not there."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "wages.csv").touch()
    with pytest.raises(UsageError, match="is not empty"), uploading(storage.url, is_copy):
        pass
    with pytest.raises(EvidenceError, match="other://none cannot be reached"):
        download("other://none", tmp_path / "copy")


@pytest.mark.parametrize("other", ["manifest.json", "proof/more.txt", "logs/part-0.parquet"])
def test_a_manifest_among_other_files_makes_them_no_copy(
    storage: Storage, tmp_path: Path, other: str
) -> None:
    """Story: evidence lies in a bucket, or another program's manifest does. A copy to the bucket
    itself replaces nothing beside it; a copy to the evidence's own folder replaces it."""
    for name in ("proof/manifest.json", "proof/ledger/sink/part-0.parquet", other, "wages.csv"):
        (tmp_path / "far" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "far" / name).touch()
    before = names(tmp_path / "far")
    with pytest.raises(UsageError, match="is not empty"), uploading(storage.url, is_copy):
        pass
    assert names(tmp_path / "far") == before
    if other != "proof/more.txt":
        with uploading(f"{storage.url}/proof", is_copy) as folder:
            folder.mkdir()
            (folder / "manifest.json").write_text("new")
        assert names(tmp_path / "far" / "proof") == {"manifest.json"}


def test_a_storage_needs_a_spark_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the variable is left from the cluster, and the embedded Spark is used."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("TOPICPROOF_STORAGE", "s3a://bucket/folder/")
    settings = read_settings(home=tmp_path)
    assert settings.storage == "s3a://bucket/folder"
    with pytest.raises(UsageError, match="SPARK_REMOTE names none"):
        storage_of(settings)
    monkeypatch.setenv("TOPICPROOF_STORAGE", "bucket/folder")
    with pytest.raises(UsageError, match=r"TOPICPROOF_STORAGE is wrong: .* URL of a folder"):
        read_settings(home=tmp_path)


def test_a_download_for_verify_has_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: evidence at a URL has more bytes than evidence may have, or a file that is longer than
    the storage says. Nothing beyond that is written."""
    far, here = tmp_path / "far", tmp_path / "here"
    far.mkdir()
    for name in ("a", "b"):
        (far / name).write_bytes(b"x" * 600)
    with pytest.raises(EvidenceError, match=r"has 1,200 bytes; 1,000 are allowed"):
        download(far.as_uri(), here, bytes_max=1_000)
    assert not here.exists()
    assert download(far.as_uri(), here, bytes_max=1_200) == 2
    assert (here / "a").read_bytes() == b"x" * 600
    listed = dict.fromkeys(("a", "b"), 100)
    monkeypatch.setattr(storage_module, "listed", lambda _url: listed)
    with pytest.raises(EvidenceError, match="more than the 100 bytes that it is said to have"):
        download(far.as_uri(), tmp_path / "grown", bytes_max=1_000)
    assert sum(path.stat().st_size for path in (tmp_path / "grown").iterdir()) <= 200


@pytest.mark.parametrize(
    "url",
    ["s3a://KEY:planted@bucket/x", "s3://KEY:plan/ted@bucket", "abfss://c@a.net/x?sig=planted"],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: somebody writes the keys of a bucket into its address, as other programs take them."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    assert call("verify", url) == 64
    monkeypatch.setenv("TOPICPROOF_STORAGE", url)
    with pytest.raises(UsageError, match="TOPICPROOF_STORAGE is wrong: the address has a"):
        read_settings()
    words = "".join(capsys.readouterr())
    assert "the address has a" in " ".join(words.split()) and "plan" not in words


def test_a_secret_in_the_address_of_an_s3_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://KEY:planted@s3.example")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL is wrong") as refusal:
        download("s3a://bucket/x", Path("x"))
    assert "planted" not in str(refusal.value)
