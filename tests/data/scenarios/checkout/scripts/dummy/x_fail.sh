#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "Test failure"; exit 1
