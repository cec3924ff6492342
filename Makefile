# Every goal sets up what it needs. Python packages go to .venv; nothing outside of this folder is touched.
#   make demo ARGS="--headless --episodes 2"      make test ARGS="test/core -k delay"
#   PYTHON=...       interpreter for the venv (default: found by itself)
#   TORCH_INDEX=...  package index to take torch from, or "none" (README: CPU and CUDA builds)
VENV ?= .venv
PYTHON ?=
TORCH_INDEX ?=
ARGS ?=

# The stamps carry the source of ROS 2: sourcing another installation sets up anew.
ROS_SOURCE := $(if $(and $(ROS_DISTRO),$(AMENT_PREFIX_PATH)),$(ROS_DISTRO),wheels)
PACKAGES := $(VENV)/packages-$(ROS_SOURCE).stamp
MESSAGES := $(VENV)/messages-$(ROS_SOURCE).stamp
# A virtual environment that was moved with its folder names files in the old place.
MOVED := $(shell grep -s '^command = ' $(VENV)/pyvenv.cfg | grep -qv ' $(abspath $(VENV))$$' && echo moved)
IN_VENV = PATH="$(abspath $(VENV))/bin:$$PATH" AMENT_PREFIX_PATH="$(abspath $(VENV)):$$AMENT_PREFIX_PATH" \
  LD_LIBRARY_PATH="$(abspath $(VENV))/lib:$$LD_LIBRARY_PATH"

NEXT = next: make demo; or: . $(VENV)/bin/activate && phyai-ros demo

.PHONY: moved help setup demo test soak lint clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make setup | demo | test | soak | lint | clean (build products) | distclean (and the virtual environment)"

setup: $(MESSAGES)
	@$(if $(filter setup,$(MAKECMDGOALS)),echo "$(NEXT)")

demo: setup
	@$(IN_VENV) $(VENV)/bin/phyai-ros demo $(ARGS)

test: setup
	@$(IN_VENV) $(VENV)/bin/python -m pytest $(ARGS)

soak: setup
	@$(IN_VENV) $(VENV)/bin/python tools/soak.py $(ARGS)

lint: $(PACKAGES)
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

clean:
	rm -rf build install log dist *.egg-info .pytest_cache .ruff_cache .hypothesis $(VENV)/build
	find . -path ./$(VENV) -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

$(PACKAGES): constraints.txt requirements.txt $(wildcard tools/*.py tools/*.sh tools/*.txt) $(MOVED)
	@python=$$(PYTHON="$(PYTHON)" tools/find_python.sh) && \
	  "$$python" tools/setup_venv.py packages --venv $(VENV) --torch-index "$(TORCH_INDEX)"
	@touch $@

$(MESSAGES): $(PACKAGES) CMakeLists.txt package.xml $(wildcard cmake/* msg/* action/* scripts/*) phyai_ros/__init__.py
	@$(VENV)/bin/python tools/setup_venv.py messages --venv $(VENV)
	@touch $@
