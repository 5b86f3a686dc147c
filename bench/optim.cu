// optim.cu -- the time of a step of each optimizer over the parameters of GPT-2's 124M shape in bf16, and its floor from bytes and flops.
// AdamW and SGD, with moments in f32, bf16 and 8 bits, are compared with a copy of as many bytes. Muon is bound by its GEMMs, whose floor
// is the peak of the tensor cores.
//
//     nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. bench/optim.cu -o optim -lcublasLt && ./optim optim.tsv COMMIT
#include "bench.h"

enum { LAYERS = 12, HIDDEN = 768, SEQ = 1024, VOCABULARY = 50304 };
static const double peak = 989.4e12; // flops a second of an H200's tensor cores, bf16, dense

// A model that has parameters but computes nothing.
struct parameters {
    std::vector<te_op> ops;
    std::vector<te_param> params;
    te_plan plan;
    te_model model;
    te_model *list[1] = {&model};
    void add(const char *kind, int64_t rows, int64_t cols) {
        te_op o;
        memset(&o, 0, sizeof o);
        o.kind = kind, o.name = kind, o.params = 1, o.op_class = rows > 1 && ops.size() > 1 ? TE_CLASS_gemm : TE_CLASS_custom; // Muon takes the linears only, not the two embedding tables
        o.param[0].field = "weight", o.param[0].rows = rows, o.param[0].cols = cols, o.param[0].init = TE_INIT_normal;
        ops.push_back(o);
    }
    parameters() {
        add("embedding", VOCABULARY, HIDDEN), add("positions", SEQ, HIDDEN);
        for (int i = 0; i < LAYERS; i++) {
            for (int k = 0; k < 4; k++) add("layernorm", 1, HIDDEN); // two gammas, two betas
            add("qkv", 3 * HIDDEN, HIDDEN), add("bias", 1, 3 * HIDDEN), add("proj", HIDDEN, HIDDEN), add("bias", 1, HIDDEN);
            add("fc1", 4 * HIDDEN, HIDDEN), add("bias", 1, 4 * HIDDEN), add("fc2", HIDDEN, 4 * HIDDEN), add("bias", 1, HIDDEN);
        }
        for (int k = 0; k < 2; k++) add("layernorm", 1, HIDDEN);
        memset(&plan, 0, sizeof plan);
        plan.name = "gpt2", plan.dtype = TE_bf16, plan.training = &te__training, plan.op = ops.data(), plan.op_count = (int)ops.size();
        params.resize(ops.size());
        te_context *ctx = &bench_ctx;
        float *grads = (float *)bench_allocate(te_plan_grad_bytes(&plan));
        bench_check(te_model_bind(&model, &plan, params.data(), (int)params.size(), bench_allocate(te_plan_param_bytes(&plan)), grads, ctx), "bind");
        bench_check(te_model_randomize(&model, 0.02f, 1, 0, ctx), "weights");
        bench_check(te_fill_normal(grads, TE_f32, te_plan_param_elements(&plan), 0, 1e-3f, 5, 0, ctx), "gradients");
    }
};

// Bytes and flops of a step, as te/optim/impl/adamw_kernels.h and te/optim/muon.h count them.
struct floor_of_step { double bytes = 0, flops = 0; };
static floor_of_step floor_of(const te_adamw *opt) {
    floor_of_step f;
    te_adamw_iter w = te_adamw_tensors(opt);
    while (te_adamw_next(&w)) {
        const double n = (double)w.param->rows * (double)w.param->cols, moment = (double)te__moments_bytes(TE_MOMENT_BLOCK, opt->moments) / TE_MOMENT_BLOCK, weight = w.master ? 14 : 8;
        const double s = (double)std::min(w.param->rows, w.param->cols), l = (double)std::max(w.param->rows, w.param->cols);
        if (w.rule == TE_RULE_adamw) f.bytes += n * (weight + 4 * moment);
        else if (w.rule == TE_RULE_sgd) f.bytes += n * (weight + 2 * moment);
        else f.bytes += n * (4 + 2 * moment + 4 + moment + 2 + weight - 2), f.flops += TE_MUON_STEPS * (4 * s * s * l + 2 * s * s * s);
    }
    return f;
}

int main(int argc, char **argv) {
    bench_open(argc, argv);
    parameters p;
    for (int rule = 0; rule < TE_RULE_COUNT; rule++)
        for (int form = 0; form < (rule == TE_RULE_muon ? 3 : 4); form++) { // form 0: all in f32; 1: moments in bf16; 2: and no f32 copy of the weights; 3: moments in 8 bits
            const size_t allocated_before = bench_memory.size();
            te_adamw opt;
            te_adamw_config config = rule == TE_RULE_sgd ? te_sgd_defaults(1e-3f, 0.9f) : rule == TE_RULE_muon ? te_muon_defaults(1e-3f) : te_adamw_defaults(1e-4f);
            config.moments = form == 3 ? TE_e4m3 : form ? TE_bf16 : TE_f32, config.no_master = form == 2;
            const size_t bytes = te_adamw_bytes_of(p.list, 1, &config);
            bench_check(te_adamw_init(&opt, bench_allocate(bytes), bytes, p.list, 1, &config, &bench_ctx), "optimizer");
            const floor_of_step f = floor_of(&opt);
            const auto step = [&](int) { bench_check(te_adamw_step(&opt, &bench_ctx), "optimizer"); };
            bench_result r = bench_time(step, f.bytes, 0, rule == TE_RULE_muon ? 2 : 8);
            const double copy = r.copy_us, products = 1e6 * f.flops / peak;
            const std::string name = std::string(te_rule_name((te_rule)rule)) + (form == 0 ? "" : form == 1 ? "_bf16" : form == 2 ? "_bf16_alone" : "_8bit");
            if (rule == TE_RULE_muon) r.flops = f.flops, r.copy_us = 0;
            bench_print("gpt2_124m", "step", name.c_str(), std::to_string(te_plan_param_elements(&p.plan)), r);
            if (rule == TE_RULE_muon)
                printf("  %.1f MB: a copy takes %.0f us; %.2f TFLOP at %.0f TFLOP/s: %.0f us; floor %.0f us, %.2f of the time\n", f.bytes / 1e6, copy, f.flops / 1e12,
                       peak / 1e12, products, copy + products, (copy + products) / r.us);
            bench_release(allocated_before);
        }
    bench_release();
    return bench_close();
}
