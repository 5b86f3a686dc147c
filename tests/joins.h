// joins.h -- lists with branches and joins (fork, load, add, mul: te/ops/residual.h) against the reference. A template by inclusion; its input:
//     JOINS_DTYPE      f32, bf16, f16
#ifndef JOINS_DTYPE
#error "joins.h needs JOINS_DTYPE"
#endif
#include "harness.h"
#include "te/te.h"

// GPT-J: attention and MLP are parallel and share one norm.
#define JOINS_PARALLEL(H, F, HEADS)                                                                              \
    (fork, x), (layernorm, ln, H), (fork, n), (linear, qkv, H, 3 * H), (attention, at, HEADS, HEADS, H / HEADS), \
        (linear, proj, H, H), (fork, a), (load, n), (linear, fc1, H, F), (bias, b1, F), (gelu, act),             \
        (linear, fc2, F, H), (bias, b2, H), (add, a), (add, x)
// Falcon 40B, GPT-NeoX: attention and MLP are parallel, each with its own norm of x.
#define JOINS_NEOX(H, F, HEADS)                                                                               \
    (fork, x), (layernorm, ln1, H), (linear, qkv, H, 3 * H), (attention, at, HEADS, HEADS, H / HEADS),        \
        (linear, proj, H, H), (fork, a), (load, x), (layernorm, ln2, H), (linear, fc1, H, F), (gelu, act),     \
        (linear, fc2, F, H), (dropout, d, 0.1f), (add, a), (add, x), (gelu, last)
// A gate with its own projection.
#define JOINS_GATE(H, F) \
    (fork, x), (linear, gate, H, F), (silu, act), (fork, g), (load, x), (linear, up, H, F), (mul, g), (linear, down, F, H), (add, x)

// X(name, how, dtype, ops...)
#define JOINS_LISTS(X)                                                                                                    \
    X(parallel, MODEL, JOINS_DTYPE, JOINS_PARALLEL(64, 96, 2))                                                            \
    X(parallel_unfused, UNFUSED, JOINS_DTYPE, JOINS_PARALLEL(64, 96, 2))                                                  \
    X(neox, MODEL, JOINS_DTYPE, JOINS_NEOX(64, 96, 2))                                                                    \
    X(neox_unfused, UNFUSED, JOINS_DTYPE, JOINS_NEOX(64, 96, 2))                                                          \
    X(gate, MODEL, JOINS_DTYPE, JOINS_GATE(40, 96))                                                                       \
    X(gate_unfused, UNFUSED, JOINS_DTYPE, JOINS_GATE(37, 53))                                                             \
    X(added_twice, MODEL, JOINS_DTYPE, (bias, b, 37), (fork, x), (gelu, a), (add, x), (silu, c), (add, second, x))         \
    X(added_at_once, MODEL, JOINS_DTYPE, (fork, x), (linear, l, 64, 64), (add, x), (add, y, x), (add, z, x), (rmsnorm, n, 64)) \
    X(added_before_norm, MODEL, JOINS_DTYPE, (fork, x), (scale, s, 0.5f), (add, x), (fork, z), (layernorm, n, 64), (add, z), (add, y, x), (add, w, z)) \
    X(squared, MODEL, JOINS_DTYPE, (bias, b, 53), (fork, x), (mul, x), (bias, c, 53), (mul, y, x))                        \
    X(squared_linear, MODEL, JOINS_DTYPE, (linear, l, 40, 64), (fork, x), (mul, x), (gelu, a), (add, x))                  \
    X(mul_add_load, MODEL, JOINS_DTYPE, (fork, x), (linear, k, 64, 128), (sreglu, s), (fork, a), (load, x), (linear, l, 64, 64), (mul, a), (add, a), (fork, c), (load, xx, x), (linear, q, 64, 128), (swiglu, t), (add, c), (mul, m, c)) \
    X(loaded_thrice, MODEL, JOINS_DTYPE, (fork, x), (linear, l, 64, 40), (fork, a), (load, x), (linear, m, 64, 40), (fork, b), (load, y, x), (linear, n, 64, 40), (add, b), (add, a), (fork, c), (load, z, x), (linear, o, 64, 40), (mul, c)) \
    X(loaded_forks, MODEL, JOINS_DTYPE, (fork, x), (bias, w, 53), (gelu, f), (fork, a), (fork, b), (load, x), (silu, g), (add, a), (mul, b))  \
    X(input_twice, MODEL, JOINS_DTYPE, (linear, l, 40, 64), (input, i, 64), (add, i), (gelu, a), (mul, i), (linear, m, 64, 64), (add, second, i)) \
    X(input_loaded, MODEL, JOINS_DTYPE, (input, i, 64), (linear, l, 40, 96), (fork, a), (load, i), (linear, m, 64, 96), (add, a), (fork, b), (load, j, i), (linear, n, 64, 96), (mul, b)) \
    X(input_loaded_once, MODEL, JOINS_DTYPE, (bias, l, 37), (fork, a), (input, i, 37), (fork, k), (load, i), (gelu, n), (add, a), (add, k)) \
    X(output_between, MODEL, JOINS_DTYPE, (fork, x), (gelu, f), (output, o), (fork, a), (load, x), (bias, b, 64), (output, p), (mul, a)) \
    X(rerun, MODEL, JOINS_DTYPE, (bias, b, 64), (recompute, r), (fork, x), (rmsnorm, n, 64), (linear, l, 64, 96), (silu, f), (fork, a), (load, x), (linear, u, 64, 96), (mul, a), (linear, v, 96, 64), (end_recompute, r), (add, x), (mul, y, x)) \
    X(rerun_outside, MODEL, JOINS_DTYPE, (input, i, 64), (fork, x), (linear, k, 64, 64), (recompute, r), (fork, z), (gelu, f), (fork, a), (load, x), (linear, u, 64, 64), (mul, a), (mul, m, i), (silu, g), (linear, v, 64, 64), (end_recompute, r), (add, x), (add, i), (add, z))

#define JOINS_MODEL(name, how, dtype, ...) how(name, dtype, __VA_ARGS__)
#define JOINS_SUBJECT(name, ...) &name##_subject,
JOINS_LISTS(JOINS_MODEL)

TEST_CASE("branches and joins", "[joins]") {
    for (const subject *s : {JOINS_LISTS(JOINS_SUBJECT)}) {
        check(*s, shape(1, 1));
        check(*s, shape(2, 7));
        check(*s, shape(1, 131));
        check_gradients_of_reference(*s, shape(1, 3));
        const custom_gemms on;
        if (TE_CUDA) check(*s, shape(3, 86));
    }
}
