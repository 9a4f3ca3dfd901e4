# Two commands matter: `make up` and `make test`. Each does its own set-up.
.DEFAULT_GOAL := help
# Containers often set it; every process that a test starts would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# Folders that keep to the dictionary of scripts/words.txt.
TERMS := services libs native migrations docs tests README.md CONTRIBUTING.md k8s scripts bench
# C of clang-format's layout.
FORMATTED := native
C_SOURCES = $(shell find $(FORMATTED) -name build -prune -o -name '*.[ch]' -print)
FAULTS := tests/faults tests/simulation tests/e2e/hostile/test_hostile_pods_on_nodes.py tests/native/region/test_siege.py tests/native/hostile/test_hostile_container.py tests/integration/node_agent/test_escapes.py tests/integration/db/migrations/test_roles.py

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 22
setup: ## virtual environment, pinned dependencies, native parts
	@scripts/setup
up: setup ## the whole system on this machine, with a demo
	@$(BIN)/hamictl up $(ARGS)
down: ## stop what `make up ARGS=--detach` started
	@$(BIN)/hamictl down
lint: setup checks types ## ruff, clang-format, mypy strict, import contracts, generated stubs, chart and boards, house terms
checks:
	@$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && scripts/declared && $(BIN)/python scripts/compile-requirements --check && scripts/proto --check && $(BIN)/python scripts/chart --check && $(BIN)/python scripts/dashboards --check && $(BIN)/python scripts/site/annotations_page.py --check && $(BIN)/codespell $(TERMS)
types:
	@$(BIN)/mypy
cases:
	@$(BIN)/pytest -n 3 $(ARGS)
# mypy takes one processor for a minute on a clean checkout, and cases often wait: they run side by side.
test: setup checks ## everything that needs no real Kubernetes; three workers
	@$(MAKE) --no-print-directory -j 2 types cases
test-e2e: setup ## the end-to-end cases on a real control plane (KUBEBUILDER_ASSETS)
	@$(BIN)/pytest tests/e2e --cluster=real $(ARGS)
test-kubelet: setup ## the way of a pod on a real kubelet and containerd (KUBEBUILDER_ASSETS, root)
	@$(BIN)/pytest tests/e2e_node $(ARGS)
test-dra: setup ## ResourceClaims beside limits on real parts (KUBEBUILDER_ASSETS of 1.36, HAMI_CONTAINERD with CDI, root); ARGS=--slow for the long ones
	@$(BIN)/pytest tests/e2e_node/dra tests/e2e/dra tests/contract/policies/test_slices.py tests/contract/policies/test_front_end.py tests/contract/policies/test_claim*.py $(if $(KUBEBUILDER_ASSETS),--cluster=real) -rs $(ARGS)
test-manifests: setup ## k8s/base from nothing to a running slice (KUBEBUILDER_ASSETS, root, PostgreSQL and Redis with TLS)
	@$(BIN)/pytest tests/e2e_manifests -rs $(ARGS)
test-compose: setup ## docker-compose.yml and the lines of docs/compose.md: up, every part restarted, down, up (Docker)
	@$(BIN)/pytest tests/compose --slow -rs $(ARGS)
test-alerts: setup ## rules, alerts and live pages with Prometheus (Debian's package prometheus), boards with Grafana's types (npm)
	@command -v promtool prometheus > /dev/null || { echo "test-alerts: promtool and prometheus are missing: apt-get install --no-install-recommends prometheus" >&2; exit 1; }
	@test -x .venv/boards/node_modules/.bin/tsc || ! command -v npm > /dev/null || npm install --prefix .venv/boards --no-save --no-audit --no-fund --ignore-scripts --silent @grafana/schema@12.1.0 typescript@5.9.3
	@$(BIN)/pytest tests/alerts --slow -rs $(ARGS)
test-gpu: setup ## limits on a real card, with PyTorch and nvcc where they are; skipped, with the reason, elsewhere
	@$(BIN)/pytest tests/gpu -rs $(ARGS)
