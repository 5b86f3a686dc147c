#!/usr/bin/env bash
# examples/generate, one static binary: from the same checkpoint it must write the text that train_gpt samples at --temperature 0,
# with the weights in a file and linked in. A file that does not match is refused with a message that says why.
#
#     tests/generate.sh [TRAIN_GPT]       the binary; built here if none is given
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=("${CC:-gcc}" -std=c11 -O1 -DTE_KEEP_CALLS -I.)
train=${1:-$work/train_gpt}
[[ $# -gt 0 ]] || "${cc[@]}" examples/train_gpt/train_gpt.c -o "$train" -lm
"${cc[@]}" -Wall -Wextra -Werror -static examples/generate/generate.c -o "$work/generate" -lm
passed=0
bad() { echo "FAIL: $1" && exit 1; }
ok() { passed=$((passed + 1)) && echo "ok: $1"; }

# ---- the same text, longer than the context window, so that the window moves
mkdir "$work/text" && cp te/core/*.h "$work/text"
prompt='static int ' checkpoint=$work/out/checkpoint.safetensors
"$train" --out "$work/out" --steps 20 --batch 2 --seq 32 --log 100 --validate 0 --sample 60 --temperature 0 --prompt "$prompt" "$work/text" >"$work/log"
sed '1,/--- sample/d' "$work/log" >"$work/expected"
[[ $(wc -c <"$work/expected") -gt 60 ]] || bad "train_gpt gave no sample"
"$work/generate" "$checkpoint" --bytes 60 "$prompt" | cmp - "$work/expected" || bad "another text than train_gpt's"
printf '%s' "$prompt" | "$work/generate" "$checkpoint" --bytes 60 | cmp - "$work/expected" || bad "another text from the standard input"
ok "$(wc -c <"$work/expected") bytes as train_gpt samples them"
if file -b "$work/generate" 2>/dev/null | grep -q dynamic; then bad "the binary is not static"; fi
"${cc[@]}" -static -DGPT_LINKED -DWEIGHTS="\"$checkpoint\"" examples/generate/generate.c examples/generate/weights.S -o "$work/linked" -lm
mv "$checkpoint" "$work/checkpoint"
"$work/linked" --bytes 60 "$prompt" | cmp - "$work/expected" || bad "another text with the weights linked in"
ok "the same with the weights linked in, and no file"
"${cc[@]}" -DGPT_DTYPE=bf16 examples/generate/generate.c -o "$work/half" -lm
[[ $("$work/half" "$work/checkpoint" --bytes 5 "$prompt" | wc -c) == $((${#prompt} + 6)) ]] || bad "weights that are converted to bf16"
ok "weights that are converted to bf16"

# ---- a small machine: a static binary of musl, a small stack, no allocation once the first byte is printed
if command -v musl-gcc >/dev/null; then
    musl=(musl-gcc -std=c11 -O2 -static -I.)
    "${musl[@]}" -Wall -Wextra -Werror -s examples/generate/generate.c -o "$work/small" -lm
    (ulimit -s 128 && "$work/small" "$work/checkpoint" --bytes 60 "$prompt") | cmp - "$work/expected" || bad "another text with musl"
    size=$(stat -c %s "$work/small")
    ((size <= 1200000)) || bad "the static binary of musl has $size bytes, more than 1.2 MB"
    ok "a static binary of musl, $size bytes, with 128 KB of stack"
    wrap=-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=putchar
    "${musl[@]}" examples/generate/generate.c tests/allocations.c $wrap -o "$work/counts" -lm
    "$work/counts" "$work/checkpoint" --bytes 300 --seq 32 "$prompt" >/dev/null 2>"$work/log" # the window moves many times
    grep -qE '^[1-9][0-9]* allocations, then 0$' "$work/log" || bad "allocations while it generates: $(cat "$work/log")"
    ok "$(cat "$work/log") while it generates"
else echo "skipped: no musl-gcc (musl-tools)"; fi

# ---- invalid files
refuses() { # WHAT SAYS ARGUMENT...
    local status=0
    "$work/generate" "${@:3}" >"$work/log" 2>&1 </dev/null || status=$?
    [[ $status == 1 ]] && grep -q -- "$2" "$work/log" || bad "$1: status $status, $(cat "$work/log")"
    ok "$1: $(cat "$work/log")"
}
change() { # SED...: a copy of the checkpoint at $work/changed, without its checksum
    LC_ALL=C sed -e 's/te\.checksum/to.checksum/' -e "$1" "$work/checkpoint" >"$work/changed"
}
refuses "no such file" "cannot open it" "$work/none"
refuses "no file of weights" "header" "$work/expected"
refuses "no number" "after: --bytes" "$work/checkpoint" --bytes x
refuses "a sequence too long" "after: --seq" "$work/checkpoint" --seq 257
head -c 100000 "$work/checkpoint" >"$work/changed"
refuses "a file cut short" "the file has" "$work/changed"
cp "$work/checkpoint" "$work/changed"
printf 'x' | dd of="$work/changed" bs=1 seek=200000 conv=notrunc status=none
refuses "a byte changed" "was changed after it was saved" "$work/changed"
