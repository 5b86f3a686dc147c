#!/usr/bin/env bash
# Lists that must not compile, with an error that says why. Each tests/fail/*.c begins with `// expect: <text>`: gcc, clang and
# g++ must refuse it with that text in their first error, and must accept it with -DTE_FIXED, which selects the corrected list.
# With a second line `// lines: 40` nvcc, too, must refuse it, and no compiler may print more lines than that. `// lines: 40 gcc 80`
# allows gcc 80: gcc and nvcc go on behind an error, clang and g++ stop.
# The header that a file includes first is precompiled once for each compiler but nvcc: to read te/te.h takes three quarters of the
# time of a file.
#
#     tests/fail/run.sh [file...]
set -euo pipefail
cd "$(dirname "$0")/../.."

COMPILERS=("gcc -std=c11" "clang -std=c11" "g++ -std=c++17 -x c++")

first_include() { sed -n '/^#include "/{s/^#include "\(.*\)".*/\1/p;q}' "$1"; } # FILE

# --one FILE COMPILER OPTION...: compiles one file by one compiler. Called by xargs, below.
if [[ ${1-} == --one ]]; then
    file=$2
    expect=$(sed -n '1s|^// expect: ||p' "$file")
    command=("${@:3}")
    precompiled=$PRECOMPILED/$3/$(first_include "$file").gch
    if [[ -f $precompiled ]]; then
        [[ $3 == clang ]] && command+=(-include-pch "$precompiled") || command+=(-Winvalid-pch "-I$PRECOMPILED/$3")
    fi
    command+=(-I. -fsyntax-only)
    [[ $3 != nvcc ]] || command=("$NVCC" "${@:4}" -I. -x cu -ptx -o /dev/null)
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

source tests/shell/nvcc.sh
export NVCC=${NVCC:-$nvcc} # NVCC=none: without it
[[ $# -gt 0 ]] || set -- tests/fail/*.c
jobs=()
for file; do
    for compiler in "${COMPILERS[@]}"; do jobs+=("$file $compiler"); done
    if [[ -x $NVCC ]] && sed -n 2p "$file" | grep -q '^// lines: '; then jobs+=("$file nvcc -std=c++17 -arch=compute_90a"); fi
done
export PRECOMPILED
log=$(mktemp) PRECOMPILED=$(mktemp -d)
trap 'rm -rf "$log" "$PRECOMPILED"' EXIT
precompile() { # HEADER COMPILER STANDARD...: by a file that includes it, because in the file itself its system_header pragma is ignored
    local out=$PRECOMPILED/$2/$1.gch language=c
    [[ $2 != g++ ]] || language=c++
    mkdir -p "${out%/*}"
    echo "#include \"$1\"" >"$out.h"
    "$2" "$3" -I. -x $language-header "$out.h" -o "$out"
}
if [[ $# -gt 10 ]]; then # for fewer files it does not pay
    for compiler in "${COMPILERS[@]}"; do
        for header in $(for file; do first_include "$file"; done | sort -u); do precompile "$header" $compiler; done &
    done
    wait
fi
printf '%s\n' "${jobs[@]}" | xargs -P "${JOBS:-$(nproc)}" -L 1 "$0" --one 2>&1 | tee "$log"
failed=$(grep -c '^FAIL ' "$log" || true)
echo "$((${#jobs[@]} - failed)) passed, $failed failed"
[[ $failed == 0 ]]
