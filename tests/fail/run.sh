#!/usr/bin/env bash
# Lists that must not compile, with an error that says why. Each tests/fail/*.c begins with `// expect: <text>`: gcc, clang and
# g++ must refuse it with that text in their first error, and must accept it with -DTE_FIXED, which selects the corrected list.
# With a second line `// lines: 40` nvcc, too, must refuse it, and no compiler may print more lines than that. `// lines: 40 gcc 80`
# allows gcc 80: gcc and nvcc go on behind an error, clang and g++ stop.
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
    [[ $3 != nvcc ]] || command=("${NVCC:-nvcc}" "${@:4}" -I. -x cu -ptx -o /dev/null)
    lines=$(sed -n '2s|^// lines: ||p' "$file")
    limit=${lines%% *}
    [[ " $lines" != *" $3 "* ]] || limit=$(sed "s/.*\<$3 \([0-9]*\).*/\1/" <<<" $lines")
    why='' output=''
    if [[ -z $expect ]]; then
        why="its first line must be // expect: <text>"
    elif output=$("${command[@]}" "$file" 2>&1); then
        why="$3 accepts it" output=''
    elif first=$(grep -m1 -E '\berror:' <<<"$output"); [[ $first != *"$expect"* ]]; then
        why="$3 refuses it with another first error than '$expect'"
    elif [[ -n $limit && $(wc -l <<<"$output") -gt $limit ]]; then
        why="$3 prints $(wc -l <<<"$output") lines, more than $limit"
    elif ! output=$("${command[@]}" -DTE_FIXED "$file" 2>&1); then
        why="$3 refuses it even when fixed (-DTE_FIXED)"
    fi
    [[ -z $why ]] || printf 'FAIL %s: %s\n%s\n' "$file" "$why" "$(head -n 20 <<<"$output")"
    exit 0
fi

export NVCC=${NVCC:-${CUDA_HOME:-/usr/local/cuda}/bin/nvcc} # NVCC=none: without it
[[ $NVCC == none || -x $NVCC ]] || NVCC=$(command -v nvcc || true)
[[ $# -gt 0 ]] || set -- tests/fail/*.c
jobs=()
for file; do
    for compiler in "${COMPILERS[@]}"; do jobs+=("$file $compiler"); done
    if [[ -x $NVCC ]] && sed -n 2p "$file" | grep -q '^// lines: '; then jobs+=("$file nvcc -std=c++17 -arch=compute_90a"); fi
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%s\n' "${jobs[@]}" | xargs -P "${JOBS:-$(nproc)}" -L 1 "$0" --one 2>&1 | tee "$log"
failed=$(grep -c '^FAIL ' "$log" || true)
echo "$((${#jobs[@]} - failed)) passed, $failed failed"
[[ $failed == 0 ]]
