#!/usr/bin/env bash
# coverage.sh BIN: run the tests, also what they start, with branches counted; too few of them are a failure.
# Real trainings are left out: counting makes torch slow, and what they run of madlite the others run too.
set -euo pipefail
bin=$1
folder=build/coverage
rm -rf "$folder" # what an older run left is of an older code
mkdir -p "$folder"
# most tests wait for processes: one worker more than there are cores; each starts an engine of its own
workers=$(($(nproc) + 1))
"$bin/python" -m coverage run -m pytest -q -rs -n "$workers" --dist loadfile -m "not training" --durations=15
# what was killed left its data half written: such a file is named and passed over
"$bin/python" -m coverage combine --quiet
"$bin/python" -m coverage json --quiet -o "$folder/coverage.json"
"$bin/python" scripts/branches.py "$folder/coverage.json" 95
