// expect: te: m: (gradients, ...) is e5m2 or e4m3, of a list under fp8_delayed or fp8_current
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (f32, (recipe, fp8_delayed), (gradients, e4m3))
#else
#define LIST (f32, (recipe, fp8_block), (gradients, e4m3))
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32))
