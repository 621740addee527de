"""A file of client properties is read as Java reads it, and a line that cannot be read is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from topicproof.backend.errors import UsageError
from topicproof.backend.properties.jaas import PLAIN, login_line, parse_login
from topicproof.backend.properties.properties_file import read_properties
from topicproof.backend.properties.stores import authorities, pem_certificates, pem_key


def _file(folder: Path, text: str) -> Path:
    path = folder / "client.properties"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_format_is_that_of_java(tmp_path: Path) -> None:
    """Story: a file has comments, three separators, continued lines and escapes."""
    path = _file(
        tmp_path,
        "# ours\n! too\n\n a = 1 \nb: 2\nc 3\n  d=one \\\n    two\ne=x=y:z\nf\\=g=\\u00fc\\\\\n"
        "h=a\\tb\ni=\nj=\\ud83d\\ude00\n",
    )
    assert read_properties(path) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "one two",
        "e": "x=y:z",
        "f=g": "ü\\",
        "h": "a\tb",
        "i": "",
        "j": "😀",
    }


def test_values_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: passwords are in a variable, in a file of properties, and in a folder of secrets, as
    Kafka's configuration providers have them, once under a name of the user's."""
    (tmp_path / "secrets.properties").write_text("key=of the store\n")
    (tmp_path / "password").write_text("of a folder")
    monkeypatch.setenv("KAFKA_PASSWORD", "of a variable")
    path = _file(
        tmp_path,
        "config.providers=mine\n"
        "config.providers.mine.class=org.apache.kafka.common.config.provider.FileConfigProvider\n"
        "a=${env:KAFKA_PASSWORD}\n"
        f"b=<${{file:{tmp_path}/secrets.properties:key}}>\n"
        f"c=${{directory:{tmp_path}:password}}\n"
        f"d=${{mine:{tmp_path}/secrets.properties:key}}\n",
    )
    found = read_properties(path)
    assert found == {
        "a": "of a variable",
        "b": "<of the store>",
        "c": "of a folder",
        "d": "of the store",
    }
    assert "variable" not in repr(found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a=1\nwords\n", "line 2: expected name=value."),
        ("a=hid\\den\n", "line 1: a single backslash has no meaning there. Write two for one."),
        ("a=1\\\n2\nb=${env:NO_SUCH}\n", "line 3, b: the environment variable NO_SUCH is not set."),
        (
            "b=${file:/no/such:k}\n",
            "line 1, b: /no/such cannot be read (No such file or directory).",
        ),
        ("b=${file:k}\n", "line 1, b: the reference must be ${file:/path:k}."),
        ("b=${directory:/no/such:k}\n", "/no/such/k cannot be read (No such file or directory)."),
        ("b=${vault:/p:k}\n", "b: there is no provider vault. Known: env, file, directory."),
        (
            "config.providers=v\nconfig.providers.v.class=a.VaultProvider\n",
            "line 2, config.providers.v.class: this provider is not supported.",
        ),
        (
            "config.providers=env\nconfig.providers.env.param.allowlist.pattern=A.*\n",
            "limits of a provider are not supported and would not be kept.",
        ),
        ("a=hid\\uDDDD\n", "line 1: half of a surrogate pair is no character. Write both halves"),
        ("a\\u0000=hid\n", "line 1: a control character is in the name a\\x00. Remove it."),
        ("a\\tb=hid\n", "line 1: a control character is in the name a\\tb. Remove it."),
        ("a=1\nb=hid\0den\n", "line 2, b: a control character is in its value. Only tabs and"),
        ("a=hid\\u0007\n", "line 1, a: a control character is in its value."),
        ("a=hid\\rden\n", "line 1, a: a control character is in its value."),
        ("b=${env:BELL}\n", "line 1, b: a control character is in its value."),
        ("b=${directory:{0}:nul}\n", "line 1, b: a control character is in its value."),
        ("b=${file:{0}/nul:k}\n", "nul, line 1: a control character is in the name x\\x00."),
        ("b=${env:HALF}\n", "line 1, b: the environment variable HALF is not valid UTF-8."),
    ],
)
def test_a_line_that_cannot_be_read_is_named(
    tmp_path: Path, text: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALF", os.fsdecode(b"hid\xff"))
    monkeypatch.setenv("BELL", "hid\a")
    (tmp_path / "nul").write_text("x\0=hid")
    text = text.replace("{0}", str(tmp_path))
    with pytest.raises(UsageError, match=re.escape(sentence)) as told:
        read_properties(_file(tmp_path, text))
    assert "hid" not in str(told.value)


def test_references_without_an_end_take_no_time(tmp_path: Path) -> None:
    """Story: the author of a file wants to keep the command busy. Its length to the power of three
    would be years."""
    text = "a=" + "${" + ":" * 100_000 + "\nb=" + "${a:" * 20_000 + "\n"
    values = read_properties(_file(tmp_path, text))
    assert (len(values["a"]), len(values["b"])) == (100_002, 80_000)


def test_references_of_a_short_file_read_no_gigabytes(tmp_path: Path) -> None:
    """Story: a pull request brings properties of some kB that name a file of a megabyte again and
    again. As one value that was gigabytes, and the file was parsed each time."""
    (tmp_path / "large").write_text("#" * 999_000 + "\na=b\n")
    for reference in (f"${{directory:{tmp_path}:large}}", f"${{file:{tmp_path}/large:a}}"):
        with pytest.raises(UsageError, match="line 1, x: the references of the file read more"):
            read_properties(_file(tmp_path, f"x={reference * 11}\n"))
        assert read_properties(_file(tmp_path, f"x={reference}\n"))["x"]
    (tmp_path / "small").write_text("a=b\n")
    reference = f"${{file:{tmp_path}/small:a}}"
    assert read_properties(_file(tmp_path, f"x={reference * 1_000}\n")) == {"x": "b" * 1_000}
    with pytest.raises(UsageError, match="line 2, y: the file has more than 1,000 references"):
        read_properties(_file(tmp_path, f"x={reference * 1_000}\ny={reference}\n"))


def test_a_reference_to_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Story: a reference names a pipe into which nobody writes. Who opened it would wait for
    ever."""
    os.mkfifo(tmp_path / "pipe")
    for reference in (f"${{directory:{tmp_path}:pipe}}", f"${{file:{tmp_path}/pipe:a}}"):
        with pytest.raises(UsageError, match=r"line 1, x: .*/pipe is a pipe or a device"):
            read_properties(_file(tmp_path, f"x={reference}\n"))


def test_a_line_of_many_parts_is_joined_once(tmp_path: Path) -> None:
    """Story: each of 300,000 continued lines copied all before it."""
    path = _file(tmp_path, "a=" + "b\\\n" * 300_000 + "\\\n\nc=d\\")
    assert read_properties(path) == {"a": "b" * 300_000, "c": "d"}


def test_a_file_is_read_in_time_that_grows_with_it(tmp_path: Path) -> None:
    """Story: a pull request brings its own properties and certificates: empty lines, beginnings
    without an end. Each took the square of its length, hours for a megabyte. A longer file is
    refused before it is read."""
    path = tmp_path / "client.properties"
    path.write_text("\n" * 990_000)
    assert read_properties(path) == {}
    begun = "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n" * 18_000
    for read, what in ((pem_certificates, "certificate"), (pem_key, "private key")):
        with pytest.raises(UsageError, match=f"holds no {what}"):
            read(begun, "line 1")
    path.write_text("\n" * 1_000_001)
    with pytest.raises(UsageError, match="has more than 1,000,000 bytes"):
        read_properties(path)
    with pytest.raises(UsageError, match="has more than 1,000,000 bytes"):
        authorities(str(path), None, "line 1")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    with pytest.raises(UsageError, match=r"client\.properties cannot be read \(No such file"):
        read_properties(path)
    path.write_bytes(b"a=\xff")
    with pytest.raises(UsageError, match=r"client\.properties is not UTF-8 text"):
        read_properties(path)


def test_a_login_is_parsed_as_java_does() -> None:
    """Story: quotes of both kinds, escapes, comments, words without quotes, several lines."""
    login = parse_login(
        "org.apache.kafka.common.security.plain.PlainLoginModule required // ours\n"
        """ username='it"s' /* and */ password="a \\"b\\\\ c\\073" debug=true;""",
        "here",
    )
    assert (login.module, dict(login.options)) == (
        PLAIN,
        {"username": 'it"s', "password": 'a "b\\ c;', "debug": "true"},
    )
    assert 'a "b' not in repr(login)


@given(st.dictionaries(st.sampled_from(["username", "password", "x"]), st.text(), min_size=1))
def test_any_text_survives_in_a_login(options: dict[str, str]) -> None:
    """Story: a password holds anything: what is written for Java says the same when it is read."""
    told = {name: value.replace("\r", "") for name, value in options.items()}
    assert parse_login(login_line(PLAIN, told), "here").options == told


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a.PlainLoginModule username=x;", "expected a login module, `required`"),
        ('a.PlainLoginModule required username="hid"', "a semicolon (;) must end it"),
        ("a.P required username=x; a.Q required;", "only one login module may stand"),
        ('a.P required username="hid" password="a"b";', "character"),
        ('a.P required username="hid" password;', 'expected name="value" after 1 options'),
    ],
)
def test_a_login_that_cannot_be_parsed_is_named(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as told:
        parse_login(text, "client.properties, line 3, sasl.jaas.config")
    assert "hid" not in str(told.value) and "line 3" in str(told.value)
