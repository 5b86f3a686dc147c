/* microscaled_driver.c -- casts a matrix of a file to MXFP8 and NVFP4, for microscaled.py.
 *     microscaled_driver FILE ROWS COLS FORMAT HADAMARD SQUARE SWIZZLED
 * FILE has ROWS x COLS numbers in bf16. Writes to standard output the elements and scales, rowwise and then columnwise. */
#include <stdio.h>
#include <stdlib.h>

#include "te/fp8/impl/quantize_mxfp8.h"
#include "te/fp8/impl/quantize_nvfp4.h"
#include "te/gemm/gemm.h" /* te_context_create */

TE_QUANTIZE_MXFP8(mx, bf16)
TE_QUANTIZE_NVFP4(nv, bf16)

static int run(te_microscaling format, te_quantize_microscaled *q, te_context *ctx, FILE *file) {
    const size_t bytes = (size_t)(q->rows * q->cols) * 2;
    void *x, *out[4], *amax, *host = malloc(bytes + 1);
    size_t size[4];
    for (int k = 0; k < 2; k++) {
        const te_microscaled_shape s = te_microscaled_shape_of(format, q->rows, q->cols, k, q->swizzled);
        size[2 * k] = (size_t)s.data_bytes, size[2 * k + 1] = (size_t)s.scale_bytes;
    }
    if (!host || fread(host, 1, bytes, file) != bytes || te_allocate(ctx, &x, bytes) != TE_OK) return 1;
    if (te_allocate(ctx, &amax, 8) != TE_OK || te_copy(ctx, x, host, bytes) != TE_OK) return 1;
    for (int k = 0; k < 4; k++) if (te_allocate(ctx, &out[k], size[k]) != TE_OK) return 1;
    q->x = x, q->amax = (float *)amax, q->y.data = (uint8_t *)out[0], q->y.scales = (uint8_t *)out[1];
    q->yt.data = (uint8_t *)out[2], q->yt.scales = (uint8_t *)out[3];
    if ((format == TE_MXFP8 ? mx_run : nv_run)(q, ctx) != TE_OK) return fprintf(stderr, "%s\n", te_last_error(ctx)), 1;
    for (int k = 0; k < 4; k++) {
        char *bytes_of = (char *)malloc(size[k] + 1);
        if (!bytes_of || te_copy(ctx, bytes_of, out[k], size[k]) != TE_OK || te_synchronize(ctx) != TE_OK) return 1;
        fwrite(bytes_of, 1, size[k], stdout), free(bytes_of), te_release(ctx, out[k]);
    }
    return free(host), te_release(ctx, x), te_release(ctx, amax), 0;
}
int main(int argc, char **argv) {
    te_context ctx;
    FILE *file = argc == 8 ? fopen(argv[1], "rb") : 0;
    if (!file || te_context_create(&ctx, 0, 1) != TE_OK) return 1;
    te_quantize_microscaled q = te_quantize_microscaled_of(atoi(argv[2]), atoi(argv[3]));
    q.hadamard = atoi(argv[5]), q.square_blocks = atoi(argv[6]), q.swizzled = atoi(argv[7]);
    const int bad = run(argv[4][0] == 'm' ? TE_MXFP8 : TE_NVFP4, &q, &ctx, file);
    return fclose(file), te_context_destroy(&ctx), bad;
}
