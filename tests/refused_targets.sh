#!/usr/bin/env bash
# What the library cannot be compiled for is refused by one line that says what to do: C before C11, a system without POSIX, 32-bit
# addresses, a big-endian CPU, nvcc without a target (CUDA 13 then takes sm_75).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include "te/te.h"\nTE_SEQUENTIAL(m, f32, (linear, l, 8, 8))\nint main(void) { return !m_plan(); }\n' >"$work/list.c"
passed=0
refused() { # TEXT COMMAND...: one #error, with this text, and at most 20 lines
    if "${@:2}" "$work/list.c" >"$work/log" 2>&1; then echo "FAIL: accepted: ${*:2}" && exit 1; fi
    if [[ $(grep -c '#error' "$work/log") -lt 1 || $(grep -c 'error:' "$work/log") -gt 2 || $(wc -l <"$work/log") -gt 20 ]] ||
        ! grep -m1 'error:' "$work/log" | grep -q -- "$1"; then
        echo "FAIL: ${*:2} does not say '$1' in one line:" && head -n 30 "$work/log" && exit 1
    fi
    passed=$((passed + 1)) && echo "ok: ${*:2}"
}
for compiler in gcc clang; do
    for standard in c90 c99 gnu99; do refused "compile with -std=c11" "$compiler" -std=$standard -I. -fsyntax-only; done
    refused "needs a system with POSIX" "$compiler" -std=c11 -U__unix__ -I. -fsyntax-only
    if [[ $(uname -m) == x86_64 ]]; then
        refused "64-bit addresses" "$compiler" -std=c11 -m32 -I. -fsyntax-only
        refused "64-bit addresses" "$compiler" -std=c11 -mx32 -I. -fsyntax-only
    fi
    "$compiler" -std=c11 -I. -fsyntax-only "$work/list.c"
done
refused "64-bit addresses" clang --target=armv7-linux-gnueabihf -std=c11 -I. -fsyntax-only
refused "64-bit addresses" clang --target=riscv32-linux-gnu -std=c11 -I. -fsyntax-only
for target in aarch64_be s390x powerpc64 mips64; do refused "needs a little-endian target" clang --target=$target-linux-gnu -std=c11 -I. -fsyntax-only; done
if command -v aarch64-linux-gnu-gcc >/dev/null; then refused "needs a little-endian target" aarch64-linux-gnu-gcc -mbig-endian -std=c11 -I. -fsyntax-only; fi
source tests/shell/nvcc.sh
if [[ -x $nvcc ]]; then
    refused "needs sm_80 or newer: compile with nvcc -gencode" "$nvcc" -arch=sm_75 -I. -x cu -ptx -o /dev/null
    if "$nvcc" --version | grep -q 'release 13'; then refused "needs sm_80 or newer: compile with nvcc -gencode" "$nvcc" -I. -x cu -c -o /dev/null; fi
else
    echo "nvcc: skipped, there is none"
fi
echo "$passed passed, 0 failed"
