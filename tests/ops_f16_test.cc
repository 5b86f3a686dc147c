// ops_f16_test.cc -- every op against the reference, in f16.
#define OPS_DTYPE f16
#include "ops.h"
