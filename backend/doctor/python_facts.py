"""What a Python of Spark says about itself.

Both the function and the class are sent there by value, because nothing of ours may be installed
there. So this module imports nothing of ours.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
from importlib import metadata

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

FORMAT = "topicproof-facts"
ASKED = ("topicproof", "confluent-kafka", "numpy", "pyarrow", "tenacity")
"""What a worker needs: the dependencies of pyproject.toml."""


def facts(_row: object = None) -> str:
    """Return host, Python and package versions of this process, as JSON. None: not installed."""
    versions: dict[str, str | None] = {}
    for name in ASKED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    where = {"host": socket.gethostname(), "executable": sys.executable}
    return json.dumps({**where, "python": platform.python_version(), "packages": versions})


class DriverFacts(DataSource):
    """A data source whose schema is one column, named by the facts. Spark asks the Python beside
    its driver for a schema."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType([StructField(facts(), StringType())])
