// joins_test.cc -- branches and joins in f32.
#define JOINS_DTYPE f32
#include "joins.h"

TEST_CASE("a branch copies no tensor", "[joins]") {
    const te_plan *p = parallel_plan();
    for (int k = 0; k < p->forward_count; k++)
        if (!strcmp(p->forward[k].pattern, "load")) CHECK(te_step_row_bytes(p, &p->forward[k], TE_FORWARD) == 0);
    for (int k = 0; k < p->backward_count; k++) // the attention branch is added later, so its gradient is computed later
        if (!strcmp(p->backward[k].pattern, "load")) CHECK(te_step_row_bytes(p, &p->backward[k], TE_BACKWARD) == 0);
}

MODEL(reads_x, f32, (fork, x), (fork, z), (bias, b, 64), (add, x), (add, z), (add, second, x))
MODEL(reads_z, f32, (fork, x), (fork, z), (bias, b, 64), (add, x), (add, z), (add, second, z))

TEST_CASE("an add reads the fork that it names", "[joins]") {
    const std::string expect[2] = {"; add second of x 64>64 00000000", "; add second of z 64>64 00000000"};
    for (const te_plan *p : {reads_x_plan(), reads_z_plan()}) {
        char text[512];
        te__text t = {text, 0};
        te__plan_text(&t, p, 1);
        text[t.n] = 0;
        const std::string list = text;
        CHECK(list.substr(list.rfind(";")) == expect[p == reads_z_plan()]);
        CHECK(list.find("; add x 64>64 00000000;") != std::string::npos);
    }
}
