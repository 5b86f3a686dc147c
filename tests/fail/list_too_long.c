// expect: te: m: the list is too long; it holds 96 ops at most
#include "te/fuse/sequential.h"
#include "te/ops/elementwise.h"

#define SEVEN(n) (scale, n##0, 2), (scale, n##1, 2), (scale, n##2, 2), (scale, n##3, 2), (scale, n##4, 2), (scale, n##5, 2), (scale, n##6, 2)
#define EIGHT(n) SEVEN(n), (scale, n##7, 2)
#define THIRTY_TWO(n) EIGHT(n##0), EIGHT(n##1), EIGHT(n##2), EIGHT(n##3)

#ifdef TE_FIXED
TE_SEQUENTIAL(m, f32, THIRTY_TWO(p), THIRTY_TWO(q), EIGHT(r), EIGHT(s), EIGHT(t), SEVEN(u), (bias, b, 8))
#else
TE_SEQUENTIAL(m, f32, (bias, b, 8), THIRTY_TWO(p), THIRTY_TWO(q), THIRTY_TWO(r))
#endif
