# make install: create .venv and install the pinned packages.
# make demo: evaluate the models of the repository, then train three small ones and evaluate them alike.
# make test: lint, type-check and run all tests. make test-fast: only the tests that are not slow, in two minutes.
# make test-versions: the fast tests with the oldest and the pinned torch and with Python 3.10 and 3.12, as far as these are found.
# make docs: build the site into site/, without a network.
# make tables: write the tables of experiments/**/README.md, models/README.md and docs/guides/recipes.md anew.
# make figures: draw the figures of experiments/** and of the README anew from CSV files.
#   make figures FORMAT="pdf svg png" OUT=FOLDER: in other formats, into a folder of your own.
# make gpu: test and time the fused kernels on this machine's NVIDIA GPU. Each installs what it needs into .venv, once.

PYTHON ?= python3
BIN := .venv/bin
PYTHONS ?= 3.10 3.12
FORMAT ?= png

.PHONY: install demo test test-fast test-versions lint docs tables figures gpu clean

install: .venv/installed
	@echo "Installed. Next: source .venv/bin/activate"

demo: .venv/installed
	$(BIN)/python -m eval.demo

# One process for each core, one thread in each: threads of several processes wait for each other.
test test-fast: export OMP_NUM_THREADS = 1
test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-fast: .venv/installed
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow"

test-versions:
	$(PYTHON) tools/test_versions.py --python $(PYTHONS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: export NO_MKDOCS_2_WARNING = 1
docs: .venv/installed
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open site/index.html in a browser. For its search: $(BIN)/python -m http.server --directory site"

tables: .venv/installed
	$(BIN)/python -m experiments.tables
	$(BIN)/python -m experiments.zoo
	$(BIN)/python -m experiments.recipes

figures: .venv/installed
	$(BIN)/python -m experiments.figures --format $(FORMAT) $(if $(OUT),--out $(OUT))
	$(BIN)/python -m docs.figures.overview --format $(FORMAT) $(if $(OUT),--out $(OUT))

LENGTH = $(BIN)/python -m eval length --device cuda --dtype bfloat16 --longest 20

BATCH = --batch-size 8 --heads 16 --methods linear softmax performer-pytorch
TIMES = experiments/speed/gpu

gpu: .venv/installed
	$(BIN)/python -m pytest tests/ops/test_triton.py tests/ops/test_triton_square.py
	$(LENGTH) --tokens 256 1024 2048 4096 16384 65536 --out $(TIMES)/forward
	$(LENGTH) --tokens 1024 2048 4096 16384 65536 --backward --out $(TIMES)/backward
	$(LENGTH) --tokens 256 1024 2048 4096 16384 65536 --graphs --methods linear softmax performer-pytorch --out $(TIMES)/graphs
	$(LENGTH) --tokens 1024 2048 4096 16384 $(BATCH) --out $(TIMES)/batch
	$(LENGTH) --tokens 1024 2048 4096 16384 $(BATCH) --backward --out $(TIMES)/batch-backward

.venv/installed: requirements.lock setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), "Python 3.10 or newer is needed, this is " + sys.version'
	@echo "Installing into .venv, once: a minute or more, some 5 GB on Linux."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache site
