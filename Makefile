# Every command of this repository; CI calls the same ones. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The interpreter that environments are made with; any Python from 3.11 on.
PYTHON ?= python3
# uv, or pip: who installs packages.
INSTALLER ?= uv
export PYTHON INSTALLER
# Compiled modules are kept, also where the environment says not to: importing torchrec takes three times as long without.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
UV := .cache/bootstrap/bin/uv
BUNDLES := costs/neuroshard_costs/bundles
BUNDLED_DEVICES := a100-80gb h100-80gb h200-141gb

# An environment is made again when this key changes: what is installed, with which Python, and where the checkout lies.
KEY := $(shell { pwd; echo $(PYTHON) $(INSTALLER) $(TORCH); cat pyproject.toml constraints.txt .ci/make-venv; } | cksum | cut -d ' ' -f 1)
DEV := .venv/.installed-$(KEY)
DEMO := .venv-demo/.installed-$(KEY)
RUN := .venv-run/.installed-$(KEY)
OLD_TORCHREC := .venv-torchrec-1.8/.installed-$(KEY)
SPARK := .venv-spark/.installed-$(KEY)
GPU := .venv-gpu/.installed-$(KEY)
DOCS := .venv-docs/.installed-$(KEY)
FBGEMM_VERSION := $(shell sed -n 's/^fbgemm-gpu-cpu==//p' constraints.txt)
CUDA_SYMBOLS := .cache/fbgemm-gpu-$(FBGEMM_VERSION).symbols
# Of what calls TorchRec: drop-in, plan adapter, proof of the live sharding, and TorchRec's planner.
TORCHREC_TESTS := tests/dropin tests/python/test_torchrec_plan.py tests/planner/baselines \
	tests/trainer/sharding/test_plan_adapter.py tests/trainer/sharding/test_live_sharding.py
MOVIELENS := .cache/recbole-1.2.1/recbole/dataset_example

.PHONY: help
help: ## List these commands
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-17s %s\n", $$1, $$2 }'
	@echo "Settings: PYTHON=python3.12 (the interpreter to use), INSTALLER=pip (instead of uv), TORCH=cpu or cuda (the build of torch)"

.PHONY: demo
demo: $(RUN) $(MOVIELENS) ## Measure this CPU, plan, and train on MovieLens-100K with two processes (installs torch)
	cd $(MOVIELENS) && $(CURDIR)/.venv-run/bin/neuroshard run $(CURDIR)/examples/02-movielens.yaml --run-dir $(CURDIR)/demo/movielens

.PHONY: demo-plan
demo-plan: $(DEMO) ## Plan a public model for 8 GPUs and write demo/report.html (installs what it needs, no torch)
	@mkdir -p demo
	.venv-demo/bin/neuroshard plan mlperf-dlrm-dcnv2 --devices 8 --device-type h100-80gb \
		--out demo/plan.json --out demo/report.html

# Two at a time on two cores; collection, and tests that wait, leave some of them idle.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist worksteal

.PHONY: test
test: $(DEV) ## Install what the tests need, then check style, types, imports, and run all tests but those of test-processes and test-api
	@mkdir -p build/times
	$(MAKE) --no-print-directory --jobs 2 lint imports types test-units

.PHONY: test-units
test-units: $(DEV)
	$(PYTEST) --junitxml build/times/test.xml -m "not processes and not api_server"

.PHONY: test-processes
test-processes: $(DEV) $(MOVIELENS) ## Run the tests that start processes which plan, profile, or train, seconds to a minute each
	@mkdir -p build/times
	$(PYTEST) --junitxml build/times/test-processes.xml -m processes $(AGAIN) \
		$$(grep -rl --include="test_*.py" mark.processes tests)

.PHONY: test-api
test-api: $(DEV) ## Run the tests that start an API server, which `make api-build` compiles
	$(PYTEST) --junitxml build/times/test-api.xml -m api_server $$(grep -rl --include="test_*.py" mark.api_server tests)

.PHONY: test-long
test-long: $(DEV) test-torchrec-1.8 test-spark ## Run what is long and rarely breaks: more generated cases, an older TorchRec, Spark
	$(PYTEST) --long --timeout 1800 -m "(long or deep) and not (e2e or scale or chaos)"

.PHONY: test-torchrec-1.8
test-torchrec-1.8: $(OLD_TORCHREC) ## Run the tests of what touches TorchRec with TorchRec 1.8, its torch, and its FBGEMM
	OMP_NUM_THREADS=1 .venv-torchrec-1.8/bin/python -m pytest -n 2 $(TORCHREC_TESTS)

.PHONY: test-peer
test-peer: $(DEV) ## Run TorchRec's own planner and gloo tests with our planner in theirs (TORCHREC=a clone of TorchRec's repository)
	@test -n "$(TORCHREC)" || { echo "TORCHREC is not set; hint: make test-peer TORCHREC=CLONE"; exit 2; }
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m peer.suite $(TORCHREC)

.PHONY: test-spark
test-spark: $(SPARK) ## Run the tests of `--engine spark` with Spark in a JVM on this machine (needs Java 17 or later)
	.venv-spark/bin/python -m pytest -m spark tests/profiler/sessions

.PHONY: kernels
kernels: $(DEV) $(CUDA_SYMBOLS) ## Compare the table of training kernels with the symbols of FBGEMM's CUDA wheel (500 MB)
	$(BIN)/python -m pytest -q tests/contracts/test_cuda_kernels.py

