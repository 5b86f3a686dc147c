// expect: invalid operands
// te_min is of integers: the fraction of a float would be lost.
#include "te/core/base.h"

#ifdef TE_FIXED
int64_t f(int a, int64_t b) { return te_min(a, b); }
#else
float f(float a, float b) { return (float)te_min(a, b); }
#endif
