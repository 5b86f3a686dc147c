#!/usr/bin/env bash
# Measures how long lists take to compile: each ready-made list of te/layers.h, at the sizes of a published model and alone in a file, by nvcc -O3
# for one architecture. Prints the compiler's user time in seconds (the shorter of two runs; other work on the machine hardly changes user
# time) and the bytes of the object. Needs no GPU.
#
#     bench/compile.sh [compile.tsv]     ARCH=90a  NVCC=nvcc
set -euo pipefail
cd "$(dirname "$0")/.."
tsv=${1:-/dev/stdout} nvcc=${NVCC:-nvcc} arch=${ARCH:-90a}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Each line is DTYPE LIST...; with `infer` in front, only the inference pass is compiled (TE_INFERENCE).
lists() {
    cat <<'LISTS'
bf16 TE_LAYERNORM_LINEAR(b, 4096, 12288)
bf16 TE_LAYERNORM_MLP(b, gelu, 4096, 16384)
bf16 TE_RMSNORM_GATED_MLP(b, swiglu, 4096, 14336)
bf16 TE_TRANSFORMER_LAYER(b, layernorm, gelu, 4096, 16384, 32, 32, 128, 0.1f)
bf16 TE_TRANSFORMER_LAYER_ROPE_GATED_NO_BIAS(b, rmsnorm, swiglu, 4096, 14336, 32, 8, 128, 0.1f)
bf16 TE_GPT_BLOCK(b, 768, 3072, 12, 0.1f)
(bf16, (recipe, fp8_delayed)) TE_GPT_BLOCK(b, 768, 3072, 12, 0.1f)
(bf16, (recipe, fp8_current)) TE_GPT_BLOCK(b, 768, 3072, 12, 0.1f)
(bf16, (recipe, fp8_block)) TE_GPT_BLOCK(b, 768, 3072, 12, 0.1f)
(bf16, (recipe, fp8_row)) TE_GPT_BLOCK(b, 768, 3072, 12, 0.1f)
infer bf16 TE_GPT_BLOCK(b, 768, 3072, 12, 0.1f)
infer (bf16, (recipe, fp8_row)) TE_GPT_BLOCK(b, 768, 3072, 12, 0.1f)
bf16 TE_LLAMA_BLOCK(b, 4096, 14336, 32, 8, 128, 500000.0f)
infer bf16 TE_LLAMA_BLOCK(b, 4096, 14336, 32, 8, 128, 500000.0f)
bf16 TE_LLAMA31_BLOCK(b, 4096, 14336, 32, 8, 128, (base, 500000.0f), (scaling, llama3), (factor, 8), (original_length, 8192))
bf16 TE_QWEN2_BLOCK(b, 3584, 18944, 28, 4, 128, 1000000.0f)
bf16 TE_QWEN3_BLOCK(b, 4096, 12288, 32, 8, 128, 1000000.0f)
bf16 TE_GEMMA2_BLOCK(b, 3584, 14336, 16, 8, 256, 0.0625f, 4095)
bf16 TE_GPTJ_BLOCK(b, 4096, 16384, 16, 64)
bf16 TE_VIT_BLOCK(b, 1024, 4096, 16)
bf16 (input, enc, 1024, (rows, memory)), TE_T5_DECODER_BLOCK(b, 1024, 4096, 16, 64, 0.1f, 1024, enc)
LISTS
}

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
{
    echo "# $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/nvcc \1/p') -O3 for sm_$arch, commit $commit"
    printf 'list\tdtype\tpass\tseconds\tbytes\n'
} >"$tsv"
TIMEFORMAT=%U
lists | while IFS= read -r line; do
    pass=all make=TE_SEQUENTIAL headers='#include "te/te.h"'
    if [[ $line == infer\ * ]]; then
        pass=inference make=TE_INFERENCE line=${line#infer }
        headers='#include "te/infer.h"'
        [[ $line != *recipe* ]] || headers+=$'\n''#include "te/optim/recipes.h"'
    fi
    if [[ $line == \(bf16* ]]; then dtype="${line%%)) *}))"; else dtype=${line%% *}; fi
    list=${line#"$dtype "}
    printf '%s\n%s(list, %s, %s)\nconst te_plan *plan(void) { return list_plan(); }\n' "$headers" "$make" "$dtype" "$list" >"$work/list.cu"
    seconds=$(for _ in 1 2; do
        rm -f "$work/list.o"
        { time "$nvcc" -std=c++17 -O3 -gencode "arch=compute_$arch,code=sm_$arch" -I. -c "$work/list.cu" -o "$work/list.o" 2>"$work/log"; } 2>&1
        [[ -s $work/list.o ]] || { cat "$work/log" >&2 && exit 1; }
    done | sort -n | head -1)
    printf '%s\t%s\t%s\t%s\t%s\n' "$list" "$dtype" "$pass" "$seconds" "$(stat -c %s "$work/list.o")" | tee -a "$tsv" >&2
done
