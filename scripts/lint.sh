#!/usr/bin/env bash
# lint.sh BIN: style, types and the direction of imports.
set -euo pipefail
bin=$1
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/lint-imports"
"$bin/python" scripts/core_size.py --check
shellcheck scripts/*.sh madlite/testing/*.sh tests/golden/*.sh .ci/run templates/tools/*.sh templates/tools/*/*.sh
