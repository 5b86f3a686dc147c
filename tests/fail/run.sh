#!/usr/bin/env bash
# Lists that must not compile, with an error that says why. Each tests/fail/*.c begins with `// expect: <text>`: gcc, clang and
# g++ must refuse it with that text in their first error, and must accept it with -DTE_FIXED, which selects the corrected list.
#
#     tests/fail/run.sh [file...]
set -euo pipefail
cd "$(dirname "$0")/../.."

COMPILERS=("gcc -std=c11" "clang -std=c11" "g++ -std=c++17 -x c++")

# --one FILE COMPILER OPTION...: compiles one file by one compiler. Called by xargs, below.
if [[ ${1-} == --one ]]; then
    file=$2
    expect=$(sed -n '1s|^// expect: ||p' "$file")
    command=("${@:3}" -I. -fsyntax-only)
    why='' output=''
    if [[ -z $expect ]]; then
        why="its first line must be // expect: <text>"
    elif output=$("${command[@]}" "$file" 2>&1); then
        why="$3 accepts it" output=''
    elif first=$(grep -m1 -E '\berror:' <<<"$output"); [[ $first != *"$expect"* ]]; then
        why="$3 refuses it with another first error than '$expect'"
    elif ! output=$("${command[@]}" -DTE_FIXED "$file" 2>&1); then
        why="$3 refuses it even when fixed (-DTE_FIXED)"
    fi
    [[ -z $why ]] || printf 'FAIL %s: %s\n%s\n' "$file" "$why" "$(head -n 20 <<<"$output")"
    exit 0
fi

[[ $# -gt 0 ]] || set -- tests/fail/*.c
jobs=()
for file; do
    for compiler in "${COMPILERS[@]}"; do jobs+=("$file $compiler"); done
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%s\n' "${jobs[@]}" | xargs -P "${JOBS:-$(nproc)}" -L 1 "$0" --one 2>&1 | tee "$log"
failed=$(grep -c '^FAIL ' "$log" || true)
echo "$((${#jobs[@]} - failed)) passed, $failed failed"
[[ $failed == 0 ]]
