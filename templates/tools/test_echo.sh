#!/usr/bin/env bash
# test_echo.sh WORD...: print the words, so that a log shows when a script ran.
printf '%s\n' "$*"
