#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "model,performance,metric,temperature" > perf_dummy.csv
for n in 1 2 3 4; do echo "$n,$((RANDOM + 1)),samples_per_sec,$((RANDOM + 1))" >> perf_dummy.csv; done
cp perf_dummy.csv ..
