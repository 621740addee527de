"""Reads a file of client properties, with Kafka's references to other places.

The file has the format of `java.util.Properties`: `name=value`, `name: value` or `name value`, a
backslash at the end of a line continues it, and a backslash escapes. One rule is stricter: a
backslash in front of a character that needs none is an error. Java drops it, librdkafka's own tools
keep it, and either way a password would silently be another.
Another is that control characters are an error, but tabs and line breaks in values: librdkafka's
texts end at a NUL, so it would take the rest of a name for no part of it.

References have the syntax of Kafka's configuration providers: `${env:NAME}` (KIP-887),
`${file:/path:key}` (KIP-297) and `${directory:/path:file}` (KIP-632). The providers of these three
names are always there; `config.providers` may give them further names.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from topicproof.backend.characters import has_control, joined, require_text, visible
from topicproof.backend.errors import UsageError

BYTES_MAX = 1_000_000
"""Of a file of properties, and of each file that one names."""
REFERENCES_MAX = 1_000
"""In one file. Each opens a file of its own."""
REFERRED_MAX = 10_000_000
"""Characters that all references of one file may read. A few short ones could name a file of a
megabyte each, and together take gigabytes."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = frozenset("\\=:#! ")
_REFERENCE = re.compile(r"\$\{([^}:]{0,250}+):(?:([^}:]{0,4096}+):)?([^}]{0,4096}+)\}")
"""Kafka's own pattern (ConfigTransformer.DEFAULT_PATTERN), which takes the cube of a value's length
for one without an end: a provider ends at the first colon, and a path has at most 4,096 characters.
No part gives a character back: none could begin the next one.
"""
_JAAS = re.compile(r"^[ \t]*+[\w.$-]++\s*+\{[^{}]*LoginModule\s", re.MULTILINE)
"""Matches a file of Java's logins: `KafkaClient { MODULE required NAME="VALUE"; };`"""
_PROVIDERS = {
    "env": "EnvVarConfigProvider",
    "file": "FileConfigProvider",
    "directory": "DirectoryConfigProvider",
}


CONTROL_IN_VALUE = "a control character is in its value. Only tabs and line breaks may be there."


class _Budget:
    """What the references of one file may still read."""

    def __init__(self) -> None:
        self._references, self._characters = REFERENCES_MAX, REFERRED_MAX

    def take_reference(self, place: str) -> None:
        """Raises UsageError."""
        self._references -= 1
        if self._references < 0:
            raise UsageError(f"{place}: the file has more than {REFERENCES_MAX:,} references.")

    def take(self, text: str, place: str) -> str:
        """Return what a reference has read. Raises UsageError."""
        self._characters -= len(text)
        if self._characters < 0:
            raise UsageError(
                f"{place}: the references of the file read more than {REFERRED_MAX:,} characters."
            )
        return text


class Properties(dict[str, str]):
    """Values by name; `places` has the file and line of each name. Never printed: it holds
    secrets."""

    def __init__(self, values: Mapping[str, str], places: Mapping[str, str]) -> None:
        super().__init__(values)
        self.places = dict(places)

    def __repr__(self) -> str:
        return f"Properties({', '.join(self)})"


def place_of(properties: Mapping[str, str], name: str) -> str:
    """Return where the property is: its file and line, if they are known, and its name."""
    places = properties.places if isinstance(properties, Properties) else {}
    return f"{places[name]}, {name}" if name in places else f"Client property {name}"


def read_properties(path: Path) -> Properties:
    """Read the file and resolve its references.

    Raises UsageError naming the line. No message contains a value.
    """
    raw = _parsed(read_text(path, "The client properties"), path, "The client properties")
    providers, budget = _providers(raw), _Budget()
    values = {
        name: _resolved(value, providers, place_of(raw, name), budget)
        for name, value in raw.items()
        if not name.startswith("config.providers")
    }
    for name, value in values.items():
        if has_control(value, layout=True):
            raise UsageError(f"{place_of(raw, name)}: {CONTROL_IN_VALUE}")
    return Properties(values, raw.places)


def read_bytes(path: Path, place: str, *, regular_only: bool = False) -> bytes:
    """Return the content of a file that a property names. `regular_only`: refuse a pipe or a
    device, which could keep its reader for ever. Raises UsageError."""
    flags = os.O_RDONLY | (os.O_NONBLOCK if regular_only else 0)
    try:
        with open(
            path.expanduser(), "rb", opener=lambda name, _flags: os.open(name, flags)
        ) as file:
            if regular_only and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{place}: {path} is a pipe or a device. Name a file.")
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{place}: {path} cannot be read ({error.strerror}).") from error
    if len(data) > BYTES_MAX:
        raise UsageError(f"{place}: {path} has more than {BYTES_MAX:,} bytes.")
    return data


