# Two commands do everything on a fresh machine with Python 3.11+, git and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)
# Two processes with two threads each on two cores can be 50 times slower than one thread each.
export OMP_NUM_THREADS := 1
# Hundreds of tests start an interpreter; without compiled files each one compiles the package again, which takes a second.
export PYTHONDONTWRITEBYTECODE :=
# One test process more than two cores, because some tests wait for another process or for a time limit.
WORKERS ?= 3

.PHONY: demo test slow golden lint types check bench docs notebooks clean

demo: $(VENV)/.core  ## train PPO on CartPole-v1 to a return of 475 and show the result
	@$(BIN)/elegantrl train ppo CartPole-v1 --run-dir $(RUN)
	@$(BIN)/elegantrl eval $(RUN)

test: $(VENV)/.dev  ## all tests except the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests

slow: $(VENV)/.dev  ## the slow tests: learning to published scores
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow tests

golden: $(VENV)/.dev  ## compare short runs of every agent bit for bit with another revision: make golden BASE=rev
	@test -n "$(BASE)" || { echo "say which revision to compare with: make golden BASE=main~1"; exit 2; }
	@set -e; work=$$(mktemp -d); trap 'git worktree remove --force '$$work'/base; rm -rf '$$work EXIT; \
	git worktree add --quiet --detach $$work/base $(BASE); \
	$(BIN)/python tests/equivalence/golden.py run $$work/base $$work/base.json; \
	$(BIN)/python tests/equivalence/golden.py run . $$work/head.json; \
	$(BIN)/python tests/equivalence/golden.py compare $$work/base.json $$work/head.json

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types test

bench: $(VENV)/.dev  ## speed against Stable-Baselines3 and raw limits, then learning on the reference tasks
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/updates.py
	$(BIN)/python benchmarks/parallel.py
	$(BIN)/python benchmarks/chaos.py
	$(BIN)/python benchmarks/learning.py

docs: $(VENV)/.docs  ## the documentation site, as HTML files that need no network
	@$(BIN)/python -m sphinx -q -W -b html docs docs/_build/html
	@echo "the site is in docs/_build/html: open docs/_build/html/index.html"

notebooks: $(VENV)/.docs  ## the notebooks as .ipynb files beside their sources
	@$(BIN)/jupytext --quiet --to ipynb notebooks/*.py
	@echo "the notebooks are in notebooks/*.ipynb"

clean:  ## remove the virtual environment; runs/ stays
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elegantrl needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing elegantrl into $(VENV) (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing elegantrl and its development tools into $(VENV) (a few minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing elegantrl and the tools of its documentation into $(VENV) (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs,notebooks]"
	@touch $@ $(VENV)/.core
