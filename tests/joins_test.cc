// joins_test.cc -- branches and joins in f32; and lists of several residual formats.
#define JOINS_DTYPE f32
#include "joins.h"

TEST_CASE("a branch moves nothing but what is summed", "[joins]") {
    const te_plan *p = parallel_plan();
    for (int k = 0; k < p->forward_count; k++)
        if (!strcmp(p->forward[k].row, "load")) CHECK(te_step_row_bytes(p, &p->forward[k], TE_FORWARD) == 0);
    for (int k = 0; k < p->backward_count; k++) // attention's norm reads the fork later, so its gradient comes later, too
        if (!strcmp(p->backward[k].row, "load")) CHECK(te_step_row_bytes(p, &p->backward[k], TE_BACKWARD) == 0);
}
