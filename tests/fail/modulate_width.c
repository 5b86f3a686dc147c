// expect: te: m: (modulate, g): the widths and first must be multiples of eight
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (input, c, 128, (rows, sequences)), (linear, fc, 8, 64), (modulate, g, c))
#else
TE_SEQUENTIAL(m, f32, (input, c, 128, (rows, sequences)), (linear, fc, 8, 60), (modulate, g, c))
#endif
