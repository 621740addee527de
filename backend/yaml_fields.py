"""Plans and contracts as YAML fields, each with its line number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator
from pydantic_core import ErrorDetails

from topicproof.backend.characters import has_control, joined
from topicproof.backend.errors import UsageError
from topicproof.validators.lineage.headers import LONG_MAX

Place = tuple[str | int, ...]
"""The path of a field in a plan, such as ("source", "topic")."""


BYTES_MAX = 200_000
"""A contract with a thousand topics has half of this. PyYAML needs two seconds for so much."""
VALUES_MAX = 50_000
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Return whether Kafka allows a topic of this name."""
    return _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def _topic(name: str) -> str:
    if not is_topic_name(name):
        raise ValueError(
            "a topic's name has 1 to 249 letters, digits, dots, dashes and underscores"
        )
    return name


RequiredTopicName = Annotated[str, AfterValidator(_topic)]
TopicName = RequiredTopicName | None


_INTEGER = "tag:yaml.org,2002:int"
_NUMBERS = frozenset({_INTEGER, "tag:yaml.org,2002:float"})
_INTEGER_CHARACTERS_MAX = 200
"""64 bits in base 2, each behind an underscore."""


class YamlFields(dict[str, Any]):
    """The fields of a YAML file, each with its line number."""

    def __init__(self, path: Path, fields: Mapping[str, Any], lines: Mapping[Place, int]) -> None:
        super().__init__(fields)
        self.path = path
        self.lines = lines
        self.read = {place: _at(self, place) for place in lines}

    def where(self, place: Place) -> str:
        """Return the file and the line of a field. A field without a line has the line of its
        parent. A field that the command line has overridden has none."""
        line = self.line(place)
        return str(self.path) if line is None else f"{self.path}, line {line}"

    def line(self, place: Place) -> int | None:
        """Return only the line."""
        for length in range(len(place), 0, -1):
            prefix = place[:length]
            if prefix in self.lines and self.read[prefix] == _at(self, prefix):
                return self.lines[prefix]
        return None


@dataclass(frozen=True)
class Subject:
    """What a file holds, in the words of its errors."""

    name: str
    """As in "The plan squares.yaml is not UTF-8 text."."""
    mapping: str
    """What its fields are, with an example."""
    is_settings: bool = False
    """Whether it says where to connect and who may: then no text in it has a control character but
    tabs and line breaks. In plans and contracts an expression may name one, but no NUL."""


PLAN_FIELDS = Subject("plan", "plan fields, for example `scenario: squares`")


def read_yaml(path: Path, what: Subject) -> YamlFields:
    """Read the fields of a file. Raises UsageError naming the line if it is not a YAML mapping."""
    return parse_yaml(read_text(path, what), path, what)


def read_text(path: Path, what: Subject) -> str:
    """Read a small file. Raises UsageError."""
    try:
        with path.open("rb") as file:
            read = file.read(BYTES_MAX + 1)
        _require_small(path, len(read))
        return read.decode()
    except OSError as error:
        raise UsageError(f"The {what.name} {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The {what.name} {path} is not UTF-8 text.") from error


def parse_yaml(text: str, path: Path, what: Subject) -> YamlFields:
    """Parse the fields of a text. `path` names it in messages. Raises UsageError naming the line if
    it is not a YAML mapping, or too large."""
    _require_small(path, len(text.encode()))
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is not None and _values(root, VALUES_MAX) >= VALUES_MAX:
            raise UsageError(
                f"{path} has more than {VALUES_MAX:,} values, counting each use of an anchor."
            )
        if root is not None:
            _join(path, root)
            _require_no_controls(path, root, what)
            _keep_base_60_as_text(root)
            _require_64_bits(path, root)
        document = yaml.SafeLoader("").construct_document(root) if root is not None else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        place = path if line is None else f"{path}, line {line}"
        problem = getattr(error, "problem", "it does not parse")
        raise UsageError(f"{place}: not YAML ({problem}).", line) from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply.") from error
    except (ValueError, OverflowError) as error:
        # A day or a number in YAML's notation that does not exist, such as 2026-02-31.
        raise UsageError(f"{path}: not YAML ({str(error).splitlines()[0]}).") from error
    if root is None or not isinstance(document, dict):
        raise UsageError(f"{path}: expected a mapping of {what.mapping}.")
    return YamlFields(path, document, dict(_lines(path, root)))


