#!/usr/bin/env bash
# test.sh BIN: everything that must hold; BIN is the folder of the environment's programs.
set -euo pipefail
bin=$1
scripts/lint.sh "$bin"
scripts/wheel.sh "$bin"
scripts/coverage.sh "$bin"
"$bin/python" -m pytest -q -rs -m training --durations=5
