#!/usr/bin/env bash
# lint.sh BIN: style, types, the direction of imports, and the documentation site.
set -euo pipefail
bin=$1
# the types take longest, on one processor
types=$(mktemp)
"$bin/mypy" >"$types" 2>&1 &
mypy=$!
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/lint-imports"
"$bin/python" scripts/core_size.py --check
shellcheck scripts/*.sh tests/kit/*.sh tests/golden/*.sh .ci/run templates/tools/*.sh templates/tools/*/*.sh
site=$(mktemp -d)
NO_MKDOCS_2_WARNING=1 "$bin/mkdocs" build --strict --quiet --site-dir "$site" # a link or a page that is missing
rm -rf "$site"
typed=0
wait "$mypy" || typed=$?
cat "$types"
rm "$types"
exit "$typed"
