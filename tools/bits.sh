#!/usr/bin/env bash
# Checks that this tree computes the same bits as another commit, for every list of the tests that both have: forward, inference and
# backward. For refactorings, which should change no result. Prints the lists whose results differ. Exit code 1: there are any.
#
#     tools/bits.sh COMMIT [DTYPE...]      f32 bf16 f16 if none is given
#     CUDA=1                               on the GPU (half an hour of nvcc on one core for each dtype and tree)
#     BITS_LISTS=...                       some of the lists only: see tools/bits.cc
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -gt 0 ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 2; }
commit=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
git archive "$commit" te tests | tar -x -C "$work/tree"
compile=(g++ -std=c++17 -O1 -march=native -x c++)
library=-lm
[[ ${CUDA:-0} == 0 ]] || compile=(nvcc -std=c++17 -O3 "-arch=sm_${ARCH:-90a}" -x cu) library=-lcublasLt

prints() { # TREE DTYPE: the hashes
    mkdir -p "$work/lists"
    sed -e '/#include/d' -e '/^#define OPS_MODEL/,$d' "$1/tests/ops.h" >"$work/lists/bits_ops.h"
    # Older commits have other names: tests/rows_*.h for tests/patterns_*.h, ROW_* for the macros in them, and te_context.gemm_own for
    # te_context.gemm_custom.
    local pass renamed=()
    for pass in forward backward; do
        rm -f "$work/lists/patterns_$pass.h"
        [[ ! -e $1/tests/rows_$pass.h ]] || sed 's/\bROW_/PATTERN_/g' "$1/tests/rows_$pass.h" >"$work/lists/patterns_$pass.h"
    done
    grep -q '\bgemm_own\b' "$1/te/core/context.h" && renamed=(-Dgemm_custom=gemm_own)
    "${compile[@]}" "${renamed[@]}" -DTE_KEEP_CALLS "-DBITS_DTYPE=$2" "-DBITS_LISTS=${BITS_LISTS:-63}" "-I$1" "-I$1/tests" "-I$work/lists" \
        tools/bits.cc -o "$work/bits" "$library"
    "$work/bits" | sort
}
status=0
for dtype in "${@:-f32}" $([[ $# -gt 0 ]] || echo bf16 f16); do
    prints "$work/tree" "$dtype" >"$work/before"
    prints . "$dtype" >"$work/after"
    common=$(join -t $'\t' -j 1 "$work/before" "$work/after" | tee "$work/both" | wc -l)
    different=$(awk -F'\t' '$2 != $3 { print $1; n++ }' "$work/both")
    [[ $common -gt 0 ]] || { echo "$dtype: no list is in both" && status=1; }
    [[ -z $different ]] || { printf '%s\n' "$different" && status=1; }
    echo "$dtype: $common lists and shapes, $(grep -c . <<<"$different" || true) differ, $(grep -c refused "$work/after" || true) refused"
done
exit $status
