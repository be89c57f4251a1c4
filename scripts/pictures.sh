#!/usr/bin/env bash
# pictures.sh BIN: make docs/pictures anew, of the demo cards run here: a quarter of an hour on two CPU cores.
# BIN is the folder of the environment's programs, which has the extras demo and dashboard; it needs Debian's chromium.
set -euo pipefail
bin=$(realpath "$1") to=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../docs")/pictures
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
mkdir -p "$to"
cd "$work"

picture() { # URL HEIGHT FILE
  chromium --headless --no-sandbox --hide-scrollbars --user-data-dir="$work/chromium" --virtual-time-budget=5000 \
    --window-size="1100,$2" --screenshot="$to/$3" "$1" 2>/dev/null
}

"$bin/madlite" run --tags demo --repeat 3
"$bin/madlite" run --tags demo_hf_lora_tiny --set lr=0.002 --repeat 3
"$bin/madlite" report html -o report.html
picture "file://$work/report.html" 800 report.png
"$bin/madlite" dashboard --port 0 >address &
server=$!
until address=$(grep -o 'http://[^ ]*' address); do sleep 0.2; done
picture "$address" 620 dashboard.png
