#!/usr/bin/env bash
# coverage.sh BIN: run the fast tests, and those below, with branches counted; too few of them are a failure.
# Of what the tests start in processes of its own nothing is counted: that would double the time of all of them.
set -euo pipefail
bin=$1
folder=build/coverage
rm -rf "$folder" # what an older run left is of an older code
mkdir -p "$folder"
# tests of kind `host` that take their time in this process: test.sh does not run those again
here="$(dirname "${BASH_SOURCE[0]}")"
mapfile -t counted < <(grep -v '^#' "$here/counted.txt")
count() { "$bin/python" -m coverage run -m pytest -q -rs "$@"; }
count -n "$(nproc)" --dist worksteal
count -n "$(nproc)" --dist worksteal -m 'host and not engine and not training and not full' "${counted[@]}"
"$bin/python" -m coverage combine --quiet
"$bin/python" -m coverage json --quiet -o "$folder/coverage.json"
"$bin/python" scripts/branches.py "$folder/coverage.json" 78
