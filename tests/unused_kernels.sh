#!/usr/bin/env bash
# A CUDA program must contain no kernel that it does not use. nvcc compiles every kernel that is no template, called or not. So te.h and
# infer.h without a list have none, and lists for inference have only their own kernels, unfused GEMMs and one kernel of autotuning. No
# kernel may be empty, except that of attention by mma.sync in code for sm_90a only.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/shell/nvcc.sh
need_nvcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
check() { # WHAT ALLOWED TEXT OPTION...: the names of all kernels of a file with this text must match ALLOWED, a regular expression of mangled names
    local kernels
    printf '%s\n' "$3" >"$work/file.cu"
    "$nvcc" -std=c++17 -O1 -gencode arch=compute_90a,code=sm_90a "${@:4}" -I. -ptx "$work/file.cu" -o "$work/file.ptx"
    kernels=$(sed -n 's/^.*\.entry \([A-Za-z0-9_]*\).*/\1/p' "$work/file.ptx" | grep -vxE "$2" | c++filt | sort || true)
    [[ -z $kernels ]] && echo "ok: $1 ${*:4}" && return
    echo "FAIL: $1 ${*:4}: kernels that nothing uses; see TE_IF_USED in te/core/impl/target_cuda.h:"
    echo "$kernels"
    failed=1
}
for header in te/te.h te/infer.h; do
    check "$header" '' "#include \"$header\""
    check "$header" '' "#include \"$header\"" -DTE_NO_CUBLASLT
done
check "lists for inference" '.*(norm_of_x|product_of_x|te_unfused_gemm|te_small_fill_kernel).*' '#include "te/infer.h"
TE_INFERENCE(norm_of_x, f32, (layernorm, ln, 64))
TE_INFERENCE(product_of_x, bf16, (linear, fc, 64, 64), (bias, b, 64))
const te_plan *plan(int i) { return i ? norm_of_x_plan() : product_of_x_plan(); }'
# NAME LISTS: finds kernels without instructions
empty() {
    local kernels
    printf '#include "te/te.h"\n%s\n' "$2" >"$work/file.cu"
    "$nvcc" -std=c++17 -O1 -gencode arch=compute_90a,code=sm_90a -I. -ptx "$work/file.cu" -o "$work/file.ptx"
    kernels=$(awk '/\.entry/ { split($0, part, /[ (]+/); name = ""; for (i in part) if (part[i] ~ /^_Z/) name = part[i]; n = 0 }
                   /^\t.*;/ { n++ } /^}/ { if (name != "" && n <= 1) print name; name = "" }' "$work/file.ptx" | grep -v attention | c++filt || true)
    [[ -z $kernels ]] && echo "ok: no empty kernel: $1, $(grep -c '\.entry' "$work/file.ptx") in all" && return
    echo "FAIL: $1: empty kernels; see TE_KERNEL_IF in te/core/impl/target_cuda.h:"
    echo "$kernels"
    failed=1
}
empty "a GPT block" 'TE_SEQUENTIAL(block, bf16, TE_GPT_BLOCK(b, 64, 256, 1, 0.1f))
const te_plan *plan(void) { return block_plan(); }'
empty "a Llama block in FP8" 'TE_SEQUENTIAL(block, (bf16, (recipe, fp8_delayed)), TE_LLAMA_BLOCK(b, 256, 512, 4, 2, 64, 10000.0f))
const te_plan *plan(void) { return block_plan(); }'
empty "a list in f32" 'TE_SEQUENTIAL(mlp, f32, (linear, fc1, 64, 96), (bias, b1, 96), (gelu, a), (linear, fc2, 96, 64))
const te_plan *plan(void) { return mlp_plan(); }'
[[ $failed == 0 ]]
