// expect: te: m: (xielu, a) has more arguments than its kind takes
// xielu takes any width.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (xielu, a))
#else
TE_SEQUENTIAL(m, f32, (linear, fc, 8, 16), (xielu, a, 16))
#endif
