// workspace_test.cc -- a workspace of the size for some number of rows is large enough for any smaller number, although that may use other
// kernels and another layout of the workspace.
#include "recipe.h"
#include "te/te.h"

#define GPT(name, ...) MODEL(name, (__VA_ARGS__), TE_GPT_BLOCK(b, 64, 256, 1, 0.1f))
GPT(gpt, bf16)
GPT(gpt_f32, f32)
GPT(delayed, bf16, (recipe, fp8_delayed))
GPT(stochastic, bf16, (recipe, fp8_current), (rounding, stochastic))
GPT(blockwise, f16, (recipe, fp8_block))
GPT(by_row, bf16, (recipe, fp8_row))
MODEL(llama, (bf16, (recipe, fp8_delayed), (inputs, saved)), TE_LLAMA_BLOCK(b, 128, 256, 2, 1, 64, 500000.0f))
MODEL(recomputes, bf16, (recompute, r), (rmsnorm, n, 64), (linear, up, 64, 512), (swiglu, s), (end_recompute, r), (linear, down, 256, 64))

namespace {
const subject *const lists[] = {&gpt_subject, &gpt_f32_subject, &delayed_subject, &stochastic_subject, &blockwise_subject, &by_row_subject, &llama_subject, &recomputes_subject};

// Runs all three passes on `rows` rows, in a workspace and buffers for more rows.
void check_rows(instance &m, int rows, const buffer &x, const buffer &y, const buffer &dx, te_saved *saved) {
    const te_plan *p = m.plan;
    const te_tensor tx = te_matrix(x.data(), p->in_dtype, rows, p->in), ty = te_matrix(y.data(), p->out_dtype, rows, p->out);
    const te_tensor tdx = te_matrix(dx.data(), p->in_dtype, rows, p->in);
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = rows;
    const auto check = [&](te_status s) { CAPTURE(p->name, m.ctx->gemm_custom, rows, m.ctx->error); REQUIRE(s == TE_OK); };
    check(m.s.infer(ty, tx, m.memory.data(), &batch, m.ctx));
    check(m.s.forward(ty, saved, tx, m.memory.data(), &batch, m.ctx));
    check(m.s.backward(tdx, ty, saved, m.memory.data(), &batch, m.ctx));
}
} // namespace

TEST_CASE("a workspace for a number of rows is enough for fewer", "[workspace]") {
    const unsigned seed = fresh_seed();
    CAPTURE(seed);
    context ctx_owner;
    source random(seed);
    set_rng(&ctx_owner.c, 5, 0);
    for (const subject *s : lists)
        for (const int custom_gemms : {0, 1, 2})
            for (const int max_rows : {130, 522, 3815}) {
                if (!TE_CUDA && (custom_gemms || max_rows > 522)) continue; // the host has one kernel for each step
                ctx_owner.c.gemm_custom = custom_gemms;
                instance m(*s, &ctx_owner.c);
                m.draw(random);
                te_model *models[1] = {m.model()};
                const te_recipes_config config = te_recipes_defaults();
                const size_t rows = (size_t)max_rows, saved_bytes = std::max(s->saved_bytes(max_rows), te_plan_saved_bytes_without_recipe(m.plan, max_rows));
                buffer scales(&ctx_owner.c, m.plan->fp8 ? te_recipes_bytes(models, 1, &config) : 1);
                te_recipes state;
                if (m.plan->fp8) REQUIRE(te_recipes_init(&state, scales.data(), scales.bytes, models, 1, &config, &ctx_owner.c) == TE_OK);
                buffer workspace(&ctx_owner.c, s->workspace_bytes(m.memory.data(), max_rows, &ctx_owner.c)), saved_tensors(&ctx_owner.c, saved_bytes);
                buffer x(&ctx_owner.c, rows * (size_t)m.plan->in * 4), y(&ctx_owner.c, rows * (size_t)m.plan->out * 4), dx(&ctx_owner.c, x.bytes);
                x.write(random.draw(rows * (size_t)m.plan->in, m.plan->in_dtype), m.plan->in_dtype);
                ctx_owner.c.workspace = workspace.data(), ctx_owner.c.workspace_bytes = workspace.bytes;
                te_saved saved;
                memset(&saved, 0, sizeof saved);
                saved.memory = saved_tensors.data(), saved.bytes = saved_tensors.bytes;
                std::vector<int> some = {max_rows, 1, 2, 8, 9, 64, 128, 129, 411};
                for (int i = 0; i < (TE_CUDA ? 60 : 4); i++) some.push_back(1 + (int)(random.draw(1, TE_f32, 0.5, 0.25)[0] * max_rows));
                for (const int n : some)
                    if (n >= 1 && n <= max_rows) check_rows(m, n, x, y, dx, &saved);
                REQUIRE(te_synchronize(&ctx_owner.c) == TE_OK);
                CHECK(workspace.raw().size() == workspace.bytes); // raw() checks its guard
                ctx_owner.c.workspace = nullptr, ctx_owner.c.workspace_bytes = 0;
            }
}

TEST_CASE("a workspace that is too small is refused with the size that the call needs", "[workspace]") {
    context ctx_owner;
    instance m(gpt_subject, &ctx_owner.c);
    const size_t bytes = gpt_workspace_bytes((const gpt *)m.memory.data(), 1024, &ctx_owner.c);
    buffer workspace(&ctx_owner.c, bytes / 2), x(&ctx_owner.c, 1024 * 64 * 2), y(&ctx_owner.c, 1024 * 64 * 2), dx(&ctx_owner.c, 1024 * 64 * 2);
    ctx_owner.c.workspace = workspace.data(), ctx_owner.c.workspace_bytes = workspace.bytes;
    te_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.batch = 1, batch.seq = 1024;
    te_saved saved;
    memset(&saved, 0, sizeof saved);
    buffer saved_tensors(&ctx_owner.c, gpt_saved_bytes(1024));
    saved.memory = saved_tensors.data(), saved.bytes = saved_tensors.bytes;
    const te_tensor tx = te_matrix(x.data(), TE_bf16, 1024, 64), ty = te_matrix(y.data(), TE_bf16, 1024, 64), tdx = te_matrix(dx.data(), TE_bf16, 1024, 64);
    const te_status forward = gpt_forward(ty, &saved, tx, (const gpt *)m.memory.data(), &batch, &ctx_owner.c);
    const te_status backward = forward == TE_OK ? gpt_backward(tdx, ty, &saved, (const gpt *)m.memory.data(), &batch, &ctx_owner.c) : forward;
    CHECK(backward == TE_ERROR_MEMORY);
    CHECK_THAT(ctx_owner.c.error, Catch::Contains("1024 rows need") && Catch::Contains("of workspace, the context has " + std::to_string(workspace.bytes)));
    ctx_owner.c.workspace = nullptr, ctx_owner.c.workspace_bytes = 0;
}
