#!/usr/bin/env bash
# Several ranks, as processes on this machine by MPI: collective ops against their definitions, a small GPT whose losses do
# not depend on the number of ranks, sharded optimizer states, checkpoints that other numbers of ranks continue from, and
# ranks that fail. Prints SKIP if there is no MPI.
#
#     tests/comm.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v mpicc mpirun >/dev/null; then
    echo "SKIP: no mpicc or mpirun (libopenmpi-dev, openmpi-bin)"
    exit 0
fi
source tools/progress.sh
progress_total 275
progress 90 "compile the programs of the ranks"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1

# mpi.h is a system header: its warnings are ignored.
read -ra compile <<<"$(mpicc -showme:compile | sed 's/-I/-isystem /g')"
read -ra link <<<"$(mpicc -showme:link)"
compilers=()
for program in create ranks peers shards buckets layers experts norm_last products fp8_collectives context pipeline fsdp; do
    "${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Wshadow -Werror -DTE_COMM -DTE_KEEP_CALLS -I. "${compile[@]}" \
        "tests/comm/$program.c" -o "$work/$program" -lm "${link[@]}" &
    compilers+=($!)
done
"${CC:-gcc}" -std=c11 -pedantic -O1 -Wall -Wextra -Wshadow -Werror -DTE_COMM -DTE_KEEP_CALLS -DGPT_RANKS=2 \
    -DGPT_CONTEXT=ring -DGPT_KV_HEADS=2 '-DGPT_SIZES(X)=X(tiny, 2, 32, 4, 64, 256) X(odd, 5, 48, 6, 64, 257)' -I. "${compile[@]}" examples/train_gpt/train_gpt.c -o "$work/train_gpt" -lm "${link[@]}" &
compilers+=($!)
"${CC:-gcc}" -std=c11 -O1 -Wall -Wextra -Wshadow -Werror -DTE_COMM -DTE_KEEP_CALLS -I. "${compile[@]}" \
    examples/performance/performance.c -o "$work/performance" -lm "${link[@]}" &
compilers+=($!)
for compiler in "${compilers[@]}"; do wait "$compiler"; done

progress 20 "collective ops on 1 to 4 ranks"
ranks() { # N ARGUMENT...
    timeout 120 mpirun --oversubscribe -n "$1" "$work/ranks" "${@:2}"
}
for n in 1 2 3 4; do
    ranks "$n" ops >"$work/log" || { cat "$work/log" && exit 1; }
    cat "$work/log"
done

progress 20 "ranks with other settings than each other"
# Communicators that cannot be made, and ranks with other settings than each other.
for mode in refused tensor divides copies native settings; do timeout 120 mpirun --oversubscribe -n 2 "$work/create" $mode; done
timeout 60 mpirun --oversubscribe -n 2 "$work/create" late >"$work/log" 2>&1 || true # the process ends without MPI_Finalize
grep "^late: te_comm_create, rank 0 of 2: another rank has not come within 2 seconds (MPI_Init)" "$work/log" && ! grep -q FAIL "$work/log" || { cat "$work/log" && exit 1; }
timeout 60 mpirun --oversubscribe -n 2 "$work/create" counts >"$work/log" 2>&1 || true # MPI does not end well after this error
grep -q "another rank may have another count, or another collective, with [0-9]* elements here" "$work/log" && ! grep -q FAIL "$work/log" || { cat "$work/log" && exit 1; }
echo "counts that differ between ranks: the error names the count"
for other in "--seed 2" "--lr 1e-2" "--accumulate 2" "--zero 1" "--zero 3" "--steps 4"; do
    common=(--dp 2 --out "$work/others" --batch 2 --seq 16 --log 1 --validate 0 --sample 0 --steps 5)
    status=0
    # shellcheck disable=SC2086
    timeout -s KILL 60 mpirun --oversubscribe -n 1 "$work/train_gpt" "${common[@]}" te/core : -n 1 "$work/train_gpt" "${common[@]}" $other te/core >"$work/log" 2>&1 || status=$?
    [[ $status == 1 ]] && grep -q "train_gpt: ranks: ${other%% *} is not the same" "$work/log" || { echo "FAIL $other on one rank: exit $status" && cat "$work/log" && exit 1; }
    echo "train_gpt with $other on one rank alone: refused"