def _keep_base_60_as_text(root: yaml.Node) -> None:
    """Keep numbers in base 60, such as 12:30 in YAML 1.1, as the texts that people mean. PyYAML
    takes time with the square of their length to compute them."""
    for node in _nodes(root):
        if isinstance(node, yaml.ScalarNode) and ":" in node.value and node.tag in _NUMBERS:
            node.tag = "tag:yaml.org,2002:str"


def _require_64_bits(path: Path, root: yaml.Node) -> None:
    """Raises UsageError for an integer that is longer than those of Kafka and Spark: Python reads
    any number of digits in base 2, 8 and 16, and cannot print them. ValueError for no integer."""
    numbers = yaml.SafeLoader("")
    for node in _nodes(root):
        if not isinstance(node, yaml.ScalarNode) or node.tag != _INTEGER:
            continue
        if (
            len(node.value) > _INTEGER_CHARACTERS_MAX
            or not -LONG_MAX - 1 <= numbers.construct_yaml_int(node) <= LONG_MAX
        ):
            line = node.start_mark.line + 1
            raise UsageError(f"{path}, line {line}: an integer has more than 64 bits.", line)


def _nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Yield each node once, however often an anchor is used."""
    nodes, visited = [root], {id(root)}
    while nodes:
        node = nodes.pop()
        yield node
        if isinstance(node, yaml.ScalarNode):
            continue
        inner = node.value
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        for part in inner:
            if id(part) not in visited:
                visited.add(id(part))
                nodes.append(part)


def _require_small(path: Path, size: int) -> None:
    if size > BYTES_MAX:
        raise UsageError(f"{path} has more than {BYTES_MAX:,} bytes.")


def _values(node: yaml.Node, left: int) -> int:
    """Count the values in a document, up to `left`. An anchor counts as often as it is used: nested
    anchors make billions of values of a few lines."""
    if left <= 1 or isinstance(node, yaml.ScalarNode):
        return 1
    inner = node.value
    if isinstance(node, yaml.MappingNode):
        inner = [inner_node for pair in node.value for inner_node in pair]
    count = 1
    for inner_node in inner:
        if count >= left:
            break
        count += _values(inner_node, left - count)
    return count


def _join(path: Path, node: yaml.Node) -> None:
    """Join surrogate pairs in all texts below `node`. Raises UsageError for half a pair."""
    if isinstance(node, yaml.ScalarNode):
        try:
            node.value = joined(node.value)
        except ValueError as error:
            line = node.start_mark.line + 1
            raise UsageError(f"{path}, line {line}: {error}.", line) from error
        return
    for child in node.value:
        for inner in child if isinstance(child, tuple) else (child,):
            _join(path, inner)


def _require_no_controls(path: Path, root: yaml.Node, what: Subject) -> None:
    """Raises UsageError for a control character that C libraries and databases do not keep, or that
    no setting has."""
    for node in _nodes(root):
        if not isinstance(node, yaml.ScalarNode):
            continue
        if node.tag == "tag:yaml.org,2002:binary":
            line = node.start_mark.line + 1
            raise UsageError(f"{path}, line {line}: write the text itself, not !!binary.", line)
        if "\0" in node.value or (what.is_settings and has_control(node.value, layout=True)):
            line = node.start_mark.line + 1
            raise UsageError(
                f"{path}, line {line}: a control character is in a text. Remove it.", line
            )


def _lines(path: Path, node: yaml.Node, place: Place = ()) -> Iterator[tuple[Place, int]]:
    """Yield every field below `node` with its line, counted from 1. Raises UsageError for a
    duplicate field."""
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in names:
                raise UsageError(f"{path}, line {line}: {key.value} appears twice. Keep one.", line)
            names.add(key.value)
            yield (*place, key.value), line
            yield from _lines(path, value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*place, index), value.start_mark.line + 1
            yield from _lines(path, value, (*place, index))


def _at(fields: Any, place: Place) -> Any:
    """Return the value at a path; None if there is none."""
    for part in place:
        try:
            fields = fields[part]
        except (KeyError, IndexError, TypeError):
            return None
    return fields


def why_refused(problem: ErrorDetails) -> str:
    """Return why pydantic refuses a field: in the words of our own validator, if one did."""
    cause = problem.get("ctx", {}).get("error")
    return str(cause) if isinstance(cause, ValueError) else problem["msg"]


def where(fields: dict[str, Any] | None, place: Place) -> str:
    return fields.where(place) if isinstance(fields, YamlFields) else "The plan"
