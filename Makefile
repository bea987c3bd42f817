# Two commands do all the set-up: `make demo` and `make test`. Both build their own .venv.

PYTHON ?= python3
# Releases that the tests run on; the first lives in .venv, the others in environments beside it.
FLASHINFER := 0.6.14
OTHER_FLASHINFERS := 0.6.15.post1 0.7.4
TORCH := 2.13.0

VENV := .venv
# Two tests at a time: most wait for processes that they have started.
IN_PARALLEL := -n 2 --dist worksteal
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
OTHER_VENVS := $(OTHER_FLASHINFERS:%=.venv-flashinfer-%/.installed)
# What FlashInfer's Python needs to be imported and its launcher to be compiled for the CPU.
FLASHINFER_NEEDS := torch==$(TORCH) numpy packaging tqdm requests filelock
FLASHINFER_BARE := apache-tvm-ffi nvidia-ml-py
CUDA_HEADERS := nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl

SITE_OF := import sysconfig; site = sysconfig.get_path('purelib')

# make demo LAYOUT=C runs on the newest release, which carves by layout C.
LAYOUT ?= B
ifeq ($(filter B C,$(LAYOUT)),)
$(error LAYOUT is B or C, got '$(LAYOUT)')
endif
DEMO_PYTHON_B := $(VENV)/bin/python
DEMO_PYTHON_C := .venv-flashinfer-0.7.4/bin/python

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' ws_guard/version.py)

.PHONY: demo test test-vllm test-gpu test-observability generated lint format bench bench-fleet nightly \
  soak nightly-logs nightly-exporter nightly-engine audit coverage mutation dist image clean

demo: $(VENV)/.installed $(if $(filter C,$(LAYOUT)),.venv-flashinfer-0.7.4/.installed)
	$(VENV)/bin/ws-guard demo --layout $(LAYOUT) --python $(DEMO_PYTHON_$(LAYOUT)) $(if $(filter-out 0 no,$(ONCE)),--once)

test: $(VENV)/.installed-test $(OTHER_VENVS)
	@sh tests/system_packages.sh
	$(VENV)/bin/python -m pytest -m "not engine and not observability and not release" $(IN_PARALLEL) $(PYTEST_ARGS)

# The plugins inside real vLLM and SGLang, without a GPU: an environment of 8 GiB of its own.
test-vllm: $(VENV)/.installed-test
	@sh tests/real/vllm/environment.sh .venv-vllm $(PYTHON)
	@# What has been built must not be skipped; a disk that was too small may.
	if [ -e .venv-vllm/.installed ]; then export WS_GUARD_REQUIRE_REAL_ENGINES=1; fi; \
	  PYTHONPATH=.venv-vllm/sources $(VENV)/bin/python -m pytest -m engine $(PYTEST_ARGS)

# Dashboards, alerts, manifests, chart, page and image against the real programs they are for.
test-observability: $(VENV)/.installed-test .venv-flashinfer-0.7.4/.installed
	@sh tests/observability/environment.sh .venv-observability $(PYTHON)
	$(VENV)/bin/python -m pytest -m observability $(PYTEST_ARGS)

# What is made from another file: dashboards, the PrometheusRule, the tables of docs/METRICS.md.
generated: $(VENV)/.installed-test
	$(VENV)/bin/python -m dashboards.write

# Branches that the tests of four rooms reach in them: 95 % of each, or it fails. The probe's tests run
# twice, with the hot path in C and in a copy of the tree without it.
COVERED := sizing contract board probe
COVERAGE := COVERAGE_FILE=$(CURDIR)/.coverage-data/.coverage $(CURDIR)/$(VENV)/bin/python -m coverage
coverage: $(VENV)/.installed-test .venv-flashinfer-0.7.4/.installed
	rm -rf .coverage-data && mkdir -p .coverage-data/tree
	cp -R pyproject.toml ws_guard tests .coverage-data/tree
	rm -f .coverage-data/tree/ws_guard/probe/_hot.*so
	$(COVERAGE) run -m pytest $(COVERED:%=tests/%) $(IN_PARALLEL) $(PYTEST_ARGS)
	cd .coverage-data/tree && $(COVERAGE) run -m pytest tests/probe $(IN_PARALLEL) $(PYTEST_ARGS)
	$(COVERAGE) combine --quiet
	@for room in $(COVERED); do $(COVERAGE) report --skip-covered --show-missing --precision 1 \
	  --fail-under 95 --include "ws_guard/$$room/*" || failed=1; done; exit $${failed:-0}

# On a machine with a card, by the Python that has torch and FlashInfer for it.
GPU_PYTHON ?= python3
test-gpu:
	WS_GUARD_REQUIRE_GPU=1 PYTHONPATH=. $(GPU_PYTHON) -m pytest tests/gpu -s $(PYTEST_ARGS)

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.installed-test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(VENV)/.installed-test
	@sh tests/system_packages.sh
	$(VENV)/bin/python -m benchmarks.probe
	$(VENV)/bin/python -m benchmarks.instructions
	$(VENV)/bin/python -m benchmarks.scrape
	$(VENV)/bin/python -m benchmarks.exporter
	$(VENV)/bin/python -m benchmarks.startup
	$(VENV)/bin/python -m benchmarks.explain

