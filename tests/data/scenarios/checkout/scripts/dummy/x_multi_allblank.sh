#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
printf 'model,performance,metric\na,,tok/s\n' > xmab.csv; cp xmab.csv ../
