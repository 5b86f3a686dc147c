#!/usr/bin/env bash
# The examples in the comments of headers compile, and what comments speak of exists.
#
#     tests/examples.sh        CC=clang chooses another compiler
exec "$(dirname "$0")/examples.py"