.PHONY: gpu-kit
gpu-kit: $(DEV) ## Pack what a GPU without a network lacks (465 MB), and try the scripts that measure one on this CPU
	benchmarks/gpu/pack.sh
	OMP_NUM_THREADS=1 STRETCH=10 PYTHON=$(BIN)/python benchmarks/gpu/check.sh --cpu --seconds 3600 first records kernels speed

.PHONY: gpu-measure
gpu-measure: $(GPU) ## Measure one GPU of this machine in 15 minutes; writes build/gpu/results.tar.gz to send
	rm -rf build/gpu/out
	PYTHON=.venv-gpu/bin/python benchmarks/gpu/check.sh || echo "some stages have errors; send the results all the same"
	tar -C build/gpu/out -czf build/gpu/results.tar.gz .
	@echo "send build/gpu/results.tar.gz: benchmarks/gpu/README.md says how"

.PHONY: placements
placements: $(DEV) ## Train 200 random plans of all placements on four gloo ranks; writes build/placements/differences.json
	rm -rf build/placements && mkdir -p build/placements
	PYTHONPATH=tests $(BIN)/python tests/trainer/sharding/placements_worker.py build/placements 200 0

.PHONY: lint
lint: $(DEV) ## Style: ruff, its formatter, codespell, yamllint, and words of docs/STYLE.md
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m codespell_lib
	$(BIN)/python -m yamllint --strict .
	$(BIN)/python docs/style_check.py

.PHONY: types
types: $(DEV) ## Types: mypy, strict
	$(BIN)/python -m mypy

.PHONY: imports
imports: $(DEV) ## Boundaries: who may import whom
	$(BIN)/lint-imports

.PHONY: format
format: $(DEV) ## Format the code and apply automatic fixes
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

.PHONY: schemas
schemas: $(DEV) ## Write the documents' JSON schemas to docs/reference/schemas
	$(BIN)/python -m neuroshard_api.schemas docs/reference/schemas

.PHONY: tables
tables: $(DEV) ## Write the tables of settings, metrics, exit codes, and reasons to docs/reference
	$(BIN)/python docs/reference_tables.py

.PHONY: crds
crds: $(DEV) ## Write the custom resource's definition to crds and the chart, its page to docs/reference
	$(BIN)/python -m neuroshard_api.job.crd crds/dlrmtrainingjobs.yaml docs/reference/job-file.md \
		docs/reference/every-field.yaml
	cp crds/dlrmtrainingjobs.yaml charts/neuroshard-operator/files/

.PHONY: docs
docs: $(DOCS) ## Build the documentation site in build/site; every link and anchor must lead somewhere
	rm -rf build/site-source && mkdir -p build/site-source
	git ls-files -z --cached --others --exclude-standard -- '*.md' docs examples benchmarks/results benchmarks/data \
		'charts/*/values.yaml' '*/presets/*.toml' '*/workloads/*.yaml' | xargs -0 cp --parents -t build/site-source
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build

.PHONY: pictures
pictures: $(DEV) ## Make the pictures of README from plans of this checkout (needs Chromium)
	$(BIN)/python docs/pictures.py

.PHONY: bundles
bundles: $(DEV) ## Train the bundled cost models (simulated A100, H100, and H200)
	for device in $(BUNDLED_DEVICES); do \
		$(BIN)/neuroshard pretrain --device-type $$device --out $(BUNDLES)/$$device; \
	done

.PHONY: bench
bench: $(DEV) ## Measure the search against all baselines; writes benchmarks/results
	$(BIN)/python -m benchmarks

.PHONY: pins
pins: $(DEV) ## Pin the versions of everything in .venv in constraints.txt
	@{ echo "# What was tested together: names and versions only. \`make pins\` writes this file."; \
		{ $(UV) pip freeze --python $(BIN)/python --exclude-editable; $(UV) --version | sed 's/^uv \([^ ]*\).*/uv==\1/'; } | sort -f; \
	} > .cache/constraints.txt
	@mv .cache/constraints.txt constraints.txt

include tests/cluster/cluster.mk

.PHONY: clean
clean: ## Remove environments, caches and what the demo wrote
	rm -rf .venv .venv-demo .venv-run .venv-torchrec-1.8 .venv-spark .venv-docs .venv-gpu .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build demo dist

$(DEV):
	.ci/make-venv .venv dev
	@touch $@

$(DEMO):
	.ci/make-venv .venv-demo demo
	@touch $@

$(RUN):
	.ci/make-venv .venv-run run
	@touch $@

$(OLD_TORCHREC):
	.ci/make-venv .venv-torchrec-1.8 torchrec-1.8
	@touch $@

$(GPU):
	.ci/make-venv .venv-gpu gpu
	@touch $@

$(DOCS):
	.ci/make-venv .venv-docs docs
	@touch $@

$(SPARK):
	.ci/make-venv .venv-spark spark
	@touch $@

# The wheel is read and not installed: without a driver it would not load, and it shares its name with the CPU build.
$(CUDA_SYMBOLS): | $(DEV)
	.ci/fetch-wheel .venv fbgemm-gpu==$(FBGEMM_VERSION) $@.wheel
	nm --dynamic --demangle $@.wheel/fbgemm_gpu/fbgemm_gpu_tbe_training_{forward,backward}.so \
		| grep -oE 'split_embedding_(codegen_forward|backward_codegen_[a-z_]+)_unweighted_kernel\w*<[^>]*>' \
		| sort -u > $@.unfinished
	mv $@.unfinished $@
	rm -rf $@.wheel

# After what makes an environment, of which there is one by then.
$(MOVIELENS):
	.ci/fetch-wheel $$([ -d .venv ] && echo .venv || echo .venv-run) recbole==1.2.1 .cache/recbole-1.2.1
