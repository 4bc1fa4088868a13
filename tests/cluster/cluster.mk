# The test cluster; docs/guides/testing.md explains it.

# Who makes it (local, kind or auto), which of this machine's clusters, its size, and the images that its nodes get.
CLUSTER ?= auto
CLUSTER_NAME ?= dev
NODES ?= 3
IMAGES ?= probe
ADDONS ?=
CLUSTER_ENV = PYTHONPATH=tests/cluster
CLUSTER_COMMAND = $(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster --name $(CLUSTER_NAME) --provider $(CLUSTER)

.PHONY: cluster-up
cluster-up: $(DEV) ## A Kubernetes of NODES=3 nodes with mocked GPUs on this machine
	$(CLUSTER_COMMAND) up --nodes $(NODES) --images $(IMAGES)

.PHONY: cluster-host
cluster-host: $(DEV) ## Check what CLUSTER=local needs of this machine: rights, packages, Go, kernel, disk
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster host --images $(IMAGES)

.PHONY: cluster-build
cluster-build: $(DEV) ## Build what CLUSTER=local needs to come up, and ADDONS="kueue jobset kwok" if given; start nothing
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster build --images $(IMAGES) --addons $(ADDONS)

.PHONY: api-build
api-build: $(DEV) ## Build the API server and etcd of `make test-api`; needs Go, and no root
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster build-api

.PHONY: cluster-packages
cluster-packages: ## Install Debian's packages for CLUSTER=local, where they are missing (root)
	tests/cluster/install-packages

.PHONY: cluster-down
cluster-down: $(DEV) ## Remove every trace of it
	$(CLUSTER_COMMAND) down

.PHONY: cluster-status
cluster-status: $(DEV) ## Its nodes, GPUs and memory
	$(CLUSTER_COMMAND) status

.PHONY: cluster-check
cluster-check: $(DEV) ## What holds on it, as a table
	$(BIN)/python -m pytest tests/cluster/checks --cluster $(CLUSTER_NAME) --cluster-provider $(CLUSTER) --table

.PHONY: cluster-traces
cluster-traces: $(DEV) ## Make a cluster `traces`, use it, take it down, and list what is left on this machine
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster.traces record build/traces.json
	$(MAKE) cluster-up CLUSTER_NAME=traces NODES=2
	$(BIN)/python -m pytest tests/cluster/checks/test_network.py --cluster traces --cluster-provider $(CLUSTER)
	$(MAKE) cluster-down CLUSTER_NAME=traces
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster.traces compare build/traces.json

.PHONY: cluster-scale
cluster-scale: $(DEV) ## Measure 1,000 simulated nodes and 1,000 plain Jobs on it
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster.scale --name $(CLUSTER_NAME)

# kind in earnest: a control plane and KIND_NODES workers, which each keep a copy of every image. The tables of what held
# go to build/, and with KIND_RESULTS=benchmarks/results there.
KIND_NODES ?= 2
KIND_RESULTS ?= build
KIND_SUITE = $(BIN)/python -m pytest --cluster kind --cluster-provider kind --table --table-file
KIND_DATE := $(shell date +%F)
WORKFLOW ?= e2e

.PHONY: kind-packages
kind-packages: ## Install a container engine and the image builder from Debian's packages, where they are missing
	tests/cluster/kind/install-packages

.PHONY: kind-image
kind-image: $(DEV) ## Name the node image that kind gets where no registry answers, and its inputs; builds nothing
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster.node_image

.PHONY: kind-check
kind-check: $(DEV) ## What holds on a cluster made by kind, with Docker or podman
	@mkdir -p $(KIND_RESULTS)
	$(MAKE) cluster-up CLUSTER=kind CLUSTER_NAME=kind NODES=$(KIND_NODES) IMAGES="probe trainer"
	$(KIND_SUITE) $(KIND_RESULTS)/kind-checks_$(KIND_DATE).md tests/cluster/checks

.PHONY: kind-e2e
kind-e2e: $(DEV) ## The end-to-end tests on a cluster made by kind, which stays up
	@mkdir -p $(KIND_RESULTS)
	$(MAKE) cluster-up CLUSTER=kind CLUSTER_NAME=kind NODES=$(KIND_NODES) IMAGES="probe $(ROOM_IMAGES)"
	$(KIND_SUITE) $(KIND_RESULTS)/kind-e2e_$(KIND_DATE).md tests/e2e

.PHONY: lint-workflows
lint-workflows: $(DEV) ## Check .github/workflows with actionlint, built from its Go module
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster.workflows

.PHONY: run-workflow
run-workflow: $(DEV) ## Run the shell steps of a workflow here, one by one: WORKFLOW=e2e
	$(CLUSTER_ENV) $(BIN)/python -m neuroshard_cluster.workflows $(WORKFLOW)

# The images of the rooms; those with PyTorch take some minutes to build, and 5 GB each.
ROOM_IMAGES = operator planner profiler trainer
E2E_CLUSTER ?= e2e
E2E_TESTS ?= tests/e2e
E2E_IMAGES ?= $(ROOM_IMAGES)
CHAOS_SECONDS ?= 900
# Each lane has its own cluster: E2E_CLUSTER, E2E_CLUSTER-b, ...
LANES ?= 1
E2E_CLUSTERS = $(E2E_CLUSTER) $(addprefix $(E2E_CLUSTER)-,$(wordlist 2,$(LANES),a b c d))
comma := ,
empty :=
E2E_SUITE = $(BIN)/python -m pytest --cluster $(subst $(empty) $(empty),$(comma),$(strip $(E2E_CLUSTERS))) \
	--cluster-provider $(CLUSTER) -n $(LANES:1=0) --dist loadgroup --table

.PHONY: e2e-up
e2e-up: $(DEV) ## The clusters of the end-to-end tests: one for each of LANES=1
	for name in $(E2E_CLUSTERS); do $(MAKE) cluster-up CLUSTER_NAME=$$name IMAGES="$(E2E_IMAGES)"; done

.PHONY: e2e-down
e2e-down: $(DEV) ## Remove every trace of them
	for name in $(E2E_CLUSTERS); do $(MAKE) cluster-down CLUSTER_NAME=$$name; done

# A test that fails runs once more, and the output has its first failure; at most three tests do, and none that hung.
AGAIN = --reruns 1 --max-suite-reruns 3 --rerun-except "from pytest-timeout" -raR

.PHONY: e2e
e2e: e2e-up ## The end-to-end tests on clusters of their own, which stay up; LANES=2 runs two tests at a time
	$(E2E_SUITE) $(AGAIN) $(E2E_TESTS)

.PHONY: chaos
chaos: e2e-up ## Kill at random under 30 jobs at once for CHAOS_SECONDS=900, on the same cluster
	$(E2E_SUITE) tests/e2e/test_chaos.py --long --chaos-seconds $(CHAOS_SECONDS)

.PHONY: e2e-long
e2e-long: e2e-up ## The end-to-end tests that wait for minutes: nodes that die under a real trainer, a late image, and more
	$(E2E_SUITE) tests/e2e tests/cluster/checks -m long --long

.PHONY: cluster-long
cluster-long: ## What .ci/run leaves out of the cluster's part: e2e-long, chaos in it, the workflows, and kind's node image
	$(MAKE) lint-workflows kind-image
	$(MAKE) e2e-long E2E_IMAGES="probe $(ROOM_IMAGES)"

.PHONY: demo-cluster
demo-cluster: $(DEV) ## A job from kubectl apply to Succeeded on a cluster with mocked GPUs, which stays up
	$(MAKE) cluster-up CLUSTER_NAME=demo IMAGES="$(ROOM_IMAGES)"
	PYTHONPATH=tests:tests/cluster $(BIN)/python -m e2e.demo --name demo --provider $(CLUSTER)

REGISTRY ?= localhost/neuroshard
TAG ?= test

.PHONY: images
images: ## The four images with docker: REGISTRY=registry.example/team TAG=0.1.0 DEVICE=cuda
	for room in $(ROOM_IMAGES); do \
		docker build --build-arg DEVICE=$(or $(DEVICE),cuda) --target $$room --tag $(REGISTRY)/$$room:$(TAG) .; \
	done
