#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
echo "performance: 12.5 tokens_per_second"; echo "RuntimeError: something was retried"
