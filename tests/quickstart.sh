#!/usr/bin/env bash
# examples/quickstart on the host: all steps in both dtypes compute the same numbers, and the table is also written to a file.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${CC:-gcc}" -std=c11 -O1 -Wall -Wextra -pedantic -Werror -DTE_KEEP_CALLS -I. examples/quickstart/quickstart.c -o "$work/quickstart" -lm
"$work/quickstart" "$work/table.tsv" abc123 >"$work/log" || { cat "$work/log" && exit 1; }
grep -q '^a CPU: a small layer' "$work/log" || { echo "FAIL: it does not say that the layer is small" && cat "$work/log" && exit 1; }
[[ $(head -n 1 "$work/table.tsv") == "# a CPU, commit abc123" ]] || { echo "FAIL: the head of the table" && cat "$work/table.tsv" && exit 1; }
for dtype in bf16 f16; do
    for step in 1 2 3 4 5 6 7 8; do
        grep -qE "^$dtype	$step  [^	]+	[0-9.]+	[0-9.]+	[0-9.e+-]+$" "$work/table.tsv" || { echo "FAIL: no row of $dtype, step $step" && cat "$work/table.tsv" && exit 1; }
    done
done
if "$work/quickstart" "$work/no/such/folder" >"$work/log" 2>&1; then echo "FAIL: a table that cannot be written" && exit 1; fi
echo "18 passed, 0 failed"
