#!/usr/bin/env bash
# The kernels of attention compile for GPUs that allow a block 99 KB of shared memory (compute capability 8.6, 8.9 and 12.0), and take
# that limit by themselves (static_asserts in tests/attention_limits_test.cc). Compiled to PTX only, which is a third of the time.
set -euo pipefail
cd "$(dirname "$0")/.."
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
[[ -x $nvcc ]] || nvcc=$(command -v nvcc || true)
[[ -x $nvcc ]] || { echo "no nvcc: skipped" && exit; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
catch2=${CATCH2:-}
for found in bazel-main/external/te_catch2 "$(bazel info output_base 2>/dev/null || true)/external/te_catch2" /usr/include; do
    [[ -n $catch2 || ! -e $found/catch2/catch.hpp ]] || catch2=$found
done
[[ -n $catch2 ]] || { echo "SKIP: no catch2/catch.hpp; CATCH2=folder" && exit; }
for arch in 86 89 120; do
    "$nvcc" -std=c++17 -O1 "-arch=compute_$arch" -isystem "$catch2" -I. -DTESTS_OF_ARCHITECTURE -x cu -ptx tests/attention_limits_test.cc -o "$work/$arch.ptx"
    kernels=$(grep -c "\.entry" "$work/$arch.ptx")
    [[ $kernels -ge 40 ]] || { echo "FAIL: $kernels kernels for compute capability $arch" && exit 1; }
done
echo "ok: $kernels kernels of attention compile for 8.6, 8.9 and 12.0"
