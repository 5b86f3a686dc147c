#!/usr/bin/env bash
# Tests on a GPU, without Bazel: builds every CUDA test, example and bench with plain nvcc, runs them, compares the GPU's losses with
# the CPU's, and runs the sanitizers. Ends with `N passed, N failed, N skipped`: a run that reached its time limit or found no GPU
# counts as skipped.
#
#     tools/gpu.sh [section...]      one or more of: build tests losses sanitizer bench; or
#     tools/gpu.sh each              runs each test as soon as it is built, largest first, so that a run that is cut short has some results
#     ONLY=REGEX                     only these tests, in the sections tests and each
#     CATCH2=FOLDER                  the folder of catch2/catch.hpp, if it is not installed
#     OUT=FOLDER                     for logs (default build/gpu)
#     QUICK=1                        builds tests of many lists as Bazel does (TE_KEEP_CALLS): in a third of the time, without fused GEMMs
#     TEST_SECONDS=180               time limit of each test in the section each
#     SANITIZER=REGEX                only these runs of the sanitizers
#     SANITIZER_SECONDS=300          time limit of each of them
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build/gpu} bin=${BIN:-build/gpu/bin} catch2=${CATCH2:+-isystem $CATCH2}
arch=${ARCH:-90a} jobs=${JOBS:-$(nproc)}
source tools/progress.sh
mkdir -p "$out" "$bin"
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
passed=0 failed=0 skipped=0
result() { # STATUS NAME: 0 passed, 77 skipped, any other failed
    case $1 in
        0) passed=$((passed + 1)) && progress_part "ok     $2" ;;
        77) skipped=$((skipped + 1)) && progress_part "SKIP   $2" ;;
        *) failed=$((failed + 1)) && progress_part "FAIL $1 $2" ;;
    esac
}
compile() { # NAME OBJECT OPTION... SOURCE
    local name=$1 object=$2
    shift 2
    # shellcheck disable=SC2086
    nvcc -std=c++17 -O3 -lineinfo -gencode "arch=compute_$arch,code=sm_$arch" -I. $catch2 -x cu -c "$@" -o "$bin/$name.o" &&
        nvcc "$bin/$name.o" ${object:+"$bin/$object.o"} -o "$bin/$name" -lcublasLt
} # options and source have no spaces in them
build_one() {
    local quick=
    [[ ${QUICK:-0} == 1 && $1 =~ ^(ops|patterns|plan|errors|recompute|widths|formats|recipe|misuse)_ ]] && quick=-DTE_KEEP_CALLS
    # shellcheck disable=SC2086
    compile $1 "${2/-/}" $quick $3 >"$out/$1.build" 2>&1 || echo "FAIL build: $1, see $out/$1.build"
}

# catch_main.o, which every test is linked with: the main function and the references.
build_support() {
    local sources=(numbers reference bounds attention_reference) source
    # shellcheck disable=SC2086
    g++ -O0 -std=c++17 $catch2 -c tests/catch_main.cc -o "$bin/main.o" &
    for source in "${sources[@]}"; do g++ -O3 -std=c++17 -I. -c "tests/$source.cc" -o "$bin/$source.o" & done
    wait
    (cd "$bin" && ld -r main.o "${sources[@]/%/.o}" -o catch_main.o)
}