browser: setup
	@cmp -s requirements/browser.txt .venv/browser/requirements.txt || { $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade --target .venv/browser -r requirements/browser.txt && cp requirements/browser.txt .venv/browser/requirements.txt; }
test-pages: browser ## the operators' pages in Chromium: keys, accessibility, hostile names, parts that stop; skipped, with the reason, without Chromium
	@PYTHONPATH=.venv/browser $(BIN)/pytest tests/browser -rs $(ARGS)
screens: browser ## pictures of every page for docs/screens, at 3 and at 1000 nodes (Chromium)
	@PYTHONPATH=.venv/browser:. $(BIN)/python -m tests.browser.screens $(ARGS)
test-faults: setup ## every fault of docs/reliability.md, races, outages under load, 100,000 simulated steps, 10,000 kills on a slice, hostile tenants
	@beside=0; $(BIN)/pytest $(FAULTS) --slow -n 3 -m "not timed" $(ARGS) || beside=$$?; \
	alone=0; $(BIN)/pytest $(FAULTS) --slow -m timed $(ARGS) || alone=$$?; \
	case $$beside$$alone in 00|05|50) ;; *) exit 1;; esac # 5: ARGS leaves none of them
test-model: setup ## engine and grants against reference models, 10,000 random cases each (other ones: ARGS=--model-seed=N)
	@$(BIN)/pytest tests/unit/hamicommon/placement/test_engine_against_model.py tests/unit/hamicommon/placement/test_sidecars_against_model.py --model-cases=10000 $(ARGS)
test-reviews: setup ## the webhook is asked 10,000 good and broken reviews
	@$(BIN)/pytest tests/unit/webhook/test_any_review.py --review-cases=10000 $(ARGS)
test-recorded: setup ## answers recorded from HAMi beside ours, as a table: ARGS="FILE.jsonl..."
	@PATH=$(BIN):$$PATH $(BIN)/python -m tests.reference.recorded $(ARGS)
bench-%: setup ## one benchmark, for example: make bench-filter
	@$(BIN)/python -m bench.$(subst -,_,$*) $(ARGS)
questions: setup ## every named question on a month of history: answer and time of each
	@$(BIN)/python -m bench.questions $(ARGS)
release: ## version, changelog, commit, tag and notes of a release: make release VERSION=0.2.0
	@scripts/release "$(VERSION)"
native: ## only the C parts
	@$(MAKE) --no-print-directory -C native
native-sanitize: setup ## C unit tests, the library and fuzz targets under the sanitizers; libFuzzer for FUZZ_S seconds each
	@$(BIN)/pytest tests/native/intercept/test_instrumented.py $(ARGS)
	@$(MAKE) --no-print-directory -C native/libvgpu sanitize-address sanitize-thread fuzz-limits fuzz-region
proto: setup ## regenerate the gRPC stubs
	@scripts/proto
dashboards: setup ## write Grafana's boards and the PrometheusRule
	@$(BIN)/python scripts/dashboards
chart: setup ## write the Helm chart's templates from k8s/base
	@$(BIN)/python scripts/chart
docs: setup ## the documentation site into site/, with the reference from the source
	@scripts/docs
images: ## the images of the services (docker with buildx); ARGS=all: also those of docker-compose.yml
	@scripts/images $(ARGS)
requirements: ## pin the third-party sets again; the newest of one: ARGS=--upgrade=NAME
	@$(BIN)/python scripts/compile-requirements $(ARGS)
format: setup ## let ruff and clang-format write
	@$(BIN)/clang-format -i $(C_SOURCES)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
.PHONY: dashboards test-alerts
.PHONY: checks types cases images test-compose browser screens chart docs help setup up down lint release test test-e2e test-kubelet test-manifests test-pages test-faults test-model test-reviews test-recorded questions native native-sanitize proto requirements format
