#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "performance: 5 dir_ok ngpus=$MAD_RUNTIME_NGPUS"
