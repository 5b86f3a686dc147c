// misuse_state.h -- entries of misuse.h for objects that live from step to step (optimizer, gradient norm, recipes, scales), and for
// GEMMs, casts and graphs.
#ifndef TESTS_MISUSE_STATE_H
#define TESTS_MISUSE_STATE_H

#include "misuse_calls.h" // cs, contexts

namespace misuse {

// Every mistake in a list of models, for the three calls that take one.
inline void wrong_models(table &t, const char *name, bool wants_gradients, std::function<te_status(cs &, te_model *const *, int)> call) {
    const std::string who = std::string(name) + ": ";
    refuse<cs>(t, who + "no list of models", TE_ERROR_NULL, "list of models", [=](cs &s) { return (void)s, call(s, nullptr, 1); });
    for (int n : {-1, INT32_MIN}) refuse<cs>(t, who + std::to_string(n) + " models", TE_ERROR_SHAPE, "models", [=](cs &s) { return call(s, s.models, n); });
    refuse<cs>(t, who + "a model that is null", TE_ERROR_NULL, "model 1 is null", [=](cs &s) { return s.models[1] = nullptr, call(s, s.models, 2); });
    refuse<cs>(t, who + "a model that is not bound", TE_ERROR_NULL, "not bound", [=](cs &s) { return s.models[1] = &s.s.model, call(s, s.models, 2); });
    refuse<cs>(t, who + "a model twice", TE_ERROR_VALUE, "again", [=](cs &s) { return s.models[1] = s.models[0], call(s, s.models, 2); });
    refuse<cs>(t, who + "a model that was copied", TE_ERROR_STATE, "copied", [=](cs &s) {
        static small copy;
        return copy = s.m, s.models[1] = &copy.model, call(s, s.models, 2);
    });
    if (wants_gradients) refuse<cs>(t, who + "a model without gradients", TE_ERROR_NULL, "gradient", [=](cs &s) { return s.models[1] = &s.user.model, call(s, s.models, 2); });
}
// Every mistake in the memory of an object.
inline void wrong_memory(table &t, const char *name, std::function<te_status(cs &, void *, size_t)> call) {
    const std::string who = std::string(name) + ": ";
    refuse<cs>(t, who + "no memory", TE_ERROR_NULL, "null", [=](cs &s) { return call(s, nullptr, s.free_bytes); });
    for (int by : {1, 4, 8}) refuse<cs>(t, who + "memory " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "", [=](cs &s) { return call(s, s.free_memory + by, s.free_bytes - 256); });
    for (size_t n : {0, 1, 255}) refuse<cs>(t, who + "memory of " + std::to_string(n) + " bytes", TE_ERROR_MEMORY, "bytes", [=](cs &s) { return call(s, s.free_memory, n); });
}

inline void optimizer_calls(table &t) {
    static te_adamw opt;
    static te_grad_norm norm;
    static te_adamw_state state;
    const auto init = [](cs &s, void *p, size_t n) { return te_adamw_init(&opt, p, n, s.models, 1, &s.config, s.ctx); };
    const auto norm_init = [](cs &s, void *p, size_t n) { return te_grad_norm_init(&norm, p, n, s.models, 1, s.ctx); };
    other_targets(t, "te_adamw_init", [](cs &s, te_context *c) { return te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, c); });
    other_targets(t, "te_adamw_step", [](cs &s, te_context *c) { return te_adamw_step(&s.opt, c); });
    other_targets(t, "te_adamw_reset", [](cs &s, te_context *c) { return te_adamw_reset(&s.opt, c); });
    contexts(t, "te_adamw_get", [](cs &s, te_context *c) { return te_adamw_get(&state, &s.opt, c); });
    contexts(t, "te_adamw_set", [](cs &s, te_context *c) { return memset(&state, 0, sizeof state), state.step = 7, te_adamw_set(&state, &s.opt, c); });
    other_targets(t, "te_grad_norm_init", [](cs &s, te_context *c) { return te_grad_norm_init(&norm, s.free_memory, s.free_bytes, s.models, 1, c); });
    other_targets(t, "te_grad_norm_run", [](cs &s, te_context *c) { return te_grad_norm_run(&s.norm, c); });
    wrong_models(t, "te_adamw_init", true, [](cs &s, te_model *const *m, int n) { return te_adamw_init(&opt, s.free_memory, s.free_bytes, m, n, &s.config, s.ctx); });
    wrong_models(t, "te_grad_norm_init", true, [](cs &s, te_model *const *m, int n) { return te_grad_norm_init(&norm, s.free_memory, s.free_bytes, m, n, s.ctx); });
    wrong_memory(t, "te_adamw_init", init), wrong_memory(t, "te_grad_norm_init", norm_init);
    refuse<cs>(t, "te_adamw_init: memory where the parameters are", TE_ERROR_VALUE, "overlaps", [](cs &s) { return te_adamw_init(&opt, s.params, s.free_bytes, s.models, 1, &s.config, s.ctx); });
    refuse<cs>(t, "te_adamw_init: memory where the gradients are", TE_ERROR_VALUE, "overlaps", [](cs &s) { return te_adamw_init(&opt, s.grads, s.free_bytes, s.models, 1, &s.config, s.ctx); });
    refuse<cs>(t, "te_grad_norm_init: memory where the gradients are", TE_ERROR_VALUE, "overlaps", [](cs &s) { return te_grad_norm_init(&norm, s.grads, s.free_bytes, s.models, 1, s.ctx); });
    refuse<cs>(t, "te_adamw_init: no struct", TE_ERROR_NULL, "struct", [](cs &s) { return te_adamw_init(nullptr, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx); });
    refuse<cs>(t, "te_adamw_init: no config", TE_ERROR_NULL, "config", [](cs &s) { return te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, nullptr, s.ctx); });
    refuse<cs>(t, "te_grad_norm_init: no struct", TE_ERROR_NULL, "struct", [](cs &s) { return te_grad_norm_init(nullptr, s.free_memory, s.free_bytes, s.models, 1, s.ctx); });

    struct value { const char *name; std::function<void(te_adamw_config &)> set; };
    std::vector<value> values = {
        {"beta1 1", [](te_adamw_config &c) { c.beta1 = 1; }}, {"beta1 -0.1", [](te_adamw_config &c) { c.beta1 = -0.1f; }}, {"beta1 NaN", [](te_adamw_config &c) { c.beta1 = NAN; }},
        {"beta2 1", [](te_adamw_config &c) { c.beta2 = 1; }}, {"beta2 NaN", [](te_adamw_config &c) { c.beta2 = NAN; }},
        {"eps 0", [](te_adamw_config &c) { c.eps = 0; }}, {"eps -1", [](te_adamw_config &c) { c.eps = -1; }}, {"eps infinity", [](te_adamw_config &c) { c.eps = INFINITY; }}, {"eps NaN", [](te_adamw_config &c) { c.eps = NAN; }},
        {"weight_decay -1", [](te_adamw_config &c) { c.weight_decay = -1; }}, {"weight_decay infinity", [](te_adamw_config &c) { c.weight_decay = INFINITY; }}, {"weight_decay NaN", [](te_adamw_config &c) { c.weight_decay = NAN; }},
        {"max_norm -1", [](te_adamw_config &c) { c.max_norm = -1; }}, {"max_norm NaN", [](te_adamw_config &c) { c.max_norm = NAN; }},
        {"grad_scale 0", [](te_adamw_config &c) { c.grad_scale = 0; }}, {"grad_scale infinity", [](te_adamw_config &c) { c.grad_scale = INFINITY; }}, {"grad_scale NaN", [](te_adamw_config &c) { c.grad_scale = NAN; }},
        {"schedule 7", [](te_adamw_config &c) { c.schedule.kind = (te_schedule_kind)7; }}, {"schedule 6", [](te_adamw_config &c) { c.schedule.kind = (te_schedule_kind)6; }},
        {"peak -1", [](te_adamw_config &c) { c.schedule.peak = -1; }}, {"peak NaN", [](te_adamw_config &c) { c.schedule.peak = NAN; }}, {"peak infinity", [](te_adamw_config &c) { c.schedule.peak = INFINITY; }},
        {"final fraction -1", [](te_adamw_config &c) { c.schedule.final_fraction = -1; }}, {"final fraction NaN", [](te_adamw_config &c) { c.schedule.final_fraction = NAN; }},
        {"warm-up -1", [](te_adamw_config &c) { c.schedule.warmup = -1; }}, {"total -1", [](te_adamw_config &c) { c.schedule.total = -1; }},
        {"total 5 of warm-up 5", [](te_adamw_config &c) { c.schedule = te_schedule_of(TE_SCHEDULE_cosine, 1, 5, 5, 0); }},
        {"rule 7", [](te_adamw_config &c) { c.rule = (te_rule)7; }}, {"momentum 1", [](te_adamw_config &c) { c.momentum = 1; }},
        {"momentum -0.1", [](te_adamw_config &c) { c.momentum = -0.1f; }}, {"momentum NaN", [](te_adamw_config &c) { c.momentum = NAN; }},
        {"nesterov without momentum", [](te_adamw_config &c) { c.nesterov = 1; }}, {"adamw_lr_factor -1", [](te_adamw_config &c) { c.adamw_lr_factor = -1; }},
        {"adamw_lr_factor NaN", [](te_adamw_config &c) { c.adamw_lr_factor = NAN; }}, {"adamw_lr_factor infinity", [](te_adamw_config &c) { c.adamw_lr_factor = INFINITY; }},
        {"shards 0", [](te_adamw_config &c) { c.shards = 0; }}, {"shards INT_MIN", [](te_adamw_config &c) { c.shards = INT32_MIN; }}, {"shards INT_MAX", [](te_adamw_config &c) { c.shards = INT32_MAX; }}};
    for (const value &v : values) {
        refuse<cs>(t, std::string("te_adamw_init: ") + v.name, TE_ERROR_VALUE, "adamw", [=](cs &s) { return v.set(s.config), te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx); });
        refuse<cs>(t, std::string("te_adamw_step: ") + v.name, TE_ERROR_VALUE, "adamw", [=](cs &s) {
            const te_adamw_config was = s.opt.config;
            v.set(s.opt.config);
            const te_status status = te_adamw_step(&s.opt, s.ctx);
            return s.opt.config = was, status;
        });
    }
    static te_param_group group;
    const auto grouped = [=](cs &s, te_param_group g, int n = 1) { return group = g, s.config.groups = &group, s.config.group_count = n, te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx); };
    for (float v : {-1.0f, NAN, INFINITY}) {
        refuse<cs>(t, "te_adamw_init: a group with lr " + std::to_string(v), TE_ERROR_VALUE, "group 0: lr", [=](cs &s) { return group = te_param_group_of("fc", nullptr, nullptr), group.lr = v, grouped(s, group); });
        refuse<cs>(t, "te_adamw_init: a group with weight_decay " + std::to_string(2 * v), TE_ERROR_VALUE, "group 0: weight_decay", [=](cs &s) { return group = te_param_group_of("fc", nullptr, nullptr), group.weight_decay = 2 * v, grouped(s, group); });
    }
    refuse<cs>(t, "te_adamw_init: a group of an op that no list has", TE_ERROR_VALUE, "group 0 (op fd, kind *, field *) takes none", [=](cs &s) { return grouped(s, te_param_group_of("fd", nullptr, nullptr)); });
    refuse<cs>(t, "te_adamw_init: a group of a kind that no list has", TE_ERROR_VALUE, "kind rmsnorm", [=](cs &s) { return grouped(s, te_param_group_of(nullptr, "rmsnorm", "weight")); });
    refuse<cs>(t, "te_adamw_init: -1 groups", TE_ERROR_SHAPE, "-1 groups", [=](cs &s) { return grouped(s, te_param_group_of("fc", nullptr, nullptr), -1); });
    refuse<cs>(t, "te_adamw_init: groups that are null", TE_ERROR_NULL, "groups of parameters are null", [](cs &s) { return s.config.groups = nullptr, s.config.group_count = 1, te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx); });
    refuse<cs>(t, "te_adamw_step: a parameter was frozen since", TE_ERROR_STATE, "frozen", [](cs &s) {
        NEED(te_freeze(&s.m.model, "b", nullptr, s.ctx), s.ctx);
        const te_status status = te_adamw_step(&s.opt, s.ctx);
        NEED(te_unfreeze(&s.m.model, "b", nullptr, s.ctx), s.ctx);
        return status;
    });
    refuse<cs>(t, "te_adamw_init: 2 shards of one rank", TE_ERROR_VALUE, "the data group is of 1", [](cs &s) { return s.config.shards = 2, te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx); });
    refuse<cs>(t, "te_adamw_init: Muon with 2 shards", TE_ERROR_VALUE, "the data group is of 1", [](cs &s) {
        s.config = te_muon_defaults(0.02f), s.config.shards = 2;
        return te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx);
    });
    refuse<cs>(t, "te_adamw_step: 2 shards, and at te_adamw_init there was one", TE_ERROR_STATE, "shards is 2", [](cs &s) {
        s.opt.config.shards = 2;
        const te_status status = te_adamw_step(&s.opt, s.ctx);
        return s.opt.config.shards = 1, status;
    });
    refuse<cs>(t, "te_adamw_reduce: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_adamw_reduce(nullptr, s.ctx); });
    refuse<cs>(t, "te_adamw_reduce: before te_adamw_init", TE_ERROR_NULL, "not initialised", [](cs &s) { return memset(&opt, 0, sizeof opt), te_adamw_reduce(&opt, s.ctx); });
    for (te_dtype moments : {TE_f16, TE_e5m2, (te_dtype)99})
        refuse<cs>(t, "te_adamw_init: moments of dtype " + std::to_string(moments), TE_ERROR_DTYPE, "moments", [=](cs &s) {
            return s.config.moments = moments, te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx);
        });
    refuse<cs>(t, "te_adamw_init: muon with moments in e4m3", TE_ERROR_DTYPE, "muon: moments of e4m3", [](cs &s) {
        s.config = te_muon_defaults(0.02f), s.config.moments = TE_e4m3;
        return te_adamw_init(&opt, s.free_memory, s.free_bytes, s.models, 1, &s.config, s.ctx);
    });
    const auto changed = [](cs &s, te_rule rule, te_dtype moments, int no_master = 0) {
        const te_adamw_config was = s.opt.config;
        s.opt.config.rule = rule, s.opt.config.moments = moments, s.opt.config.no_master = no_master;
        const te_status status = te_adamw_step(&s.opt, s.ctx);
        return s.opt.config = was, status;
    };
    refuse<cs>(t, "te_adamw_step: another rule than at te_adamw_init", TE_ERROR_STATE, "sgd", [=](cs &s) { return changed(s, TE_RULE_sgd, TE_f32); });
    refuse<cs>(t, "te_adamw_step: other moments than at te_adamw_init", TE_ERROR_STATE, "bf16", [=](cs &s) { return changed(s, TE_RULE_adamw, TE_bf16); });
    refuse<cs>(t, "te_adamw_step: moments in e4m3, and at te_adamw_init in f32", TE_ERROR_STATE, "e4m3", [=](cs &s) { return changed(s, TE_RULE_adamw, TE_e4m3); });
    refuse<cs>(t, "te_adamw_step: no master weights, as at te_adamw_init there were", TE_ERROR_STATE, "no_master", [=](cs &s) { return changed(s, TE_RULE_adamw, TE_f32, 1); });
    refuse<cs>(t, "te_adamw_step: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_adamw_step(nullptr, s.ctx); });
    refuse<cs>(t, "te_adamw_reset: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_adamw_reset(nullptr, s.ctx); });
    refuse<cs>(t, "te_adamw_get: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_adamw_get(&state, nullptr, s.ctx); });
    refuse<cs>(t, "te_adamw_get: nowhere", TE_ERROR_NULL, "adamw", [](cs &s) { return te_adamw_get(nullptr, &s.opt, s.ctx); });
    refuse<cs>(t, "te_adamw_set: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_adamw_set(&state, nullptr, s.ctx); });
    refuse<cs>(t, "te_adamw_set: nothing", TE_ERROR_NULL, "adamw", [](cs &s) { return te_adamw_set(nullptr, &s.opt, s.ctx); });
    typedef te_status (*of_adamw)(te_adamw *, te_context *);
    for (const auto &call : std::initializer_list<std::pair<const char *, of_adamw>>{{"step", te_adamw_step}, {"reset", te_adamw_reset}}) {
        const of_adamw run = call.second;
        refuse<cs>(t, std::string("te_adamw_") + call.first + ": before te_adamw_init", TE_ERROR_NULL, "not initialised", [=](cs &s) { return memset(&opt, 0, sizeof opt), run(&opt, s.ctx); });
        refuse<cs>(t, std::string("te_adamw_") + call.first + ": a model was bound elsewhere since", TE_ERROR_STATE, "bound again", [=](cs &s) {
            NEED(small_bind(&s.m, s.user_params, (float *)(void *)s.grads, s.ctx), s.ctx);
            const te_status status = run(&s.opt, s.ctx);
            NEED(small_bind(&s.m, s.params, (float *)(void *)s.grads, s.ctx), s.ctx);
            return status;
        });
    }
    refuse<cs>(t, "te_grad_norm_run: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_grad_norm_run(nullptr, s.ctx); });
    refuse<cs>(t, "te_grad_norm_run: before te_grad_norm_init", TE_ERROR_NULL, "not initialised", [](cs &s) { return memset(&norm, 0, sizeof norm), te_grad_norm_run(&norm, s.ctx); });
    for (int64_t n : {INT64_C(-1), INT64_MIN, INT64_MAX, TE_ADAMW_MAX_STEPS + 1}) {
        refuse<cs>(t, "te_adamw_set: step " + std::to_string(n), TE_ERROR_VALUE, "step", [=](cs &s) { return memset(&state, 0, sizeof state), state.step = n, te_adamw_set(&state, &s.opt, s.ctx); });
        refuse<cs>(t, "te_adamw_set: skipped " + std::to_string(n), TE_ERROR_VALUE, "skipped", [=](cs &s) { return memset(&state, 0, sizeof state), state.skipped = n, te_adamw_set(&state, &s.opt, s.ctx); });
    }
    fine<cs>(t, "te__schedule_problem: of none", [](cs &) { return te__schedule_problem(nullptr) != nullptr; });
    fine<cs>(t, "te_adamw_tensors: of none, before te_adamw_init", [](cs &) {
        memset(&opt, 0, sizeof opt);
        te_adamw_iter none = te_adamw_tensors(nullptr), zero = te_adamw_tensors(&opt);
        return !te_adamw_next(&none) && !te_adamw_next(&zero);
    });
}

inline void recipe_calls(table &t) {
    static te_recipes r;
    static te_recipes_adamw both;
    static te_scales sc;
    static const te_dtype formats[2] = {TE_e4m3, TE_e5m2}, wide[2] = {TE_e4m3, TE_bf16};
    const auto init = [](cs &s, void *p, size_t n) { return te_recipes_init(&r, p, n, s.fp8_models, 1, &s.recipes_config, s.ctx); };
    const auto scales = [](cs &s, void *p, size_t n) { return te_scales_init(&sc, p, n, formats, 2, 4, s.ctx); };
    other_targets(t, "te_recipes_init", [](cs &s, te_context *c) { return te_recipes_init(&r, s.free_memory, s.free_bytes, s.fp8_models, 1, &s.recipes_config, c); });
    other_targets(t, "te_recipes_step", [](cs &s, te_context *c) { return te_recipes_step(&s.recipes, c); });
    other_targets(t, "te_recipes_cast_weights", [](cs &s, te_context *c) { return te_recipes_cast_weights(&s.recipes, c); });
    other_targets(t, "te_recipes_switch", [](cs &s, te_context *c) { return te_recipes_switch(&s.recipes, 0, c); });
    other_targets(t, "te_recipes_loaded", [](cs &s, te_context *c) { return te_recipes_loaded(&s.recipes, 1, c); });
    other_targets(t, "te_scales_init", [](cs &s, te_context *c) { return te_scales_init(&sc, s.free_memory, s.free_bytes, formats, 2, 4, c); });
    static const te_scale_rule rule = te__scale_rule_current();
    other_targets(t, "te_scales_update", [](cs &s, te_context *c) { return te_scales_update(&s.scales, 0, 2, &rule, c); });
    wrong_models(t, "te_recipes_init", false, [](cs &s, te_model *const *m, int n) { return te_recipes_init(&r, s.free_memory, s.free_bytes, m, n, &s.recipes_config, s.ctx); });
    wrong_memory(t, "te_recipes_init", init), wrong_memory(t, "te_scales_init", scales);
    refuse<cs>(t, "te_recipes_init: memory where the weights are", TE_ERROR_VALUE, "overlaps", [](cs &s) { return te_recipes_init(&r, (void *)(uintptr_t)s.h.model.params, s.free_bytes, s.fp8_models, 1, &s.recipes_config, s.ctx); });
    const auto forward = [](cs &s, const fp8_list *m) {
        te_batch batch;
        te_saved saved;
        NEED(te_context_reserve(s.ctx, 1 << 20), s.ctx);
        memset(&batch, 0, sizeof batch), memset(&saved, 0, sizeof saved);
        batch.batch = 1, batch.seq = 8, saved.memory = s.free_memory, saved.bytes = fp8_list_saved_bytes(8);
        return fp8_list_forward(te_matrix(s.b, TE_bf16, 8, 64), &saved, te_matrix(s.a, TE_bf16, 8, 64), m, &batch, s.ctx);
    };
    fine<cs>(t, "forward under a recipe: saved_bytes says how much", [=](cs &s) { return forward(s, &s.h) == TE_OK; });
    refuse<cs>(t, "te_recipes_init: no struct", TE_ERROR_NULL, "struct", [](cs &s) { return te_recipes_init(nullptr, s.free_memory, s.free_bytes, s.fp8_models, 1, &s.recipes_config, s.ctx); });
    refuse<cs>(t, "te_recipes_init: no config", TE_ERROR_NULL, "config", [](cs &s) { return te_recipes_init(&r, s.free_memory, s.free_bytes, s.fp8_models, 1, nullptr, s.ctx); });
    for (int n : {0, -1, 1025, INT32_MAX}) {
        refuse<cs>(t, "te_recipes_init: a history of " + std::to_string(n), TE_ERROR_VALUE, "history", [=](cs &s) { return s.recipes_config.history = n, te_recipes_init(&r, s.free_memory, s.free_bytes, s.fp8_models, 1, &s.recipes_config, s.ctx); });
        refuse<cs>(t, "te_scales_init: a history of " + std::to_string(n), TE_ERROR_SHAPE, "history", [=](cs &s) { return te_scales_init(&sc, s.free_memory, s.free_bytes, formats, 2, n, s.ctx); });
    }
    struct value { const char *name; std::function<void(te_scale_rule &)> set; };
    const std::vector<value> values = {{"margin 65", [](te_scale_rule &k) { k.margin = 65; }}, {"margin -65", [](te_scale_rule &k) { k.margin = -65; }}, {"margin INT32_MIN", [](te_scale_rule &k) { k.margin = INT32_MIN; }},
                                       {"epsilon -1", [](te_scale_rule &k) { k.epsilon = -1; }}, {"epsilon NaN", [](te_scale_rule &k) { k.epsilon = NAN; }}, {"epsilon infinity", [](te_scale_rule &k) { k.epsilon = INFINITY; }},
#ifndef __SANITIZE_ADDRESS__ // the sanitizer reports other values than 0 and 1 in an enum of two
                                       {"amax 7", [](te_scale_rule &k) { k.amax = (te_amax_algorithm)7; }},
#endif
    };
    for (const value &v : values) {
        refuse<cs>(t, std::string("te_scales_update: ") + v.name, TE_ERROR_VALUE, "te_scales_update", [=](cs &s) {
            te_scale_rule k = rule;
            return v.set(k), te_scales_update(&s.scales, 0, 2, &k, s.ctx);
        });
        refuse<cs>(t, std::string("te_recipes_init: ") + v.name, TE_ERROR_VALUE, "rule", [=](cs &s) { return v.set(s.recipes_config.rule), te_recipes_init(&r, s.free_memory, s.free_bytes, s.fp8_models, 1, &s.recipes_config, s.ctx); });
        refuse<cs>(t, std::string("te_recipes_step: ") + v.name, TE_ERROR_VALUE, "rule", [=](cs &s) {
            const te_scale_rule was = s.recipes.config.rule;
            v.set(s.recipes.config.rule);
            const te_status status = te_recipes_step(&s.recipes, s.ctx);
            return s.recipes.config.rule = was, status;
        });
    }
    using of_recipes = te_status (*)(te_recipes *, te_context *);
    for (const auto &call : std::initializer_list<std::pair<const char *, of_recipes>>{{"step", te_recipes_step}, {"cast_weights", te_recipes_cast_weights}}) {
        const auto run = call.second;
        const std::string who = std::string("te_recipes_") + call.first + ": ";
        refuse<cs>(t, who + "null", TE_ERROR_NULL, "not initialised", [=](cs &s) { return run(nullptr, s.ctx); });
        refuse<cs>(t, who + "before te_recipes_init", TE_ERROR_NULL, "not initialised", [=](cs &s) { return memset(&r, 0, sizeof r), run(&r, s.ctx); });
        refuse<cs>(t, who + "a copy", TE_ERROR_STATE, "since te_recipes_init", [=](cs &s) { return r = s.recipes, run(&r, s.ctx); });
    }
    refuse<cs>(t, "te_recipes_switch: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_recipes_switch(nullptr, 1, s.ctx); });
    refuse<cs>(t, "te_recipes_loaded: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_recipes_loaded(nullptr, 1, s.ctx); });
    const auto both_init = [](cs &s, void *p, size_t n) { return te_recipes_adamw_init(&both, p, n, &s.recipes, &s.opt, s.ctx); };
    other_targets(t, "te_recipes_adamw_init", [](cs &s, te_context *c) { return te_recipes_adamw_init(&both, s.free_memory, s.free_bytes, &s.recipes, &s.opt, c); });
    other_targets(t, "te_recipes_adamw_step", [](cs &s, te_context *c) { return te_recipes_adamw_step(&s.update, c); });
    wrong_memory(t, "te_recipes_adamw_init", both_init);
    refuse<cs>(t, "te_recipes_adamw_init: memory where the weights are", TE_ERROR_VALUE, "overlaps", [=](cs &s) { return both_init(s, (void *)(uintptr_t)s.h.model.params, s.free_bytes); });
    refuse<cs>(t, "te_recipes_adamw_init: memory where the optimizer's gradients are", TE_ERROR_VALUE, "overlaps", [=](cs &s) { return both_init(s, s.grads, s.free_bytes); });
    refuse<cs>(t, "te_recipes_adamw_init: no struct", TE_ERROR_NULL, "struct", [](cs &s) { return te_recipes_adamw_init(nullptr, s.free_memory, s.free_bytes, &s.recipes, &s.opt, s.ctx); });
    refuse<cs>(t, "te_recipes_adamw_init: no recipes", TE_ERROR_NULL, "recipes: not initialised", [](cs &s) { return te_recipes_adamw_init(&both, s.free_memory, s.free_bytes, nullptr, &s.opt, s.ctx); });
    refuse<cs>(t, "te_recipes_adamw_init: no optimizer", TE_ERROR_NULL, "adamw: not initialised", [](cs &s) { return te_recipes_adamw_init(&both, s.free_memory, s.free_bytes, &s.recipes, nullptr, s.ctx); });
    refuse<cs>(t, "te_recipes_adamw_step: null", TE_ERROR_NULL, "not initialised", [](cs &s) { return te_recipes_adamw_step(nullptr, s.ctx); });
    refuse<cs>(t, "te_recipes_adamw_step: before te_recipes_adamw_init", TE_ERROR_NULL, "not initialised", [](cs &s) { return memset(&both, 0, sizeof both), te_recipes_adamw_step(&both, s.ctx); });
    refuse<cs>(t, "te_recipes_adamw_step: a copy", TE_ERROR_STATE, "a copy", [](cs &s) { return both = s.update, te_recipes_adamw_step(&both, s.ctx); });
    refuse<cs>(t, "te_scales_init: no struct", TE_ERROR_NULL, "null", [](cs &s) { return te_scales_init(nullptr, s.free_memory, s.free_bytes, formats, 2, 4, s.ctx); });
    refuse<cs>(t, "te_scales_init: no formats", TE_ERROR_NULL, "formats", [](cs &s) { return te_scales_init(&sc, s.free_memory, s.free_bytes, nullptr, 2, 4, s.ctx); });
    refuse<cs>(t, "te_scales_init: a format of 16 bits", TE_ERROR_DTYPE, "tensor 1 is bf16", [](cs &s) { return te_scales_init(&sc, s.free_memory, s.free_bytes, wide, 2, 4, s.ctx); });
    refuse<cs>(t, "te_scales_init: -1 tensors", TE_ERROR_SHAPE, "-1", [](cs &s) { return te_scales_init(&sc, s.free_memory, s.free_bytes, formats, -1, 4, s.ctx); });
    refuse<cs>(t, "te_scales_update: null", TE_ERROR_NULL, "null", [](cs &s) { return te_scales_update(nullptr, 0, 1, &rule, s.ctx); });
    refuse<cs>(t, "te_scales_update: no rule", TE_ERROR_NULL, "null", [](cs &s) { return te_scales_update(&s.scales, 0, 1, nullptr, s.ctx); });
    const int ranges[][2] = {{-1, 1}, {0, 3}, {2, 1}, {0, -1}, {INT32_MAX, 1}, {1, INT32_MAX}, {INT32_MIN, 1}};
    for (const auto &at : ranges) {
        const int first = at[0], count = at[1];
        refuse<cs>(t, "te_scales_update: " + std::to_string(count) + " tensors from " + std::to_string(first), TE_ERROR_SHAPE, "te_scales_update", [=](cs &s) { return te_scales_update(&s.scales, first, count, &rule, s.ctx); });
    }
}

inline void product_calls(table &t) {
    other_targets(t, "te_gemm_run", [](cs &s, te_context *c) { return te_gemm_run(&s.gemm, c); });
    other_targets(t, "of_f32_run", [](cs &s, te_context *c) { return of_f32_run(&s.quantize, c); });
    struct value { const char *name; te_status status; std::function<void(te_gemm &)> set; };
    const std::vector<value> values = {
        {"no A", TE_ERROR_NULL, [](te_gemm &g) { g.a = nullptr; }}, {"no B", TE_ERROR_NULL, [](te_gemm &g) { g.b = nullptr; }}, {"no D", TE_ERROR_NULL, [](te_gemm &g) { g.d = nullptr; }},
        {"beta, but no C", TE_ERROR_NULL, [](te_gemm &g) { g.beta = 1; }}, {"an epilogue without its bias", TE_ERROR_NULL, [](te_gemm &g) { g.epilogue = TE_EPILOGUE_BIAS; }},
        {"m -1", TE_ERROR_SHAPE, [](te_gemm &g) { g.m = -1; }}, {"n -1", TE_ERROR_SHAPE, [](te_gemm &g) { g.n = -1; }}, {"k -1", TE_ERROR_SHAPE, [](te_gemm &g) { g.k = -1; }},
        {"m INT64_MAX", TE_ERROR_OVERFLOW, [](te_gemm &g) { g.m = INT64_MAX; }}, {"n 2^31", TE_ERROR_OVERFLOW, [](te_gemm &g) { g.n = INT64_C(1) << 31; }}, {"k 2^31", TE_ERROR_OVERFLOW, [](te_gemm &g) { g.k = INT64_C(1) << 31; }},
        {"dtype 7", TE_ERROR_DTYPE, [](te_gemm &g) { g.dtype = g.out = (te_dtype)7; }}, {"dtype 6", TE_ERROR_DTYPE, [](te_gemm &g) { g.dtype = g.out = (te_dtype)6; }}, {"dtype e4m3", TE_ERROR_DTYPE, [](te_gemm &g) { g.dtype = g.out = TE_e4m3; }},
        {"f32 to bf16", TE_ERROR_DTYPE, [](te_gemm &g) { g.out = TE_bf16; }}, {"epilogue 7", TE_ERROR_VALUE, [](te_gemm &g) { g.epilogue = (te_epilogue)7; }},
        {"FP8 of A alone", TE_ERROR_DTYPE, [](te_gemm &g) { g.a_fp8.scaling = TE_SCALING_TENSORWISE, g.a_fp8.dtype = TE_e4m3; }},
        {"FP8 of two e5m2", TE_ERROR_DTYPE, [](te_gemm &g) { g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSORWISE, g.a_fp8.dtype = g.b_fp8.dtype = TE_e5m2; }},
        {"FP8 of 8 columns", TE_ERROR_SHAPE, [](te_gemm &g) { g.a_fp8.scaling = g.b_fp8.scaling = TE_SCALING_TENSORWISE, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3, g.dtype = TE_bf16; }},
        {"D where A is", TE_ERROR_VALUE, [](te_gemm &g) { g.d = (void *)(uintptr_t)g.a; }}, {"D where B is", TE_ERROR_VALUE, [](te_gemm &g) { g.d = (void *)(uintptr_t)g.b; }},
        {"A 4 off", TE_ERROR_ALIGNMENT, [](te_gemm &g) { g.a = (const char *)g.a + 4; }}, {"B 4 off", TE_ERROR_ALIGNMENT, [](te_gemm &g) { g.b = (const char *)g.b + 4; }}, {"D 4 off", TE_ERROR_ALIGNMENT, [](te_gemm &g) { g.d = (char *)g.d + 4; }}};
    struct scaled { const char *name; te_status status; te_scaling a, b; std::function<void(te_gemm &)> set; };
    const auto none = [](te_gemm &) {};
    const std::vector<scaled> scalings = {
        {"scales of rows by a tensor", TE_ERROR_VALUE, TE_SCALING_ROWWISE, TE_SCALING_TENSORWISE, none}, {"scales of blocks by blocks", TE_ERROR_VALUE, TE_SCALING_BLOCKWISE_2D, TE_SCALING_BLOCKWISE_2D, none},
        {"scales of blocks by tiles", TE_ERROR_VALUE, TE_SCALING_BLOCKWISE_2D, TE_SCALING_BLOCKWISE_1D, none}, {"scales of kind 7", TE_ERROR_VALUE, (te_scaling)7, (te_scaling)7, none},
        {"tiles without scales", TE_ERROR_NULL, TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_2D, [](te_gemm &g) { g.b_fp8.inverse = nullptr; }},
        {"tiles and a bias", TE_ERROR_VALUE, TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_1D, [](te_gemm &g) { g.epilogue = TE_EPILOGUE_BIAS, g.bias = g.a; }},
        {"seven rows of tiles", TE_ERROR_SHAPE, TE_SCALING_BLOCKWISE_1D, TE_SCALING_BLOCKWISE_1D, [](te_gemm &g) { g.m = 7; }}};
    for (const scaled &v : scalings) refuse<cs>(t, std::string("te_gemm_run: ") + v.name, v.status, "te_gemm_run", [=](cs &s) {
            te_gemm &g = s.gemm;
            g.a_fp8.scaling = v.a, g.b_fp8.scaling = v.b, g.a_fp8.dtype = g.b_fp8.dtype = TE_e4m3, g.dtype = g.out = TE_bf16, g.n = g.k = 16, g.trans_a = 0, g.trans_b = 1;
            g.a_fp8.inverse = g.b_fp8.inverse = (const float *)s.free_memory;
            return v.set(g), te_gemm_run(&g, s.ctx);
        });
    for (const value &v : values) refuse<cs>(t, std::string("te_gemm_run: ") + v.name, v.status, "te_gemm_run", [=](cs &s) { return v.set(s.gemm), te_gemm_run(&s.gemm, s.ctx); });
    if (!TE_CUDA) refuse<cs>(t, "te_gemm_run: bf16 without scratch", TE_ERROR_NULL, "te__gemm_scratch", [](cs &s) { return s.gemm.dtype = s.gemm.out = TE_bf16, te_gemm_run(&s.gemm, s.ctx); });
    refuse<cs>(t, "te_gemm_run: null", TE_ERROR_NULL, "te_gemm_run", [](cs &s) { return te_gemm_run(nullptr, s.ctx); });
    struct cast { const char *name; te_status status; std::function<void(te_quantize &)> set; };
    const std::vector<cast> casts = {
        {"no x", TE_ERROR_NULL, [](te_quantize &q) { q.x = nullptr; }}, {"to bf16", TE_ERROR_DTYPE, [](te_quantize &q) { q.to = TE_bf16; }}, {"to dtype 7", TE_ERROR_DTYPE, [](te_quantize &q) { q.to = (te_dtype)7; }},
        {"rows -1", TE_ERROR_SHAPE, [](te_quantize &q) { q.rows = -1; }}, {"cols -1", TE_ERROR_SHAPE, [](te_quantize &q) { q.cols = -1; }}, {"rows 2^60", TE_ERROR_OVERFLOW, [](te_quantize &q) { q.rows = q.yt_cols = INT64_C(1) << 60; }},
        {"yt of 7 of 8 rows", TE_ERROR_SHAPE, [](te_quantize &q) { q.yt_cols = 7; }}, {"yt of 129 of 8 rows", TE_ERROR_SHAPE, [](te_quantize &q) { q.yt_cols = 129; }},
        {"x 4 off", TE_ERROR_ALIGNMENT, [](te_quantize &q) { q.x = (const char *)q.x + 4; }}, {"y 4 off", TE_ERROR_ALIGNMENT, [](te_quantize &q) { q.y = (char *)q.y + 4; }}, {"yt 8 off", TE_ERROR_ALIGNMENT, [](te_quantize &q) { q.yt = (char *)q.yt + 8; }}};
    for (const cast &v : casts) refuse<cs>(t, std::string("of_f32_run: ") + v.name, v.status, "of_f32", [=](cs &s) { return v.set(s.quantize), of_f32_run(&s.quantize, s.ctx); });
    refuse<cs>(t, "of_f32_run: null", TE_ERROR_NULL, "of_f32", [](cs &s) { return of_f32_run(nullptr, s.ctx); });
}

inline void graph_calls(table &t) {
    static te_graph g;
    static te_graph_pool p;
    static void *at;
    const auto capture = [](cs &s) { return te_graph_capture(&g, &s.spec, &s.pool, s.ctx); };
    const auto replay = [](cs &s) { return te_graph_replay(&s.graph, &s.in, 1, s.ctx); };
    other_targets(t, "te_graph_capture", [](cs &s, te_context *c) { return te_graph_capture(&g, &s.spec, &s.pool, c); });
    other_targets(t, "te_graph_replay", [](cs &s, te_context *c) { return te_graph_replay(&s.graph, &s.in, 1, c); });
    refuse<cs>(t, "te_graph_capture: no struct", TE_ERROR_NULL, "struct", [](cs &s) { return te_graph_capture(nullptr, &s.spec, &s.pool, s.ctx); });
    refuse<cs>(t, "te_graph_capture: no spec", TE_ERROR_NULL, "spec", [](cs &s) { return te_graph_capture(&g, nullptr, &s.pool, s.ctx); });
    refuse<cs>(t, "te_graph_capture: no pool for the output", TE_ERROR_NULL, "pool", [](cs &s) { return te_graph_capture(&g, &s.spec, nullptr, s.ctx); });
    struct value { const char *name; te_status status; std::function<void(cs &)> set; };
    const std::vector<value> values = {
        {"no function", TE_ERROR_NULL, [](cs &s) { s.spec.run = nullptr; }}, {"no inputs, but a count", TE_ERROR_NULL, [](cs &s) { s.spec.in = nullptr; }}, {"no outputs, but a count", TE_ERROR_NULL, [](cs &s) { s.spec.out = nullptr; }},
        {"-1 inputs", TE_ERROR_SHAPE, [](cs &s) { s.spec.in_count = -1; }}, {"-1 outputs", TE_ERROR_SHAPE, [](cs &s) { s.spec.out_count = -1; }}, {"no argument, but its size", TE_ERROR_NULL, [](cs &s) { s.spec.arg_bytes = 8; }},
        {"an input of dtype 7", TE_ERROR_DTYPE, [](cs &s) { s.in.tensor.dtype = (te_dtype)7; }}, {"an input of 0 rows", TE_ERROR_SHAPE, [](cs &s) { s.in.tensor.rows = 0; }}, {"an input of INT64_MAX rows", TE_ERROR_SHAPE, [](cs &s) { s.in.tensor.rows = INT64_MAX; }},
        {"an output of -1 columns", TE_ERROR_SHAPE, [](cs &s) { s.out.tensor.cols = -1; }}, {"an input 4 off", TE_ERROR_ALIGNMENT, [](cs &s) { s.in.tensor.data = s.a + 4; }},
        {"an output that the pool has no room for", TE_ERROR_MEMORY, [](cs &s) { s.out.tensor.rows = 1 << 20; }}};
    for (const value &v : values) refuse<cs>(t, std::string("te_graph_capture: ") + v.name, v.status, "graph", [=](cs &s) {
            const te_named in = s.in, out = s.out;
            v.set(s);
            const te_status status = capture(s);
            return s.in = in, s.out = out, status;
        });
    refuse<cs>(t, "te_graph_replay: null", TE_ERROR_STATE, "captured", [](cs &s) { return te_graph_replay(nullptr, &s.in, 1, s.ctx); });
    refuse<cs>(t, "te_graph_replay: before a capture", TE_ERROR_STATE, "captured", [](cs &s) { return memset(&g, 0, sizeof g), te_graph_replay(&g, &s.in, 1, s.ctx); });
    refuse<cs>(t, "te_graph_replay: a copy", TE_ERROR_STATE, "copy", [](cs &s) { return g = s.graph, te_graph_replay(&g, &s.in, 1, s.ctx); });
    refuse<cs>(t, "te_graph_replay: another context", TE_ERROR_STATE, "", [](cs &s) {
        te_context other;
        NEED(te_context_create(&other, 0, 1), &other);
        const te_status status = te_graph_replay(&s.graph, &s.in, 1, &other);
        return te_context_destroy(&other), status;
    });
    const std::vector<value> given = {
        {"no list, but a count", TE_ERROR_NULL, [](cs &s) { s.in = te_named_tensor("in", te_none()); }}, {"another name", TE_ERROR_VALUE, [](cs &s) { s.in.name = "inn"; }}, {"another dtype", TE_ERROR_DTYPE, [](cs &s) { s.in.tensor.dtype = TE_bf16; }},
        {"another shape", TE_ERROR_SHAPE, [](cs &s) { s.in.tensor.rows = 9; }}, {"transposed", TE_ERROR_SHAPE, [](cs &s) { s.in.tensor.rows = 4, s.in.tensor.cols = 16; }}, {"half of it where the input lies", TE_ERROR_VALUE, [](cs &s) { s.in.tensor.data = s.a + 128; }}};
    for (const value &v : given) refuse<cs>(t, std::string("te_graph_replay: ") + v.name, v.status, "graph copying", [=](cs &s) { return v.set(s), replay(s); });
    refuse<cs>(t, "te_graph_replay: no input", TE_ERROR_NULL, "input in is missing", [](cs &s) { return te_graph_replay(&s.graph, nullptr, 0, s.ctx); });
    for (int n : {-1, 2}) refuse<cs>(t, "te_graph_replay: " + std::to_string(n) + " inputs", n < 0 ? TE_ERROR_NULL : TE_ERROR_VALUE, "graph copying", [=](cs &s) {
            const te_named two[2] = {s.in, s.in};
            return te_graph_replay(&s.graph, two, n, s.ctx);
        });
    refuse<cs>(t, "te_graph_pool_init: null", TE_ERROR_NULL, "graph pool", [](cs &s) { return te_graph_pool_init(nullptr, s.free_memory, 256, s.ctx); });
    for (int by : {1, 16, 128}) refuse<cs>(t, "te_graph_pool_init: memory " + std::to_string(by) + " off", TE_ERROR_ALIGNMENT, "graph pool", [=](cs &s) { return te_graph_pool_init(&p, s.free_memory + by, 256, s.ctx); });
    refuse<cs>(t, "te_graph_pool_acquire: null", TE_ERROR_NULL, "graph pool", [](cs &s) { return te_graph_pool_acquire(nullptr, &at, 16, "x", s.ctx); });
    refuse<cs>(t, "te_graph_pool_acquire: nowhere", TE_ERROR_NULL, "graph pool", [](cs &s) { return te_graph_pool_acquire(&s.pool, nullptr, 16, "x", s.ctx); });
    refuse<cs>(t, "te_graph_pool_acquire: before te_graph_pool_init", TE_ERROR_NULL, "graph pool", [](cs &s) { return memset(&p, 0, sizeof p), te_graph_pool_acquire(&p, &at, 16, "x", s.ctx); });
    refuse<cs>(t, "te_graph_pool_acquire: 0 bytes", TE_ERROR_SHAPE, "graph pool", [](cs &s) { return te_graph_pool_acquire(&s.pool, &at, 0, "x", s.ctx); });
    for (size_t n : {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX / 4 + 1, (size_t)8193}) refuse<cs>(t, "te_graph_pool_acquire: " + std::to_string(n) + " bytes", TE_ERROR_MEMORY, "graph pool", [=](cs &s) { return te_graph_pool_acquire(&s.pool, &at, n, nullptr, s.ctx); });
    refuse<cs>(t, "te_graph_pool_release: null", TE_ERROR_NULL, "graph pool", [](cs &s) { return te_graph_pool_release(nullptr, s.a, s.ctx); });
    refuse<cs>(t, "te_graph_pool_release: not of the pool", TE_ERROR_VALUE, "graph pool", [](cs &s) { return te_graph_pool_release(&s.pool, s.a, s.ctx); });
    refuse<cs>(t, "te_graph_pool_release: no piece", TE_ERROR_VALUE, "graph pool", [](cs &s) { return te_graph_pool_release(&s.pool, nullptr, s.ctx); });
    fine<cs>(t, "tensors of no graph, of none of its names and places", [](cs &s) {
        memset(&g, 0, sizeof g);
        return !te_graph_input(nullptr, "in").data && !te_graph_output(nullptr, "out").data && !te_graph_input_at(nullptr, 0).data && !te_graph_output_at(nullptr, 0).data && !te_graph_input(&g, "in").data &&
               !te_graph_input(&s.graph, nullptr).data && !te_graph_input(&s.graph, "out").data && !te_graph_output(&s.graph, nullptr).data && !te_graph_input_at(&s.graph, 1).data && !te_graph_input_at(&s.graph, -1).data;
    });
    fine<cs>(t, "te_graph_destroy: nothing, zeros, a copy", [](cs &s) {
        memset(&g, 0, sizeof g);
        te_graph_destroy(nullptr), te_graph_destroy(&g), te_graph_retire(nullptr), te_graph_retire(&g);
        g = s.graph;
        return te_graph_destroy(&g), te_graph_replay(&s.graph, &s.in, 1, s.ctx) == TE_OK;
    });
}

} // namespace misuse

#endif
