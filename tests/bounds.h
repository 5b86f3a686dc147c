// bounds.h -- how far off a value of the reference's a kernel may be: for each op the sum of the |terms| that it adds
// up, times the format's epsilon, and what the errors of its inputs become. No floor, and nothing fitted: a value that
// cancels to nothing may be off by the epsilon of what cancelled.
//
// Do this:
//     bounds::forward b(list, params, call, dtype);
//     reference::forward(list, params, x, edges, call, rounding, &outs, [&](size_t i, vec &y) { b.step(i, y, ...); });
//     check_within("y", got, v.out.back(), b.error.back());
//
// Units. Arithmetic is f32, whatever the dtype: a rounding is u = 2^-24 of its result, and the roundings of a sum are a
// random walk whose steps are u times its partial sums. Where the terms have either sign the partial sums are a random
// walk, too: one standard deviation is 0.9 u times the sum of |terms|. Where all have one sign they grow with the
// terms, and it is u sqrt(n / 3) times the sum. Eight, or four, of them are the bound. te/core/math.h gives exp to 2e-7
// (1 + |x|). A stored 16-bit value is one unit in the last place off where two roundings fall apart.
#ifndef TESTS_BOUNDS_H
#define TESTS_BOUNDS_H

#include <algorithm>

#include "reference.h"

namespace bounds {

using reference::call;
using reference::list;
using reference::op;
using reference::vec;

const double sums = 1.0 / (1 << 21); // of the sum of |terms|
inline double same_sign(size_t n) { return sums * std::max(1.0, std::sqrt((double)n / 12)); }
const double functions = 1.0 / (1 << 21); // of exp and what is made of it; 2e-7 twice over, for it stands in a quotient

// One unit in the last place of a number of this size, at most.
inline double ulp(double size, te_dtype t) {
    return t == TE_f32 ? 0 : t == TE_bf16 ? size / (1 << 7) : std::max(size / (1 << 10), 1.0 / (1 << 24));
}

// The sum of x y over k numbers, and how far off the tensor cores may have it. Products of FP8 numbers are exact in f32. They add 32 of
// them and the sum so far at a time: aligned to the largest and cut off 13 bits below it; fast: all along, else for 128 of k, whose sums
// are then added in f32.
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
    std::vector<vec> value, error; // by op; what a kernel stored is right by itself
    std::vector<vec> given;        // by op: the error before that
    reference::edges inputs;       // by name, where a cross_attention reads one
    forward(const list &ops, const std::vector<vec> &p, const vec &first, const call &what, te_dtype t)
        : l(ops), params(p), c(what), dtype(t), x(first) {}

    // How far off what the fork or input of op i kept is, and how large element k of it.
    vec kept_error(size_t i, size_t n) const;
    double kept_size(size_t i, size_t k) const;
    // The error of op i, whose output is y: `rounded` if it is stored, `may` if a kernel may round it or not.
    void step(size_t i, const vec &y, bool rounded, bool may);
    // Go on from what a kernel stored; `before`: or from what it had before that was rounded.
    void stored(const vec &y, bool before);
};

// The same of the gradients, on the way back:
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
    vec d;                   // of the gradient that came last
    std::vector<vec> param;  // of the parameters' gradients
    std::map<int, vec> kept, handed; // by fork: of the gradient of what it kept, and the sum of |terms| of that
    std::map<std::string, vec> inputs;
    vec logits; // how far off the loss's logits are, where no kernel has kept them; empty: they are as the kernels have them
    backward(const list &ops, const std::vector<vec> &p, const reference::values &values, const call &what, te_dtype t)
        : l(ops), params(p), v(values), c(what), dtype(t) {
        for (const vec &e : p) param.push_back(vec(e.size(), 0.0));
    }
    // Op i got the gradient dy and produced dx, rounded or not; `held`: so is the gradient that an add passes through.
    void step(size_t i, const vec &dy, const vec &dx, bool rounded, bool may, bool held);
    // Op i leaves `part`, off by `off`, of the gradient of what its fork kept, beside what those behind it left.
    void hand_over(size_t i, const vec &part, const vec &off, bool held);
};

} // namespace bounds

#endif
