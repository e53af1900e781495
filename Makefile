# Short commands. `make help` lists them; each installs what it needs into .venv on first use.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c $(VERSION_TEST) 2>/dev/null && { echo $$p; break; }; done)
VENV = .venv
PY = $(VENV)/bin/python
# Threads that wait by spinning cost a factor of five on busy cores.
OMP_NUM_THREADS ?= 1
OMP_WAIT_POLICY ?= PASSIVE
export OMP_NUM_THREADS OMP_WAIT_POLICY
# Without the bytecode of .venv every process would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

VERSION_TEST = 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
RUN_NOTEBOOKS = "$(PY)" book/_ext/run_notebooks.py
# CORES=2 becomes --cores "$CORES", and so on: the shell reads the value from the environment, as it is.
GRID_OPTIONS = MATCH PART ROOT OUT WORK CORES THREADS DEVICE GPUS RUNS_PER_GPU PROFILE
option = $(if $($1),--$(shell echo $1 | tr A-Z_ a-z-) "$$$1")
grid_options = $(if $(LIST),--list) $(foreach o,$(GRID_OPTIONS),$(call option,$o))
JUPYTER_BOOK = "$(PY)" -c 'from jupyter_book.cli.main import main; main()'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help env engine data book live demo html slides pdf test test-all fuzz lint record paper lock ecosystem bench gpu wheel clean distclean

help: ## list these commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile
	@echo "Options: PYTHON=python3.11 makes the environment; PY=python uses one that is active already."

