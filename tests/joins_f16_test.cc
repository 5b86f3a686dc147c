#define JOINS_DTYPE f16
#include "joins.h"
