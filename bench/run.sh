#!/usr/bin/env bash
# Runs all benches of one GPU: builds kernels.cu, block.cu, gaps.cu, fp8.cu, turns.cu and attention.cu with nvcc, runs them and, where PyTorch is
# installed, peers.py, and writes tables and pictures of the results. `host` runs host.c instead, on the CPU.
#
#     bench/run.sh [FOLDER]         writes results.md, ops.svg, roofline.svg and the .tsv files to FOLDER, by default build/bench
#     bench/run.sh host [FOLDER]    writes host.tsv
#     ARCH=90a  COMMIT=...  PYTHON=python3  BUILD=0 if FOLDER has the programs already
#     PEERS_SECONDS=900             stops peers.py, which also compiles by torch.compile, after that many seconds
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
host=0
if [[ ${1:-} == host ]]; then host=1 && shift; fi
mkdir -p "${1:-$root/build/bench}"
out=$(cd "${1:-$root/build/bench}" && pwd)
cd "$root"
commit=${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)} python=${PYTHON:-python3} arch=${ARCH:-90a}

if [[ $host == 1 ]]; then
    blas=(-DTE_CBLAS) libraries=(-lopenblas -lm)
    if ! echo '#include <cblas.h>' | ${CC:-gcc} -E - >/dev/null 2>&1; then
        echo "no cblas.h: the GEMMs are plain loops"
        blas=() libraries=(-lm)
    fi
    ${CC:-gcc} -std=c11 -O3 -march=native -fopenmp "${blas[@]}" -I. bench/host.c -o "$out/host" "${libraries[@]}"
    "$out/host" "$out/host.tsv" "$commit" | tee "$out/host.log"
    echo "$out/host.tsv"
    exit
fi

export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
if [[ ${BUILD:-1} == 1 ]]; then
    echo "building kernels, block, gaps, fp8, turns and attention"
    building=()
    for name in turns fp8 attention; do
        nvcc -O3 -std=c++17 -gencode "arch=compute_$arch,code=sm_$arch" -Xcompiler -fPIC -shared -I. "bench/$name.cu" -o "$out/lib$name.so" -lcublasLt &
        building+=($!)
    done
    for name in kernels block gaps fp8; do
        nvcc -O3 -std=c++17 -gencode "arch=compute_$arch,code=sm_$arch" -I. "bench/$name.cu" -o "$out/$name" -lcublasLt &
        building+=($!)
    done
    for one in "${building[@]}"; do wait "$one"; done
fi
status=0
rm -f "$out/gaps.tsv" # gaps writes no new file where there is no CUPTI
for name in kernels block gaps fp8; do
    "$out/$name" "$out/$name.tsv" "$commit" | tee "$out/$name.log" || status=1
done
rm -f "$out/peers.tsv"
if "$python" -c 'import torch' 2>/dev/null; then
    COMMIT=$commit timeout "${PEERS_SECONDS:-900}" "$python" bench/peers.py "$out/peers.tsv" 2>&1 | tee "$out/peers.log" || echo "peers.py did not finish; the tables have the cases that it measured"
    "$python" bench/fp8_peers.py "$out/libfp8.so" "$out/fp8_peers.tsv" 2>&1 | tee "$out/fp8_peers.log" || status=1
else
    echo "no PyTorch: nothing to compare with"
fi
"$python" bench/report.py "$out" "$(date +%F)"
exit $status
