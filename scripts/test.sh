#!/usr/bin/env bash
# test.sh BIN TIER: what must hold; BIN is the folder of the environment's programs, TIER is ci or all (CONTRIBUTING.md).
set -euo pipefail
bin=$1 tier=$2
export MADLITE_TEST_TIER=$tier
passed=scripts/full-test-passed

step() {
  local begun=$SECONDS
  printf '== %s\n' "$1"
  "${@:2}"
  printf '== %s: %s s\n' "$1" $((SECONDS - begun))
}

# most of these wait for processes: six workers for two cores.  A worker takes files, whose tests share fixtures,
# names of images, and processes that they look for; long files come first, as tests/tiers.py sorts them
many() { "$bin/python" -m pytest -q -rs -n $(($(nproc) * 3)) --dist loadfile --no-loadscope-reorder "$@"; }

if [ "$tier" = all ]; then
  rest='(host or engine or install or full) and not training' trainings='training' durations=0
else
  rest='(host or engine or install) and not training and not full' trainings='training and not full' durations=15
fi
# the wheel waits for downloads most of its time
log=$(mktemp)
step 'the wheel' scripts/wheel.sh "$bin" >"$log" 2>&1 &
wheel=$!
step 'style, types and imports' scripts/lint.sh "$bin"
built=0
wait "$wheel" || built=$?
cat "$log"
rm "$log"
[ "$built" = 0 ]
step 'fast tests and the kit, branches counted' scripts/coverage.sh "$bin"
counted=() # in full they run once more
[ "$tier" = all ] || mapfile -t counted < <(sed -n 's/^tests/--ignore=tests/p' scripts/counted.txt)
step 'processes and engines' many -m "$rest" --durations="$durations" "${counted[@]}"
mapfile -t of_trainings < <(grep -rl 'mark\.training' tests --include='test_*.py') # to collect all tests again takes long
step 'trainings' "$bin/python" -m pytest -q -rs -m "$trainings" --durations="$durations" "${of_trainings[@]}"
if [ "$tier" = all ]; then
  git rev-parse HEAD >"$passed"
  echo "all tests passed: commit $passed, which make test compares the backends with"
fi
