// ops_bf16_test.cc -- every op against the reference, in bf16.
#define OPS_DTYPE bf16
#include "ops.h"
