#!/usr/bin/env bash
# The kernels of attention compile for GPUs that allow a block 99 KB of shared memory (compute capability 8.6, 8.9 and 12.0), and take
# that limit by themselves (static_asserts in tests/attention_limits_test.cc). Compiled to PTX only, which is a third of the time.
# And tests/compile/blackwell.cu, with a GPT block and all recipes, compiles and links for 10.0 and 12.0 (sm_100a, sm_120a).
# nvcc does not optimise: what is compiled here is not run, and nvcc checks it all the same, in a quarter of the time.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/shell/nvcc.sh
need_nvcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile=("$nvcc" -std=c++17 -O0 -Ofc=max -I.)
for arch in 100a 120a; do
    [[ " $("$nvcc" --list-gpu-code) " == *"sm_${arch%a}"* ]] || { echo "sm_$arch: skipped, this nvcc does not know it" && continue; }
    "${compile[@]}" -DTE_NO_CUBLASLT -gencode "arch=compute_$arch,code=sm_$arch" -Xptxas -suppress-stack-size-warning -Werror=all-warnings tests/compile/blackwell.cu -o "$work/$arch"
    echo "ok: a GPT block and all recipes compile for sm_$arch"
done
catch2=${CATCH2:-}
for found in bazel-main/external/te_catch2 "$(bazel info output_base 2>/dev/null || true)/external/te_catch2" /usr/include; do
    [[ -n $catch2 || ! -e $found/catch2/catch.hpp ]] || catch2=$found
done
[[ -n $catch2 ]] || { echo "SKIP: no catch2/catch.hpp; CATCH2=folder" && exit; }
include=(-isystem "$catch2")
[[ $catch2 != /usr/include ]] || include=() # as an option, it would come before the folders of libstdc++, whose headers include it next
for arch in 86 89 120; do
    "${compile[@]}" "-arch=compute_$arch" "${include[@]}" -DTESTS_OF_ARCHITECTURE -x cu -ptx tests/attention_limits_test.cc -o "$work/$arch.ptx"
    kernels=$(grep -c "\.entry" "$work/$arch.ptx")
    [[ $kernels -ge 40 ]] || { echo "FAIL: $kernels kernels for compute capability $arch" && exit 1; }
done
echo "ok: $kernels kernels of attention compile for 8.6, 8.9 and 12.0"
