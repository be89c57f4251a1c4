#!/usr/bin/env bash
# test.sh BIN TIER: what must hold; BIN is the folder of the environment's programs, TIER is ci or all (CONTRIBUTING.md).
set -euo pipefail
bin=$1 tier=$2
export MADLITE_TEST_TIER=$tier

step() {
  local begun=$SECONDS code=0
  printf '== %s\n' "$1"
  "${@:2}" || code=$?
  printf '== %s: %s s\n' "$1" $((SECONDS - begun))
  return "$code"
}

# run a step while others do, and print all of its output at its end
beside() {
  local log code=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || code=$?
  cat "$log"
  rm "$log"
  return "$code"
}

# have pytest compile the tests once: workers that begin together would each do all of it
compile_tests() {
  local said
  said=$("$bin/python" -m pytest -qq --collect-only 2>&1) || { echo "$said" && return 1; }
}

if [ "$tier" = all ]; then
  all='not training and not kubernetes' trainings='training' durations=0 at_once=0
else
  all='not training and not kubernetes and not full' trainings='training and not full' durations=15 at_once=2
fi
mapfile -t of_trainings < <(grep -rl 'mark\.training' tests --include='test_*.py') # to collect all tests again takes long

beside step 'the wheel' scripts/wheel.sh "$bin" & # waits for downloads most of its time
wheel=$!
compile_tests & # on the other processor
compiled=$!
step 'style, types and imports' scripts/lint.sh "$bin"
wait "$wheel"
wait "$compiled"
[ "$tier" = ci ] || step 'branches of the fast tests' scripts/coverage.sh "$bin"
# by themselves: beside what computes, tests that wait some seconds for processes fail where the machine is busy.
# A training keeps one processor busy; the few of ci run two at a time
step 'trainings' "$bin/python" -m pytest -q -rs -m "$trainings" --durations="$durations" -n "$at_once" --dist loadfile \
  "${of_trainings[@]}"
# many of these wait for processes: six workers for two cores.  A worker takes files, whose tests share fixtures,
# names of images, and processes that they look for; long files come first, as tests/tiers.py sorts them
step 'all other tests' "$bin/python" -m pytest -q -rs -m "$all" --durations="$durations" \
  -n $(($(nproc) * 3)) --dist loadfile --no-loadscope-reorder
