/* model.h -- what main.c and model.cu share: the list, and the types and prototypes that TE_DECLARE makes of it.
 * In plain C it needs no CUDA header.
 */
#ifndef EMBED_MODEL_H
#define EMBED_MODEL_H

/* [list] */
#include "te/te.h"

enum { SCORER_IN = 16, SCORER_HIDDEN = 32, SCORER_OUT = 4 };

#define SCORER_OPS                                                                                    \
    (layernorm, ln, SCORER_IN),                                                                       \
    (linear, fc1, SCORER_IN, SCORER_HIDDEN), (bias, fc1_b, SCORER_HIDDEN), (relu, act),               \
    (linear, fc2, SCORER_HIDDEN, SCORER_OUT), (bias, fc2_b, SCORER_OUT)

TE_DECLARE(scorer, f32, SCORER_OPS)
/* [list] */

#endif
