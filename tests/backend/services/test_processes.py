"""Limits of the processes that the embedded services need."""

from __future__ import annotations

import resource

import pytest

from topicproof.backend.errors import SetupError
from topicproof.backend.services.processes import OPEN_FILES_MIN, require_open_files


def test_few_open_files_are_more_afterwards_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a shell allows few open files. The limit is raised where the system allows it;
    otherwise a sentence says so before Java fails without one."""
    before = _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MIN // 2, hard))
        require_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= OPEN_FILES_MIN
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    monkeypatch.setattr("resource.getrlimit", lambda _which: (40, 40))
    with pytest.raises(SetupError, match="may open only 40 files here"):
        require_open_files()
