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

rm -rf "$work/stopped"
"$train" --out "$work/stopped" --steps 100000000 --batch 64 --seq 128 --accumulate 1000000 "$work/text" >"$work/log" 2>&1 & # the first step takes hours
child=$!
until [[ -e $work/stopped/curve.tsv ]]; do sleep 0.05; done
sleep 1
kill -TERM "$child" && sleep 1
stop TERM
[[ $status == 143 ]] || bad "the second SIGTERM within a step: exit status $status"
ok "a second SIGTERM ends it within a step"
rm -rf "$work/stopped"
"$train" --out "$work/stopped" --steps 3000 "${small[@]}" "$work/text" 2>"$work/log" | head -n 3 >"$work/head" || true
[[ -f $work/stopped/checkpoint.safetensors ]] || bad "a pipe that is closed: no checkpoint"
ok "a closed pipe behind stdout stops it with a checkpoint"

# ---- files of others in --out, and closed files
mkdir "$work/hostile" "$work/picture" && mkdir "$work/picture/curve.svg"
mkfifo "$work/hostile/curve.tsv.tmp" && echo mine >"$work/mine"
ln -s "$work/mine" "$work/hostile/curve.svg"
timeout 20 "$train" --out "$work/hostile" --steps 2 "${small[@]}" "$work/text" >"$work/log" 2>&1 || bad "a FIFO in --out: exit status $?"
[[ $(<"$work/mine") == mine ]] || bad "it wrote to where a link leads"
ok "a FIFO and a link in --out are not written to"
runs "a folder curve.svg" --out "$work/picture" --steps 2 "${small[@]}" "$work/text"
grep -q "curve.svg: " "$work/log" && ! grep -q "wrote.*curve.svg" "$work/log" || bad "a picture that cannot be written"
ok "a picture that cannot be written is not reported as written"
"$train" --out "$work/closed" --steps 2 "${small[@]}" "$work/text" >&- 2>"$work/log" || true
[[ $(head -n 1 "$work/closed/curve.tsv") == step* ]] && ! grep -q tokens "$work/closed/curve.tsv" || bad "closed stdout: messages in curve.tsv"
ok "with stdout closed no message gets into curve.tsv"
"$train" --out "$work/twice" --steps 100000000 "${small[@]}" "$work/text" >"$work/log2" 2>&1 &
child=$!
until [[ -e $work/twice/curve.tsv ]]; do sleep 0.05; done
fails "two runs in one folder" "another run writes to this folder" --out "$work/twice" --steps 2 "${small[@]}" "$work/text"
stop TERM
: >"$work/empty"
fails "an empty file as the only text" "no text found" --out "$work/none" --steps 2 "${small[@]}" "$work/empty"

# ---- sizes of one's own
"${CC:-gcc}" -std=c11 -O1 -w -DTE_KEEP_CALLS '-DGPT_SIZES(X)=X(deep, 70, 32, 2, 64, 256) X(ascii, 2, 32, 2, 64, 128)' -I. examples/train_gpt/train_gpt.c -o "$work/sizes" -lm
for size in deep ascii; do
    "$work/sizes" --size $size --out "$work/$size" --steps 1 --batch 1 --seq 8 --sample 5 --validate 0 "$work/text" >"$work/log" 2>&1 || bad "--size $size: exit status $?"
    "$work/sizes" --size $size --out "$work/$size" --resume --steps 1 --batch 1 --seq 8 --sample 5 --validate 0 "$work/text" >"$work/log" 2>&1 || bad "--size $size --resume: exit status $?"
done
ok "70 layers, and a vocabulary of 128"
printf '%01000d \xc3\xa9' 0 >"$work/accent"
train_was=$train train=$work/sizes
fails "a byte beyond the vocabulary" "has a byte 195" --size ascii --out "$work/none" --steps 1 --batch 1 --seq 8 "$work/accent"
fails "a prompt beyond the vocabulary" "prompt has a byte" --size ascii --out "$work/none" --steps 1 --batch 1 --seq 8 --validate 0 --prompt é "$work/text"
train=$train_was

# ---- experts
runs "experts" --out "$work/experts" --experts 8 --steps 6 --sample 40 "${small[@]:0:4}" --batch 2 --seq 32 "$work/text"
grep -q "8 experts, 2 a token" "$work/log" || bad "experts: the line about the model"
cp -r "$work/experts" "$work/parts" && rm "$work/parts/checkpoint.safetensors"
for steps in 3 6; do # stopped after three steps of six, and continued
    runs "experts, until step $steps" --out "$work/parts" $([[ $steps == 3 ]] && echo --experts 8 || echo --resume --force) --steps $steps \
        --lr 1e-3 --sample 40 "${small[@]:0:4}" --batch 2 --seq 32 "$work/text"
