#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
printf 'model,performance\na,3\n' > xmn.csv; cp xmn.csv ../