done

progress 25 "GEMMs and fused patterns with collectives"
timeout 120 mpirun -n 1 "$work/fp8_collectives"
for n in 2 4; do timeout 120 mpirun --oversubscribe -n $n "$work/products" 30; done # on CUDA these GEMMs overlap collectives
timeout 120 mpirun --oversubscribe -n 2 "$work/peers" 100 # random sizes and dtypes
for n in 1 2 3; do timeout 120 mpirun --oversubscribe -n $n "$work/peers" 40 - patterns; done # fused collective patterns against the unfused steps

progress 30 "losses on several ranks against those of one"
# Ranks, tensor ranks: the losses of 50 steps and the last gradient norm, against those of one rank; some parameters frozen.
ranks 1 gpt 1 frozen >"$work/one frozen"
ranks 1 gpt 1 >"$work/one"
for grid in "4 2 frozen" "2 2" "4 1" "4 2"; do
    read -r n tensor frozen <<<"$grid"
    ranks "$n" gpt "$tensor" $frozen >"$work/many"
    paste "$work/one${frozen:+ $frozen}" "$work/many" | awk -v grid="$n ranks, $tensor a tensor group${frozen:+, $frozen}" '
        { off = ($2 - $4) / $2; off = off < 0 ? -off : off; max = off > max ? off : max; limit = $1 == "norm" ? 1e-4 : 1e-5 }
        off > limit { print grid ": step " $1 " is " $4 ", on one rank " $2; bad = 1 }
        END { print grid ": " NR - 1 " losses and a norm, " max " off at most"; exit bad || NR != 51 }'
done
ranks 4 gpt 2 | cmp - "$work/many"
echo "a second run has the same bits"

# Ready-made layers on 2 and 4 ranks against the same layers on one rank.
for n in 2 4; do timeout 120 mpirun --oversubscribe -n "$n" "$work/layers" "$work"; done
# Fewer kv heads than ranks: ranks, kv heads.
for grid in "2 1" "4 2" "4 1"; do
    read -r n kv <<<"$grid"
    timeout 120 mpirun --oversubscribe -n "$n" "$work/layers" "$work" "$kv"
done
# Experts whose rows travel by all_to_all against all_gather and doubles.
for n in 1 2 4; do timeout 120 mpirun --oversubscribe -n "$n" "$work/experts"; done
# Blocks that are lists which end in the next block's norm, against one list.
for n in 2 4; do timeout 120 mpirun --oversubscribe -n "$n" "$work/norm_last"; done

progress 20 "sequences that several ranks split"
for grid in "2 2" "4 4" "4 2"; do # ranks, ranks of a context group
    read -r n group <<<"$grid"
    timeout 120 mpirun --oversubscribe -n "$n" "$work/context" "$group"
done

progress 5 "messages between the stages of a pipeline"
for grid in "4 2 3 5" "4 4 2 8" "3 3 1 4" "1 1 2 3"; do # ranks, stages, chunks, micro-batches
    read -r n parts chunks batches <<<"$grid"
    timeout 60 mpirun --oversubscribe -n "$n" "$work/pipeline" run "$parts" "$chunks" "$batches"
done
timeout 60 mpirun --oversubscribe -n 4 "$work/pipeline" models "$work/stages.safetensors"
timeout 60 mpirun --oversubscribe -n 2 "$work/pipeline" bytes >"$work/log" 2>&1 || true # MPI does not end well after this error
grep -q "exchange with rank 0 of the pipeline group, rank 1 of 2: it has sent 80000 bytes, here are 160000" "$work/log" || { cat "$work/log" && exit 1; }

progress 25 "gradients reduced while backward runs, and train_gpt on several ranks"
# Gradients reduced while backward runs: ranks, tensor ranks.
buckets() { # N ARGUMENT...
    timeout 120 mpirun --oversubscribe -n "$1" "$work/buckets" "${@:2}" >"$work/log" || { cat "$work/log" && exit 1; }
    cat "$work/log"
}
for grid in "1 1" "2 1" "4 1" "4 2"; do
    read -r n tensor <<<"$grid"
    buckets "$n" sums "$tensor"
