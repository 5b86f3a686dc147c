#!/usr/bin/env bash
# examples/generate/generate_model.c, compiled for two real models in GGUF files, must answer: with the weights where they lie in the file,
# and with weights converted to f32, whose greedy tokens must be those of tests/generate_gguf.json, which llama.cpp generates. Wrong files
# and models must be refused by name. With LLAMA_CPP, token ids of many texts, and the tokens, are compared with llama.cpp itself.
# Prints `skipped: ...` and exits with 0 where a library is missing or the models cannot be fetched.
#
#     tests/generate_gguf.sh [FOLDER]    FOLDER keeps the models (default: a temporary one). LLAMA_CPP: a folder of llama.cpp's source with
#                                        its libraries in build/bin, or LLAMA_CPP_BIN; PYTHON and CC choose others
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} libraries=(libpcre2-8 libutf8proc)
pkg-config --exists "${libraries[@]}" || { echo "skipped: pkg-config does not find all of ${libraries[*]}" && exit; }
read -ra flags <<<"$(pkg-config --cflags --libs "${libraries[@]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=${1:-$work/models}
examples/generate/fetch_models.sh "$folder" >"$work/log" 2>&1 ||
    { echo "skipped: the models cannot be fetched: $(tail -n 1 "$work/log")" && exit; }
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

passed=0
bad() { echo "FAIL: $1" && exit 1; }
ok() { passed=$((passed + 1)) && echo "ok: $1"; }
refuses() { # WHAT WORDS COMMAND...
    if "${@:3}" >"$work/out" 2>"$work/log"; then bad "$1 is accepted"; fi
    grep -qF -- "$2" "$work/log" || bad "$1: $(cat "$work/log")"
    ok "$1 is refused"
}

compile=("${CC:-gcc}" -std=c11 -O3 -march=native -fopenmp -DTE_KEEP_CALLS -Wall -Wextra -Wshadow -Werror -I.)
objects=()
for name in tokenizer tokenizer_file tokenizer_gguf tokenizer_json tokenizer_model tokenizer_regex chat; do
    "${compile[@]}" -c "examples/generate/$name.c" -o "$work/$name.o"
    objects+=("$work/$name.o")
done
build() { # NAME FILE OPTION...
    "$python" examples/generate/configure.py "$2" >"$work/$1.h"
    "${compile[@]}" "${@:3}" -DMODEL_CONFIG="\"$work/$1.h\"" examples/generate/generate_model.c "${objects[@]}" -o "$work/$1" "${flags[@]}" -lm
}

names=(smollm2 gemma3)
files=("$folder/SmolLM2-135M-Instruct.Q4_1.gguf" "$folder/gemma-3-270m-q4_k_m.gguf")
"$python" tests/generate_gguf.py prompts >"$work/prompts"
for i in 0 1; do
    name=${names[$i]} file=${files[$i]}
    build "$name" "$file"
    build "$name.f32" "$file" -DMODEL_DEQUANTIZE
    "$work/$name.f32" "$file" --batch "$work/prompts" --slots 5 --tokens 64 --ids >"$work/$name.tokens" 2>"$work/log" || bad "$name: $(cat "$work/log")"
    "$python" tests/generate_gguf.py tokens "$name" >"$work/expected"
    cmp "$work/$name.tokens" "$work/expected" || bad "$name: other tokens than those of llama.cpp, with weights in f32"
    ok "$name: $(wc -w <"$work/expected") tokens of $(wc -l <"$work/expected") prompts"
done
answer=$("$work/smollm2" "${files[0]}" --chat --tokens 40 "What is the capital of France?" 2>"$work/log")
[[ $answer == *Paris* ]] || bad "smollm2 answers: $answer"
ok "smollm2 answers: $answer"
text=$("$work/gemma3" "${files[1]}" --tokens 24 "The three largest cities of Germany are" 2>"$work/log") # a base model, which has not learnt to chat
[[ $text == *Berlin* ]] || bad "gemma3 continues: $text"
ok "gemma3 continues: The three largest cities of Germany are$text"

# ---- what is refused
refuses "another file" "is not the file that this program was compiled for" "$work/smollm2" "${files[1]}" x
head -c 3000000 "${files[0]}" >"$work/short.gguf"
refuses "a file that is cut off" "of the data on; the data has" "$work/smollm2" "$work/short.gguf" x
head -c 300 "${files[0]}" >"$work/shorter.gguf"
refuses "a header that is cut off" "the header ends in the middle" "$python" examples/generate/configure.py "$work/shorter.gguf"
changed() { # FROM TO: a copy of the file's first megabytes with a text of the same length in the place of another
    "$python" -c 'import sys; data = open(sys.argv[1], "rb").read(4 << 20); assert sys.argv[3].encode() in data and len(sys.argv[3]) == len(sys.argv[4])
open(sys.argv[2], "wb").write(data.replace(sys.argv[3].encode(), sys.argv[4].encode()))' "${files[0]}" "$work/changed.gguf" "$1" "$2"
}
changed "llama.context_length" "llama.c0ntext_length"
refuses "an unknown key" "llama.c0ntext_length is 8192; it is not supported" "$python" examples/generate/configure.py "$work/changed.gguf"
changed "$(printf 'general.architecture\x08')" "$(printf 'general.architecturf\x08')"
refuses "a file without its architecture" "general.architecture is None" "$python" examples/generate/configure.py "$work/changed.gguf"

# ---- llama.cpp
if [[ -n ${LLAMA_CPP-} ]]; then
    bin=${LLAMA_CPP_BIN:-$LLAMA_CPP/build/bin}
    "${CXX:-g++}" -std=c++17 -O2 -I"$LLAMA_CPP/include" -I"$LLAMA_CPP/ggml/include" tests/llama_cpp_driver.cc -o "$work/llama" \
        -L"$bin" -Wl,-rpath,"$bin" -lllama -lggml -lggml-cpu -lggml-base
    "${compile[@]}" tests/tokenizer_driver.c "${objects[@]}" -o "$work/driver" "${flags[@]}"
    "$python" tests/generate_gguf.py corpus >"$work/corpus"
    for i in 0 1; do
        name=${names[$i]} file=${files[$i]}
        "$work/driver" --ids "$file" "$work/corpus" >"$work/ours"
        "$work/llama" "$file" ids "$work/corpus" >"$work/theirs"
        cmp "$work/ours" "$work/theirs" || bad "$name: other token ids than llama.cpp's"
        ok "$name: $(wc -w <"$work/ours") token ids of $(wc -l <"$work/ours") texts are llama.cpp's"
        "$python" tests/generate_gguf.py f32 "$file" "$work/f32.gguf" 2>/dev/null || { echo "skipped: no Python with gguf" && continue; }
        FORCE=$work/$name.tokens THREADS=$OMP_NUM_THREADS "$work/llama" "$work/f32.gguf" greedy "$work/prompts" 64 >"$work/theirs"
        "$python" tests/generate_gguf.py compare "$work/$name.tokens" "$work/theirs" || bad "$name: other tokens than llama.cpp's"
        ok "$name: the tokens are llama.cpp's, with weights in f32"
    done
fi
echo "$passed passed"
