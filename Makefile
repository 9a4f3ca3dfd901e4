# Two commands matter: `make up` and `make test`. Each does its own set-up.
.DEFAULT_GOAL := help
# Containers often set it; every process that a test starts would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# Folders that keep to the dictionary of scripts/words.txt.
TERMS := services libs native migrations docs tests README.md CONTRIBUTING.md k8s scripts bench
# Folders whose docstrings name their subject first (CONTRIBUTING.md, point 4).
DOCSTRINGS := services libs native migrations scripts bench tests
NO_SUBJECT := What|Who|Whom|Whose|Of|So|As|Where|Those|It|Its|Nobody|Somebody|Else
C_SOURCES = $(shell find native -name build -prune -o -name '*.[ch]' -print)

help: ## this list
	@grep -hE '^[a-z0-9%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9%-]+):.*## /  make \1\t/' | expand -t 22
	@scripts/suite
setup: ## virtual environment, pinned dependencies, native parts
	@scripts/setup
up: setup ## the whole system on this machine, with a demo
	@$(BIN)/hamictl up $(ARGS)
down: ## stop what `make up ARGS=--detach` started
	@$(BIN)/hamictl down
test: setup ## everything that needs no real Kubernetes; four workers
	@# On a clean checkout one process compiles the tests; four workers would each compile all of them.
	@[ -d tests/__pycache__ ] || $(BIN)/pytest --collect-only -qq > /dev/null & cases=$$!; $(MAKE) --no-print-directory checks; status=$$?; wait $$cases; exit $$status
	@# mypy takes one processor for a minute on a clean checkout, and tests often wait: side by side.
	@$(BIN)/mypy & types=$$!; $(BIN)/pytest -n 4 $(ARGS); status=$$?; wait $$types && exit $$status
test-%: setup ## one of the suites below; ARGS are pytest's
	@scripts/suite $* $(ARGS)
bench-%: setup ## one of filter, pods, libvgpu, node-agent, pages, packing; ARGS are its own
	@$(BIN)/python -m bench.$(subst -,_,$*) $(ARGS)
lint: setup checks ## checks and mypy
	@$(BIN)/mypy
checks: ## ruff, clang-format, import contracts, declared imports, generated files, house terms, docstrings
	@$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	@! grep -rnIE --exclude-dir=build '"""($(NO_SUBJECT))\b' $(DOCSTRINGS)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && scripts/declared && scripts/proto --check && $(BIN)/python scripts/chart --check && $(BIN)/python scripts/dashboards --check && $(BIN)/codespell $(TERMS)
format: setup ## let ruff and clang-format write
	@$(BIN)/clang-format -i $(C_SOURCES)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
generate: setup ## write the gRPC stubs, Grafana's boards, and k8s/ from the chart
	@scripts/proto && $(BIN)/python scripts/dashboards && $(BIN)/python scripts/chart
native: ## only the C parts
	@$(MAKE) --no-print-directory -C native
docs: setup ## the documentation site into site/, with the reference from the source
	@scripts/docs
images: ## the images of the services (docker with buildx); ARGS=all: also those of docker-compose.yml
	@scripts/images $(ARGS)
release: ## version, changelog, commit, tag and notes of a release: make release VERSION=0.2.0
	@scripts/release "$(VERSION)"
.PHONY: help setup up down test lint checks format generate native docs images release
