#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "ARGS=[$*]"; env | grep '^MAD_' | sort; echo "performance: 1.5e+3 tokens/s"
