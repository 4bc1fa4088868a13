# The test cluster: docs/guides/testing.md explains it. CLUSTER=local|kind chooses who makes it, CLUSTER_NAME which one.
CLUSTER ?= auto
CLUSTER_NAME ?= dev
NODES ?= 3
IMAGES ?= probe
CLUSTER_PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
CLUSTER_COMMAND = PYTHONPATH=tests/cluster $(CLUSTER_PYTHON) -m neuroshard_cluster \
	--name $(CLUSTER_NAME) --provider $(CLUSTER)

.PHONY: cluster-up cluster-down cluster-status cluster-check cluster-scale

cluster-up: ## a Kubernetes of NODES nodes with mocked GPUs on this machine
	$(CLUSTER_COMMAND) up --nodes $(NODES) --images $(IMAGES)

cluster-down: ## remove every trace of it
	$(CLUSTER_COMMAND) down

cluster-status: ## its nodes, GPUs and memory
	$(CLUSTER_COMMAND) status

cluster-check: ## what holds on the running cluster, as a table
	$(CLUSTER_PYTHON) -m pytest tests/cluster/checks --cluster $(CLUSTER_NAME) --cluster-provider $(CLUSTER) --table

cluster-scale: ## 1,000 simulated nodes and 1,000 plain Jobs on the running local cluster, as a report
	PYTHONPATH=tests/cluster $(CLUSTER_PYTHON) -m neuroshard_cluster.scale --name $(CLUSTER_NAME)