done
for n in 1 2; do buckets "$n" refuse; done

# Sharded weights and gradients against plain data parallel.
for n in 1 2 4; do timeout 120 mpirun --oversubscribe -n "$n" "$work/fsdp" steps "$work/fsdp.safetensors"; done
for n in 1 2; do timeout 120 mpirun --oversubscribe -n "$n" "$work/fsdp" refuse; done

# train_gpt: data parallel and tensor parallel, against one process with the whole batch.
train_gpt() { # TP DP FOLDER ARGUMENT...
    timeout 120 mpirun --oversubscribe -n $(($1 * $2 * ${context:-1} * ${stages:-1})) "$work/train_gpt" --tp "$1" --cp "${context:-1}" --pp "${stages:-1}" --dp "$2" --batch $((4 / $2)) --accumulate 2 --seq 16 \
        --log 1 --validate 4 --sample 0 --seed 2 --out "$work/$3" "${@:4}" te/core >"$work/log" 2>&1 || { cat "$work/log" && exit 1; }
}
alike() { # FOLDER FOLDER VALUES LIMIT WHAT: two curves
    paste "$work/$1/curve.tsv" "$work/$2/curve.tsv" | awk -v all="$3" -v limit="$4" -v what="$5" 'NR > 1 {
        a = $0; gsub(/\t/, " ", a); split(a, v, " "); half = length(v) / 2; values += half - 1
        for (i = 2; i <= half; i++) { off = (v[i] - v[half + i]) / v[i]; off = off < 0 ? -off : off; if (off > max) max = off } }
        END { print "train_gpt " what ": " values " losses, " max + 0 " off at most"; exit max > limit || values != all }'
}
train_gpt 1 1 gpt_one --steps 8
for grid in "1 2" "1 4" "2 1" "2 1 --sp" "2 2 --sp"; do # losses, gradient norm and validation do not depend on the grid
    read -r tp dp sp <<<"$grid"
    train_gpt "$tp" "$dp" gpt_many --steps 8 $sp
    alike gpt_one gpt_many 10 1e-5 "--tp $tp --dp $dp${sp:+ $sp}"
done
train_gpt 1 2 gpt_bf16 --steps 8 --sums bf16
alike gpt_one gpt_bf16 10 1e-4 "--dp 2 --sums bf16"
for grid in "1 2 1" "1 4 1" "2 2 1 --sp" "1 2 2" "1 4 3" "2 2 3 --sp"; do # sharded optimizer states, gradients, weights
    read -r tp dp zero sp <<<"$grid"
    train_gpt "$tp" "$dp" gpt_zero --steps 8 --zero "$zero" $sp
    alike gpt_one gpt_zero 10 1e-5 "--tp $tp --dp $dp${sp:+ $sp} --zero $zero"
done
for grid in "1 2 1" "1 4 1" "1 2 2 --zero 3" "2 2 1 --sp"; do # context parallel: --tp, --cp, --dp
    read -r tp cp dp option <<<"$grid"
    rm -rf "$work/gpt_context"
    context=$cp train_gpt "$tp" "$dp" gpt_context --steps 8 $option
    alike gpt_one gpt_context 10 1e-6 "--tp $tp --cp $cp --dp $dp${option:+ $option}"
done
train_gpt 1 1 gpt_stages1 --steps 6 --size odd --accumulate 6
for grid in "1 1 2 --chunks 2" "1 1 4" "1 2 2 --zero 1 --chunks 2" "1 2 2 --zero 3 --chunks 2"; do # pipelines of five blocks: --tp, --dp, --pp
    read -r tp dp pp options <<<"$grid"
    rm -rf "$work/gpt_stages"
    stages=$pp train_gpt "$tp" "$dp" gpt_stages --steps 6 --size odd --accumulate 6 $options
    alike gpt_stages1 gpt_stages 8 1e-6 "--tp $tp --dp $dp --pp $pp${options:+ $options}"
