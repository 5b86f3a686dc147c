#!/usr/bin/env bash
# tools/gpu.sh must count a run that reached its time limit as skipped, not as passed. Tested with a fake sanitizer that never ends,
# one that finds nothing, and one that finds an error.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/tools"
cat >"$work/tools/compute-sanitizer" <<'SH'
#!/usr/bin/env bash
case $* in
    *attention_test*) exec sleep 20 ;;
    *patterns_forward_test*) echo "========= ERROR SUMMARY: 0 errors" ;;
    *) echo "========= Invalid __global__ read" && exit 9 ;;
esac
SH
chmod +x "$work/tools/compute-sanitizer"
for name in quantize patterns_forward_f16 patterns_backward_f16 ops_bf16 recompute_long graph recompute attention hot_path widths; do
    printf '#!/bin/sh\n' >"$work/bin/${name}_test" && chmod +x "$work/bin/${name}_test"
done
cp "$work/bin/attention_test" "$work/bin/attention_race"
says() { # PATTERN of the runs, closing line
    local got
    PATH="$work/tools:$PATH" BIN="$work/bin" OUT="$work/out" SANITIZER=$1 SANITIZER_SECONDS=1 \
        tools/gpu.sh sanitizer >"$work/log" || true # its exit code is 1 if a run failed
    got=$(tail -n 1 "$work/log")
    [[ $got == "$2" ]] || { echo "FAIL $1: '$got', should be '$2'" && exit 1; }
    echo "ok: $1: $got"
}
says "initcheck attention_test" "0 passed, 0 failed, 1 skipped"
says "initcheck patterns_forward_test" "1 passed, 0 failed, 0 skipped"
says "initcheck (attention|patterns_forward|ops)_test" "1 passed, 1 failed, 1 skipped"
