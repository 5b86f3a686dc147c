#!/usr/bin/env bash
# train_gpt and errors: numbers that overflow, signals, folders that it cannot write to, texts that it cannot read, options out of
# range, a checkpoint of another text or with a changed bit. It must name the error, and keep a good checkpoint.
#
#     tests/train_gpt.sh [TRAIN_GPT]       the binary; built here if none is given
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
train=${1:-$work/train_gpt}
[[ $# -gt 0 ]] || "${CC:-gcc}" -std=c11 -O1 -DTE_KEEP_CALLS -I. examples/train_gpt/train_gpt.c -o "$train" -lm
small=(--log 1 --validate 0 --sample 0 --batch 1 --seq 16)
mkdir "$work/text"
cp te/core/*.h "$work/text"
passed=0

ok() { passed=$((passed + 1)) && echo "ok: $1"; }
bad() { echo "FAIL: $1" && cat "$work/log" && exit 1; }
# fails WHAT SAYS ARGUMENT...: it must exit with 1 within 20 seconds, with a message that contains SAYS
fails() {
    local status=0
    timeout 20 "$train" "${@:3}" >"$work/log" 2>&1 || status=$?
    [[ $status == 1 ]] || bad "$1: exit status $status"
    grep -q -- "$2" "$work/log" || bad "$1: does not say: $2"
    ok "$1"
}
runs() { # WHAT ARGUMENT...
    "$train" "${@:2}" >"$work/log" 2>&1 || bad "$1: exit status $?"
}
stop() { # SIGNAL: sends it to $child, which has 20 seconds to end; $status is its exit code
    kill "-$1" "$child"
    (sleep 20 && kill -KILL "$child") >/dev/null 2>&1 &
    local watch=$!
    status=0
    wait "$child" || status=$?
    kill $watch 2>/dev/null || true
}
flip() { # FILE BYTE: flips one bit of it
    printf "\\x$(printf %x $(($(od -An -tu1 -j "$2" -N 1 "$1") ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# ---- a good checkpoint is not replaced
runs "a short run" --out "$work/out" --steps 3 "${small[@]}" "$work/text"
cp -r "$work/out" "$work/good"
fails "a run whose weights overflow" "not a number any more" --out "$work/out" --lr 1e30 --steps 12 "${small[@]}" --log 1000 "$work/text"
cmp "$work/out/checkpoint.safetensors" "$work/good/checkpoint.safetensors" && ok "its checkpoint does not take the good one's place"
: >"$work/log"
"$train" --out "$work/out" --lr 1e30 --steps 100000000 "${small[@]}" --log 100000000 "$work/text" >"$work/log" 2>&1 &
child=$!
until grep -q '^step' "$work/log"; do sleep 0.05; done # the first step is always reported
sleep 1
stop INT
[[ $status == 1 ]] && grep -q "not a number any more" "$work/log" || bad "Ctrl-C after an overflow: exit status $status"
cmp "$work/out/checkpoint.safetensors" "$work/good/checkpoint.safetensors" && ok "nor after Ctrl-C between reports"

# ---- signals, and the loss curve during a run
for signal in INT TERM HUP; do # (resets HUP, which nohup would let it ignore)
    rm -rf "$work/stopped"
    env --default-signal=HUP "$train" --out "$work/stopped" --steps 100000000 "${small[@]}" "$work/text" >"$work/log" 2>&1 &
    child=$!
    for _ in {1..400}; do
        lines=$(wc -l 2>/dev/null <"$work/stopped/curve.tsv" || echo 0)
        [[ $lines -gt 3 ]] && break
        sleep 0.05
    done
    [[ $lines -gt 3 ]] || bad "curve.tsv does not grow"
    stop $signal
    [[ $status == 130 && -f $work/stopped/checkpoint.safetensors ]] || bad "SIG$signal: exit status $status"
    ok "SIG$signal stops it with a checkpoint; $lines lines of curve.tsv were there before"
done

# ---- errors of --out are found before training
: >"$work/file"
mkdir -p "$work/taken/checkpoint.safetensors" "$work/device" "$work/dangling"
ln -s /dev/full "$work/device/checkpoint.safetensors"
ln -s /no/such/folder/x "$work/dangling/checkpoint.safetensors"
for out in file file/below no/such taken device dangling; do
    fails "--out $out" "train_gpt: .*$out" --out "$work/$out" --steps 100000000 "${small[@]}" "$work/text"
    grep -q '^step' "$work/log" && bad "--out $out: trained first"
done

# ---- texts
fails "a path that is missing among others" "no_such_file" --out "$work/out" --steps 1 "$work/text" "$work/no_such_file"
mkfifo "$work/fifo"
fails "a FIFO" "neither a file nor a folder" --out "$work/out" --steps 1 "$work/text" "$work/fifo"
{ cat te/core/*.h && printf 'a\0b' && cat te/core/*.h; } >"$work/nul"
fails "a file with one NUL byte" "has a NUL byte" --out "$work/out" --steps 1 "$work/nul"
mkdir -p "$work/loop/below"
cp te/core/*.h "$work/loop/below"
ln -s .. "$work/loop/below/up"
cp "$work/nul" "$work/loop/binary.h"
runs "a symbolic link to a folder above" --out "$work/looped" --steps 1 "${small[@]}" "$work/loop"
grep -q "left out .*up: the same folder" "$work/log" && grep -q "left out .*binary.h: has a NUL" "$work/log" || bad "it is not said"
files=$(find te/core -maxdepth 1 -name '*.h' | wc -l)
grep -q "^text: $files files" "$work/log" || bad "the loop was read more than once"
ok "a symbolic link to a folder above is read once, and said"

# ---- options
for refused in "--accumulate 99999999999" "--accumulate 99999999999999999999999" "--steps 9223372036854775807 --accumulate 1000000" \
    "--lr -1" "--lr nan" "--lr 1e999" "--lr inf" "--temperature -1" "--temperature nan" "--batch 0" "--dp 0" "--dp 2" "--tp 0" "--sp" "--seq 1" "--optimizer lion" "--moments f16" "--steps x" "--steps ''"; do
    # shellcheck disable=SC2086
    fails "$refused" "train_gpt: " --out "$work/out" $refused "$work/text"
done
fails "--tp 2 of a program for one" "compile it with -DGPT_RANKS=2" --out "$work/out" --tp 2 "$work/text"
runs "--lr 0" --out "$work/still" --lr 0 --steps 2 "${small[@]}" "$work/text"
grep -aq '"lr":"0"' "$work/still/checkpoint.safetensors" || bad "--lr 0 was taken for another"
ok "--lr 0 is 0"
greedy() { # SEED of the sample; the training seed is in the checkpoint
    "$train" --out "$work/out" --resume --force --steps 3 "${small[@]}" --sample 40 --temperature 0 --seed "$1" "$work/text" 2>/dev/null | sed '1,/--- sample/d'
}
[[ -n $(greedy 1) && $(greedy 1) == $(greedy 2) ]] || bad "--temperature 0 depends on chance"
ok "--temperature 0 takes the likeliest byte"

# ---- checkpoints of another run
rm -rf "$work/out" && cp -r "$work/good" "$work/out"
resume=(--out "$work/out" --resume --steps 3 "${small[@]}")
echo "one line more" >>"$work/text/base.h"
fails "another text" "the run had text .* bytes, .*, this one has" "${resume[@]}" "$work/text"
runs "--force" "${resume[@]}" --force "$work/text"
ok "--force takes it"
cp te/core/base.h "$work/text/base.h"
rm -rf "$work/out" && cp -r "$work/good" "$work/out"
fails "another seed and another learning rate" "the run had seed 1, this one has 5" "${resume[@]}" --seed 5 --lr 1e-4 "$work/text"
grep -q "the run had lr 0.002, this one has 0.0001" "$work/log" || bad "the second difference is not said"
for byte in 100 700 20000 -1; do
    cp "$work/good/checkpoint.safetensors" "$work/out/"
    [[ $byte != -1 ]] || byte=$(($(stat -c %s "$work/out/checkpoint.safetensors") - 1))
    flip "$work/out/checkpoint.safetensors" "$byte"
    fails "a bit changed in byte $byte" "train_gpt: " "${resume[@]}" "$work/text"
done
grep -q "was changed after it was saved" "$work/log" || bad "the checksum is not named"
runs "--force" "${resume[@]}" --force "$work/text"
ok "--force takes it"
echo "$passed passed, 0 failed"
