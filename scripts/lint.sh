#!/usr/bin/env bash
# lint.sh BIN: style, types, the direction of imports, and the documentation site.
set -euo pipefail
bin=$1
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/lint-imports"
"$bin/python" scripts/core_size.py --check
shellcheck scripts/*.sh tests/kit/*.sh tests/golden/*.sh .ci/run templates/tools/*.sh templates/tools/*/*.sh
site=$(mktemp -d)
NO_MKDOCS_2_WARNING=1 "$bin/mkdocs" build --strict --quiet --site-dir "$site" # a link or a page that is missing
rm -rf "$site"
