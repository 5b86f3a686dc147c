#!/usr/bin/env bash
# Installs the packages for building and testing on a bare Debian machine: compilers, OpenMP, OpenBLAS, Open MPI, Bazel, Catch2, CMake,
# pkg-config, numpy. Does nothing if all are installed. The CUDA toolkit is optional and has to be installed by hand; nvcc is looked for in
# $CUDA_HOME, in /usr/local/cuda and in the PATH.
set -euo pipefail

packages=()
need() { # PACKAGE COMMAND...: the package is missing if the command fails
    "${@:2}" >/dev/null 2>&1 || packages+=("$1")
}
links() { # COMPILER HEADER OPTION...: whether a program with this header compiles and links
    printf '#include <%s>\nint main(void) { return 0; }\n' "$2" | "$1" -x "$(language "$1")" - -o /dev/null "${@:3}"
}
language() { [[ $1 == *++ ]] && echo c++ || echo c; }

need gcc command -v gcc
need g++ command -v g++
need clang command -v clang
need libclang-rt-dev links clang stdio.h -fsanitize=address,undefined
need libc6-dev links gcc stdio.h
need libomp-dev links clang omp.h -fopenmp
need libopenblas-openmp-dev links gcc cblas.h -lopenblas
need libopenmpi-dev command -v mpicc # for the ranks of tests/comm.sh
need openmpi-bin command -v mpirun
need catch2 test -f /usr/include/catch2/catch.hpp
need bazel-bootstrap command -v bazel
need cmake command -v cmake
need make command -v make # Debian's cmake only recommends it
need pkgconf command -v pkg-config
need python3-numpy /usr/bin/python3 -c 'import numpy'
# One test reads a checkpoint with the Python package safetensors, which is not in Debian. Without the package this test says SKIP.
has_safetensors() { /usr/bin/python3 -c 'import safetensors'; }
has_safetensors 2>/dev/null || need python3-pip /usr/bin/python3 -m pip --version

if [[ ${#packages[@]} != 0 ]]; then
    echo "installing ${packages[*]}"
    sudo=$([[ $(id -u) == 0 ]] || echo sudo)
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
if ! has_safetensors 2>/dev/null; then
    /usr/bin/python3 -m pip install --quiet --retries 1 --timeout 10 --break-system-packages --root-user-action=ignore safetensors 2>/dev/null ||
        echo "no safetensors from pip: the test that reads a checkpoint in Python will be skipped"
fi
