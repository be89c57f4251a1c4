#!/usr/bin/env bash
# Says that it ran, and with which argument: to try pre-scripts out.
echo "Pre-Script test called ${1:-0}"
