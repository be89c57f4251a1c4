#!/usr/bin/env bash
# Says that it ran, and with which argument: to try post-scripts out.
echo "Post-Script test called ${1:-0}"
