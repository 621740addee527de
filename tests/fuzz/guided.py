"""One target under libFuzzer, which looks for inputs that reach new code: `python -m
tests.fuzz.guided TARGET OPTION…`, called by `python -m tests.fuzz`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["topicproof"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name][1])
    atheris.Fuzz()
