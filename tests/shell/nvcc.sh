# nvcc.sh -- sourced by scripts that call nvcc: sets `nvcc` to the compiler that Bazel takes, too (tools/bazel/machine.bzl): that of $CUDA_HOME
# (CUDA_HOME=none: no compiler), else that of /usr/local/cuda, else that on the PATH. `nvcc` is empty if there is none.
nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
[[ -x $nvcc || -n ${CUDA_HOME-} ]] || nvcc=$(command -v nvcc || true)
[[ -x $nvcc ]] || nvcc=
need_nvcc() { [[ -n $nvcc ]] || { echo "no nvcc: skipped" && exit; }; }
