#!/usr/bin/env bash
# Rows that a user may add: random lists with random legal rows (patterns_random.py) compute what the reference does, on the
# host and, where there is a GPU, there too. And what a kernel has stored it does not read through the read-only cache.
#
#     tests/patterns_random.sh [COUNT]      lists (default 16); TE_SEED=<seed> repeats a run
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-16} seed=${TE_SEED:-$RANDOM$RANDOM}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
[[ -x $nvcc ]] || nvcc=$(command -v nvcc || true)

echo "seed $seed"
python3 tests/patterns_random.py "$seed" "$count" >"$build/patterns_random_test.cc"
g++ -std=c++17 -O0 -c tests/catch_main.cc -o "$build/main.o"
support=("$build/main.o")
for source in numbers reference bounds; do
    g++ -std=c++17 -O3 -I. -c "tests/$source.cc" -o "$build/$source.o"
    support+=("$build/$source.o")
done
g++ -std=c++17 -Og -DTE_KEEP_CALLS -I. -Itests "$build/patterns_random_test.cc" "${support[@]}" -o "$build/host" -lm
TE_SEED=$seed "$build/host" | tail -n 40

[[ -x $nvcc ]] || { echo "no nvcc: the host alone" && exit; }
cat >"$build/own.cu" <<'CU'
#include "te/te.h"
#define F_bias_fork_act_add TE_FUSED
#define B_add_act_fork_bias TE_FUSED
TE_SEQUENTIAL_WITH(F_, B_, own, bf16, (bias, b, 64), (fork, x), (gelu, a), (add, x))
CU
"$nvcc" -std=c++17 -O3 -arch=compute_90a -ptx -I. "$build/own.cu" -o "$build/own.ptx"
awk '
    /\.entry / { kernel = $0; sub(/.*\.entry /, "", kernel); sub(/\(.*/, "", kernel) }
    /ld\.global\.v4/ && kernel ~ /_fork_/ { own[kernel]++ }
    END { for (k in own) n++; print n + 0 " of 2 kernels read what they have stored from memory"; exit n != 2 }' "$build/own.ptx"
nvidia-smi -L >/dev/null 2>&1 || { echo "no GPU: the host alone" && exit; }
"$nvcc" -std=c++17 -O1 -arch=native -DTE_KEEP_CALLS -I. -Itests -x cu -c "$build/patterns_random_test.cc" -o "$build/cuda.o"
"$nvcc" "$build/cuda.o" "${support[@]}" -o "$build/cuda" -lcublasLt
TE_SEED=$seed "$build/cuda" | tail -n 40
