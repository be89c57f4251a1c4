#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
