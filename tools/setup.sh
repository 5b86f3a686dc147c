#!/usr/bin/env bash
# Installs the packages for building and testing on a bare Debian machine: compilers (also for 64-bit ARM, with an emulator, and for musl),
# OpenMP, OpenBLAS, Open MPI, Bazel, Catch2, CMake, pkg-config, numpy. Does nothing if all are installed. The CUDA toolkit is optional and has
# to be installed by hand; nvcc is looked for in $CUDA_HOME, in /usr/local/cuda and in the PATH.
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
need libpcre2-dev links gcc pcre2posix.h -lpcre2-8 # examples/generate's tokenizer, with the next one
need libutf8proc-dev links gcc utf8proc.h -lutf8proc
need musl-tools command -v musl-gcc # for the static program of tests/generate.sh
if [[ $(uname -m) != aarch64 ]]; then # for tools/aarch64.sh
    need g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
    need qemu-user command -v qemu-aarch64
fi
need python3-numpy /usr/bin/python3 -c 'import numpy'
# Packages that are not in Debian: safetensors reads a checkpoint in one test, and tokenizers is what another compares with.
# Without them these tests say that they are skipped.
from_pip=()
for package in safetensors tokenizers; do
    /usr/bin/python3 -c "import $package" 2>/dev/null || from_pip+=("$package")
done
[[ ${#from_pip[@]} == 0 ]] || need python3-pip /usr/bin/python3 -m pip --version

if [[ ${#packages[@]} != 0 ]]; then
    echo "installing ${packages[*]}"
    sudo=$([[ $(id -u) == 0 ]] || echo sudo)
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
for package in "${from_pip[@]}"; do
    /usr/bin/python3 -m pip install --quiet --retries 1 --timeout 10 --break-system-packages --root-user-action=ignore "$package" 2>/dev/null ||
        echo "no $package from pip: the test that needs it will be skipped"
done
