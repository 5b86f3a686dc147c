// tests/rows_random.py 7 40
#include "harness.h"
#include "te/ops/activation.h"
#include "te/ops/bias.h"
#include "te/ops/dropout.h"
#include "te/ops/linear.h"
#include "te/ops/norm.h"
#include "te/ops/residual.h"
#include "te/ops/scale.h"
#define F0_bias_fork_add_add TE_FUSED
#define F0_norm_bias_fork TE_FUSED
#define B0_add_add_fork_bias_fork TE_FUSED
MODEL_WITH(F0_, B0_, fused_0, bf16, (rmsnorm, r0, 24), (bias, b1, 24), (fork, f2), (bias, b3, 24), (input, i4, 24), (add, f2), (add, i4))
UNFUSED(bare_0, bf16, (rmsnorm, r0, 24), (bias, b1, 24), (fork, f2), (bias, b3, 24), (input, i4, 24), (add, f2), (add, i4))
TEST_CASE("list 0", "[rows_random]") {
    for (const subject *s : {&bare_0_subject, &fused_0_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F1_act_act TE_FUSED
#define F1_dropout_fork_fork_dropout_add_add TE_FUSED
#define F1_linear_act TE_FUSED
#define B1_act_act TE_FUSED
#define B1_add_add_dropout_fork_fork_dropout_dropout_act TE_FUSED
MODEL_WITH(F1_, B1_, fused_1, f32, (linear, l0, 24, 24), (gelu_erf, g1), (relu, r2), (gelu_erf, g3), (dropout, d4, 0.5f), (dropout, d5, 0.1f), (fork, f6), (fork, f7), (dropout, d8, 0.1f), (add, f6), (add, f7))
UNFUSED(bare_1, f32, (linear, l0, 24, 24), (gelu_erf, g1), (relu, r2), (gelu_erf, g3), (dropout, d4, 0.5f), (dropout, d5, 0.1f), (fork, f6), (fork, f7), (dropout, d8, 0.1f), (add, f6), (add, f7))
TEST_CASE("list 1", "[rows_random]") {
    for (const subject *s : {&bare_1_subject, &fused_1_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F2_bias_fork_fork_output TE_FUSED
#define F2_fork_norm_add_add_add TE_FUSED
#define B2_norm_fork_output_fork_fork_bias TE_FUSED
MODEL_WITH(F2_, B2_, fused_2, bf16, (bias, b0, 24), (bias, b1, 24), (fork, f2), (fork, f3), (output, o4), (input, i5, 24), (rmsnorm1p, r6, 24), (add, f3), (add, f2), (add, i5))
UNFUSED(bare_2, bf16, (bias, b0, 24), (bias, b1, 24), (fork, f2), (fork, f3), (output, o4), (input, i5, 24), (rmsnorm1p, r6, 24), (add, f3), (add, f2), (add, i5))
TEST_CASE("list 2", "[rows_random]") {
    for (const subject *s : {&bare_2_subject, &fused_2_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F3_bias_output TE_FUSED
#define F3_linear_gated_fork TE_FUSED
#define F3_norm_act TE_FUSED
#define F3_norm_add TE_FUSED
#define B3_linear_norm_act TE_FUSED
#define B3_norm_fork TE_FUSED
#define B3_norm_output_bias TE_FUSED
MODEL_WITH(F3_, B3_, fused_3, f16, (bias, b0, 8), (output, o1), (layernorm, l2, 8), (qgelu, q3), (l2norm, l4, 8), (linear, l5, 8, 16), (glu, g6), (fork, f7), (rmsnorm1p, r8, 8), (add, f7))
UNFUSED(bare_3, f16, (bias, b0, 8), (output, o1), (layernorm, l2, 8), (qgelu, q3), (l2norm, l4, 8), (linear, l5, 8, 16), (glu, g6), (fork, f7), (rmsnorm1p, r8, 8), (add, f7))
TEST_CASE("list 3", "[rows_random]") {
    for (const subject *s : {&bare_3_subject, &fused_3_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F4_linear_norm_fork_add_dropout_dropout_scale_act TE_FUSED
#define B4_act_scale_dropout_dropout_add_fork TE_FUSED
MODEL_WITH(F4_, B4_, fused_4, f32, (linear, l0, 40, 40), (rmsnorm1p, r1, 40), (input, i2, 40), (add, i2), (dropout, d3, 0.1f), (dropout, d4, 0.1f), (scale, s5, 0.5f), (srelu, s6))
UNFUSED(bare_4, f32, (linear, l0, 40, 40), (rmsnorm1p, r1, 40), (input, i2, 40), (add, i2), (dropout, d3, 0.1f), (dropout, d4, 0.1f), (scale, s5, 0.5f), (srelu, s6))
TEST_CASE("list 4", "[rows_random]") {
    for (const subject *s : {&bare_4_subject, &fused_4_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F5_gated_bias TE_FUSED
#define F5_linear_bias TE_FUSED
#define F5_linear_gated_output TE_FUSED
#define B5_bias_gated TE_FUSED
#define B5_linear_output_bias TE_FUSED
#define B5_linear_output_gated TE_FUSED
MODEL_WITH(F5_, B5_, fused_5, bf16, (linear, l0, 24, 24), (linear, l1, 24, 48), (swiglu, s2), (output, o3), (linear, l4, 24, 64), (bias, b5, 64), (output, o6), (linear, l7, 64, 128), (bias, b8, 128), (geglu, g9), (bias, b10, 64))
UNFUSED(bare_5, bf16, (linear, l0, 24, 24), (linear, l1, 24, 48), (swiglu, s2), (output, o3), (linear, l4, 24, 64), (bias, b5, 64), (output, o6), (linear, l7, 64, 128), (bias, b8, 128), (geglu, g9), (bias, b10, 64))
TEST_CASE("list 5", "[rows_random]") {
    for (const subject *s : {&bare_5_subject, &fused_5_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F6_bias_dropout TE_FUSED
#define F6_norm_fork_act_add_add TE_FUSED
#define F6_norm_output TE_FUSED
#define F6_norm_output_output TE_FUSED
#define B6_add_add_act_fork TE_FUSED
#define B6_norm_dropout_bias_fork_output_output TE_FUSED
#define B6_norm_output TE_FUSED
MODEL_WITH(F6_, B6_, fused_6, f32, (rmsnorm, r0, 8), (output, o1), (output, o2), (fork, f3), (bias, b4, 8), (dropout, d5, 0.1f), (l2norm, l6, 8), (l2norm, l7, 8), (output, o8), (rmsnorm, r9, 8), (fork, f10), (relu, r11), (add, f10), (add, f3))
UNFUSED(bare_6, f32, (rmsnorm, r0, 8), (output, o1), (output, o2), (fork, f3), (bias, b4, 8), (dropout, d5, 0.1f), (l2norm, l6, 8), (l2norm, l7, 8), (output, o8), (rmsnorm, r9, 8), (fork, f10), (relu, r11), (add, f10), (add, f3))
TEST_CASE("list 6", "[rows_random]") {
    for (const subject *s : {&bare_6_subject, &fused_6_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F7_add_add TE_FUSED
#define F7_fork_scale_output TE_FUSED
#define F7_linear_fork_norm_act_output TE_FUSED
#define F7_norm_fork_bias_add TE_FUSED
#define B7_add_add_add TE_FUSED
#define B7_norm_fork TE_FUSED
#define B7_norm_output_scale_fork_output_act TE_FUSED
MODEL_WITH(F7_, B7_, fused_7, f32, (linear, l0, 24, 24), (input, i1, 24), (layernorm, l2, 24), (silu, s3), (output, o4), (fork, f5), (scale, s6, -1.25f), (output, o7), (l2norm, l8, 24), (input, i9, 24), (bias, b10, 24), (add, i1), (add, f5), (add, i9))
UNFUSED(bare_7, f32, (linear, l0, 24, 24), (input, i1, 24), (layernorm, l2, 24), (silu, s3), (output, o4), (fork, f5), (scale, s6, -1.25f), (output, o7), (l2norm, l8, 24), (input, i9, 24), (bias, b10, 24), (add, i1), (add, f5), (add, i9))
TEST_CASE("list 7", "[rows_random]") {
    for (const subject *s : {&bare_7_subject, &fused_7_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F8_linear_output TE_FUSED
#define F8_norm_dropout_act_output TE_FUSED
#define B8_norm_output TE_FUSED
#define B8_output_act_dropout TE_FUSED
MODEL_WITH(F8_, B8_, fused_8, bf16, (linear, l0, 8, 8), (output, o1), (layernorm, l2, 8), (rmsnorm, r3, 8), (dropout, d4, 0.1f), (relu, r5), (output, o6), (linear, l7, 8, 24))
UNFUSED(bare_8, bf16, (linear, l0, 8, 8), (output, o1), (layernorm, l2, 8), (rmsnorm, r3, 8), (dropout, d4, 0.1f), (relu, r5), (output, o6), (linear, l7, 8, 24))
TEST_CASE("list 8", "[rows_random]") {
    for (const subject *s : {&bare_8_subject, &fused_8_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F9_add_add_fork_dropout_output_add_add TE_FUSED
#define F9_bias_fork_fork_fork_add_act_fork_output TE_FUSED
#define B9_add_add TE_FUSED
#define B9_add_fork_fork_fork_bias TE_FUSED
#define B9_output_dropout_fork_add_add_output_fork_act TE_FUSED
MODEL_WITH(F9_, B9_, fused_9, bf16, (bias, b0, 64), (input, i1, 64), (fork, f2), (fork, f3), (add, i1), (qgelu, q4), (input, i5, 64), (output, o6), (add, i5), (add, f2), (fork, f7), (dropout, d8, 0.1f), (output, o9), (add, f3), (add, f7))
UNFUSED(bare_9, bf16, (bias, b0, 64), (input, i1, 64), (fork, f2), (fork, f3), (add, i1), (qgelu, q4), (input, i5, 64), (output, o6), (add, i5), (add, f2), (fork, f7), (dropout, d8, 0.1f), (output, o9), (add, f3), (add, f7))
TEST_CASE("list 9", "[rows_random]") {
    for (const subject *s : {&bare_9_subject, &fused_9_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F10_linear_scale_fork_act_fork_add_add TE_FUSED
#define B10_add_add_fork_act_fork_scale TE_FUSED
MODEL_WITH(F10_, B10_, fused_10, f16, (linear, l0, 8, 8), (scale, s1, 0.5f), (fork, f2), (gelu, g3), (fork, f4), (add, f4), (add, f2))
UNFUSED(bare_10, f16, (linear, l0, 8, 8), (scale, s1, 0.5f), (fork, f2), (gelu, g3), (fork, f4), (add, f4), (add, f2))
TEST_CASE("list 10", "[rows_random]") {
    for (const subject *s : {&bare_10_subject, &fused_10_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F11_bias_scale_add_add TE_FUSED
#define F11_fork_scale_dropout_bias_add_fork TE_FUSED
#define F11_linear_fork_scale TE_FUSED
#define B11_add_add_scale_bias_fork_add TE_FUSED
#define B11_bias_dropout_scale_fork_scale_fork TE_FUSED
MODEL_WITH(F11_, B11_, fused_11, bf16, (linear, l0, 40, 40), (linear, l1, 40, 40), (fork, f2), (scale, s3, -1.25f), (fork, f4), (scale, s5, -1.25f), (dropout, d6, 0.5f), (bias, b7, 40), (add, f4), (input, i8, 40), (bias, b9, 40), (scale, s10, -1.25f), (add, f2), (add, i8))
UNFUSED(bare_11, bf16, (linear, l0, 40, 40), (linear, l1, 40, 40), (fork, f2), (scale, s3, -1.25f), (fork, f4), (scale, s5, -1.25f), (dropout, d6, 0.5f), (bias, b7, 40), (add, f4), (input, i8, 40), (bias, b9, 40), (scale, s10, -1.25f), (add, f2), (add, i8))
TEST_CASE("list 11", "[rows_random]") {
    for (const subject *s : {&bare_11_subject, &fused_11_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F12_fork_output_add TE_FUSED
#define F12_linear_fork_add_scale_fork_bias_norm_act TE_FUSED
#define B12_add_add_output_fork_act TE_FUSED
#define B12_norm_bias_fork_scale_add_fork TE_FUSED
MODEL_WITH(F12_, B12_, fused_12, f32, (linear, l0, 24, 24), (fork, f1), (add, f1), (scale, s2, -1.25f), (input, i3, 24), (bias, b4, 24), (l2norm, l5, 24), (silu, s6), (fork, f7), (output, o8), (add, f7), (add, i3))
UNFUSED(bare_12, f32, (linear, l0, 24, 24), (fork, f1), (add, f1), (scale, s2, -1.25f), (input, i3, 24), (bias, b4, 24), (l2norm, l5, 24), (silu, s6), (fork, f7), (output, o8), (add, f7), (add, i3))
TEST_CASE("list 12", "[rows_random]") {
    for (const subject *s : {&bare_12_subject, &fused_12_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F13_bias_fork_add_add TE_FUSED
#define F13_linear_gated_dropout TE_FUSED
#define F13_norm_bias_fork_act_dropout TE_FUSED
#define B13_add_add_fork_bias_dropout_act_fork TE_FUSED
#define B13_linear_bias TE_FUSED
#define B13_norm_dropout TE_FUSED
MODEL_WITH(F13_, B13_, fused_13, f32, (bias, b0, 37), (linear, l1, 37, 74), (reglu, r2), (dropout, d3, 0.5f), (l2norm, l4, 37), (bias, b5, 37), (fork, f6), (qgelu, q7), (dropout, d8, 0.5f), (bias, b9, 37), (fork, f10), (add, f6), (add, f10))
UNFUSED(bare_13, f32, (bias, b0, 37), (linear, l1, 37, 74), (reglu, r2), (dropout, d3, 0.5f), (l2norm, l4, 37), (bias, b5, 37), (fork, f6), (qgelu, q7), (dropout, d8, 0.5f), (bias, b9, 37), (fork, f10), (add, f6), (add, f10))
TEST_CASE("list 13", "[rows_random]") {
    for (const subject *s : {&bare_13_subject, &fused_13_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F14_fork_add_add_add TE_FUSED
#define F14_fork_dropout TE_FUSED
#define F14_linear_bias_gated_fork_output TE_FUSED
#define B14_add_add_add_fork_dropout_fork_output_fork TE_FUSED
#define B14_gated_bias TE_FUSED
#define B14_linear_bias TE_FUSED
MODEL_WITH(F14_, B14_, fused_14, f32, (bias, b0, 24), (linear, l1, 24, 48), (bias, b2, 48), (geglu, g3), (fork, f4), (output, o5), (fork, f6), (dropout, d7, 0.5f), (input, i8, 24), (add, f4), (add, i8), (add, f6))
UNFUSED(bare_14, f32, (bias, b0, 24), (linear, l1, 24, 48), (bias, b2, 48), (geglu, g3), (fork, f4), (output, o5), (fork, f6), (dropout, d7, 0.5f), (input, i8, 24), (add, f4), (add, i8), (add, f6))
TEST_CASE("list 14", "[rows_random]") {
    for (const subject *s : {&bare_14_subject, &fused_14_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F15_norm_scale_scale_fork_act_act_add TE_FUSED
#define B15_add_act_act_fork_scale_scale TE_FUSED
MODEL_WITH(F15_, B15_, fused_15, f16, (rmsnorm, r0, 64), (scale, s1, -1.25f), (scale, s2, 0.5f), (input, i3, 64), (relu, r4), (gelu, g5), (add, i3))
UNFUSED(bare_15, f16, (rmsnorm, r0, 64), (scale, s1, -1.25f), (scale, s2, 0.5f), (input, i3, 64), (relu, r4), (gelu, g5), (add, i3))
TEST_CASE("list 15", "[rows_random]") {
    for (const subject *s : {&bare_15_subject, &fused_15_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F16_act_fork_fork_fork_add_add_add_add TE_FUSED
#define F16_bias_act_dropout_fork_output TE_FUSED
#define B16_add_add_add_add_fork_fork_fork_act TE_FUSED
#define B16_output_fork_dropout_act_bias TE_FUSED
MODEL_WITH(F16_, B16_, fused_16, bf16, (bias, b0, 64), (srelu, s1), (dropout, d2, 0.1f), (fork, f3), (output, o4), (silu, s5), (input, i6, 64), (input, i7, 64), (fork, f8), (add, i7), (add, f3), (add, i6), (add, f8))
UNFUSED(bare_16, bf16, (bias, b0, 64), (srelu, s1), (dropout, d2, 0.1f), (fork, f3), (output, o4), (silu, s5), (input, i6, 64), (input, i7, 64), (fork, f8), (add, i7), (add, f3), (add, i6), (add, f8))
TEST_CASE("list 16", "[rows_random]") {
    for (const subject *s : {&bare_16_subject, &fused_16_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F17_bias_dropout TE_FUSED
#define F17_linear_scale_bias_fork TE_FUSED
#define B17_add_dropout TE_FUSED
#define B17_bias_fork TE_FUSED
#define B17_bias_scale TE_FUSED
MODEL_WITH(F17_, B17_, fused_17, bf16, (linear, l0, 64, 64), (scale, s1, 0.5f), (bias, b2, 64), (fork, f3), (bias, b4, 64), (dropout, d5, 0.5f), (add, f3))
UNFUSED(bare_17, bf16, (linear, l0, 64, 64), (scale, s1, 0.5f), (bias, b2, 64), (fork, f3), (bias, b4, 64), (dropout, d5, 0.5f), (add, f3))
TEST_CASE("list 17", "[rows_random]") {
    for (const subject *s : {&bare_17_subject, &fused_17_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F18_gated_fork_fork_add_add_bias_act_dropout TE_FUSED
#define B18_bias_add_add_fork_fork_gated TE_FUSED
#define B18_bias_dropout_act TE_FUSED
MODEL_WITH(F18_, B18_, fused_18, f32, (linear, l0, 8, 8), (linear, l1, 8, 16), (bias, b2, 16), (geglu, g3), (fork, f4), (fork, f5), (add, f4), (add, f5), (bias, b6, 8), (gelu, g7), (dropout, d8, 0.5f), (bias, b9, 8))
UNFUSED(bare_18, f32, (linear, l0, 8, 8), (linear, l1, 8, 16), (bias, b2, 16), (geglu, g3), (fork, f4), (fork, f5), (add, f4), (add, f5), (bias, b6, 8), (gelu, g7), (dropout, d8, 0.5f), (bias, b9, 8))
TEST_CASE("list 18", "[rows_random]") {
    for (const subject *s : {&bare_18_subject, &fused_18_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F19_bias_output TE_FUSED
#define F19_bias_scale_output TE_FUSED
#define F19_linear_bias_gated TE_FUSED
#define B19_gated_bias TE_FUSED
#define B19_linear_output_bias TE_FUSED
#define B19_output_scale_bias TE_FUSED
MODEL_WITH(F19_, B19_, fused_19, f32, (bias, b0, 37), (scale, s1, -1.25f), (output, o2), (bias, b3, 37), (output, o4), (linear, l5, 37, 74), (bias, b6, 74), (swiglu, s7))
UNFUSED(bare_19, f32, (bias, b0, 37), (scale, s1, -1.25f), (output, o2), (bias, b3, 37), (output, o4), (linear, l5, 37, 74), (bias, b6, 74), (swiglu, s7))
TEST_CASE("list 19", "[rows_random]") {
    for (const subject *s : {&bare_19_subject, &fused_19_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F20_bias_fork TE_FUSED
#define F20_bias_norm_output TE_FUSED
#define F20_fork_norm_output_output_output_add_add TE_FUSED
#define B20_add_output_output_output TE_FUSED
#define B20_norm_bias_fork TE_FUSED
#define B20_norm_fork_output TE_FUSED
MODEL_WITH(F20_, B20_, fused_20, f32, (bias, b0, 40), (fork, f1), (bias, b2, 40), (rmsnorm, r3, 40), (output, o4), (fork, f5), (l2norm, l6, 40), (output, o7), (output, o8), (output, o9), (add, f1), (add, f5))
UNFUSED(bare_20, f32, (bias, b0, 40), (fork, f1), (bias, b2, 40), (rmsnorm, r3, 40), (output, o4), (fork, f5), (l2norm, l6, 40), (output, o7), (output, o8), (output, o9), (add, f1), (add, f5))
TEST_CASE("list 20", "[rows_random]") {
    for (const subject *s : {&bare_20_subject, &fused_20_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F21_linear_bias_gated TE_FUSED
#define F21_linear_gated TE_FUSED
#define F21_norm_fork_add_bias TE_FUSED
#define F21_norm_scale_output TE_FUSED
#define B21_bias_add_fork TE_FUSED
#define B21_gated_bias TE_FUSED
#define B21_linear_act_act_output_scale TE_FUSED
#define B21_linear_bias TE_FUSED
MODEL_WITH(F21_, B21_, fused_21, bf16, (bias, b0, 37), (linear, l1, 37, 74), (swiglu, s2), (l2norm, l3, 37), (scale, s4, -1.25f), (output, o5), (relu, r6), (srelu, s7), (linear, l8, 37, 74), (bias, b9, 74), (reglu, r10), (rmsnorm, r11, 37), (input, i12, 37), (add, i12), (bias, b13, 37))
UNFUSED(bare_21, bf16, (bias, b0, 37), (linear, l1, 37, 74), (swiglu, s2), (l2norm, l3, 37), (scale, s4, -1.25f), (output, o5), (relu, r6), (srelu, s7), (linear, l8, 37, 74), (bias, b9, 74), (reglu, r10), (rmsnorm, r11, 37), (input, i12, 37), (add, i12), (bias, b13, 37))
TEST_CASE("list 21", "[rows_random]") {
    for (const subject *s : {&bare_21_subject, &fused_21_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F22_act_fork_fork_scale_act_add_add TE_FUSED
#define F22_linear_scale TE_FUSED
#define B22_add_add_act_scale_fork_fork_act TE_FUSED
#define B22_linear_scale TE_FUSED
MODEL_WITH(F22_, B22_, fused_22, bf16, (linear, l0, 40, 40), (scale, s1, -1.25f), (linear, l2, 40, 40), (qgelu, q3), (fork, f4), (fork, f5), (scale, s6, 0.5f), (qgelu, q7), (add, f5), (add, f4))
UNFUSED(bare_22, bf16, (linear, l0, 40, 40), (scale, s1, -1.25f), (linear, l2, 40, 40), (qgelu, q3), (fork, f4), (fork, f5), (scale, s6, 0.5f), (qgelu, q7), (add, f5), (add, f4))
TEST_CASE("list 22", "[rows_random]") {
    for (const subject *s : {&bare_22_subject, &fused_22_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F23_fork_add_dropout_bias_add TE_FUSED
#define F23_linear_fork_output TE_FUSED
#define B23_add_bias_dropout_add_fork_output_fork TE_FUSED
MODEL_WITH(F23_, B23_, fused_23, bf16, (linear, l0, 40, 40), (fork, f1), (output, o2), (fork, f3), (add, f1), (dropout, d4, 0.1f), (bias, b5, 40), (add, f3))
UNFUSED(bare_23, bf16, (linear, l0, 40, 40), (fork, f1), (output, o2), (fork, f3), (add, f1), (dropout, d4, 0.1f), (bias, b5, 40), (add, f3))
TEST_CASE("list 23", "[rows_random]") {
    for (const subject *s : {&bare_23_subject, &fused_23_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F24_bias_dropout TE_FUSED
#define F24_fork_bias_fork_scale_fork_add_add_add TE_FUSED
#define B24_add_add_add_fork_scale_fork_bias_fork TE_FUSED
#define B24_dropout_bias TE_FUSED
MODEL_WITH(F24_, B24_, fused_24, f32, (bias, b0, 64), (bias, b1, 64), (dropout, d2, 0.5f), (fork, f3), (bias, b4, 64), (input, i5, 64), (scale, s6, -1.25f), (fork, f7), (add, f7), (add, f3), (add, i5))
UNFUSED(bare_24, f32, (bias, b0, 64), (bias, b1, 64), (dropout, d2, 0.5f), (fork, f3), (bias, b4, 64), (input, i5, 64), (scale, s6, -1.25f), (fork, f7), (add, f7), (add, f3), (add, i5))
TEST_CASE("list 24", "[rows_random]") {
    for (const subject *s : {&bare_24_subject, &fused_24_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F25_act_norm TE_FUSED
#define F25_linear_fork_scale_fork_scale_add_add_act TE_FUSED
#define B25_norm_act_act_add_add_scale_fork_scale TE_FUSED
MODEL_WITH(F25_, B25_, fused_25, bf16, (linear, l0, 24, 24), (fork, f1), (scale, s2, 0.5f), (fork, f3), (scale, s4, -1.25f), (add, f3), (add, f1), (relu, r5), (srelu, s6), (rmsnorm1p, r7, 24))
UNFUSED(bare_25, bf16, (linear, l0, 24, 24), (fork, f1), (scale, s2, 0.5f), (fork, f3), (scale, s4, -1.25f), (add, f3), (add, f1), (relu, r5), (srelu, s6), (rmsnorm1p, r7, 24))
TEST_CASE("list 25", "[rows_random]") {
    for (const subject *s : {&bare_25_subject, &fused_25_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F26_fork_act_add TE_FUSED
#define F26_linear_norm TE_FUSED
#define B26_add_act TE_FUSED
#define B26_fork_bias TE_FUSED
MODEL_WITH(F26_, B26_, fused_26, f32, (linear, l0, 64, 64), (rmsnorm1p, r1, 64), (bias, b2, 64), (fork, f3), (gelu, g4), (add, f3))
UNFUSED(bare_26, f32, (linear, l0, 64, 64), (rmsnorm1p, r1, 64), (bias, b2, 64), (fork, f3), (gelu, g4), (add, f3))
TEST_CASE("list 26", "[rows_random]") {
    for (const subject *s : {&bare_26_subject, &fused_26_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F27_add_add_add TE_FUSED
#define F27_fork_fork_scale_fork_scale_act_add_add TE_FUSED
#define F27_linear_scale_fork_scale_act_fork TE_FUSED
#define B27_add_add_add_add_add_act_scale_fork TE_FUSED
#define B27_scale_fork_fork_output_fork_act_scale_fork TE_FUSED
MODEL_WITH(F27_, B27_, fused_27, f32, (linear, l0, 37, 37), (scale, s1, -1.25f), (fork, f2), (scale, s3, 0.5f), (gelu_erf, g4), (fork, f5), (output, o6), (fork, f7), (input, i8, 37), (scale, s9, -1.25f), (fork, f10), (scale, s11, 0.5f), (srelu, s12), (add, f7), (add, f2), (add, f5), (add, i8), (add, f10))
UNFUSED(bare_27, f32, (linear, l0, 37, 37), (scale, s1, -1.25f), (fork, f2), (scale, s3, 0.5f), (gelu_erf, g4), (fork, f5), (output, o6), (fork, f7), (input, i8, 37), (scale, s9, -1.25f), (fork, f10), (scale, s11, 0.5f), (srelu, s12), (add, f7), (add, f2), (add, f5), (add, i8), (add, f10))
TEST_CASE("list 27", "[rows_random]") {
    for (const subject *s : {&bare_27_subject, &fused_27_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F28_bias_norm_scale_scale TE_FUSED
#define F28_linear_bias TE_FUSED
#define F28_linear_scale_scale TE_FUSED
#define B28_linear_scale_scale TE_FUSED
MODEL_WITH(F28_, B28_, fused_28, f16, (bias, b0, 24), (layernorm, l1, 24), (scale, s2, -1.25f), (scale, s3, -1.25f), (linear, l4, 24, 24), (scale, s5, -1.25f), (scale, s6, -1.25f), (linear, l7, 24, 37), (bias, b8, 37))
UNFUSED(bare_28, f16, (bias, b0, 24), (layernorm, l1, 24), (scale, s2, -1.25f), (scale, s3, -1.25f), (linear, l4, 24, 24), (scale, s5, -1.25f), (scale, s6, -1.25f), (linear, l7, 24, 37), (bias, b8, 37))
TEST_CASE("list 28", "[rows_random]") {
    for (const subject *s : {&bare_28_subject, &fused_28_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F29_bias_output TE_FUSED
#define F29_gated_fork_add TE_FUSED
#define F29_linear_gated_act TE_FUSED
#define F29_norm_bias_dropout_scale TE_FUSED
#define B29_add_fork_gated TE_FUSED
#define B29_linear_act_gated TE_FUSED
#define B29_norm_output_bias TE_FUSED
#define B29_scale_dropout_bias TE_FUSED
MODEL_WITH(F29_, B29_, fused_29, f32, (bias, b0, 8), (output, o1), (l2norm, l2, 8), (layernorm, l3, 8), (bias, b4, 8), (dropout, d5, 0.5f), (scale, s6, 0.5f), (linear, l7, 8, 16), (glu, g8), (silu, s9), (linear, l10, 8, 16), (reglu, r11), (input, i12, 8), (add, i12))
UNFUSED(bare_29, f32, (bias, b0, 8), (output, o1), (l2norm, l2, 8), (layernorm, l3, 8), (bias, b4, 8), (dropout, d5, 0.5f), (scale, s6, 0.5f), (linear, l7, 8, 16), (glu, g8), (silu, s9), (linear, l10, 8, 16), (reglu, r11), (input, i12, 8), (add, i12))
TEST_CASE("list 29", "[rows_random]") {
    for (const subject *s : {&bare_29_subject, &fused_29_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F30_act_act_bias TE_FUSED
#define F30_linear_act_scale TE_FUSED
#define F30_linear_fork_scale_add_fork_add TE_FUSED
#define B30_add_fork_add_scale_fork TE_FUSED
#define B30_linear_bias_act_act_scale_act TE_FUSED
MODEL_WITH(F30_, B30_, fused_30, bf16, (linear, l0, 37, 37), (qgelu, q1), (scale, s2, -1.25f), (srelu, s3), (srelu, s4), (bias, b5, 37), (linear, l6, 37, 8), (fork, f7), (scale, s8, 0.5f), (add, f7), (input, i9, 8), (add, i9))
UNFUSED(bare_30, bf16, (linear, l0, 37, 37), (qgelu, q1), (scale, s2, -1.25f), (srelu, s3), (srelu, s4), (bias, b5, 37), (linear, l6, 37, 8), (fork, f7), (scale, s8, 0.5f), (add, f7), (input, i9, 8), (add, i9))
TEST_CASE("list 30", "[rows_random]") {
    for (const subject *s : {&bare_30_subject, &fused_30_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F31_linear_norm_scale_fork_add TE_FUSED
#define F31_linear_output_dropout_dropout TE_FUSED
#define B31_add_fork_scale TE_FUSED
#define B31_linear_dropout_dropout_output TE_FUSED
#define B31_linear_norm TE_FUSED
MODEL_WITH(F31_, B31_, fused_31, f32, (rmsnorm, r0, 8), (linear, l1, 8, 40), (linear, l2, 40, 37), (output, o3), (dropout, d4, 0.5f), (dropout, d5, 0.1f), (linear, l6, 37, 37), (rmsnorm, r7, 37), (scale, s8, -1.25f), (input, i9, 37), (add, i9))
UNFUSED(bare_31, f32, (rmsnorm, r0, 8), (linear, l1, 8, 40), (linear, l2, 40, 37), (output, o3), (dropout, d4, 0.5f), (dropout, d5, 0.1f), (linear, l6, 37, 37), (rmsnorm, r7, 37), (scale, s8, -1.25f), (input, i9, 37), (add, i9))
TEST_CASE("list 31", "[rows_random]") {
    for (const subject *s : {&bare_31_subject, &fused_31_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F32_bias_output TE_FUSED
#define F32_linear_bias_gated TE_FUSED
#define F32_linear_fork_fork_add_add TE_FUSED
#define F32_norm_dropout_dropout_output TE_FUSED
#define B32_add_add_fork_fork TE_FUSED
#define B32_linear_gated TE_FUSED
#define B32_linear_output_dropout_dropout TE_FUSED
#define B32_norm_output_bias TE_FUSED
MODEL_WITH(F32_, B32_, fused_32, f32, (bias, b0, 24), (output, o1), (rmsnorm1p, r2, 24), (dropout, d3, 0.1f), (dropout, d4, 0.5f), (output, o5), (linear, l6, 24, 48), (bias, b7, 48), (swiglu, s8), (linear, l9, 24, 37), (fork, f10), (fork, f11), (add, f11), (add, f10))
UNFUSED(bare_32, f32, (bias, b0, 24), (output, o1), (rmsnorm1p, r2, 24), (dropout, d3, 0.1f), (dropout, d4, 0.5f), (output, o5), (linear, l6, 24, 48), (bias, b7, 48), (swiglu, s8), (linear, l9, 24, 37), (fork, f10), (fork, f11), (add, f11), (add, f10))
TEST_CASE("list 32", "[rows_random]") {
    for (const subject *s : {&bare_32_subject, &fused_32_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F33_act_scale_act_add_bias_fork_fork_add TE_FUSED
#define F33_linear_act_act_scale_fork TE_FUSED
#define B33_act_fork_scale_act_act TE_FUSED
#define B33_add_add_fork_fork_bias_add_act_scale TE_FUSED
MODEL_WITH(F33_, B33_, fused_33, f32, (linear, l0, 8, 8), (gelu, g1), (srelu, s2), (scale, s3, -1.25f), (input, i4, 8), (silu, s5), (scale, s6, 0.5f), (relu, r7), (add, i4), (bias, b8, 8), (input, i9, 8), (fork, f10), (add, i9), (add, f10))
UNFUSED(bare_33, f32, (linear, l0, 8, 8), (gelu, g1), (srelu, s2), (scale, s3, -1.25f), (input, i4, 8), (silu, s5), (scale, s6, 0.5f), (relu, r7), (add, i4), (bias, b8, 8), (input, i9, 8), (fork, f10), (add, i9), (add, f10))
TEST_CASE("list 33", "[rows_random]") {
    for (const subject *s : {&bare_33_subject, &fused_33_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F34_linear_act TE_FUSED
#define F34_linear_bias_gated TE_FUSED
#define F34_linear_fork_add TE_FUSED
#define B34_add_fork TE_FUSED
#define B34_gated_bias TE_FUSED
#define B34_linear_act TE_FUSED
#define B34_linear_scale_bias TE_FUSED
MODEL_WITH(F34_, B34_, fused_34, bf16, (linear, l0, 8, 8), (silu, s1), (linear, l2, 8, 16), (bias, b3, 16), (reglu, r4), (bias, b5, 8), (scale, s6, 0.5f), (linear, l7, 8, 40), (fork, f8), (add, f8))
UNFUSED(bare_34, bf16, (linear, l0, 8, 8), (silu, s1), (linear, l2, 8, 16), (bias, b3, 16), (reglu, r4), (bias, b5, 8), (scale, s6, 0.5f), (linear, l7, 8, 40), (fork, f8), (add, f8))
TEST_CASE("list 34", "[rows_random]") {
    for (const subject *s : {&bare_34_subject, &fused_34_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F35_norm_scale_dropout_bias TE_FUSED
#define B35_bias_dropout_scale TE_FUSED
MODEL_WITH(F35_, B35_, fused_35, f16, (rmsnorm, r0, 8), (rmsnorm1p, r1, 8), (scale, s2, 0.5f), (dropout, d3, 0.5f), (bias, b4, 8), (bias, b5, 8))
UNFUSED(bare_35, f16, (rmsnorm, r0, 8), (rmsnorm1p, r1, 8), (scale, s2, 0.5f), (dropout, d3, 0.5f), (bias, b4, 8), (bias, b5, 8))
TEST_CASE("list 35", "[rows_random]") {
    for (const subject *s : {&bare_35_subject, &fused_35_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F36_bias_output TE_FUSED
#define F36_linear_fork TE_FUSED
#define F36_norm_dropout_bias TE_FUSED
#define B36_add_dropout_fork TE_FUSED
#define B36_bias_dropout TE_FUSED
#define B36_output_bias TE_FUSED
MODEL_WITH(F36_, B36_, fused_36, f32, (rmsnorm, r0, 24), (dropout, d1, 0.1f), (bias, b2, 24), (bias, b3, 24), (output, o4), (linear, l5, 24, 24), (fork, f6), (dropout, d7, 0.1f), (add, f6))
UNFUSED(bare_36, f32, (rmsnorm, r0, 24), (dropout, d1, 0.1f), (bias, b2, 24), (bias, b3, 24), (output, o4), (linear, l5, 24, 24), (fork, f6), (dropout, d7, 0.1f), (add, f6))
TEST_CASE("list 36", "[rows_random]") {
    for (const subject *s : {&bare_36_subject, &fused_36_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F37_bias_norm_act TE_FUSED
#define F37_linear_gated_output TE_FUSED
#define B37_linear_act TE_FUSED
#define B37_norm_bias TE_FUSED
#define B37_output_gated TE_FUSED
MODEL_WITH(F37_, B37_, fused_37, bf16, (bias, b0, 8), (rmsnorm, r1, 8), (gelu_erf, g2), (linear, l3, 8, 8), (linear, l4, 8, 16), (swiglu, s5), (output, o6))
UNFUSED(bare_37, bf16, (bias, b0, 8), (rmsnorm, r1, 8), (gelu_erf, g2), (linear, l3, 8, 8), (linear, l4, 8, 16), (swiglu, s5), (output, o6))
TEST_CASE("list 37", "[rows_random]") {
    for (const subject *s : {&bare_37_subject, &fused_37_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F38_bias_dropout_fork_add TE_FUSED
#define F38_linear_dropout_bias TE_FUSED
#define F38_linear_output TE_FUSED
#define B38_add_fork_dropout_bias TE_FUSED
#define B38_bias_dropout TE_FUSED
#define B38_linear_scale_output TE_FUSED
MODEL_WITH(F38_, B38_, fused_38, f32, (linear, l0, 8, 8), (output, o1), (scale, s2, -1.25f), (linear, l3, 8, 64), (linear, l4, 64, 40), (dropout, d5, 0.5f), (bias, b6, 40), (bias, b7, 40), (dropout, d8, 0.5f), (input, i9, 40), (add, i9))
UNFUSED(bare_38, f32, (linear, l0, 8, 8), (output, o1), (scale, s2, -1.25f), (linear, l3, 8, 64), (linear, l4, 64, 40), (dropout, d5, 0.5f), (bias, b6, 40), (bias, b7, 40), (dropout, d8, 0.5f), (input, i9, 40), (add, i9))
TEST_CASE("list 38", "[rows_random]") {
    for (const subject *s : {&bare_38_subject, &fused_38_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
#define F39_linear_gated_bias_fork_add_dropout TE_FUSED
#define B39_dropout_add_fork_bias_gated TE_FUSED
MODEL_WITH(F39_, B39_, fused_39, f32, (rmsnorm, r0, 40), (linear, l1, 40, 80), (geglu, g2), (bias, b3, 40), (input, i4, 40), (add, i4), (dropout, d5, 0.5f))
UNFUSED(bare_39, f32, (rmsnorm, r0, 40), (linear, l1, 40, 80), (geglu, g2), (bias, b3, 40), (input, i4, 40), (add, i4), (dropout, d5, 0.5f))
TEST_CASE("list 39", "[rows_random]") {
    for (const subject *s : {&bare_39_subject, &fused_39_subject})
        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);
}
