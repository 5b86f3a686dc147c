#!/usr/bin/env bash
# Code that needs several GPUs to run must compile: bench/comm.cu with TE_COMM, to PTX, with all kernels; and tests/comm/peers.c, without those
# that -DTE_KEEP_CALLS leaves out, which ptxas compiles, too. nvcc does not optimise, which takes a sixth of the time (--config=quick in .bazelrc).
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/shell/nvcc.sh
need_nvcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile=("$nvcc" -std=c++17 -O0 -Ofc=max)
"${compile[@]}" -gencode arch=compute_90a,code=compute_90a -DTE_COMM -I. -ptx bench/comm.cu -o "$work/comm.ptx"
for kernel in te_gemm_all_reduce_persistent te_gemm_all_reduce_skinny; do
    grep -q "entry .*$kernel" "$work/comm.ptx" || { echo "FAIL: no $kernel in bench/comm.cu" && exit 1; }
done
"${compile[@]}" -Xptxas -suppress-stack-size-warning -gencode arch=compute_90a,code=sm_90a -DTE_COMM -DTE_KEEP_CALLS -I. -x cu -c tests/comm/peers.c -o "$work/peers.o"
echo "ok: bench/comm.cu compiles with TE_COMM, tests/comm/peers.c with TE_KEEP_CALLS, too"
