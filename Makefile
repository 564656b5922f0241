# `make run` trains with the defaults, `make test` checks all but what is slow; both set up .venv themselves, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: setup run test test-fast test-slow test-interpreters test-gpu mutation lint docs report deploy-demo hashes sbom package

setup: $(INSTALLED)

# torch first and by its exact version: a range would bring gigabytes of GPU packages. README.md says how TORCH names the
# index of its CPU builds, where another offers the one for CUDA alone.
TORCH ?= torch==2.13.0
# The loops that numba compiles for seconds, kept beside the sources: no run waits for them, and no two processes compile at once.
COMPILE := "from numpy import ones; from fedmf.randomness import PublicSeed; from fedmf.updates.rotation import Rotation, hadamard; \
	hadamard(ones(8)); Rotation('hadamard', 8, PublicSeed(0)).turn(ones(8, 'f4'))"
$(INSTALLED): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): some minutes, without output. README.md has what is downloaded."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,ray,fast,data,sweep,docs,safetensors,onnx,metrics]"
	$(BIN)/python -c $(COMPILE)
	touch $(INSTALLED)

run: setup
	$(BIN)/python -m experiments.simulate

# A SuperLink and three nodes with TLS and keys, on the loopback interface; two epochs of `make run`'s data.
deploy-demo: setup
	$(BIN)/python -m experiments.deploy_demo

# Where the environment forbids bytecode, each process of the tests rewrites all their assertions: half the time of collecting them.
test test-fast test-slow: export PYTHONDONTWRITEBYTECODE :=

# Property tests draw the same examples every time here, so that a commit passes or fails for good;
# `make test-fast` draws new ones.
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --hypothesis-profile=ci --durations=15 -m "not slow and not gpu"

# What `make test` leaves out: kills and faults, long audits, clusters and deployments. Before anything is released.
test-slow: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --hypothesis-profile=ci -m "slow and not gpu"

# Within three minutes on two cores, while one works. LONG= runs the whole runs and audits too, as the other interpreters do.
LONG ?= and not long
test-fast: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow $(LONG) and not ray and not deployment and not gpu"

# The fast suite on each supported Python that this machine has, in environments of their own.
test-interpreters:
	@for version in 3.11 3.12 3.13; do \
		if python$$version -c '' 2> /dev/null; then \
			$(MAKE) test-fast LONG= PYTHON=python$$version VENV=.venv-$$version || exit 1; \
		else \
			echo "not tried: there is no python$$version"; \
		fi; \
	done

test-gpu: setup
	$(BIN)/python -m pytest -q -m gpu

# Breaks the privacy paths in every way that mutmut knows and counts what no test notices; `mutmut results` lists it. Hours;
# `make mutation MUTANTS="server.state*"` for a part, MUTATION_JOBS=4 for more at once.
MUTANTS ?=
MUTATION_JOBS ?= 2
mutation: setup
	OMP_NUM_THREADS=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mutmut run --max-children $(MUTATION_JOBS) $(MUTANTS)
	$(BIN)/mutmut results --all true | sed -E 's/^ *([^:]*)\.x[^.:]*:/\1:/' | sort | uniq -c

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Writes the files in requirements/ again from constraints.txt: asks the package registry for every package and each Python that we
# name, and installs nothing. An index of this machine's own must not answer (PIP_CONFIG_FILE=/dev/null).
hashes: setup
	$(BIN)/python requirements/lock.py

# The tools of a release have an environment of their own, so that they are not in the list of what is installed.
RELEASE := .venv-release
$(RELEASE)/.installed: Makefile
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check build==1.6.1 cyclonedx-bom==7.5.0 twine==7.0.0
	touch $@

# What is installed, as CycloneDX: dist/sbom.cdx.json.
sbom: setup $(RELEASE)/.installed
	mkdir -p dist
	$(RELEASE)/bin/cyclonedx-py environment --output-reproducible --output-file dist/sbom.cdx.json $(BIN)/python

# The sdist and the wheel, as an index takes them: dist/fedmf-*.
package: $(RELEASE)/.installed
	rm -f dist/fedmf-*
	$(RELEASE)/bin/python -m build
	$(RELEASE)/bin/twine check --strict dist/fedmf-*

# The documentation as a website: site/index.html, to be opened as a file; search works there, too.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The technical report: docs/report/report.pdf. Twice, for its references, all of which must be found; needs pdflatex (Debian:
# texlive-latex-recommended, lmodern).
report:
	cd docs/report && pdflatex -interaction=nonstopmode -halt-on-error report.tex && pdflatex -interaction=nonstopmode -halt-on-error report.tex
	! grep -i "undefined\|multiply" docs/report/report.log
