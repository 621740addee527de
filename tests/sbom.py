"""The software bill of materials of a release, in CycloneDX 1.6: every Python package and every jar
that it runs, with hashes and licence.

Run as `python -m tests.sbom FILE`; `make sbom` writes `dist/sbom.cdx.json`. Raises SystemExit if a
licence is not known or not in `LICENCES`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.markers import Marker

from topicproof.backend.services.jars import REGISTRY, known_hashes
from topicproof.backend.settings import ROOT

LOCK = ROOT / "requirements.lock"

SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
"""What packages call their licences, and the name of each in the list of SPDX."""
LICENCES = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "LGPL-2.1-or-later",
    "LGPL-3.0-only",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
    "Zlib",
}
"""Licences under which the parts may be used beside ours, Apache-2.0. Packages under the LGPL and
the MPL are used unchanged, as they are published."""
JAR_LICENCES = {
    "HdrHistogram": "CC0-1.0",
    "argparse4j": "MIT",
    "jopt-simple": "MIT",
    "pcollections": "MIT",
    "postgresql": "BSD-2-Clause",
    "re2j": "BSD-3-Clause",
    "slf4j-api": "MIT",
    "zstd-jni": "BSD-2-Clause",
}
"""Jars that are not under Apache-2.0, as their projects say."""


@dataclass(frozen=True)
class Locked:
    """A package of requirements.lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """SHA-256, of each file that may be installed."""


def locked(lock: Path) -> Iterator[Locked]:
    """Yield the packages of a lock that this Python and this system need."""
    for block in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
        found = re.match(r"([^=\s]+)==([^\s;]+)(?:\s*;\s*([^\\\n]+))?", block)
        if found and (found[3] is None or Marker(found[3].strip()).evaluate()):
            yield Locked(found[1], found[2], tuple(re.findall(r"sha256:(\w{64})", block)))


def licence_of(name: str) -> str:
    """Return the licence of an installed package as an SPDX expression. Raises SystemExit."""
    told = metadata.metadata(name)
    classes = [one.split(" :: ")[-1] for one in told.get_all("Classifier", [])]
    named: list[str] = [
        *told.get_all("License-Expression", []),
        *told.get_all("License", []),
        *(one for one in classes if one in SPDX),
    ]
    for one in (SPDX.get(one, one) for one in named):
        if set(re.split(r" (?:AND|OR) ", one)) <= LICENCES:
            return one
    sys.exit(f"The licence of {name} is not known here: {named}. Add it to tests/sbom.py.")


def packages(lock: Path = LOCK) -> Iterator[Component]:
    for one in locked(lock):
        url = PackageURL("pypi", name=one.name, version=one.version)
        yield _component(one.name, one.version, url, licence_of(one.name), one.hashes)


def jars() -> Iterator[Component]:
    """Yield each jar once, though more than one process may load it."""
    seen: set[str] = set()
    for path, digest in known_hashes().items():
        folder, _, file = path.partition("/")
        found = re.fullmatch(r"(.+_2\.13|.+?)-(\d[^/]*)\.jar", file)
        if folder == REGISTRY or found is None or file in seen:
            continue
        seen.add(file)
        url = PackageURL("generic", name=found[1], version=found[2])
        licence = JAR_LICENCES.get(found[1], "Apache-2.0")
        yield _component(found[1], found[2], url, licence, (digest,))


def _component(
    name: str, version: str, url: PackageURL, licence: str, hashes: Sequence[str]
) -> Component:
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=url,
        licenses=[LicenseFactory().make_from_string(licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes],
    )


def sbom() -> str:
    """Return the bill as JSON."""
    release = Component(
        name="topicproof",
        version=metadata.version("topicproof"),
        type=ComponentType.APPLICATION,
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bill = Bom(components=[*packages(), *jars()])
    bill.metadata.component = release
    bill.register_dependency(release, bill.components)
    return JsonV1Dot6(bill).output_as_string(indent=2)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(sbom() + "\n", encoding="utf-8")
    print(target)  # noqa: T201
