#!/usr/bin/env bash
# coverage.sh BIN: run the fast tests, and those of the kit, with branches counted; too few of them are a failure.
# Counting doubles their time, so `make test` does without.  Of what tests start in processes of its own nothing is counted.
set -euo pipefail
bin=$1
folder=build/coverage
rm -rf "$folder" # what an older run left is of an older code
mkdir -p "$folder"
count() { "$bin/python" -m coverage run -m pytest -q -rs -n "$(nproc)" --dist worksteal "$@"; }
count
count -m 'host and not full' tests/testing tests/cli/test_plan.py tests/platforms/test_slurm_scheduler.py # in this process
"$bin/python" -m coverage combine --quiet
"$bin/python" -m coverage json --quiet -o "$folder/coverage.json"
"$bin/python" scripts/branches.py "$folder/coverage.json" 78