done
for grid in "1 1 12" "1 4 18"; do # their checkpoints: --dp, --pp, steps
    read -r dp pp steps <<<"$grid"
    train_gpt 1 1 gpt_stages1 --steps "$steps" --resume --force
    stages=$pp train_gpt 1 "$dp" gpt_stages --steps "$steps" --resume --force
done
alike gpt_stages1 gpt_stages 24 1e-6 "--dp 2 --pp 2 --zero 3, then one process, then --pp 4"
rm -rf "$work/gpt_stages"
stages=2 train_gpt 2 1 gpt_stages --steps 8 --sp
alike gpt_one gpt_stages 10 1e-6 "--tp 2 --sp --pp 2"
train_gpt 1 1 gpt_many --steps 8 --resume # resumes at the last step: loads a checkpoint of the same lists
train_gpt 1 1 gpt_fp8 --steps 8 --recipe fp8_delayed
train_gpt 2 2 gpt_many --steps 8 --recipe fp8_delayed --sp
alike gpt_fp8 gpt_many 10 1e-3 "--tp 2 --dp 2 --sp in FP8" # each rank rounds its own shards; the loss falls by 7e-2
cp -r "$work/gpt_many" "$work/gpt_grid"
train_gpt 1 2 gpt_zero --steps 8 --recipe fp8_delayed --zero 2
alike gpt_fp8 gpt_zero 10 1e-3 "--dp 2 --zero 2 in FP8"
train_gpt 2 2 gpt_many --steps 12 --recipe fp8_delayed --sp --resume --force # goes on with the scales in the file
train_gpt 1 1 gpt_grid --steps 12 --recipe fp8_delayed --resume --force # so does another number of ranks
! grep -q "begin anew" "$work/log"
alike gpt_grid gpt_many 15 1e-3 "--tp 2 --dp 2 --sp in FP8, continued by one process"

# Grids continue from each other's checkpoints, with more steps each time. One process that resumes as often has the same losses.
train_gpt 1 1 gpt_one --steps 4
train_gpt 2 1 gpt_many --steps 4
for grid in "1 1 8" "1 2 12 --zero 3" "2 2 16 --sp --zero 2" "1 4 20 --zero 1" "1 1 24"; do
    read -r tp dp steps option <<<"$grid"
    train_gpt 1 1 gpt_one --steps "$steps" --resume --force
    train_gpt "$tp" "$dp" gpt_many --steps "$steps" --resume --force $option
done
alike gpt_one gpt_many 30 1e-5 "--tp 2, then 1, --dp 2 --zero 3, --tp 2 --dp 2 --sp --zero 2, --dp 4 --zero 1, 1"

# All grids generate the same sample, which is longer than the context.
sample() { sed '1,/^--- sample/d' "$work/log"; }
train_gpt 1 1 gpt_many --steps 24 --resume --sample 40
sample >"$work/sample"
for grid in "2 1" "2 2 --sp"; do
    read -r tp dp sp <<<"$grid"
    train_gpt "$tp" "$dp" gpt_many --steps 24 --resume --sample 40 $sp
    sample | cmp - "$work/sample"
    echo "train_gpt --tp $tp --dp $dp${sp:+ $sp}: the same sample"
done
stages=2 train_gpt 2 1 gpt_many --steps 24 --resume --sample 40
sample | cmp - "$work/sample"
echo "train_gpt --tp 2 --pp 2: the same sample"

# Experts: a tensor group's ranks have four each. --tp 2 has the losses of one rank, --tp 2 --dp 2 those of --dp 2, because
# each replica balances its own tokens. Grids continue from each other's checkpoints.
train_gpt 1 1 gpt_experts --steps 8 --experts 8
train_gpt 1 2 gpt_experts2 --steps 8 --experts 8
for grid in "2 1" "2 1 --sp --zero 1" "2 2 --sp" "2 2"; do
    read -r tp dp options <<<"$grid"
    train_gpt "$tp" "$dp" gpt_many --steps 8 --experts 8 $options
    [[ $dp == 1 ]] && one=gpt_experts || one=gpt_experts2
    alike $one gpt_many 10 1e-5 "--experts 8 --tp $tp --dp $dp${options:+ $options}"
