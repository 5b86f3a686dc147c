#!/usr/bin/env bash
# The structure of te/, and its language (CONTRIBUTING.md, "Style"). Prints each violation as file:line: text.
#
#     tests/structure.sh [rule...]      default: all rules, see tests/structure.py
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tests/structure.py "$@"
