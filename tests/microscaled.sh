#!/usr/bin/env bash
# Casts to MXFP8 and NVFP4 must have the bytes of TransformerEngine's reference definitions, which microscaled.py restates in numpy. Prints
# `skipped: ...` and exits with 0 if numpy is not installed.
#
#     tests/microscaled.sh          PYTHON=python3.12 and CC=clang choose other programs
set -euo pipefail
cd "$(dirname "$0")/.."
python=
for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy' 2>/dev/null && python=$candidate && break
done
[[ -n $python ]] || { echo "skipped: no Python with numpy" && exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${CC:-gcc}" -std=c11 -O1 -DTE_KEEP_CALLS -Wall -Wextra -pedantic -Werror -I. tests/microscaled_driver.c -o "$work/driver" -lm
"$python" tests/microscaled.py "$work/driver"
