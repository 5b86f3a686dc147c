// bounds.h -- the error bound of each value that a kernel computes: for each op the sum of the |terms| that it adds up,
// times the format's epsilon, plus the propagated errors of its inputs. There is no absolute floor, and nothing is fitted:
// where terms cancel to 0, the bound is epsilon times the terms.
//
// Do this:
//     bounds::forward b(list, params, call, dtype);
//     reference::forward(list, params, x, edges, call, rounding, &outs, [&](size_t i, vec &y) { b.step(i, y, ...); });
//     check_within("y", got, v.out.back(), b.error.back());
//
// Units. Arithmetic is f32, whatever the dtype. A rounding has an error of u = 2^-24 of its result. The rounding errors of a sum
// are a random walk whose steps are u times its partial sums. If the terms have either sign, the partial sums are a random walk,
// too, and the standard deviation of the error is 0.9 u times the sum of |terms|. If all terms have one sign, the partial sums
// grow, and the standard deviation is u sqrt(n / 3) times the sum. The bound is eight standard deviations in the first case and
// four in the second. The error of exp in te/core/math.h is 2e-7 (1 + |x|). A stored 16-bit value may differ by one unit in the
// last place, where the reference and the kernel round to different sides.
#ifndef TESTS_BOUNDS_H
#define TESTS_BOUNDS_H

#include <algorithm>

#include "reference.h"

namespace bounds {

using reference::call;
using reference::list;
using reference::op;
using reference::vec;

const double sums = 1.0 / (1 << 21); // the bound of a sum with terms of both signs, relative to the sum of |terms|
inline double same_sign(size_t n) { return sums * std::max(1.0, std::sqrt((double)n / 12)); }
const double functions = 1.0 / (1 << 21); // of exp and functions of it: twice 2e-7, because it stands in a quotient

// One unit in the last place of a 16-bit number of this size, at most; 0 for f32.
inline double ulp(double size, te_dtype t) {
    return t == TE_f32 ? 0 : t == TE_bf16 ? size / (1 << 7) : std::max(size / (1 << 10), 1.0 / (1 << 24));
}

// The sum of x y over k FP8 numbers, and the error bound of the tensor cores. Each product of two FP8 numbers is exact in f32. A tensor core
// adds 32 products and the accumulator at a time: it aligns them to the largest and truncates 13 bits below it. fast: the accumulator runs over
// all of k; else over 128 of k, and those sums are added in f32.
struct fp8_sum {
    double sum = 0, size = 0, error = 0;
    fp8_sum(const double *x, size_t x_step, const double *y, size_t y_step, size_t k, bool fast, bool tensor_cores);
};

struct forward {
    const list &l;
    const std::vector<vec> &params;
    const call &c;
    te_dtype dtype;
    vec x;
    std::vector<vec> value, error; // by op; the error is 0 once the value is replaced by the one that a kernel stored
    std::vector<vec> unstored;     // by op: the error bound before that replacement
    reference::edges inputs;       // by name: the (input, ..) that a cross_attention reads
    forward(const list &ops, const std::vector<vec> &p, const vec &first, const call &what, te_dtype t)
        : l(ops), params(p), c(what), dtype(t), x(first) {}

    // The error bound of the value of the fork or input that op i reads, and the size of its element k.
    vec fork_error(size_t i, size_t n) const;
    double fork_size(size_t i, size_t k) const;
    // Appends the error bound of op i, whose output is y. rounded: the output is stored and rounded; may: a kernel may round it or not.
    void step(size_t i, const vec &y, bool rounded, bool may);
    // Continues from the value y that a kernel stored; `before`: the kernel may have continued from the value before the rounding.
    void stored(const vec &y, bool before);
};

// The bounds of the gradients:
//     bounds::backward b(list, params, values, call, dtype);
//     reference::backward(list, params, values, dy, out_grads, call, round, held,
//                         [&](size_t i, const vec &d, const vec &dx) { b.step(i, d, dx, ...); });
//     check_within("dx", got, g.dx, b.d);          // and b.param, b.inputs
struct backward {
    const list &l;
    const std::vector<vec> &params;
    const reference::values &v;
    const call &c;
    te_dtype dtype;
    vec d;                   // of the current gradient, at last of dx
    std::vector<vec> param;  // bounds of the parameters' gradients
    std::map<int, vec> fork_grad, fork_terms; // by fork: of the gradient of its value; and the sum of |terms| of that gradient
    std::map<std::string, vec> inputs;
    vec expert_weights; // the gradients of the weights of a router, from its combine to the router
    vec logits; // error bounds of the logits that backward recomputes; empty: backward reads the saved ones
    backward(const list &ops, const std::vector<vec> &p, const reference::values &values, const call &what, te_dtype t)
        : l(ops), params(p), v(values), c(what), dtype(t) {
        for (const vec &e : p) param.push_back(vec(e.size(), 0.0));
    }
    // Op i computed dx from dy. rounded, may: as above, of dx; held: the gradient that an add passes to its fork is rounded.
    void step(size_t i, const vec &dy, const vec &dx, bool rounded, bool may, bool held);
    // Op i adds `part`, with the error bound `off`, to the gradient of the value of its fork.
    void add_to_fork(size_t i, const vec &part, const vec &off, bool held);
};

} // namespace bounds

#endif
