#!/usr/bin/env bash
# coverage.sh BIN: run the fast tests with branches counted; too few of them are a failure.
# Of what the tests start in processes of its own nothing is counted: that would double the time of all of them.
set -euo pipefail
bin=$1
folder=build/coverage
rm -rf "$folder" # what an older run left is of an older code
mkdir -p "$folder"
"$bin/python" -m coverage run -m pytest -q -rs -n "$(nproc)" --dist worksteal
"$bin/python" -m coverage combine --quiet
"$bin/python" -m coverage json --quiet -o "$folder/coverage.json"
"$bin/python" scripts/branches.py "$folder/coverage.json" 78
