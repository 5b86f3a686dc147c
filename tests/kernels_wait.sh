#!/usr/bin/env bash
# With programmatic dependent launch a kernel starts while the one before it still runs, so each kernel must wait (te_kernel_begin in
# te/core/target.h) before it touches memory. Searches the PTX of a small GPT and its optimizer for loads, stores and copies before the
# wait. The prefetch of weights is exempt: gemm_skinny.h decides at run time whether it may be earlier (te__launch_follows_kernel).
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/shell/nvcc.sh
need_nvcc
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
"$nvcc" -std=c++17 -O3 -arch=compute_90a -ptx -I. -x cu tests/hot_path_test.cc -o "$ptx"
awk '
    function close_kernel() {
        if (kernel == "") return
        kernels++
        if (early || (touches && !waits)) { bad++; print "FAIL " kernel ": " (waits ? early " accesses ahead of the wait" : "never waits") }
        kernel = ""
    }
    /\.entry / { close_kernel(); kernel = $0; sub(/.*\.entry /, "", kernel); sub(/\(.*/, "", kernel); waits = early = touches = 0 }
    /^\}/ { close_kernel() }
    /griddepcontrol\.wait/ { waits = 1 }
    /(ld|st|atom|red|cp\.async[a-z.]*)\.(volatile\.|relaxed\.|acquire\.|release\.)*(global|shared::cluster\.global)|cp\.async\.(cg|ca)\.shared\.global|cp\.async\.bulk\.tensor/ && !/prefetch|a weight/ { touches = 1; early += !waits }
    END { close_kernel(); print kernels + 0 " kernels, " bad + 0 " that do not wait first"; exit bad > 0 || kernels < 40 }' "$ptx"
