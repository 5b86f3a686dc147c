#define JOINS_DTYPE bf16
#include "joins.h"
