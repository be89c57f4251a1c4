#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "performance: $((RANDOM + 1)) samples_per_second"