env: ## make or update .venv from book/requirements.lock
ifeq ($(origin PY),file)
	@p="$(PYTHON)"; "$${p:-false}" -c $(VERSION_TEST) 2>/dev/null || { \
	echo "nclib needs Python 3.11, 3.12 or 3.13; found $${p:+$$p: }$$("$${p:-python3}" --version 2>&1 | head -n 1)." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" book/_ext/make_env.py "$(VENV)"
endif

data: env ## load the bundled data once, so that later steps find it
	@echo "Loading the bundled data ..."
	@"$(PY)" -c "import nclib; print(nclib.data.load('emoji', **nclib.resolve('plain').data_options))"

PRESET ?= quick
ifeq ($(PRESET),quick)
book: env data html ## everything: data, a live run on this machine, notebooks, pages
else ifeq ($(PRESET),paper)
book: env data paper html
else
$(error PRESET=$(PRESET): must be quick or paper)
endif

book: LIVE = --live l2rm

ENGINE = $(if $(LIST)$(DRY),env,engine) # a plan is shown without Snakemake
engine: env
	@"$(PY)" -c 'import snakemake' 2>/dev/null || { echo 'Installing Snakemake ...'; \
	"$(PY)" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation -r book/grids/requirements.lock; }

PAPER_GRIDS = $(sort $(basename $(notdir $(wildcard book/grids/paper_*.yml))))

paper: $(ENGINE) ## the runs of the papers whose data are there: make paper ROOT=/data GPUS=1; LIST=1, DRY=1 show them
ifdef DRY
	@"$(PY)" book/_ext/dry_run.py
else
ifndef LIST
	@test -d "$$ROOT" || { echo "ROOT=$$ROOT: give the folder of the papers' data, ROOT=/data" >&2; exit 1; }
	@"$(PY)" tools/data_check.py "$$ROOT" || echo "Runs on what is not complete are left out."
endif
	@"$(PY)" book/_ext/grid.py $(PAPER_GRIDS) $(grid_options) --there
ifndef LIST
	@$(RUN_NOTEBOOKS) --paper "$$ROOT"
endif
endif

live: env ## train L2RM in its quick preset for the page "Quick start"
	@$(RUN_NOTEBOOKS) --live l2rm --again l2rm

demo: env ## train what the chapters show, some twenty minutes, and store it in book/demo
	@$(RUN_NOTEBOOKS) --demo

html: env ## build and check the pages; executes the notebooks whose code or data changed; SOLUTIONS=no: without solutions
	@$(RUN_NOTEBOOKS) $(LIVE)
	@rm -rf _build/html _build/.doctrees _build/.jupyter_cache
	@$(JUPYTER_BOOK) build . --all --quiet -W --keep-going > /dev/null # warnings and errors are on stderr
	@"$(PY)" book/_ext/check_html.py _build/html
	@"$(PY)" -c "import pathlib; print('Open', pathlib.Path('_build/html/index.html').resolve().as_uri())"

TEACHING = "$(PY)" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
	-r book/teaching/requirements.lock --dest _build/teaching
slides: env ## the lectures as slides in _build/slides, from the figures of the executed pages: make html first
	@$(TEACHING)
	@"$(PY)" book/teaching/slides.py _build/teaching/rise-*.whl

pdf: env ## the course as one PDF, printed by the browser (CHROMIUM=/path): make html first
	@$(TEACHING)
	@"$(PY)" book/teaching/pdf.py _build/teaching/pypdf-*.whl

# Processes of the tests: one per core; the tests of a file share folders and finished runs.
TEST_CORES ?= $(shell "$(PYTHON)" -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
pytest = "$(PY)" -m pytest tests -n $(TEST_CORES) --dist loadfile

test: env ## run the tests of the package and of the book's tools
	@echo "All tests but the notebooks, every method on two models, twenty kills and small benchmarks: make test-all."
	@$(pytest) -m "not notebook and not exhaustive"

BASELINES = book/baselines/omit/tests # first, so that the other tests go through these models, too
test-all: engine ## run every test, the notebooks in a small size and the baselines among them
	@$(subst tests -n,$(BASELINES) tests -n,$(pytest))

fuzz: env ## draw new cases of every tested property for ten minutes: MINUTES=60 SEED=7 ONLY=damaged
	@seed=$${SEED:-$$(od -An -N3 -tu4 /dev/urandom)}; seed=$$((seed)); end=$$(($$(date +%s) + 60 * $${MINUTES:-10})); \
	while echo "seed $$seed" && "$(PY)" -m pytest tests -m fuzz -k "$${ONLY:-test}" -p no:cacheprovider \
	--hypothesis-profile=fuzz --hypothesis-seed=$$seed; do \
	[ $$(date +%s) -lt $$end ] || exit 0; seed=$$((seed + 1)); done; exit 1

record: $(ENGINE) ## make the missing records of a grid: make record GRID=robust (LIST=1 shows the plan)
	@"$(PY)" book/_ext/grid.py "$$GRID" $(grid_options)

UV ?= uv
LOCKS = book/requirements.lock book/cuda.lock book/grids/requirements.lock book/teaching/requirements.lock
lock: ## write the digests of every pinned version into the lock files, by uv: make lock UV=/path/to/uv
	@for file in $(LOCKS); do { grep '^#' $$file; echo; sed -n 's/^\([^# ]*==[^ ]*\).*/\1/p' $$file | \
	"$(UV)" pip compile - --no-deps --generate-hashes --no-annotate --no-header --quiet; } > $$file.new && \
	mv $$file.new $$file || exit 1; done

ecosystem: wheel ## try the audit with cleanlab, datasets and pictures, in an environment of their own
	@rm -rf _build/ecosystem && "$(PYTHON)" -m venv _build/ecosystem
	@_build/ecosystem/bin/pip install -q --disable-pip-version-check "$$(ls dist/*.whl)[datalab,pictures]" pytest
	@cd _build/ecosystem && bin/pytest -q -c /dev/null --rootdir . ../../tools/ecosystem_tests.py

bench: env ## measure the speed of the central computations; LIST=1: which stored speeds are of other code
	@"$(PY)" -m ncbook measured
ifndef LIST
	@mkdir -p runs/bench
	@for file in $(filter-out %_common.py book/bench/gpu% book/bench/detection_%,$(wildcard book/bench/*.py)); do echo "$$file"; \
	"$(PY)" "$$file" --out "runs/bench/$$(basename "$$file" .py).json" || exit 1; done
endif

GPU_OPTIONS = DEVICE OUT ROOT BUDGET MATCH COMMIT WORKERS AHEAD_LIMIT
gpu: env ## measure on a GPU, eight minutes a call, call again to continue; DEVICE=cpu SMALL=1 tries it
	@"$(PY)" book/bench/gpu.py $(if $(SMALL),--small) $(if $(RETRY),--retry) $(if $(CHANGED),--changed) \
	$(if $(LIST),--list) $(foreach o,$(GPU_OPTIONS),$(call option,$o))

lint: env ## ruff, mypy, banned phrases, and notebooks without outputs
	@"$(PY)" -m ruff check .
	@"$(PY)" -m ruff format --check .
	@"$(PY)" -m mypy
	@"$(PY)" tools/prose.py
	@"$(PY)" -m nbstripout --keep-id --verify notebooks/*.ipynb

wheel: env ## build the wheel into dist
	@rm -rf build # what an earlier build copied
	@"$(PY)" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@rm -rf build; ls dist/*.whl

clean: ## remove the built pages, the live run and caches
	rm -rf _build book/live .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find nclib tests book -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove the environment
	rm -rf "$(VENV)" noisy_correspondence.egg-info