section_build() {
    local test
    build_support
    gcc -std=c11 -O3 -march=native -fopenmp -I. examples/train_gpt/train_gpt.c -o "$bin/train_host" -lm &
    {
        for test in tests/*_test.cc; do echo "$(basename "$test" .cc) catch_main $test"; done
        printf '%s\n' "train_bf16 - examples/train_gpt/train_gpt.c" "train_f32 - -DGPT_DTYPE=f32 examples/train_gpt/train_gpt.c" \
            "attention_race catch_main -DTE_RACECHECK tests/attention_test.cc" "custom_op - examples/custom_op/custom_op.c" "readme - examples/readme/readme.c" "block - bench/block.cu" "fp8 - bench/fp8.cu" "kernels - bench/kernels.cu" "gaps - bench/gaps.cu"
    } | xargs -P "$jobs" -L 1 bash -c 'build_one "$0" "$1" "${*:2}"'
    gcc -std=c11 -O2 -I. -c examples/embed/main.c -o "$bin/embed_main.o" &&
        nvcc -std=c++17 -O3 -gencode "arch=compute_$arch,code=sm_$arch" -I. examples/embed/model.cu "$bin/embed_main.o" -o "$bin/embed" -lcublasLt
    wait
    {
        printf '#include "te/te.h"\n#define DROPOUT(name) (dropout, name, 0.1f),\n#define CONTEXT\n'
        grep -h -e '^#define GPT_KV(HEADS) (HEADS)' -e '^#define GPT_QKV' examples/train_gpt/train_gpt.c
        sed -n '/^\/\* \[block\]/,/^\/\* \[block\]/p' examples/train_gpt/train_gpt.c
    } >"$bin/gpt_block.cu"
    echo 'TE_SEQUENTIAL(block, bf16, GPT_BLOCK(768, 12))
int main(void) { return !(block_plan()->op_count && block_forward_steps && block_backward_steps); }' >>"$bin/gpt_block.cu"
    local t0=$SECONDS
    nvcc -std=c++17 -O3 -gencode "arch=compute_$arch,code=sm_$arch" -I. -c "$bin/gpt_block.cu" -o "$bin/gpt_block.o"
    result $((SECONDS - t0 >= 60)) "one GPT block compiles in $((SECONDS - t0)) s, object $(($(stat -c %s "$bin/gpt_block.o") / 1024)) KiB"
    local n=0
    for test in tests/*_test.cc; do [[ -x $bin/$(basename "$test" .cc) ]] || n=$((n + 1)); done
    result "$n" "build"
}
export -f compile build_one
export arch bin catch2 out

run_one() { # NAME SECONDS
    local status
    timeout "$2" "$bin/$1" >"$out/$1.log" 2>&1
    status=$?
    echo "$status $1: $(tail -n 3 "$out/$1.log" | tr -s '\n=' ' ')$([[ $status == 0 ]] || grep -m 3 -A 20 FAILED "$out/$1.log" | tr -s '\n=' ' ')"
}
export -f run_one
chosen_tests() { ls -S tests/*_test.cc | xargs -n 1 basename -s .cc | grep -E "${ONLY:-.}"; }
each_one() { # NAME
    build_one "$1" catch_main "tests/$1.cc"
    [[ -x $bin/$1 ]] && run_one "$1" "${TEST_SECONDS:-180}" || echo "1 $1: not built, see $out/$1.build"
}
export -f each_one
section_each() {
    local status name
    build_support
    while read -r status name; do result "$status" "$name"; done < <(chosen_tests | xargs -P "$jobs" -n 1 bash -c 'each_one "$@"' each_one)
}
section_tests() { # several at once, because a test spends most of its time in the reference on the CPU
    local test status name
    while read -r status name; do result "$status" "$name"; done < <({
        for test in $(chosen_tests); do echo "$test 180"; done
        [[ -n ${ONLY:-} ]] || printf '%s 60\n' custom_op readme embed
    } | xargs -P "$(((jobs + 1) / 2))" -L 1 bash -c 'run_one "$@"' run_one)
}

# Compare the first 50 losses of the small f32 model on the GPU and the CPU; check that two runs give the same bits; train the 124M shape.
section_losses() {
    local t="--steps 50 --log 1 --validate 0 --sample 0 te"
    OMP_NUM_THREADS=${JOBS:-8} "$bin/train_host" --out "$out/host" $t >"$out/train_host.log" 2>&1
    "$bin/train_f32" --out "$out/f32" $t >"$out/train_f32.log" 2>&1
    "$bin/train_bf16" --out "$out/bf16" $t >"$out/train_bf16.log" 2>&1
    "$bin/train_bf16" --out "$out/again" $t >"$out/train_again.log" 2>&1
    paste "$out/host/curve.tsv" "$out/f32/curve.tsv" | awk 'NR > 1 { d = $2 - $4; if (d < 0) d = -d; if (d > most) most = d; n++ }
        END { printf "f32: %d losses on the GPU, at most %.6f from the CPU'"'"'s\n", n, most; exit !(n == 50 && most < 1e-3) }'
    result $? "losses"
    cmp "$out/bf16/checkpoint.safetensors" "$out/again/checkpoint.safetensors"
    result $? "the same seed gives the same bits"
    local b
    for b in 8 32; do
        "$bin/train_bf16" --size gpt2 --batch $b --seq 1024 --steps 60 --log 20 --validate 0 --sample 0 --out "$out/gpt2" te 2>&1 | tee "$out/gpt2_$b.log" | grep "step  "
        result "${PIPESTATUS[0]}" "gpt2 shape, batch $b, seq 1024"
    done
}

sanitize() { # TOOL BINARY [OPTION...]
    local name="$2${3:+ ${3%\*}}" log status
    [[ ${3-} == --* ]] && name=$2
    log=$out/$1.${name//[^a-z0-9_]/_}.log
    local quiet=() # graph_test provokes errors of the CUDA API, to test how the library handles them
    [[ $1 == memcheck && $2 == graph_test ]] && quiet=(--report-api-errors no)
    # In attention's backward racecheck understands the ordering only if it was compiled with TE_RACECHECK (attention_race).
    [[ $1 == racecheck && $2 != attention_race ]] && quiet=(--kernel-name-exclude kernel_substring=_wgmma)
    TE_BRIEF=1 timeout "${SANITIZER_SECONDS:-300}" compute-sanitizer --tool "$1" "${quiet[@]}" --error-exitcode 9 "$bin/$2" "${@:3}" >"$log" 2>&1
    status=$?
    if [[ $status == 124 ]] && ! grep -qE "Invalid|hazard detected|Uninitialized" "$log"; then
        echo "77 $1 $name: stopped at the time limit of ${SANITIZER_SECONDS:-300} s; no error so far"
    else
        echo "$status $1 $name: $([[ $status == 0 ]] && grep SUMMARY "$log" | tail -n 1 || tail -n 12 "$log" | tr '\n' ' ')"
    fi
}
export -f sanitize
cases() { # TOOL BINARY: a run for each case, because all cases of a test together take ten minutes
    "$bin/$2" --list-test-names-only | sed -n "s/[,['].*//; s/..*/$1 $2 '&*'/p"
}
section_sanitizer() { # several runs at once, because they need the CPU more than the GPU
    local train="--steps 2 --log 1 --validate 0 --sample 0 --batch 2 te" tool status name
    for tool in memcheck racecheck; do
        for name in quantize patterns_forward_f16 patterns_backward_f16 ops_bf16 recompute_long graph recompute hot_path; do cases $tool ${name}_test; done
        cases $tool "$([[ $tool == memcheck ]] && echo attention_test || echo attention_race)"
        echo "$tool train_bf16 --out $out/$tool $train"
        echo "$tool gemm_tune_test 'clusters without a tile*'"
        echo "$tool gemm_tune_test 'small-m GEMMs*'"
        echo "$tool gemm_fp8_test '*FP8 GEMM* by a custom kernel'"
        echo "$tool gemm_fp8_test '*as one kernel'"
    done >"$out/sanitizer.list"
    cases memcheck widths_test >>"$out/sanitizer.list"
    # initcheck does not see the stores of cuBLASLt's 16-bit kernels, which use TMA, so it runs with f32.
    printf 'initcheck %s\n' attention_test patterns_forward_test patterns_backward_test ops_test "train_f32 --out $out/initcheck $train" >>"$out/sanitizer.list"
    while read -r status name; do result "$status" "$name"; done < <(grep -E "${SANITIZER:-.}" "$out/sanitizer.list" | xargs -P "$jobs" -L 1 bash -c 'sanitize "$@"' sanitize)
}

section_bench() {
    local name
    for name in kernels block gaps fp8; do
        "$bin/$name" "$out/$name.tsv" "${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null)}" >"$out/$name.txt"
        result $? "$name: $(tail -n 1 "$out/$name.txt")"
    done
}

sections=("$@")
[[ $# == 0 ]] && sections=(build tests losses sanitizer bench)
# What a section takes on 16 cores, in seconds, and how many results it has.
declare -A usual=([build]=900 [tests]=300 [each]=900 [losses]=120 [sanitizer]=900 [bench]=300)
results_of() { # SECTION
    case $1 in
        build) echo 2 ;;
        tests | each) chosen_tests | wc -l ;;
        losses | bench) echo 4 ;;
        sanitizer) [[ -s $out/sanitizer.list ]] && grep -cE "${SANITIZER:-.}" "$out/sanitizer.list" || echo 100 ;;
    esac
}
all=0
for section in "${sections[@]}"; do all=$((all + ${usual[$section]:-60})); done
progress_total $all
for section in "${sections[@]}"; do
    echo "=== $section"
    start=$SECONDS progress_begun=$progress_done
    progress_parts "${usual[$section]:-60}" "$(results_of "$section")"
    "section_$section"
    progress_done=$((progress_begun + ${usual[$section]:-60}))
    echo "($((SECONDS - start)) s)"
done
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed == 0 ]]
