// ops_test.cc -- every op against the reference, in f32.
#define OPS_DTYPE f32
#include "ops.h"
