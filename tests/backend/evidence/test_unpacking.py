"""Zip files from strangers: nothing leaves the folder, and nothing grows without end."""

from __future__ import annotations

import stat
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence import unpacking
from topicproof.backend.evidence.unpacking import unpack, unpacked


def packed(path: Path, *names: str, mode: int = 0, data: bytes = b"x") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def test_a_download_is_unpacked_for_as_long_as_it_is_read(tmp_path: Path) -> None:
    made = packed(tmp_path / "a.zip", "run/manifest.json", "run/sink/part.parquet")
    with unpacked(made) as folder:
        assert folder.name == "run" and (folder / "sink" / "part.parquet").read_bytes() == b"x"
    assert not folder.exists()


def test_a_page_beside_the_folder_of_evidence_is_refused(tmp_path: Path) -> None:
    """Story: a zip file holds genuine evidence in a folder, and a forged page beside it."""
    both = packed(tmp_path / "a.zip", "run/manifest.json", "report.html")
    with (
        pytest.raises(EvidenceError, match=r"holds report\.html beside its one folder"),
        unpacked(both),
    ):
        pass


@pytest.mark.parametrize(
    ("names", "mode", "why"),
    [
        (("../x",), 0, "lies outside of it"),
        (("a/../../x",), 0, "lies outside of it"),
        (("/etc/x",), 0, "lies outside of it"),
        (("..\\x",), 0, "lies outside of it"),
        (("x",), stat.S_IFLNK | 0o777, "not a plain file"),
        (("x",), stat.S_IFIFO, "not a plain file"),
        (("a/x", "a//x"), 0, "twice"),
        (("a/" * 1_500 + "x",), 0, "nested more than 20 deep"),
    ],
    ids=lambda given: str(given),
)
def test_a_hostile_zip_file_is_refused_before_a_byte_is_written(
    names: tuple[str, ...], mode: int, why: str, tmp_path: Path
) -> None:
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    with pytest.raises(EvidenceError, match=why):
        unpack(packed(tmp_path / "a.zip", "fine", *names, mode=mode), target)
    assert list(target.iterdir()) == []
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.zip", "deep"]


def test_a_bomb_is_refused_by_what_it_declares_and_by_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: ten million zeros in ten thousand bytes. A second file declares one byte and holds as
    many."""
    made = packed(tmp_path / "a.zip", "zeros", data=bytes(10_000_000))
    with monkeypatch.context() as patch:
        patch.setattr(unpacking, "UNPACKED_BYTES_MAX", 1_000_000)
        with pytest.raises(EvidenceError, match="10,000,000 bytes unpacked; 1,000,000 are allowed"):
            unpack(made, tmp_path)
        patch.setattr(unpacking, "FILES_MAX", 0)
        with pytest.raises(EvidenceError, match="more than 0 files"):
            unpack(made, tmp_path)
    size = (10_000_000).to_bytes(4, "little")
    made.write_bytes(made.read_bytes().replace(size, (1).to_bytes(4, "little")))
    with pytest.raises(EvidenceError, match=r"cannot be unpacked|can be unpacked|larger than"):
        unpack(made, tmp_path)
    assert sum(one.stat().st_size for one in tmp_path.glob("zeros")) <= 1


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no zip file"])
def test_what_is_no_zip_file_is_said(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(EvidenceError, match="not a zip file"):
        unpack(tmp_path / "a.zip", tmp_path)


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
@hypothesis_settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 10_000), change=st.integers(1, 255), length=st.integers(1, 4))
def test_a_damaged_zip_file_ends_in_a_sentence(
    method: int, at: int, change: int, length: int, tmp_path: Path
) -> None:
    """Story: some bytes of an archive are changed, whatever packed it. It is unpacked, or one
    sentence says why not."""
    made = tmp_path / f"{method}.zip"
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("manifest.json", b"{}" * 90)
    data = bytearray(made.read_bytes())
    for place in range(at, at + length):
        data[place % len(data)] ^= change
    made.write_bytes(data)
    with TemporaryDirectory() as target, suppress(EvidenceError):
        unpack(made, Path(target))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_python_unpacks_without_a_bound_is_refused(method: int, tmp_path: Path) -> None:
    """Story: an entry declares one byte, and is 20 MB of zeros in a few bytes of bzip2. Python
    unpacks all of it before it compares."""
    made = tmp_path / "a.zip"
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("manifest.json", bytes(20_000_000))
    size = (20_000_000).to_bytes(4, "little")
    made.write_bytes(made.read_bytes().replace(size, (1).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with pytest.raises(EvidenceError, match="in a compression that is not read"):
            unpack(made, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert [each.name for each in tmp_path.iterdir()] == ["a.zip"]


def test_a_list_of_millions_of_files_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a zip file of 100 MB is nothing but a list of two million empty files. Python would
    take a gigabyte to tell how many there are."""
    made = packed(tmp_path / "a.zip", *(f"{number:x}" for number in range(100)))
    monkeypatch.setattr(unpacking, "DIRECTORY_BYTES_MAX", 4_000)
    with pytest.raises(EvidenceError, match=r"a list of its files of more than 4,000 bytes"):
        unpack(made, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("name", ["a\x1b[2K", "a\u202ez", "x" * 300, "a\n"])
def test_a_name_that_no_file_has_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no name of a file of evidence") as error:
        unpack(packed(tmp_path / "a.zip", name), tmp_path)
    assert str(error.value).isprintable()
