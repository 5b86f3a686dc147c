#!/usr/bin/env bash
# examples/generate/tokenizer.h has the ids and the texts of the Python package `tokenizers` (tests/tokenizer.py), and
# says what is wrong with a file; once as users compile it and once with the address and undefined-behaviour sanitizers.
# Prints `skipped: ...` and exits with 0 where that package or a library is missing; tools/setup.sh installs them.
#
#     tests/tokenizer.sh [STRINGS]      random strings a family (default 1000); PYTHON and CC choose others
set -euo pipefail
cd "$(dirname "$0")/.."

python=
for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    "$candidate" -c 'import tokenizers' 2>/dev/null && python=$candidate && break
done
[[ -n $python ]] || { echo "skipped: no Python with tokenizers" && exit; }
libraries=(libpcre2-8 libutf8proc)
pkg-config --exists "${libraries[@]}" || { echo "skipped: pkg-config does not find all of ${libraries[*]}" && exit; }
read -ra flags <<<"$(pkg-config --cflags --libs "${libraries[@]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sources=(examples/generate/{tokenizer,tokenizer_file,tokenizer_gguf,tokenizer_json,tokenizer_model,tokenizer_regex,chat}.c tests/tokenizer_driver.c)
warnings=(-Wall -Wextra -Wshadow -pedantic -Werror)
"${CC:-gcc}" -std=c11 -O2 -I. "${warnings[@]}" "${sources[@]}" -o "$work/driver" "${flags[@]}"
sanitize=(-g -fsanitize=address,undefined -fno-sanitize-recover=all)
"${CC:-gcc}" -std=c11 -O1 -I. "${sanitize[@]}" "${sources[@]}" -o "$work/sanitized" "${flags[@]}"
"${CXX:-g++}" -std=c++17 -x c++ -O1 -I. "${warnings[@]}" "${sources[@]}" -o "$work/as_cpp" "${flags[@]}"

"$python" tests/tokenizer.py "$work/driver" "$work" "${1:-1000}" time
echo "with sanitizers:"
"$python" tests/tokenizer.py "$work/sanitized" "$work" 100 >"$work/log" 2>&1 || { tail -n 30 "$work/log" && exit 1; }
tail -n 1 "$work/log"
