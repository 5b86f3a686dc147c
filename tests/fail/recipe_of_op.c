// expect: (linear, fc): an op with a recipe stands in a list that names one
#include "te/te.h"
#ifdef TE_FIXED
#define LIST (f32, (recipe, none))
#else
#define LIST f32
#endif
TE_SEQUENTIAL(m, LIST, (linear, fc, 16, 32, (recipe, fp8_current)))