def read_text(path: Path, place: str, *, regular_only: bool = False) -> str:
    """Return the text of a file that a property names. `regular_only` as in `read_bytes`. Raises
    UsageError."""
    data = read_bytes(path, place, regular_only=regular_only)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{place}: {path} is UTF-16 text. Save it as UTF-8.")
    try:
        # Editors of Windows put a byte order mark in front, which is no part of the text.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: {path} is not UTF-8 text. Save it as UTF-8.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _parsed(text: str, path: Path, wanted_by: str) -> Properties:
    values: dict[str, str] = {}
    places: dict[str, str] = {}
    if _JAAS.search(text):
        raise UsageError(
            f"{wanted_by}: {path} is a JAAS file. Client properties hold a login in one line: write"
            ' sasl.jaas.config=MODULE required NAME="VALUE"; as it stands between the braces, and'
            " security.protocol and sasl.mechanism beside it."
        )
    for number, line in _logical_lines(text):
        place = f"{path}, line {number}"
        name, value = _split(line)
        if value is None:
            raise UsageError(f"{place}: expected name=value.")
        name = _unescaped(name, place)
        if has_control(name):
            raise UsageError(
                f"{place}: a control character is in the name {visible(name)}. Remove it."
            )
        values[name] = _unescaped(value, place)
        places[name] = place
    return Properties(values, places)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with the number of its first physical line; comments are left out."""
    # Joined at the end of a line only: the parts of one could be a third of the text.
    begun: list[str] = []
    first = 0
    for number, physical in enumerate(text.splitlines(), start=1):
        line = physical.lstrip()
        if not begun:
            if not line or line.startswith(("#", "!")):
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun.append(line[:-1])
        else:
            # Java keeps spaces at the end. No setting of Kafka's wants them.
            yield first, "".join([*begun, line]).rstrip()
            begun = []
    if unfinished := "".join(begun):
        yield first, unfinished.rstrip()


def _split(line: str) -> tuple[str, str | None]:
    """Split at the first separator that is not escaped."""
    match = re.match(r"((?:[^\\=:\s]|\\.)*)(\s*[=:]\s*|\s+)(.*)$", line, re.DOTALL)
    return (match.group(1), match.group(3)) if match else (line, None)


def _unescaped(text: str, place: str) -> str:
    def replace_escape(match: re.Match[str]) -> str:
        escape = match.group(1)
        if escape.startswith("u") and len(escape) == 5:
            return chr(int(escape[1:], 16))
        if escape in _ESCAPES or escape in _ESCAPED:
            return _ESCAPES.get(escape, escape)
        raise UsageError(f"{place}: a single backslash has no meaning there. Write two for one.")

    try:
        return joined(re.sub(r"\\(u[0-9a-fA-F]{4}|.|$)", replace_escape, text, flags=re.DOTALL))
    except ValueError as error:
        raise UsageError(f"{place}: {error}. Write both halves, or the character.") from error


def _providers(raw: Properties) -> dict[str, str]:
    """Return the class of each provider, by the name that references use."""
    classes = dict(_PROVIDERS)
    for alias in filter(None, map(str.strip, raw.get("config.providers", "").split(","))):
        name = f"config.providers.{alias}.class"
        of_class = raw.get(name, "").rpartition(".")[2] or classes.get(alias, "")
        if of_class not in _PROVIDERS.values():
            raise UsageError(
                f"{place_of(raw, name if name in raw else 'config.providers')}: this provider is"
                f" not supported. Supported are {', '.join(_PROVIDERS.values())}."
            )
        classes[alias] = of_class
    limits = [n for n in raw if n.startswith("config.providers.") and ".param." in n]
    if limits:
        raise UsageError(
            f"{place_of(raw, limits[0])}: limits of a provider are not supported and would not be"
            " kept. Remove the line."
        )
    return classes


def _resolved(value: str, providers: Mapping[str, str], place: str, budget: _Budget) -> str:
    def resolve(match: re.Match[str]) -> str:
        alias, path, key = match.groups()
        budget.take_reference(place)
        of_class = providers.get(alias)
        if of_class is None:
            raise UsageError(
                f"{place}: there is no provider {alias}. Known: {', '.join(providers)}."
            )
        if of_class == _PROVIDERS["env"]:
            if key not in os.environ:
                raise UsageError(f"{place}: the environment variable {key} is not set.")
            require_text([(f"{place}: the environment variable {key}", os.environ[key])])
            return budget.take(os.environ[key], place)
        if not path:
            raise UsageError(f"{place}: the reference must be ${{{alias}:/path:{key or 'key'}}}.")
        if of_class == _PROVIDERS["directory"]:
            return budget.take(read_text(Path(path) / key, place, regular_only=True), place)
        text = budget.take(read_text(Path(path), place, regular_only=True), place)
        properties = _parsed(text, Path(path), place)
        if key not in properties:
            raise UsageError(f"{place}: {path} has no {key}.")
        return properties[key]

    return _REFERENCE.sub(resolve, value)
