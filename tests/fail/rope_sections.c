// expect: te: m: (rope, r): sections needs (scaling, given)
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, (rope, r, 2, 1, 32, (scaling, given), (sections, 3)))
#else
TE_SEQUENTIAL(m, f32, (rope, r, 2, 1, 32, (sections, 3)))
#endif
