#!/usr/bin/env bash
# A run of train_gpt that is stopped by Ctrl-C and continued by --resume must end with the bits of one that is not stopped. A damaged
# checkpoint, or one of another run, is refused.
#
#     tests/resume.sh [TRAIN_GPT]          the binary; built here if none is given
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
train=${1:-$work/train_gpt}
[[ $# -gt 0 ]] || "${CC:-gcc}" -std=c11 -O2 -I. examples/train_gpt/train_gpt.c -o "$train" -lm
options=(--steps 24 --log 4 --validate 12 --sample 0 --batch 2 --seq 32 te)

# same OPTION...: compares a whole run with one in two parts
same() {
    rm -rf "$work/whole" "$work/parts"
    "$train" --out "$work/whole" "$@" "${options[@]}" >"$work/log"
    : >"$work/log.parts"
    "$train" --out "$work/parts" "$@" "${options[@]}" >"$work/log.parts" &
    local child=$!
    until grep -q "^step  *4/" "$work/log.parts" || ! kill -0 $child 2>/dev/null; do sleep 0.05; done
    kill -INT $child 2>/dev/null || true
    wait $child && echo "it was not stopped in time" || [[ $? == 130 ]]
    # sizes, steps, optimizer and files come from the checkpoint; how often to report is said again
    "$train" --resume --out "$work/parts" --log 4 --validate 12 --sample 0 | grep '^resumed'
    cmp "$work/whole/checkpoint.safetensors" "$work/parts/checkpoint.safetensors"
    cmp "$work/whole/curve.tsv" "$work/parts/curve.tsv"
    echo "resumed to the same bits${*:+, $*}"
}
same --recipe fp8_delayed
same --recipe fp8_current
same --optimizer sgd --moments 8bit
same --optimizer muon --moments bf16
same

refuse() { # WHAT: the checkpoint in $work/parts must be refused with a message that says why
    if "$train" --out "$work/parts" --resume "${@:2}" "${options[@]}" >"$work/log" 2>&1; then
        echo "$1 was taken" && exit 1
    fi
    echo "$1: $(grep "^train_gpt:" "$work/log")"
}
options[1]=48
refuse "another number of steps"
options[1]=24
refuse "another recipe" --recipe fp8_current
refuse "another optimizer" --optimizer muon
refuse "other moments" --moments bf16
refuse "another optimizer, with --force" --optimizer muon --force

# continues OPTION...: the checkpoint in $work/parts, of another recipe, is continued with --force. Prints what train_gpt says about the scales.
continues() {
    "$train" --out "$work/parts" --resume --force "$@" "${options[@]}" >"$work/log" 2>&1 || { cat "$work/log" && exit 1; }
    grep -q '^resumed' "$work/log"
    grep -o 'the scales and their amax histories begin anew' "$work/log" || echo "the scales are those of the file, or there are none"
}
options[1]=8
"$train" --out "$work/parts" --recipe fp8_delayed "${options[@]}" >"$work/log" 2>&1
options[1]=12
[[ $(continues --recipe none) == "the scales are those"* ]] # from FP8 to 16 bits
options[1]=16
[[ $(continues --recipe fp8_delayed) == "the scales and their"* ]] # and back
options[1]=20
[[ $(continues --recipe fp8_current) == "the scales are those"* ]]
echo "a run goes on under another recipe"
options[1]=24

head -c 100000 "$work/whole/checkpoint.safetensors" >"$work/parts/checkpoint.safetensors"
refuse "a truncated checkpoint"
