#!/usr/bin/env bash
# A CUDA program has no kernel that it does not use. nvcc compiles each kernel that is no template, called or not: te.h and infer.h by
# themselves have none, and lists for inference have, beside their own, products by themselves and what these are timed by.
set -euo pipefail
cd "$(dirname "$0")/.."
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
[[ -x $nvcc ]] || nvcc=$(command -v nvcc || true)
[[ -x $nvcc ]] || { echo "no nvcc: skipped" && exit; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
check() { # WHAT ALLOWED TEXT OPTION...: the kernels of a file of this text are among those ALLOWED, a pattern of whole mangled names
    local kernels
    printf '%s\n' "$3" >"$work/file.cu"
    "$nvcc" -std=c++17 -O1 -gencode arch=compute_90a,code=sm_90a "${@:4}" -I. -ptx "$work/file.cu" -o "$work/file.ptx"
    kernels=$(sed -n 's/^.*\.entry \([A-Za-z0-9_]*\).*/\1/p' "$work/file.ptx" | grep -vxE "$2" | c++filt | sort || true)
    [[ -z $kernels ]] && echo "ok: $1 ${*:4}" && return
    echo "FAIL: $1 ${*:4}: kernels that nothing uses; see TE_IF_USED in te/core/target_cuda.h:"
    echo "$kernels"
    failed=1
}
for header in te/te.h te/infer.h; do
    check "$header" '' "#include \"$header\""
    check "$header" '' "#include \"$header\"" -DTE_NO_CUBLASLT
done
check "lists for inference" '.*(norm_of_x|product_of_x|te_bare_|te_normal|te__race_read|te_fill_kernel).*' '#include "te/infer.h"
TE_INFERENCE(norm_of_x, f32, (layernorm, ln, 64))
TE_INFERENCE(product_of_x, bf16, (linear, fc, 64, 64), (bias, b, 64))
const te_plan *plan(int i) { return i ? norm_of_x_plan() : product_of_x_plan(); }'
[[ $failed == 0 ]]
