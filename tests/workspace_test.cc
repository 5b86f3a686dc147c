// workspace_test.cc -- a workspace that is large enough for some rows is large enough for fewer, whatever kernels those take.
#include "harness.h"
#include "te/te.h"

#define GPT(name, ...) MODEL(name, (__VA_ARGS__), TE_GPT_BLOCK(b, 64, 256, 1, 0.1f))
GPT(gpt, bf16)
GPT(gpt_f32, f32)
GPT(delayed, bf16, (recipe, fp8_delayed))
GPT(by_chance, bf16, (recipe, fp8_current), (rounding, stochastic))
GPT(tiled, f16, (recipe, fp8_block))
GPT(by_row, bf16, (recipe, fp8_row))
MODEL(llama, (bf16, (recipe, fp8_delayed), (inputs, kept)), TE_LLAMA_BLOCK(b, 128, 256, 2, 1, 64, 500000.0f))
MODEL(spans, bf16, (recompute, r), (rmsnorm, n, 64), (linear, up, 64, 512), (swiglu, s), (end_recompute, r), (linear, down, 256, 64))

TEST_CASE("a workspace for so many rows is enough for fewer", "[workspace]") {
    context own;
    for (const subject *s : {&gpt_subject, &gpt_f32_subject, &delayed_subject, &by_chance_subject, &tiled_subject, &by_row_subject, &llama_subject, &spans_subject})
        for (const int own_products : {0, 1, 2}) {
            own.c.gemm_own = own_products;
            instance m(*s, &own.c);
            size_t most = 0;
            int most_rows = 0, rows = 0;
            for (int i = 0; i < 400; i++) {
                rows += rows < 300 ? 1 : 37; // then all remainders of what products come in multiples of
                const size_t bytes = m.s.workspace_bytes(m.memory.data(), rows, &own.c);
                CAPTURE(s->plan()->name, own_products, rows, most_rows);
                REQUIRE(bytes > 0);
                if (bytes < most) CHECK(bytes >= most);
                if (bytes > most) most = bytes, most_rows = rows;
            }
        }
}
