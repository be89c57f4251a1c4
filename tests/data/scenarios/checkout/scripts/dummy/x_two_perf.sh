#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "performance: 1 a"; echo "performance: 2 b"
