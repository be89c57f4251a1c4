#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
sleep "$1"
echo "performance: $((RANDOM + 1)) samples_per_second"
