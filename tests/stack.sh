#!/usr/bin/env bash
# Host kernels need little of a thread's stack: passes of tests/stack.c run under `ulimit -s 128` in threads of 128 KB, which is what musl gives
# each thread, compiled without optimisation, and of 64 KB, compiled as a user would. By clang it is 72 KB, because clang inlines all lists into
# the function `work` of the test, and gives each of them its own part of that function's frame.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra compilers <<<"${COMPILERS:-gcc clang}"
for compiler in "${compilers[@]}"; do
    command -v "$compiler" >/dev/null || { echo "SKIP: no $compiler" && continue; }
    openmp=(-fopenmp)
    echo 'int main(void) { return 0; }' | "$compiler" -x c -fopenmp - -o "$work/probe" 2>/dev/null || openmp=()
    for build in "-O0 128" "-O2 64"; do
        read -r level stack <<<"$build"
        [[ $compiler != clang* || $stack != 64 ]] || stack=72
        "$compiler" -std=gnu11 "$level" -Wall -Wextra -Werror -DTE_KEEP_CALLS "${openmp[@]}" -I. tests/stack.c -o "$work/stack" -lm -lpthread
        (ulimit -s 128 && OMP_NUM_THREADS=2 OMP_STACKSIZE=${stack}k "$work/stack" "$stack") || { echo "FAIL: $compiler $level, $stack KB" && exit 1; }
    done
done