done
for grid in "1 2 12" "2 2 16 --sp"; do
    read -r tp dp steps sp <<<"$grid"
    train_gpt 1 2 gpt_experts2 --steps "$steps" --resume --force
    train_gpt "$tp" "$dp" gpt_many --steps "$steps" --resume --force $sp
done
alike gpt_experts2 gpt_many 20 1e-5 "--experts 8 --tp 2 --dp 2, then --dp 2, then --tp 2 --dp 2 --sp"
train_gpt 1 1 gpt_many --steps 16 --resume --sample 40
sample >"$work/sample"
train_gpt 2 1 gpt_many --steps 16 --resume --sample 40
sample | cmp - "$work/sample"
echo "train_gpt --experts 8 --tp 2: the same sample"

misuse() { # N TEXT ARGUMENT...
    local status=0 start=(mpirun --oversubscribe -n "$1")
    [[ $1 != 1 ]] || start=()
    timeout 60 "${start[@]}" "$work/train_gpt" --seq 16 --batch 2 --steps 1 --out "$work/gpt_many" "${@:3}" te/core \
        >"$work/log" 2>&1 || status=$?
    [[ $status == 1 ]] && grep -q -- "train_gpt: $2" "$work/log" || { echo "${*:3}: exit code $status" && cat "$work/log" && exit 1; }
    echo "train_gpt on $1: $2"
}
misuse 1 "--tp 3: this program is for 1 or 2; compile it with -DGPT_RANKS=3" --tp 3
misuse 1 "--tp must divide the heads, those of k and v, and the vocabulary of --size: odd" --tp 2 --size odd
misuse 3 "--tp 2 --dp 2 wants 4 processes, and here are 3; mpirun -n 4" --tp 2 --dp 2
misuse 2 "2 processes, each a run of its own; --dp 2, or --tp N, makes them one"
misuse 1 "--tp 2 --dp 1 wants 2 processes, and here are 1; mpirun -n 2" --tp 2
misuse 1 "--sp: --tp must divide --seq" --tp 2 --sp --seq 15
misuse 1 "--cp: a process has two chunks of a sequence" --cp 2 --seq 18
misuse 1 "--tp 1 --cp 2 --dp 1 wants 2 processes, and here are 1; mpirun -n 2" --cp 2
misuse 1 "--optimizer muon takes whole matrices" --tp 2 --optimizer muon
misuse 1 "--zero must be 0, 1, 2 or 3" --zero 4
misuse 1 "--zero 3 shards weights, and GEMMs in FP8 read copies of whole weights" --zero 3 --recipe fp8_delayed
misuse 1 "--optimizer muon takes whole matrices, and with --zero 2 and 3" --zero 2 --optimizer muon
misuse 1 "--chunks: the stages of --pp have chunks of the model, and here is one" --chunks 2
misuse 1 "--pp 3 --chunks 2: at least a layer for each chunk, and --size odd has 5" --pp 3 --chunks 2 --size odd
misuse 1 "--recipe: with --pp the stages have other GEMMs" --pp 2 --recipe fp8_delayed
misuse 1 "--sums: with --pp gradients are summed in f32" --pp 2 --sums bf16
misuse 1 "--tp 1 --pp 2 --dp 1 wants 2 processes, and here are 1; mpirun -n 2" --pp 2
misuse 1 "--experts 6: this program has lists for 8; compile it with -DGPT_EXPERTS=6" --tp 2 --experts 6

# One layer, parallelised in seven ways on 4 ranks.
timeout 120 mpirun --oversubscribe -n 4 "$work/performance" >"$work/log" || { cat "$work/log" && exit 1; }
[[ $(grep -c "apart, within the" "$work/log") == 7 ]] || { cat "$work/log" && exit 1; }
echo "examples/performance: seven ways, the same numbers"