# One Prometheus over 128 exporters: three minutes, 2 GB of memory, the rules of dashboards/.
bench-fleet: $(VENV)/.installed-test
	@sh tests/system_packages.sh
	$(VENV)/bin/python -m benchmarks.fleet

# What takes too long for every change: an hour of soak, and parts that `make -j2 nightly` does beside it.
NIGHTLY := soak nightly-logs nightly-exporter nightly-engine mutation coverage audit
nightly: $(NIGHTLY)
$(NIGHTLY): $(VENV)/.installed-test

# An hour of workers that are killed beside a Prometheus that scrapes.
SOAK := --seconds 3600 --workers 16 --rate 20000
soak:
	@sh tests/system_packages.sh
	$(VENV)/bin/python tests/soak/soak.py $(SOAK)

# Logs of 500 MB, and logs that nobody would write.
nightly-logs: .venv-fuzz/.installed
	WS_GUARD_NIGHTLY=1 $(VENV)/bin/python -m pytest tests/explain
	PYTHONPATH=. .venv-fuzz/bin/python tests/explain/fuzz_log.py -max_total_time=300 -rss_limit_mb=1024
	$(VENV)/bin/python -m benchmarks.explain

# Hostile slots and requests, as many live writers as a rack has, probes and scrapes in a rush.
nightly-exporter: .venv-fuzz/.installed
	$(VENV)/bin/python tests/exporter/fuzz_slots.py --inputs 1000000
	$(VENV)/bin/python tests/exporter/fuzz_http.py --requests 20000
	WS_GUARD_NIGHTLY=1 $(VENV)/bin/python -m pytest tests/exporter/test_live_writers.py
	$(VENV)/bin/python -m benchmarks.rush

# A thousand kills, a kill at every point of the writer, ten million calls.
nightly-engine:
	@sh tests/system_packages.sh
	WS_GUARD_NIGHTLY=1 $(VENV)/bin/python -m pytest tests/engine_first tests/probe/hot/test_leaks.py -s

# Known vulnerabilities in what the exporter brings, as it would be installed now.
audit: $(VENV)/.installed .venv-fuzz/.installed
	$(VENV)/bin/python -c "from importlib.metadata import requires; \
	  print(*(each.partition(';')[0] for each in requires('ws-guard') if 'exporter' in each), sep='\n')" \
	  > .venv-fuzz/exporter.txt
	.venv-fuzz/bin/python tests/exporter/audit.py --strict --requirement .venv-fuzz/exporter.txt

# Small changes to sizing, one by one: each must be noticed by its tests, or stand in docs/MUTATION.md.
mutation: .venv-release/.installed
	rm -rf mutants
	.venv-release/bin/mutmut run
	.venv-release/bin/python -m release.mutants docs/MUTATION.md

# What PyPI gets, into dist/: built twice and compared, judged, installed elsewhere without a network.
dist: .venv-release/.installed
	.venv-release/bin/python -m release.dist dist
	.venv-release/bin/python -m pytest tests/release $(PYTEST_ARGS)

image:
	docker build --tag ws-guard:$(VERSION) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD) .

clean:
	rm -rf .venv .venv-flashinfer-* .venv-vllm .venv-observability .venv-fuzz .venv-release dist \
	  .mypy_cache .ruff_cache .pytest_cache .coverage .coverage-data mutants

$(VENV)/.installed: pyproject.toml Makefile hatch_build.py ws_guard/probe/_hot.c
	$(PYTHON) -m venv $(VENV)
	@echo "installing ws-guard, torch $(TORCH) and FlashInfer $(FLASHINFER) into $(VENV) ..."
	$(PIP) -e '.[exporter]' $(FLASHINFER_NEEDS)
	$(PIP) --no-deps flashinfer-python==$(FLASHINFER) $(FLASHINFER_BARE)
	command -v nvcc >/dev/null || $(PIP) --no-deps $(CUDA_HEADERS) \
	  || echo "no CUDA headers: the launcher's stand-in will be used"
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[exporter,plot,test]'
	touch $@

.venv-fuzz/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check atheris \
	  schemathesis pip-audit
	touch $@

# The exporter's packages are kept as files: tests install from there, without a network.
.venv-release/.installed: release/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r release/requirements.txt
	$(@D)/bin/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print(*project['optional-dependencies']['exporter'], sep='\n')" > $(@D)/exporter.txt
	rm -rf $(@D)/wheels
	$(@D)/bin/python -m pip download --quiet --disable-pip-version-check --only-binary :all: \
	  --dest $(@D)/wheels -r $(@D)/exporter.txt
	touch $@

# Another release of FlashInfer on top of .venv's packages: what is installed here comes first.
.venv-flashinfer-%/.installed: $(VENV)/.installed
	$(PYTHON) -m venv --without-pip $(@D)
	$(VENV)/bin/python -c "$(SITE_OF); print(f'import site; site.addsitedir({site!r})')" \
	  > "$$($(@D)/bin/python -c "$(SITE_OF); print(site)")/base.pth"
	$(VENV)/bin/python -m pip --python $(@D)/bin/python install --quiet \
	  --disable-pip-version-check --no-deps --ignore-installed flashinfer-python==$*
	touch $@
