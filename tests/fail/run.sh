#!/usr/bin/env bash
# Misuse that must not compile, and must say why. Each tests/fail/*.c opens with `// expect: <text>`: gcc, clang and g++
# must refuse it with that text, and must accept it with -DTE_FIXED, which shows what should have been written.
set -euo pipefail
cd "$(dirname "$0")/../.."

COMPILERS=("gcc -std=c11" "clang -std=c11" "g++ -std=c++17 -x c++")
passed=0 failed=0

fail() { # TEXT OUTPUT
    printf 'FAIL %s\n%s\n' "$1" "$(head -n 20 <<<"$2")"
    failed=$((failed + 1))
}

shopt -s nullglob
for file in tests/fail/*.c; do
    expect=$(sed -n '1s|^// expect: ||p' "$file")
    [[ -n $expect ]] || { fail "$file: its first line must be // expect: <text>" ""; continue; }
    for compiler in "${COMPILERS[@]}"; do
        read -ra command <<<"$compiler -I. -fsyntax-only"
        if output=$("${command[@]}" "$file" 2>&1); then
            fail "$file: ${compiler%% *} accepts it" ""
        elif [[ $output != *"$expect"* ]]; then
            fail "$file: ${compiler%% *} refuses it without the text '$expect'" "$output"
        elif ! output=$("${command[@]}" -DTE_FIXED "$file" 2>&1); then
            fail "$file: ${compiler%% *} refuses it even when fixed (-DTE_FIXED)" "$output"
        else
            passed=$((passed + 1))
        fi
    done
done
echo "$passed passed, $failed failed"
[[ $failed == 0 ]]
