// plan.h -- invariants of the plan of every list. A template by inclusion; its input:
//     static const subject *const lists[]
#include <algorithm>
#include <cstring>

// Whether the forward steps of the plan include this step, with the same kernels.
static bool is_of_forward(const te_plan *p, const te_step &step) {
    for (int i = 0; i < p->forward_count; i++) {
        const te_step &f = p->forward[i];
        if (f.run == step.run) return f.count == step.count && std::equal(f.op, f.op + f.count, step.op) && !strcmp(f.kernels, step.kernels);
    }
    return false;
}
static void check_steps(const te_plan *p, const te_step *s, int count, bool infer, bool backward) {
    std::vector<int> seen, want;
    for (int i = 0; i < count; i++) {
        CHECK(s[i].count >= 1);
        CHECK(s[i].count <= TE_MAX_PATTERN);
        CHECK(s[i].run != nullptr);
        std::string row, kernels = std::string(p->name) + "_" + p->op[s[i].op[0]].name + "_";
        for (int j = 0; j < s[i].count; j++) seen.push_back(s[i].op[j]), row += std::string(j ? "_" : "") + p->op[s[i].op[j]].kind;
        CHECK(row == s[i].pattern);
        if (infer && s[i].kernels == kernels + row) CHECK(is_of_forward(p, s[i]));
        else CHECK(s[i].kernels == kernels + row + (infer ? "_infer" : backward ? "_backward" : ""));
    }
    for (int i = 0; i < p->op_count; i++)
        if (!infer || strcmp(p->op[i].kind, "dropout")) want.push_back(i);
    if (backward) std::reverse(want.begin(), want.end());
    CHECK(seen == want);
}

TEST_CASE("every op is in each plan once and in order", "[plan]") {
    for (const subject *s : lists) {
        const te_plan *p = s->plan();
        CAPTURE(p->name);
        check_steps(p, p->forward, p->forward_count, false, false);
        check_steps(p, p->infer, p->infer_count, true, false);
        check_steps(p, p->backward, p->backward_count, false, true);
        for (int i = 0; i < p->op_count; i++) { // each width is that of the op before; an edge refers to an earlier op
            if (i) CHECK(p->op[i].in == p->op[i - 1].out);
            if (p->op[i].flags & (TE_IS_ADD | TE_IS_MUL | TE_IS_LOAD)) {
                REQUIRE(p->op[i].edge >= 0);
                REQUIRE(p->op[i].edge < i);
                CHECK((p->op[p->op[i].edge].flags & TE_IS_FORK) != 0);
            } else CHECK(p->op[i].edge == -1);
        }
        CHECK(p->in == p->op[0].in);
        CHECK(p->out == p->op[p->op_count - 1].out);
    }
}

TEST_CASE("every list computes what the reference does", "[plan]") {
    for (const subject *s : lists) {
        check(*s, shape(1, 1));
        check(*s, shape(3, 13));
        if (!strstr(s->plan()->name, "unfused")) check_gradients_of_reference(*s, shape(1, 3));
    }
}

TEST_CASE("saved and workspace bytes grow with the rows", "[plan]") {
    for (const subject *s : lists) {
        context ctx_owner;
        instance m(*s, &ctx_owner.c);
        CAPTURE(m.plan->name);
        size_t saved = 0, workspace = 0;
        for (int64_t rows : {1, 2, 7, 127, 128, 129, 1000, 4096, 1 << 20}) {
            const size_t a = s->saved_bytes(rows), b = s->workspace_bytes(m.memory.data(), rows, &ctx_owner.c);
            CHECK(a >= saved);
            CHECK(b >= workspace);
            saved = a, workspace = b;
        }
        CHECK(s->param_bytes() % TE_ALIGN == 0);
        CHECK(s->grad_bytes() == s->param_bytes() * 4 / te_dtype_bytes(m.plan->dtype));
    }
}

TEST_CASE("parameters lie in list order in one buffer, and gradients in the same order", "[plan]") {
    for (const subject *s : lists) {
        context ctx_owner;
        instance m(*s, &ctx_owner.c);
        size_t end = 0;
        for (int i = 0; i < m.ops.params; i++) {
            const te_param &p = m.model()->param[i];
            if (p.tied) continue;
            const size_t at = (size_t)((char *)p.data - (char *)m.params.data()) / te_dtype_bytes(m.plan->dtype);
            CHECK(at % TE_PARAM_ALIGN == 0);
            CHECK(at >= end);
            CHECK(at == m.grad_at(i));
            end = at + m.elements(i);
        }
        CHECK(end * te_dtype_bytes(m.plan->dtype) <= s->param_bytes());
    }
}