progress 25 "sharded optimizer states, checkpoints for other numbers of ranks"
# Optimizer states and the vocabulary.
shards() { # N ARGUMENT...
    timeout 120 mpirun --oversubscribe -n "$1" "$work/shards" "${@:2}"
}
checked() {
    shards "$@" >"$work/log" || { cat "$work/log" && exit 1; }
    cat "$work/log"
}
for grid in "2 1" "3 1" "4 2"; do
    read -r n tensor <<<"$grid"
    checked "$n" states "$tensor" "$work/states"
done
for n in 2 3 4; do checked "$n" vocabulary; done
for grid in "1 1" "3 1" "4 2"; do
    read -r n tensor <<<"$grid"
    checked "$n" scales "$tensor" "$work/scales"
done
checked 2 refuse

# N, tensor ranks and whether states are sharded, of a run that saves a checkpoint after 10 steps and of one that continues from it.
# All 20 losses are compared with those of one rank and, if both grids are the same, with those of a run that was not interrupted.
shards 1 train 1 0 0 20 - - >"$work/one"
for grids in "4 2 1  1 1 0" "1 1 0  4 4 1" "4 4 1  2 2 0" "2 2 0  4 1 1" "4 2 1  4 2 1"; do
    read -r n tensor own m other others <<<"$grids"
    shards "$n" train "$tensor" "$own" 0 10 - "$work/run" >"$work/many"
    shards "$m" train "$other" "$others" 10 20 "$work/run" - >>"$work/many"
    paste "$work/one" "$work/many" | awk -v grids="$grids" '
        { off = ($2 - $4) / $2; off = off < 0 ? -off : off; max = off > max ? off : max }
        off > 1e-5 { print grids ": step " $1 " is " $4 ", on one rank " $2; bad = 1 }
        END { print "checkpoint, " grids ": " NR " losses, " max " off at most"; exit bad || NR != 20 }'
done
shards 4 train 2 1 0 20 - - | cmp - "$work/many"
echo "and the same bits as a run that was not interrupted"
for grid in "1 1 0" "3 1 1"; do
    read -r n tensor own <<<"$grid"
    shards "$n" train "$tensor" "$own" 10 10 "$work/run" "$work/again"
    cmp "$work/run" "$work/again"
    echo "checkpoint, 4 2 1  $grid: saved again it is the same file"
done

progress 15 "ranks that stop or are killed"
# If a rank stops or is killed, each of the others must soon return an error that names its rank and group.
fails() { # WHAT TEXT PROGRAM ARGUMENT...: with --enable-recovery mpirun does not end the other ranks
    local start=$SECONDS
    : >"$work/log" # empties the log of the last run here, because the background shell may not have done it when the log is read
    mkdir -p "$work/mpi" # a run that is killed removes the folder of its sockets
    TMPDIR=$work/mpi timeout 60 mpirun --enable-recovery --oversubscribe -n 3 "$work/$3" "${@:4}" >"$work/log" 2>"$work/err" &
    local child=$!
    until [[ $(grep -c "$2" "$work/log") == 2 ]] || ! kill -0 $child 2>/dev/null; do sleep 0.1; done
    local took=$((SECONDS - start))
    kill $child 2>/dev/null || true
    wait $child 2>/dev/null || true
    if [[ $(grep -c "$2" "$work/log") != 2 || $took -gt 20 ]]; then
        echo "${*:3}: after $took s:"
        cat "$work/log" "$work/err"
        exit 1
    fi
    echo "a rank $1: the others say so after $took s"
}
fails stops "all_reduce of the world group, rank [02] of 3: another rank has not come within 2 seconds" ranks stall 2
fails "does not come at all" "all_reduce of the world group, rank [02] of 3: another rank has not come within 2 seconds" ranks absent 2
fails "is killed" "all_reduce of the world group, rank [02] of 3" ranks leave 2
fails "stops within a pipeline" "exchange with rank 1 of the pipeline group, rank [02] of 3: another rank has not come within 2 seconds" pipeline stall
fails "leaves a pipeline" "exchange with rank 1 of the pipeline group, rank [02] of 3" pipeline leave
export RANKS_TIMEOUT=2
fails "ends within a backward" "all_reduce of the data group, rank [01] of 3" buckets leave
fails "ends between steps with sharded weights" "all_gather of the data group, rank [01] of 3" fsdp leave
