// expect: te: m: (rope, rot): value_dim must be positive and, where head_dim divides 256, a multiple of it
// A GEMM with rope in its epilogue has tiles of 256 columns, and each pair that is rotated must lie in one tile.
#include "te/te.h"
#ifdef TE_FIXED
TE_DECLARE(m, f32, (rope, rot, 2, 1, 16, (value_dim, 32)))
#else
TE_DECLARE(m, f32, (rope, rot, 2, 1, 16, (value_dim, 8)))
#endif
