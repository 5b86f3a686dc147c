#!/usr/bin/env bash
# The examples in the comments of headers must compile, and names in these comments must exist.
#
#     tests/examples.sh        CC=clang chooses another compiler
exec "$(dirname "$0")/examples.py"
