#!/usr/bin/env bash
# Patterns that a user may add: random lists with random legal patterns (patterns_random.py) must match the reference on the host and, if
# there is a GPU, on it. And a kernel that reads a value which it has stored itself must not read it through the read-only cache.
#
#     tests/patterns_random.sh [COUNT]      lists (default 16); TE_SEED=<seed> repeats a run
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-16} seed=${TE_SEED:-$RANDOM$RANDOM}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
source tests/shell/nvcc.sh

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

[[ -x $nvcc ]] || { echo "no nvcc: host only" && exit; }
cat >"$build/forks.cu" <<'CU'
#include "te/te.h"
#define F_bias_fork_act_add TE_FUSED
#define B_add_act_fork_bias TE_FUSED
TE_SEQUENTIAL_WITH(F_, B_, forks, bf16, (bias, b, 64), (fork, x), (gelu, a), (add, x))
CU
"$nvcc" -std=c++17 -O3 -arch=compute_90a -ptx -I. "$build/forks.cu" -o "$build/forks.ptx"
awk '
    /\.entry / { kernel = $0; sub(/.*\.entry /, "", kernel); sub(/\(.*/, "", kernel) }
    /ld\.global\.v4/ && kernel ~ /_fork_/ { loads[kernel]++ }
    END { for (k in loads) n++; print n + 0 " of 2 kernels read the values that they have stored by an ordinary load"; exit n != 2 }' "$build/forks.ptx"
nvidia-smi -L >/dev/null 2>&1 || { echo "no GPU: host only" && exit; }
"$nvcc" -std=c++17 -O1 -arch=native -DTE_KEEP_CALLS -I. -Itests -x cu -c "$build/patterns_random_test.cc" -o "$build/cuda.o"
"$nvcc" "$build/cuda.o" "${support[@]}" -o "$build/cuda" -lcublasLt
TE_SEED=$seed "$build/cuda" | tail -n 40
