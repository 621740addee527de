"""Stores of one authority and one client, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.properties.stores import Authority, Issued, write_stores


@pytest.fixture(scope="package")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="package")
def me(authority: Authority) -> Issued:
    return authority.issue("me@example.org", "me")


@pytest.fixture(scope="package")
def stores(authority: Authority, me: Issued, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    write_stores(folder, authority, me)
    return folder
