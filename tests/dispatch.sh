#!/usr/bin/env bash
# One binary for all x86 CPUs, compiled without -march: the kernels for plain C, AVX2 and AVX-512 that this CPU has compute products within the
# bounds of their sums, by each compiler, optimised or not; -DTE_NO_DISPATCH leaves only one of them. What has the same bits on every machine
# has those of tests/isa_bits.txt. (tools/aarch64.sh runs the same program on ARM.)
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(uname -m) == x86_64 ]] || { echo "SKIP: no x86" && exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
isas=1 # how many of the three this CPU has
if grep -qw avx2 /proc/cpuinfo; then isas=2; fi
if grep -qw avx512_vnni /proc/cpuinfo; then isas=3; fi
check() { # EXPECTED COMPILER OPTION...
    "${@:2}" -Wall -Wextra -Werror -I. tests/isa.c -o "$work/isa" -lm
    "$work/isa" >"$work/out" || { cat "$work/out" && exit 1; }
    "$work/isa" bits | diff tests/isa_bits.txt - || { echo "FAIL: ${*:2}: other bits" && exit 1; }
    [[ $(grep -c ': ok' "$work/out") == "$1" ]] || { echo "FAIL: ${*:2}: not $1 instruction sets:" && cat "$work/out" && exit 1; }
    echo "ok: ${*:2}: $1 of 3 instruction sets"
}
for compiler in gcc clang; do
    check $isas $compiler -std=gnu11 -O2
    check $isas $compiler -std=c11 -O1 -DTE_KEEP_CALLS
    check 1 $compiler -std=gnu11 -O2 -DTE_NO_DISPATCH
    check 1 $compiler -std=gnu11 -O2 -march=native
done
if ((isas > 1)); then check 1 gcc -std=gnu11 -O3 -march=x86-64-v3 -DTE_NO_DISPATCH; fi
check $isas g++ -x c++ -std=gnu++17 -O2
