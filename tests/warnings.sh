#!/usr/bin/env bash
# The code that a list expands to causes no warnings in a program with strict warnings, and with globals of many short names.
# -DTE_LIST_WARNINGS: the headers of macros are not marked as system headers, in which compilers hide warnings.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$(mktemp --suffix=.c)
trap 'rm -f "$source" "$source.cu" "$source.conversion.c"' EXIT
{
    echo '#include "te/te.h"'
    echo '#include "te/infer.h"'
    for name in {a..z} dx dy ctx saved rows dims count file batch from to half plan ops spans args grid bytes device seed params grads first o0 o1 f0 width; do
        echo "int $name;"
    done
    cat <<'C'
enum { LAYERS = 2 };
enum heads { HEADS = 4, KV = 2 };
enum sizes { SIZE = 16, VALUE = 64, WIDTH = 64, VOCABULARY = 61 };
TE_SEQUENTIAL(block, bf16, (fork, x1), (layernorm, ln1, WIDTH), (linear, qkv, WIDTH, (HEADS + 2 * KV) * 16), (rope, rot, HEADS, KV, SIZE),
              (attention, attn, HEADS, KV, SIZE, (causal, 1)), (linear, proj, WIDTH, WIDTH), (bias, proj_b, WIDTH), (dropout, drop, 0.1f), (add, x1))
TE_SEQUENTIAL(head, f32, (embedding, e, VOCABULARY, WIDTH), (positions, p, 8, WIDTH), (recompute, r), (gelu, g), (linear, l, WIDTH, 128),
              (end_recompute, r), (swiglu, s), (output, o), (input, i, WIDTH), (add, i), (last_token, t), (tied_linear, h, WIDTH, VOCABULARY), (cross_entropy, c, VOCABULARY))
TE_SEQUENTIAL_DIMS(wide, f32, (rmsnorm, n, TE_DIM(0)), (linear, l, TE_DIM(0), 2 * TE_DIM(1)), (bias, b, 2 * TE_DIM(1)), (glu, g))
TE_DECLARE(other, f16, (l2norm, n, WIDTH), (scale, s, 2.0f))
TE_DEFINE(other, f16, (l2norm, n, WIDTH), (scale, s, 2.0f))
TE_SEQUENTIAL(blocks, (bf16, (recipe, fp8_block)), (rmsnorm, ln1, WIDTH), (linear, qkv, WIDTH, (HEADS + 2 * KV) * 64), (head_norm, hn, HEADS, KV, VALUE),
              (attention, attn, HEADS, KV, VALUE, (fp8, 1)), (linear, up, HEADS * 64, 512), (swiglu, s))
TE_SEQUENTIAL(rows8, (bf16, (recipe, fp8_row)), (linear, up, WIDTH, 512), (gelu, act), (linear, down, 512, WIDTH))
TE_INFERENCE(next, f16, (linear, l, WIDTH, VOCABULARY), (sample, token, VOCABULARY))
TE_SEQUENTIAL(cross, f16, (input, mem, 2 * KV * 64, (rows, memory)), (linear, q, WIDTH, HEADS * 64), (cross_attention, ca, mem, HEADS, KV, VALUE))
int main(void) { return !block_plan() || !head_plan() || !wide_plan() || !blocks_plan() || !rows8_plan() || !cross_plan() || !next_plan(); }
C
} >"$source"
for compiler in "gcc -std=c11" "clang -std=c11" "g++ -std=c++17 -x c++" "clang++ -std=c++17 -x c++" "g++ -std=c++20 -x c++" "clang++ -std=c++20 -x c++"; do
    read -ra command <<<"$compiler -Wall -Wextra -Wshadow -Wenum-compare -pedantic -Werror -O1 -DTE_KEEP_CALLS -DTE_LIST_WARNINGS -I."
    "${command[@]}" -c "$source" -o /dev/null
    echo "${compiler% -x*}: clean"
done
# A program with -Wconversion: the headers, and the code of a list, cause none of its warnings either.
printf '%s\n' '#include "te/te.h"' '#include "bench/models.h"' 'int main(void) { return !gpt4096_plan(); }' >"$source.conversion.c"
for compiler in "gcc -std=c11" "clang -std=c11" "g++ -std=c++17 -x c++"; do
    read -ra command <<<"$compiler -Wall -Wextra -Wconversion -Werror -O1 -DTE_KEEP_CALLS -DTE_LIST_WARNINGS -I."
    "${command[@]}" -c "$source.conversion.c" -o /dev/null
    echo "${compiler% -x*} -Wconversion: clean"
done
source tests/shell/nvcc.sh
if [[ -x $nvcc ]]; then # for C++20 it warns of more than for C++17, with which check_headers.sh compiles; `half` is a type of CUDA
    grep -v '^int half;' "$source" >"$source.cu"
    "$nvcc" -std=c++20 -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas -DTE_KEEP_CALLS -gencode arch=compute_90a,code=compute_90a -I. -c "$source.cu" -o /dev/null
    echo "nvcc -std=c++20: clean"
    # without TE_KEEP_CALLS, as users compile: these lists also have the kernels of te/linear/impl/linear_epilogue.h
    printf '%s\n' '#include "te/infer.h"' 'TE_INFERENCE(inlined, bf16, (linear, qkv, 64, 256), (rope, r, 4, 2, 32), (linear, l, 256, 64))' \
        'const te_plan *plan(void) { return inlined_plan(); }' >"$source.cu"
    "$nvcc" -std=c++17 -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas -gencode arch=compute_90a,code=compute_90a -I. -c "$source.cu" -o /dev/null
    echo "nvcc -std=c++17, with all kernels: clean"
fi
# gcc inlines differently at each level, and at some levels it may fail to inline a function that is declared always_inline
for level in -Og -O1 -Os -O2; do
    for compiler in "gcc -std=c11" "g++ -std=c++17 -x c++"; do
        read -ra command <<<"$compiler -Wall -Wextra -Werror $level -I."
        "${command[@]}" -c "$source" -o /dev/null
        echo "${compiler%% *} $level: clean"
    done
done
