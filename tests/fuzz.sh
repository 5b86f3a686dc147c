#!/usr/bin/env bash
# Randomly changed files must not cause a crash or a read out of bounds, and no damaged checkpoint may be accepted. Each target runs for
# a few seconds; for a search, pass a larger number. Checkpoints, saved caches and files of FP8 weights are changed with a new checksum,
# too.
#
#     tests/fuzz.sh [SECONDS]              for each of tests/fuzz/*_fuzz.c (default 6); BUILD=folder to keep the inputs that it finds
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-6} build=${BUILD:-$(mktemp -d)}
[[ -n ${BUILD-} ]] || trap 'rm -rf "$build"' EXIT
mkdir -p "$build"
flags=(-std=gnu11 -g -O1 -DTE_KEEP_CALLS -I.)
sanitizers=address,undefined
echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n); int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return p && n > 9999; }' >"$build/probe.c"
fuzzer=1
"${CLANG:-clang}" -fsanitize=fuzzer "$build/probe.c" -o "$build/probe" 2>/dev/null || fuzzer=0
for source in tests/fuzz/*_fuzz.c; do
    name=$(basename "$source" .c)
    if [[ $fuzzer == 1 ]]; then
        "${CLANG:-clang}" "${flags[@]}" -fsanitize=fuzzer,$sanitizers -fno-sanitize-recover=all "$source" -o "$build/$name" -lm
        mkdir -p "$build/$name.corpus"
        "$build/$name" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
            -artifact_prefix="$build/" "$build/$name.corpus" >"$build/$name.log" 2>&1 || { tail -n 40 "$build/$name.log" && exit 1; }
        inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
    else # without libFuzzer: random inputs
        "${CC:-gcc}" "${flags[@]}" -fsanitize=$sanitizers -fno-sanitize-recover=all "$source" tests/fuzz/main.c -o "$build/$name" -lm
        "$build/$name" "$seconds" >"$build/$name.log" 2>&1 || { tail -n 40 "$build/$name.log" && exit 1; }
        inputs=$(sed -n 's/ inputs$//p' "$build/$name.log")
    fi
    echo "$name: $inputs inputs in $seconds s, none crashed"
done
