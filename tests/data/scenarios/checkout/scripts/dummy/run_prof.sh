#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "performance:  bytes"  # what is left of the line where nothing was measured
