"""YAML from elsewhere: one sentence for what would take all memory, all time, or end in a
traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topicproof.backend.errors import UsageError
from topicproof.backend.yaml_fields import PLAN_FIELDS, read_yaml

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""Three hundred billion values of 500 bytes."""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, "more than 50,000 values"),
        ("a: &a {x: 1}\nb: &b\n  <<: [*a, *a]\n" + LAUGHS, "more than 50,000 values"),
        ("a: &a [*a]", "more than 50,000 values|nested too deeply"),
        ("a: " + "[" * 5_000, "nested too deeply"),
        ("a: 1\nb: " + "9" * 5_000, "line 2: an integer has more than 64 bits"),
        ("a: 1\nb: [0x" + "f" * 6_000 + "]", "line 2: an integer has more than 64 bits"),
        ("a: 1\n? -0b1" + "0" * 6_000 + "\n: 1", "line 2: an integer has more than 64 bits"),
        ("a: 01" + "0_" * 50_000, "line 1: an integer has more than 64 bits"),
        ("a: !!int '0x8000000000000000'", "line 1: an integer has more than 64 bits"),
        ("a: -0x8000000000000001", "line 1: an integer has more than 64 bits"),
        ("a: 2026-02-31", "not YAML"),
        ("a: !!python/object/apply:os.system [id]", "not YAML"),
        ("a: " + "x" * 200_001, "more than 200,000 bytes"),
        (b"a: \xff", "not UTF-8"),
        ('a: 1\nb: {c: ["\\uD800"]}', "line 2: half of a surrogate pair is no character"),
        ('"\\uDFFF": 1', "line 1: half of a surrogate pair is no character"),
        ('a: 1\nb: ["x\\0y"]', "line 2: a control character is in a text. Remove it"),
        ('"a\\0": 1', "line 1: a control character is in a text. Remove it"),
        ("a: !!binary eAB5", "line 1: write the text itself, not !!binary"),
    ],
    ids=range(19),
)
def test_hostile_yaml_is_refused_in_a_sentence(text: str | bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=why):
        read_yaml(path, PLAN_FIELDS)


def test_an_anchor_may_be_used(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\n")
    assert read_yaml(path, PLAN_FIELDS) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_a_character_may_be_written_as_in_json(tmp_path: Path) -> None:
    """Story: a program writes its contract as JSON, which is YAML, and escapes all but ASCII."""
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps({"😀": ["ü😀"]}))
    fields = read_yaml(path, PLAN_FIELDS)
    assert fields == {"😀": ["ü😀"]} and fields.line(("😀", 0)) == 1


def test_a_number_in_base_60_is_the_text_that_people_mean(tmp_path: Path) -> None:
    """Story: YAML 1.1 reads 12:30 as 750, and takes hours for a long one."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"at: 12:30\nb: &b 1:30.5\nc: [*b, {'1:' * 80_000}1]\nd: 1_000\n")
    fields = read_yaml(path, PLAN_FIELDS)
    assert (fields["at"], fields["b"], fields["d"]) == ("12:30", "1:30.5", 1000)
    assert fields["c"] == ["1:30.5", "1:" * 80_000 + "1"]


def test_an_integer_may_have_64_bits(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    bits = "_".join("1" * 63)
    path.write_text(f"a: [0x7fff_ffff_ffff_ffff, -0x8000000000000000, 0b{bits}, 0777]\n")
    assert read_yaml(path, PLAN_FIELDS)["a"] == [2**63 - 1, -(2**63), 2**63 - 1, 0o777]
