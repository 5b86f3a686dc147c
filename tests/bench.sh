#!/usr/bin/env bash
# The numbers that the benches publish. bench/flops.h must count the same operations as a loop over queries, keys and columns, without the
# scores that the mask hides. bench/report.py must make its tables and pictures from bench/results, with attention as a point of the roofline.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/flops.c" <<'C'
#include "bench/flops.h"

enum { BATCH = 3, SEQ = 37, OUT = 24 };
#define HEADS 4
#define KV 2
#define D 8
#define V 5
TE_SEQUENTIAL(m, f32, (bias, b, (HEADS + KV) * D + KV * V), (attention, a, HEADS, KV, D, (value_dim, V)), (linear, l, HEADS * V, OUT), (layernorm, n, OUT))

/* Counts the multiplications and additions of attention's products, over `columns` columns of each head, one by one. */
static double attention(int left, int right, int columns) {
    double count = 0;
    for (int row = 0; row < BATCH * HEADS; row++)
        for (int query = 0; query < SEQ; query++)
            for (int key = 0; key < SEQ; key++)
                for (int column = 0; column < columns && (left < 0 || key >= query - left) && (right < 0 || key <= query + right); column++) count += 2;
    return count;
}
static int wrong;
static void same(const char *what, double got, double expected) {
    if (fabs(got - expected) > 1e-9 * expected) printf("FAIL %s: %.1f, not %.1f\n", what, got, expected), wrong++;
}
int main(void) {
    const te_plan *p = m_plan();
    te_batch batch;
    int attentions = 0;
    memset(&batch, 0, sizeof batch);
    batch.batch = BATCH, batch.seq = SEQ;
    same("full", bench_attention_flops(BATCH, SEQ, HEADS, D + V, -1, -1), attention(-1, -1, D + V));
    same("causal", bench_attention_flops(BATCH, SEQ, HEADS, D + V, -1, 0), attention(-1, 0, D + V));
    same("window", bench_attention_flops(BATCH, SEQ, HEADS, D + V, 5, 9), attention(5, 9, D + V));
    for (int pass = 0; pass < 3; pass++) {
        const te_step *step = pass == TE_FORWARD ? p->forward : pass == TE_INFER ? p->infer : p->backward;
        const int count = pass == TE_FORWARD ? p->forward_count : pass == TE_INFER ? p->infer_count : p->backward_count;
        const int back = pass == TE_BACKWARD;
        for (int k = 0; k < count; k++) {
            const int begins_with_attention = !strncmp(step[k].pattern, "attention", 9), product = !strncmp(step[k].pattern, "linear", 6);
            const double expected = begins_with_attention ? attention(-1, 0, back ? 3 * D + 2 * V /* q k^T, dq, dk; dp, dv */ : D + V)
                                    : product ? (back ? 2 : 1) * 2.0 * BATCH * SEQ * HEADS * V * OUT : 0;
            same(step[k].pattern, bench_step_flops(p, &step[k], (te_pass)pass, &batch), expected);
            attentions += begins_with_attention;
        }
    }
    same("steps with attention", attentions, 3);
    return wrong;
}
C
"${CC:-cc}" -std=c11 -Wall -Wextra -pedantic -Werror -I. "$work/flops.c" -o "$work/flops" -lm
"$work/flops"
echo "flops of products and attention: as counted one by one"

calls=$(grep -rnE '\bbench_attention_flops\(' bench --include='*.[ch]' --include='*.cu' | grep -vc 'static double')
[[ $calls == 1 ]] || { echo "FAIL bench_attention_flops has $calls callers: who tells them the mask?" && exit 1; }

cp bench/results/*.tsv "$work"
head -n 2 bench/results/attention.tsv >"$work/attention.tsv"
printf 'attention_shapes\t%s\t%s\tb8_s1024_h32_kv32_d%s\t%s\t0.01\n' forward ours 128_causal 135 forward cudnn 128_causal 132.15 \
    backward ours 128_full 687.2 backward ours_free 128_full 687.2 backward flash4_deterministic 128_full 687.2 backward flash4 128_full 343.6 \
    forward ours 192_v128_full 687.2 >>"$work/attention.tsv"
python3 bench/report.py "$work" 2026-01-01 >/dev/null
for pass in forward inference backward; do
    grep -q "<title>[^<]* $pass attention[^<]*TFLOP/s</title>" "$work/roofline.svg" || { echo "FAIL roofline.svg: no attention, $pass" && exit 1; }
done
echo "report.py: $(grep -c '<title>' "$work/roofline.svg") points in the roofline, $(grep -c '<title>[^<]*attention' "$work/roofline.svg") of attention"
grep -q '| b8 s1024 h32 kv32 d128 causal | forward | 509 |  | 520 |  |  | 0.98 |  |  |' "$work/results.md" &&
    grep -q '| b8 s1024 h32 kv32 d128 full | backward | 500 | 500 |  | 1000 | 500 | 0.50 | 1.00 | 0.50 |' "$work/results.md" &&
    grep -q '| b8 s1024 h32 kv32 d192 v128 full | forward | 250 |' "$work/results.md" || { echo "FAIL report.py: attention by shape" && exit 1; }
