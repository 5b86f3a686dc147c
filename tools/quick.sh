#!/usr/bin/env bash
# Says within four minutes on two cores whether the library works on this machine. It needs a C compiler, and no Bazel, no
# package and no GPU; with g++ and Catch2 (catch2/catch.hpp) also some of the tests run. `tools/test.sh quick` runs this.
# Checks: te.h by each compiler; a list in f32, bf16, f16 and FP8, whose results are compared with each other; wrong lists; each
# op and the patterns against a reference; errors of calls; 50 steps of training.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/progress.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TE_BRIEF=1 TE_SEED=20260301
cc=${CC:-gcc}
command -v "$cc" >/dev/null || cc=cc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # NAME COMMAND...: passes if the command succeeds
    if "${@:2}" >"$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1" && tail -n 20 "$work/log"
    fi
}
has() { command -v "$1" >/dev/null; }
program() { "$cc" -std=c11 -O1 -Wall -DTE_KEEP_CALLS -I. "$1" -o "$2" -lm; } # SOURCE BINARY
support() { # what the tests are linked with
    local source
    for source in catch_main numbers reference bounds attention_reference; do
        g++ -O$([[ $source == catch_main ]] && echo 0 || echo 1) -std=c++17 -I. -c tests/$source.cc -o "$work/$source.o" || return 1
    done
    ld -r "$work"/{catch_main,numbers,reference,bounds,attention_reference}.o -o "$work/support.o"
}
catch_test() { # NAME: compiles a test of tests/ and runs it
    g++ -std=c++17 -O0 -DTE_KEEP_CALLS -I. "tests/$1.cc" "$work/support.o" -o "$work/$1" && "$work/$1"
}
trains() { # 50 steps: the last loss must be well below that of a model that knows nothing, ln 256 = 5.5
    "$work/train_gpt" --out "$work/gpt" --steps 50 --log 50 --batch 2 --seq 64 --validate 0 --sample 0 te/core || return 1
    awk 'END { exit !($2 < 4.2) }' "$work/gpt/curve.tsv"
}

tests=()
if has g++ && printf '#include <catch2/catch.hpp>\n' | g++ -x c++ -fsyntax-only - 2>/dev/null; then
    tests=(dtype_test:8 ops_test:14 ops_bf16_test:14 patterns_forward_test:20 errors_test:15)
else
    echo "SKIP: ops, patterns and errors against the reference: no g++ or no catch2/catch.hpp"
fi
total=45
for name in "${tests[@]}"; do total=$((total + ${name#*:})); done
progress_total $((total + (${#tests[@]} ? 12 : 0)))
progress 3 "te.h alone, by each compiler"
printf '#include "te/te.h"\nint main(void) { return 0; }\n' >"$work/header.c"
for compiler in "$cc -std=c11" "clang -std=c11" "g++ -std=c++17 -x c++"; do
    read -ra command <<<"$compiler"
    if has "${command[0]}"; then check "te.h by ${command[0]}" "${command[@]}" -Wall -Wextra -Werror -I. -fsyntax-only "$work/header.c"; fi
done
progress 4 "the README's example, in f32"
check "compile examples/readme" program examples/readme/readme.c "$work/readme"
check "examples/readme" "$work/readme"
progress 8 "lists in bf16, f16 and FP8: compile examples/quickstart"
check "compile examples/quickstart" program examples/quickstart/quickstart.c "$work/quickstart"
progress 7 "lists in bf16, f16 and FP8: single ops, modules, one list, FP8 and inference must agree"
check "examples/quickstart" "$work/quickstart"
progress 12 "lists that must not compile"
check "wrong lists" env NVCC=none tests/fail/run.sh tests/fail/{comma_missing,same_name_twice,add_without_fork,width_mismatch,unknown_op,unknown_dtype}.c
progress 6 "compile examples/train_gpt"
check "compile examples/train_gpt" program examples/train_gpt/train_gpt.c "$work/train_gpt"
progress 5 "train a small GPT for 50 steps"
check "50 steps of training" trains
if [[ ${#tests[@]} != 0 ]]; then
    progress 12 "compile the reference"
    check "compile the reference" support
    for name in "${tests[@]}"; do
        progress ${name#*:} "${name%:*}"
        check "${name%:*}" catch_test "${name%:*}"
    done
fi
echo "$SECONDS s"
echo "$passed passed, $failed failed"
[[ $failed == 0 ]]
