"""The oldest and the newest broker: all works there, or one sentence says what is lacking."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers.broker import TESTED
from tests.brokers.versions import CELLS, LACKS, OK, try_version
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

pytestmark = pytest.mark.services


@pytest.mark.parametrize("version", TESTED)
def test_a_broker_of_this_version(
    version: str, settings: Settings, cluster: Services, tmp_path: Path
) -> None:
    """Story: somebody's cluster is older or newer than ours. Runs, views and verdicts are the same;
    what the broker lacks is named where it is needed, and costs nothing else."""
    cells = try_version(settings, cluster.spark_remote, version, tmp_path)
    told = dict(zip((cell.__name__ for cell in CELLS), cells, strict=True))
    lacking = {name: cell for name, cell in told.items() if cell != OK}
    assert set(lacking) == ({"inspect", "transactions", "hanging"} if version < "3" else set())
    assert all(f"{LACKS} ListTransactions" in cell for cell in lacking.values()), lacking
