// expect: in backward this pattern has a linear, and no other op
// A backward pattern of a loss and its linear, with another op behind them.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(head, bf16, (scale, s, 0.5f), (linear, lm, 64, 96), (cross_entropy, ce, 96))
#else
#define TE_BACKWARD_cross_entropy_linear_scale TE_FUSED
TE_SEQUENTIAL(head, bf16, (scale, s, 0.5f), (linear, lm, 64, 96), (cross_entropy, ce, 96))
#endif

int main(void) { return head_forward_steps == 0; }
