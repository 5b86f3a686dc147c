// expect: te: m: (rope, turn): value_dim must be positive and, where head_dim divides 256, a multiple of it
// A product that takes the rope along has tiles of 256 columns, and pairs of columns of one head in each.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (rope, turn, 2, 1, 16, (value_dim, 32)))
#else
TE_DECLARE(m, f32, (rope, turn, 2, 1, 16, (value_dim, 8)))
#endif
