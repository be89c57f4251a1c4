#!/usr/bin/env bash
# wheel.sh BIN [WHEEL]: the wheel, installed alone, must work from an empty folder; without WHEEL it is built here.
set -euo pipefail
bin=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -lt 2 ]; then
  "$bin/python" -m build --quiet --wheel --outdir "$work/dist" .
  set -- "$1" "$work"/dist/*.whl
fi
"$bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$2"
mkdir "$work/empty"
cd "$work/empty"
"$work/venv/bin/madlite" discover >"$work/discover.txt"
"$work/venv/bin/madlite" run --tags demo --dry-run >"$work/dry-run.txt"
grep -q demo_torchtitan "$work/discover.txt"
grep -q 'torch.distributed.run' "$work/dry-run.txt"
[ -z "$(ls -A .)" ] || { echo "error: a dry run left files: $(ls -A .)" >&2; exit 1; }
echo "the wheel works from an empty folder"
