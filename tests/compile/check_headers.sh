#!/usr/bin/env bash
# Each header of te/ must compile alone: as C11 by gcc and clang, as C++17 by g++, and as CUDA by nvcc if there is one. nvcc compiles
# to PTX for sm_90a only, which takes a quarter of the time and sees the functions of both targets; te/te.h it compiles completely, and
# for sm_80, too.
# A header for one target is named *_host.h or *_cuda.h, or has a line `/* target: host */` or `/* target: cuda */`.
#
#     tests/compile/check_headers.sh [header...]
set -euo pipefail
cd "$(dirname "$0")/../.."

WARNINGS=(-Wall -Wextra -Wshadow -pedantic -Werror)

compile() { # COMPILER SOURCE [OPTION of nvcc...]
    case $1 in
        gcc | clang) "$1" -std=c11 "${WARNINGS[@]}" -I. -x c -c "$2" -o /dev/null ;;
        g++) g++ -std=c++17 "${WARNINGS[@]}" -I. -x c++ -c "$2" -o /dev/null ;;
        *nvcc) "$1" -std=c++17 -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas -I. "${@:3}" -x cu "$2" -o /dev/null ;;
    esac
}

# Compiles one header, included twice, by one compiler. Called by xargs, below.
if [[ ${1-} == --one ]]; then
    source=$(mktemp)
    trap 'rm -f "$source"' EXIT
    printf '#include "%s"\n#include "%s"\nint main(void) { return 0; }\n' "$3" "$3" >"$source"
    nvcc_options=(-arch=compute_90a -ptx)
    [[ $3 != te/te.h ]] || nvcc_options=(-gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=sm_80 -c)
    if ! output=$(compile "$2" "$source" "${nvcc_options[@]}" 2>&1); then
        printf 'FAIL %s %s\n%s\n' "${2##*/}" "$3" "$(head -n 20 <<<"$output")"
        exit 1
    fi
    exit 0
fi

is_for() { # TARGET HEADER
    [[ $2 == *_"$1".h ]] || grep -q "/\* target: $1 \*/" "$2"
}

source tests/shell/nvcc.sh
[[ -x $nvcc ]] || echo "no nvcc: headers are checked for the host alone"

if [[ $# == 0 ]]; then
    mapfile -t headers < <(find te -name '*.h' | sort)
    set -- "${headers[@]}"
fi
jobs=()
for header; do
    is_for cuda "$header" || jobs+=("gcc $header" "clang $header" "g++ $header")
    is_for host "$header" || [[ ! -x $nvcc ]] || jobs+=("$nvcc $header")
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%s\n' "${jobs[@]}" | xargs -P "${JOBS:-$(nproc)}" -L 1 "$0" --one 2>&1 | tee "$log" || true
failed=$(grep -c '^FAIL ' "$log" || true)
echo "$((${#jobs[@]} - failed)) passed, $failed failed"
[[ $failed == 0 ]]
