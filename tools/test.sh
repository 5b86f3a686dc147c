#!/usr/bin/env bash
# Runs all tests that need no GPU and, where there is a GPU, the CUDA tests. Ends with `N passed, N failed`.
#
#     tools/test.sh [section...]      one or more of: fail headers asan clang gcc scripts aarch64 cuda gpu
#     tools/test.sh quick             whether the library works here, within four minutes (tools/quick.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1-} == quick ]]; then exec tools/quick.sh; fi
source tools/progress.sh
log=$(mktemp) output=$(mktemp)
trap 'rm -f "$log" "$output"' EXIT

# Each section prints what it does; its last line is `N passed, N failed`.
section_fail() { tests/fail/run.sh; }
section_headers() { tests/compile/check_headers.sh; }
section_asan() { bazel_test --config=asan; }
section_clang() { bazel_test --config=clang; }
section_gcc() { bazel_test --build_tag_filters=-cuda; } # and the examples and benches, for the host
section_scripts() { # two at a time; comm.sh and hosts.sh run by themselves, because their ranks have time limits
    local n=0 bad=0 name work long_scripts=(tests/{generate_models,install,warnings,train_gpt,embed_models,dispatch,docs}.sh)
    work=$(mktemp -d)
    one_script() { # FOLDER SCRIPT...
        local name start=$SECONDS
        name=$(basename "$2")
        "${@:2}" >"$1/$name.log" 2>&1 || touch "$1/$name.failed"
        echo "$((SECONDS - start)) s" >>"$1/$name.log"
    }
    export -f one_script
    {
        # the longest first, so that none of them runs last, beside an idle core
        printf '%s\n' "${long_scripts[@]}"
        find tests -maxdepth 1 -name '*.sh' ! -name comm.sh ! -name hosts.sh | grep -vxFf <(printf '%s\n' "${long_scripts[@]}") | sort
        echo "tools/readme.py --check"
    } | xargs -P 2 -L 1 bash -c 'one_script "$0" "$@"' "$work"
    one_script "$work" tests/comm.sh
    one_script "$work" tests/hosts.sh
    for script in "$work"/*.log; do
        name=$(basename "$script" .log)
        echo "--- $name"
        cat "$script"
        n=$((n + 1))
        if [[ -e $work/$name.failed ]]; then bad=$((bad + 1)) && echo "FAILED: $name"; fi
    done
    rm -rf "$work"
    echo "$((n - bad)) passed, $bad failed"
}
section_aarch64() { tools/aarch64.sh; }
section_gpu() { bazel_test --config=gpu; }
# Checks that all tests, examples and benches compile with nvcc (--config=quick in .bazelrc). Tests of lists are compiled only to PTX, and not linked.
# A compile takes at most 3.5 GB (see _MANY_MODELS_CUDA in tools/bazel/te.bzl); as many run at once as there are 6 GB of memory for each.
section_cuda() {
    run_bazel build --config=quick --jobs="$(awk '/^MemTotal/ { n = int($2 / 6e6); print n < 1 ? 1 : n }' /proc/meminfo)" --build_tag_filters=cuda,-whole
    count '^Target //.*_objects up-to-date' '^Target //.*_objects failed to build'
}

bazel_test() { # OPTION...
    run_bazel test "$@"
    count '^//.* PASSED|^Target //(examples|bench):.* up-to-date' \
        '^//.* (FAILED|TIMEOUT|NO STATUS|FLAKY)|^Target //(examples|bench):.* failed to build'
}
run_bazel() { # COMMAND OPTION...
    status=0
    bazel "$1" --keep_going --curses=no --show_progress_rate_limit=30 --color=no --show_result=10000 "${@:2}" //... 2>&1 | tee "$log" || status=$?
}
count() { # PASS FAIL: count the log's lines that match these patterns; if Bazel failed for another reason, that is one failure
    local pass fail
    pass=$(grep -cE "$1" "$log" || true)
    fail=$(grep -cE "$2" "$log" || true)
    [[ $status == 0 || $fail != 0 ]] || fail=1
    echo "$pass passed, $fail failed"
}

tools/setup.sh
# What a section does, and what it takes on two cores, in seconds.
declare -A about=(
    [fail]="lists that must not compile" [headers]="each header alone" [asan]="the host tests by clang with sanitizers"
    [clang]="the host tests by clang" [gcc]="the host tests by gcc" [scripts]="the scripts of tests/"
    [aarch64]="tests for 64-bit ARM, under emulation" [cuda]="all CUDA code by nvcc"
    [gpu]="the tests on this GPU")
declare -A usual=([fail]=70 [headers]=60 [asan]=660 [clang]=500 [gcc]=660 [scripts]=650 [aarch64]=70 [cuda]=470 [gpu]=600)
sections=("$@")
if [[ $# == 0 ]]; then
    sections=(fail headers asan gcc scripts aarch64 cuda) # asan is compiled by clang
    nvidia-smi -L >/dev/null 2>&1 && sections+=(gpu)
fi

# The lines of a log about failures. They are repeated at the end, because the log of all sections is long.
failures() { grep -E -A 12 '^FAIL|^//.* (FAILED|TIMEOUT|NO STATUS|FLAKY)|: FAILED:|failed to build|\<error:' "$1" | head -n 60; }

all=0
for section in "${sections[@]}"; do all=$((all + ${usual[$section]:-60})); done
progress_total $all
passed=0 failed=0 summary=() reasons=()
for section in "${sections[@]}"; do
    echo "=== $section"
    progress "${usual[$section]:-60}" "section $section: ${about[$section]-}"
    start=$SECONDS
    "section_$section" | tee "$output" || true
    result=$(tail -n 1 "$output")
    if [[ $result =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    else
        result="did not finish" failed=$((failed + 1))
    fi
    [[ $result == *" 0 failed" ]] || reasons+=("=== of $section" "$(failures "$output" || true)")
    summary+=("$(printf '%-8s %5d s  %s' "$section" $((SECONDS - start)) "$result")")
done
printf '%s\n' "${reasons[@]}" "===" "${summary[@]}"
echo "$passed passed, $failed failed"
[[ $failed == 0 ]]
