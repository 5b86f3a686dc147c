#!/usr/bin/env bash
# The library as one header (tools/amalgamate.py), alone in an empty folder as te/te.h: examples/readme must build from it with gcc, clang,
# g++ and nvcc without warnings, and print the same as when it is built from te/. The program by nvcc runs if there is a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
source tests/shell/nvcc.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/alone/te"
tools/amalgamate.py "$work/alone/te/te.h"
tools/amalgamate.py | cmp - "$work/alone/te/te.h"
cp examples/readme/readme.c "$work/alone"
find te -name '*.h' | while read -r file; do
    grep -qxF "/* ---- $file ---- */" "$work/alone/te/te.h" || { echo "FAIL $file is not in it: te/te.h, te/infer.h, te/moe.h and te/microscaling.h do not include it" && exit 1; }
done
! grep -nE '^ *# *include *"' "$work/alone/te/te.h" || { echo "FAIL the lines above include files that are not there" && exit 1; }
# Including it twice, or behind the te.h of the folder, must change nothing, because the include guards are the same.
printf '#include "te/te.h"\n#include "%s/te/te.h"\n#include "te/te.h"\nint main(void) { return 0; }\n' "$tree" >"$work/alone/twice.c"

strict=(-Wall -Wextra -pedantic -Werror)
gcc -std=c11 -I. examples/readme/readme.c -o "$work/normal" -lm
"$work/normal" >"$work/expected"
cd "$work/alone"
gcc -std=c11 "${strict[@]}" -I. -fsyntax-only twice.c
for compiler in "gcc -std=c11" "clang -std=c11" "g++ -std=c++17 -x c++"; do
    read -ra command <<<"$compiler"
    "${command[@]}" "${strict[@]}" -I. readme.c -o readme -lm
    ./readme | diff "$work/expected" -
    echo "${command[0]}: built from one header, the same output"
done
if [[ ! -x $nvcc ]]; then
    echo "CUDA: skipped, there is no nvcc"
    exit
fi
cuda=("$nvcc" -std=c++17 -O0 -DTE_KEEP_CALLS -gencode "arch=compute_90a,code=sm_90a" -x cu readme.c -lcublasLt)
"${cuda[@]}" -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas -I. -o readme
if nvidia-smi -L >/dev/null 2>&1; then
    "${cuda[@]}" -I"$tree" -o "$work/normal"
    "$work/normal" >"$work/expected"
    ./readme | diff "$work/expected" -
    echo "nvcc: built from one header, the same output"
else
    echo "nvcc: built from one header, not run: there is no GPU"
fi
