#!/bin/bash
echo "step: ${0##*/}${*:+ $*}"
if [ -n "$MAD_DATAHOME" ] && ! grep -q " $MAD_DATAHOME " /proc/mounts; then
  echo "$MAD_DATAHOME is NOT mounted"
  exit 1
fi
echo "performance: $((RANDOM + 1)) samples_per_second"
