# Targets work in a fresh clone: they create the environment in .venv and build the package. Variables:
#   PYTHON    interpreter of the environment             make PYTHON=python3.12 test
#   TORCH     torch to install before the package        make TORCH="torch==2.8.0" test
#   FAMILIES  families of operators to benchmark         make FAMILIES=scaling OUT=out/scaling_cpu.json bench
#   ONLY      figures to draw                            make ONLY=speed figures
PYTHON ?= python3
TORCH ?= torch==2.13.0
OUT ?= out/cpu.json
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is cached at the first import, which compiles a fraction of the installed modules.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/pointgrad/ops/*/*.cpp src/pointgrad/ops/*/*.h)

.PHONY: installed demo test lint bench docs figures clean

installed: $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/python examples/demo/operators.py
	$(BIN)/python examples/demo/gradients.py
	$(BIN)/python examples/demo/learning.py

# Work stealing keeps neighboring tests in one process, so that their shared fixtures are built once. Three processes for
# two cores, because some tests wait for other processes.
test: $(VENV)/installed
	$(BIN)/python -m pytest -n $$($(BIN)/python -c "import os; print(-(-3 * os.cpu_count() // 2))") --dist worksteal

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=auto $(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/pointgrad bench $(FAMILIES) --out $(OUT)

docs: $(VENV)/documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open out/site/index.html; or, with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory out/site 8000"

figures: $(VENV)/installed
	$(BIN)/python -m docs.drawings $(ONLY)

include reliability/targets.mk

clean:
	rm -rf $(VENV) build out

$(VENV)/venv:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	touch $@

$(VENV)/created: $(VENV)/venv
	$(INSTALL) scikit-build-core nanobind cmake ninja
	touch $@

# torch is installed first and from the version in TORCH: resolved as a dependency, it may bring several GB of CUDA.
$(VENV)/torch: $(VENV)/created
	$(INSTALL) "$(TORCH)" numpy
	touch $@

# Needs no torch, so both are made at the same time.
$(VENV)/built: $(VENV)/created $(NATIVE)
	$(INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

# The site is made from source and Markdown: it needs neither torch nor the compiled module.
$(VENV)/documented: $(VENV)/venv pyproject.toml
	$(INSTALL) $$($(BIN)/python docs/site/requirements.py)
	touch $@

$(VENV)/installed: $(VENV)/created $(NATIVE)
	$(MAKE) --jobs=2 $(VENV)/torch $(VENV)/built
	$(INSTALL) "pointgrad[test,lint,bench]"
	touch $@
