#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "performance: $BUILT_FOR context"
