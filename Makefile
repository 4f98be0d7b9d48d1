# Every target is one line of help and one thing. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check golden generate bench accuracy e2e-alerts e2e-report system-deps clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## start simulated engines and the exporter on them; prints the address to open
	@$(BIN)/llm-exporter demo $(DEMO_ARGS)

test: $(STAMP) $(if $(CI),system-deps) ## run every test; prints passed and skipped, with reasons
	@$(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

check: $(STAMP) ## lint, types, generated files up to date
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/llm-exporter generate all --check

golden: $(STAMP) ## rewrite the golden files; read the diff
	@$(BIN)/python -m pytest -q -n0 tests/golden tests/rules/test_annotations.py --update-golden

generate: $(STAMP) ## write dashboards/, alerts/ and the generated parts of docs/
	@$(BIN)/llm-exporter generate all

bench: $(STAMP) ## run every benchmark and print ratios
	@for f in bench/bench_*.py; do echo "== $$f"; $(BIN)/python $$f; done

accuracy: $(STAMP) ## measure how often the verdict is right; writes docs/verdict-accuracy.md
	@$(BIN)/python -m llm_exporter.daemon.accuracy tests/fixtures/recordings/h200 --workloads tests/fixtures/hardware/h200-workloads.json --simulated --out docs/verdict-accuracy.md

e2e-alerts: $(STAMP) ## alerts end to end with the real programs, all scenarios at once (six minutes)
	@E2E_ALERTS=1 $(BIN)/python -m pytest -q -n0 -p no:randomly tests/e2e/alerts

e2e-report: $(STAMP) ## make a review from a real Prometheus with five weeks of generated history
	@$(BIN)/python -m pytest -q -n0 -p no:randomly tests/e2e/report

system-deps: ## install the Debian programs that some tests need (root; starts no service)
	@sh .ci/system-deps

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
