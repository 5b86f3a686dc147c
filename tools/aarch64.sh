#!/usr/bin/env bash
# Compiles the library for 64-bit ARM and runs tests of it, under emulation (qemu) on other machines: the kernels for NEON with and without dot
# products, by gcc and clang; bits that are the same on every machine; ops, quantized products, sampling, files and generation, with fewer
# repetitions than on this machine. Needs what tools/setup.sh installs. Ends with `N passed, N failed`.
#
#     tools/aarch64.sh [FOLDER]       FOLDER keeps the binaries; default: a temporary folder
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1-}
if [[ -z $work ]]; then work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT; fi
mkdir -p "$work/include"
prefix=aarch64-linux-gnu- run=qemu-aarch64
[[ $(uname -m) != aarch64 ]] || prefix='' run=env
for tool in "${prefix}gcc" "${prefix}g++" "$run"; do
    command -v "$tool" >/dev/null || { echo "FAIL: no $tool; tools/setup.sh installs it" && echo "0 passed, 1 failed" && exit 1; }
done
catch=/usr/include # or where Bazel has put what it downloaded
[[ -e $catch/catch2/catch.hpp ]] || catch=$(bazel info output_base 2>/dev/null)/external/te_catch2
ln -sfn "$catch/catch2" "$work/include/catch2" # by itself: the folder of this machine's headers is not for ARM
export work prefix run TE_BRIEF=1 TE_SEED=20260301

compile() { # OBJECT OPTION...: a file of tests/
    "${prefix}g++" -std=c++17 -Wall -Wextra -DTE_KEEP_CALLS -I"$work/include" -I. "${@:2}" -c "tests/${1%.o}.cc" -o "$work/$1"
}
isa() { # NAME COMPILER OPTION...: the program tests/isa.c
    "${@:2}" -std=gnu11 -O2 -Wall -Wextra -Werror -static -I. tests/isa.c -o "$work/$1" -lm
    "$run" "$work/$1" >"$work/$1.out" || { cat "$work/$1.out" && return 1; }
    "$run" "$work/$1" bits | diff tests/isa_bits.txt - || { echo "other bits than on x86" && return 1; }
}
catch_test() { # NAME: compiled with dot products, as all cores of servers and newer boards have them
    compile "$1.o" -O1 -march=armv8.2-a+dotprod &&
        "${prefix}g++" -static "$work/$1.o" "$work"/{catch_main,reference,attention_reference,bounds,numbers}.o -o "$work/$1" -lm &&
        "$run" "$work/$1"
}
one() { # KIND NAME ARGUMENT...: runs it and says whether it passed
    local start=$SECONDS
    if "$1" "${@:2}" >"$work/$2.log" 2>&1; then echo "ok: $2, $((SECONDS - start)) s: $(grep 'tests passed' "$work/$2.log" || true)"
    else echo "FAIL: $2" && tail -n 30 "$work/$2.log"; fi
}
export -f compile isa catch_test one
{
    echo "compile catch_main.o -O0"
    for object in reference attention_reference bounds numbers; do echo "compile $object.o -O2"; done
} | xargs -P 2 -L 1 bash -c '"$@"' _
clang=(clang)
[[ -z $prefix ]] || clang=(clang --target=aarch64-linux-gnu)
{
    for name in ops_test sample_test quant_test generation_test dtype_test few_rows_test inference_test gguf_test safetensors_test; do echo "catch_test $name"; done
    echo "isa isa_neon ${prefix}gcc"
    echo "isa isa_dotprod ${prefix}gcc -march=armv8.2-a+dotprod"
    if command -v clang >/dev/null; then echo "isa isa_clang ${clang[*]}"; fi
} | xargs -P 2 -L 1 bash -c 'one "$@"' _ | tee "$work/results"
echo "$(grep -c '^ok' "$work/results" || true) passed, $(grep -c '^FAIL' "$work/results" || true) failed"
! grep -q '^FAIL' "$work/results"