done
sed '1,/^--- sample/d' "$work/log" >"$work/sample"
[[ $(wc -c <"$work/sample") -gt 40 ]] || bad "experts: no sample"
runs "experts from the weights of another run" --out "$work/begun" --experts 8 --init "$work/parts/checkpoint.safetensors" --steps 0 --sample 40 "${small[@]:0:4}" --batch 2 --seq 32 "$work/text"
sed '1,/^--- sample/d' "$work/log" | cmp - "$work/sample" || bad "experts: another sample of the same weights"
ok "experts: a run, one that is continued, and the sample of its weights"
fails "a checkpoint with experts continued without" "had experts 8, this one has 0" --out "$work/parts" --resume --experts 0 --steps 9
fails "the weights of experts for an MLP" "h0" --out "$work/begun" --init "$work/parts/checkpoint.safetensors" --steps 1 "${small[@]}" "$work/text"
fails "another number of experts" "this program has lists for 8; compile it with -DGPT_EXPERTS=4" --experts 4 "$work/text"
fails "another number for a token" "--top_k 3: this program has lists for 2" --experts 8 --top_k 3 "$work/text"
fails "--top_k alone" "--top_k goes with --experts" --top_k 2 "$work/text"

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

# ---- options anywhere, and what they say
runs "options behind files" "$work/text" --out "$work/behind" --steps 2 "${small[@]}"
[[ -f $work/behind/checkpoint.safetensors ]] || bad "options behind files"
ok "options may stand behind files"
runs "-h" -h
grep -q '^usage: ' "$work/log" || bad "-h"
ok "-h shows the usage"
fails "an unknown option behind files" "unknown option.*--stesp" "$work/text" --stesp 3
fails "an unknown option of one dash" "unknown option.*-x" -x "$work/text"
fails "a file whose name begins with a dash" "No such file or directory: -none" --out "$work/none" -- -none
fails "a sequence that is too long" "takes at most 256 tokens a sequence" --seq 500 "$work/text"
fails "muon with moments in 8bit" "optimizer muon takes --moments f32 or bf16" --optimizer muon --moments 8bit "$work/text"
fails "--resume without a checkpoint" "no_run/checkpoint.safetensors: cannot open" --resume --out "$work/no_run" "$work/text"
[[ ! -e $work/no_run && $(grep -o no_run/checkpoint "$work/log" | wc -l) == 1 ]] || bad "--resume without a checkpoint"
ok "it leaves no folder behind, and names the path once"
"$train" --out "$work/bytes" --steps 1 "${small[@]}" --sample 300 "$work/text" >"$work/log" 2>&1 # of hardly trained weights
iconv -f UTF-8 -t UTF-8 "$work/log" >/dev/null && ! LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]' "$work/log" || bad "raw bytes in a sample"
grep -q '\\x[0-9a-f][0-9a-f]' "$work/log" || bad "a sample without bytes that are no text"
ok "a sample shows bytes that are no text as \\xNN"
fails "--init and --resume" "only one of them" --init "$work/good/checkpoint.safetensors" --resume --out "$work/out"
fails "--init of another size" "has a model of --size tiny" --init "$work/good/checkpoint.safetensors" --size small --out "$work/none" "$work/text"
fails "--init of a file that is none" "--init: .*/empty: 0 bytes" --init "$work/empty" --out "$work/none" "$work/text"
runs "--init" --init "$work/good/checkpoint.safetensors" --lr 0 --steps 1 --out "$work/begun" "${small[@]}" "$work/text"
weights() { # FILE: the values of its first block's weights, without optimizer and metadata
    python3 - "$1" <<'PY'
import hashlib, json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
for name, t in sorted(json.loads(data[8:8 + n]).items()):
    if name.startswith("h0.") and "adamw" not in name: print(name, hashlib.md5(data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]).hexdigest())
PY
}
[[ -n $(weights "$work/good/checkpoint.safetensors") && $(weights "$work/good/checkpoint.safetensors") == "$(weights "$work/begun/checkpoint.safetensors")" ]] || bad "--init: other weights"
ok "--init begins with the weights of the checkpoint"

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
