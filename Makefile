# The two commands a newcomer needs are `make demo` and `make test`; each sets up all it lacks.
.PHONY: wheel chart lock sbom demo test test-fast check format docs bench bench-scan bench-click bench-pages bench-hostile bench-fields bench-table bench-expressions bench-watch bench-watch-faults audit clean bench-wait pythons sparks release-check

demo:
	@scripts/setup
	@.venv/bin/topicproof up

# Each of JOBS has a Kafka, a Spark and a browser of its own, some 6 GB. A test often waits: on two cores, two at once leave
# a fifth of the processor time unused, and three use all of it.
JOBS ?= $(or $(shell awk '/^MemTotal/ { print ($$2 > 22000000 ? 3 : $$2 > 16000000 ? 2 : 1) }' /proc/meminfo 2>/dev/null),1)
test:
	@scripts/setup --dev
	@.venv/bin/python -P -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

# Every test that needs no Kafka, Spark or browser: a minute.
test-fast:
	@scripts/setup --dev
	@.venv/bin/python -P -m pytest -m quick --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

# Only the house rules, without a broker: a minute instead of the whole of `make test`.
check:
	@scripts/setup --dev
	@.venv/bin/python -P -m pytest tests/test_tidy.py

format:
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

# The tables of kinds and of public reports, made from the catalogue and the tests.
docs:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.validators.kinds_table
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.field.reports

# How fast runs and verdicts are: about an hour, or three minutes with ARGS=--quick. Beside other programs with
# ARGS="--peers DIR".
bench:
	@scripts/setup
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.speed $(ARGS)

# How fast batch headers are scanned, and in how much memory: 20 million records, a few minutes.
bench-scan:
	@scripts/setup
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.scan

# From a click in a browser to the verdict of 10,000 records, warm: two minutes.
bench-click:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.click

# How long somebody waits at a terminal: for the version, a topic, a small check warm and cold, and the same check by hand in
# DuckDB. Four minutes.
bench-wait:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.wait $(ARGS)

# How soon each page shows its frame and its content and answers a click, at 10 million offsets: five minutes.
bench-pages:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.pages $(ARGS)

# Is judging exact on hostile data: odd bytes, 10 MB records, a million keys, 5 million records: some minutes.
bench-hostile:
	@scripts/setup
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.hostile

# A check by a nested Avro field beside the same check by key, 1 million records on each side: some minutes.
bench-fields:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.fields $(ARGS)

# A check of a table of PostgreSQL beside a plain Spark join of both, 1 million records and rows: some minutes.
bench-table:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.postgres $(ARGS)

# What the dearest functions of an expression cost for each byte: some seconds.
bench-expressions:
	@scripts/setup
	@java -cp "$$(echo .venv/lib/python3*/site-packages/pyspark/jars)/*" benchmarks/ExpressionCosts.java

# What a watch of contracts costs at 20,000 records a second, at other rates, and with 200 quiet contracts: 40 minutes.
bench-watch:
	@scripts/setup
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.watch $(ARGS)

# How soon a watch tells 100 planted faults of each kind, and whether it is silent about healthy traffic: an hour.
bench-watch-faults:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m benchmarks.watch_faults $(ARGS)

# The wheel, into dist/. TAG=v1.2.3 must agree with pyproject.toml.
wheel:
	@scripts/setup --dev
	@scripts/wheel dist $(TAG)

# After a change of the Helm chart: Helm renders it for the tests. Without a helm on this machine, it is built first: some
# minutes. CRDS=FOLDER also checks the resources of both operators against their definitions.
chart:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.chart $(CRDS)

# After a change of requirements*.txt, ivy.xml or tests/s3.py: what is installed, each file with its hash.
lock:
	@scripts/setup --dev
	@for name in requirements requirements-dev requirements-s3; do .venv/bin/uv pip compile $$name.txt --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet --output-file $$name.lock; done
	@.venv/bin/python -P -m topicproof.backend.services.jars hashes
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.s3 hashes

# Every part of a release with hash and licence, as CycloneDX: dist/sbom.cdx.json.
sbom:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.sbom dist/sbom.cdx.json

# The wheel on each Python from 3.11 to 3.14 that this machine has or can get: minutes each. ARGS=3.13 tries one.
pythons:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.pythons $(ARGS)

# Runs and checks on versions of Spark, each with the wheel in an environment of its own: minutes each. ARGS=4.3.0 tries one.
sparks:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.sparks $(ARGS)

# The whole list of a release (CONTRIBUTING.md) on this machine: two hours. ARGS="lock wheel" does two steps.
release-check:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.release $(ARGS)

# Are installed files, jars and licences as they were locked, and does an advisory name a locked version? Without a network:
# ADVISORIES=FOLDER, a clone of github.com/pypa/advisory-database.
audit:
	@scripts/setup --dev
	@PYTHONPATH=$(CURDIR) .venv/bin/python -P -m tests.audit $(ADVISORIES)

# What setting up and tests have made. Runs, evidence and keys are in the home of the user (docs/CLUSTERS.md), and stay.
clean:
	rm -rf .venv .jars artifacts
