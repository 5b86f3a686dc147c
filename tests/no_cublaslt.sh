#!/usr/bin/env bash
# A CUDA program with TE_NO_CUBLASLT, examples/generate, must compile without cublasLt.h and link without the library. Of the twelve
# kernels in gemm_fallback.h it must contain only the two that inference in bf16 uses.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/shell/nvcc.sh
need_nvcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/none"
echo '#error "cublasLt.h is included"' >"$work/none/cublasLt.h"
"$nvcc" -std=c++17 -O0 -Ofc=max -DTE_KEEP_CALLS -DTE_NO_CUBLASLT -gencode arch=compute_90a,code=sm_90a -I"$work/none" -I. -x cu \
    examples/generate/generate.c -o "$work/generate"
if readelf -d "$work/generate" | grep -i cublas || strings -a "$work/generate" | grep -q cublasLtMatmul; then
    echo "FAIL: the program needs cuBLASLt" && exit 1
fi
plain=$(nm -C "$work/generate" | grep -c ' t void te_fallback_16bit<[^>]*>(te_fallback)$' || true)
[[ $plain == 2 ]] || { echo "FAIL: $plain kernels te_fallback_16bit, of which inference in one dtype needs 2" && exit 1; }
echo "ok: examples/generate has no cuBLASLt, $(($(stat -c %s "$work/generate") / 1024)) KiB"
