# Pagoda, from make: each target is a thin line over scripts/setup, the CMake presets and scripts/run_stages.
#   make serve MODEL=qwen2.5 ARGS='--port 9000 --kv-memory 2GiB'
MODEL ?= smollm2
ARGS ?=
PRESET ?= release
PAGODA = build/$(PRESET)/pagoda
JOBS ?= $(shell nproc)

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || grep '##' $(MAKEFILE_LIST)
	@echo; echo "  MODEL=NAME|FILE.gguf (now $(MODEL))   ARGS='options of the command'   PRESET=release|debug|asan|tsan|fuzz (make build)"

serve run: TARGET = --target pagoda
serve: build model ## install what is missing, build, fetch the model, serve it on 127.0.0.1:8000
	$(PAGODA) serve $(MODEL) $(ARGS)

run: build model ## the same, then chat in the terminal (or make run ARGS='"a prompt"')
	$(PAGODA) run $(MODEL) $(ARGS)

build: setup ## build one preset into build/PRESET
	@cmake --preset $(PRESET) --log-level=WARNING >/dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS) $(TARGET)

test: ## everything a change must pass, in under 25 minutes on 2 cores
	@scripts/setup build test
	@scripts/run_stages test

test-all: ## make test and the real models, thread sanitizer, fuzz minutes, the full matrix
	@scripts/setup build test fuzz
	@scripts/run_stages test-all

lint: ## format, layers, places, docs, sizes, names, headers
	@scripts/setup build test
	@scripts/lint

bench: build ## every *_bench program; ARGS go to each
	@scripts/fetch_model $(MODEL) >/dev/null
	@scripts/run_bench $(ARGS)

load: build ## load in steps of 1 to 256 clients, a table and build/load.svg: 5 minutes (ARGS="--server 'NAME=COMMAND with {port}'": a peer too)
	@scripts/setup test
	@scripts/fetch_model $(MODEL) >/dev/null
	@build/venv/bin/python tests/perf/load.py --server 'pagoda=$(PAGODA) serve $(MODEL) --port {port}' $(ARGS)

kv-quality: build ## what KV formats cost on every recipe's model, on a novel: hours (ARGS='--formats q8 --tokens 8192': less)
	@scripts/kv_quality $(ARGS)

format: ## clang-format and rustfmt, in place
	@scripts/setup test
	@scripts/lint --fix format

setup: ## install what a build needs and lacks
	@scripts/setup build

model: setup ## fetch MODEL if it has a recipe (models/recipes.toml)
	@scripts/fetch_model $(MODEL) >/dev/null

clean: ## delete build/
	rm -rf build

.NOTPARALLEL:
.PHONY: help serve run build test test-all lint bench load kv-quality format setup model clean
