// expect: te: m: (inputs, saved) is of a list with a recipe
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (f32, (recipe, fp8_delayed), (inputs, saved))
#else
#define LIST (f32, (inputs, saved))
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32))
