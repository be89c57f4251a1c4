#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "nothing here"
