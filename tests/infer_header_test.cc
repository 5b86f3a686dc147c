// infer_header_test.cc -- a program that includes te/infer.h has no code for autotuning GEMMs; a call of it returns an error that says so.
#include "te/infer.h"

#include "harness.h"

TE_INFERENCE(list, f32, (linear, fc, 16, 24), (bias, b, 24), (gelu, a))

TEST_CASE("a program with te/infer.h does not autotune GEMMs", "[inference]") {
    context made;
    te_context *const ctx = &made.c;
    list m;
    buffer params(ctx, list_param_bytes()), x(ctx, 4 * 16 * 4), y(ctx, 4 * 24 * 4);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 4;
    REQUIRE(te_fill(ctx, params.data(), 0, list_param_bytes()) == TE_OK);
    REQUIRE(te_fill(ctx, x.data(), 0, 4 * 16 * 4) == TE_OK);
    REQUIRE(list_bind(&m, params.data(), ctx) == TE_OK);
    REQUIRE(te_context_reserve(ctx, list_workspace_bytes(&m, 4, ctx)) == TE_OK);
    const auto infer = [&] { return list_infer(te_matrix(y.data(), TE_f32, 4, 24), te_matrix(x.data(), TE_f32, 4, 16), &m, &batch, ctx); };
    ctx->gemm_tune = 1;
    CHECK(infer() == TE_ERROR_STATE);
    CHECK(strstr(te_last_error(ctx), "define TE_TUNE before te/infer.h") != nullptr);
    ctx->gemm_tune = 0;
    REQUIRE(infer() == TE_OK);
    for (double v : y.read(TE_f32)) CHECK(v == 0.0);
}
