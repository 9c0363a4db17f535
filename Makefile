# A thin front for CMake: `make help` lists what there is.
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=

.PHONY: all
all: ## build the libraries, the command and the PyTorch binding into build/
	@cmake -S . -B $(BUILD) $(CMAKE_FLAGS) > $(BUILD).cmake.log 2>&1 || { cat $(BUILD).cmake.log; exit 1; }
	@cmake --build $(BUILD) -j $(JOBS)
