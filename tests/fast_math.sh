#!/usr/bin/env bash
# Options of gcc and clang that the library is not written for: -m32 and C before C11 are refused by one error. Options under which
# floating-point code means something else: those that a macro tells are refused, with an error that names them; with those of clang that no macro tells, the functions that depend on the order of a sum compute the same within rounding.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap "rm -rf \"$work\"" EXIT
passed=0 failed=0
result() { # STATUS TEXT
    if [[ $1 == 0 ]]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAIL $2"; fi
}

cat >"$work/case.c" <<'C'
#include <stdio.h>
#include "te/infer.h"
int main(void) {
    uint64_t mass = 0;
    float line[1024];
    te__sample_row r;
    memset(&r, 0, sizeof r);
    r.top = te__sample_key(0.0f), te__sample_set_temperature(&r, 1.9f);
    for (int i = 0; i < 1024; i++) line[i] = te_exp2((float)(i - 900) * 0.140625f);
    te__attn_vector v[2];
    for (int i = 0; i < 2; i++) te__attn_get(&v[i], line + 500 + 16 * i), v[i] *= -1e30f, te__attn_exp2(&v[i]);
    for (int i = 0; i < 1024; i++) mass += te__sample_mass(&r, te__sample_key(-(float)i * 0.109375f));
    for (int i = 0; i < 1024; i++) printf("%a\n", (double)line[i]);
    for (size_t i = 0; i < 2 * sizeof v[0] / sizeof(float); i++) printf("%a\n", (double)((const float *)v)[i]);
    printf("%llu\n", (unsigned long long)mass);
    return 0;
}
C
for compiler in gcc clang; do
    command -v $compiler >/dev/null || { echo "no $compiler" && continue; }
    options=(-Ofast -ffast-math -ffinite-math-only)
    [[ $compiler == gcc ]] && options+=(-funsafe-math-optimizations '-fassociative-math -fno-signed-zeros -fno-trapping-math')
    for option in "${options[@]}"; do
        # shellcheck disable=SC2086
        if $compiler -std=c11 -O2 $option -w -I. "$work/case.c" -o "$work/case" -lm 2>"$work/error"; then result 1 "$compiler takes $option"
        else
            grep -q 'te: compile without -Ofast' "$work/error" && status=0 || status=1
            result $status "$compiler refuses $option, but does not say why"
        fi
    done
done
for compiler in gcc clang; do
    command -v $compiler >/dev/null || continue
    for header in te infer; do
        echo "#include \"te/$header.h\"" >"$work/refused.c"
        for option in -std=gnu89 -std=c99 -std=gnu99 '-std=c11 -m32' '-std=c11 -mx32'; do
            says='C11 or newer'
            [[ $option == *32 ]] && says='64-bit addresses (not with -m32'
            # shellcheck disable=SC2086
            if $compiler $option -I. -fsyntax-only "$work/refused.c" 2>"$work/error"; then result 1 "$compiler takes $option"
            else # the #error, and the include behind it that ends the compilation
                errors=$(grep -cE '(error|fatal error):' "$work/error") || true
                [[ $errors == 2 ]] && grep -m1 'error:' "$work/error" | grep -qF "$says" && status=0 || status=1
                result $status "te/$header.h: $compiler $option: $errors errors, $(head -n 3 "$work/error")"
            fi
        done
    done
done
if command -v clang >/dev/null; then
    clang -std=c11 -O2 -w -I. "$work/case.c" -o "$work/case" -lm && "$work/case" >"$work/right"
    for option in -funsafe-math-optimizations '-fassociative-math -fno-signed-zeros -fno-trapping-math'; do
        # shellcheck disable=SC2086
        clang -std=c11 -O3 $option -ffp-contract=off -w -I. "$work/case.c" -o "$work/case" -lm && "$work/case" >"$work/is"
        # terms of the polynomials may be added in another order, which changes the last bits
        paste "$work/right" "$work/is" | python3 -c '
import sys
bad = 0
for line in sys.stdin:
    a, b = (float.fromhex(x) if "x" in x else float(x) for x in line.split())
    bad += not abs(a - b) <= 1e-6 * abs(a)
sys.exit(bad > 0)' && status=0 || status=1
        result $status "clang $option: another 2^x"
    done
fi
echo "$passed passed, $failed failed"
[[ $failed == 0 ]]
