/* gemm_sm90_epilogue_transpose.h -- the transpose of the epilogue's FP8 output (gemm_sm90_epilogue.h), which the weight
 * gradient's GEMM reads. The FP8 bytes are written to the staging buffer from which their 16-bit input was read, 128
 * rows of 64 columns, and are stored to memory from there by columns.
 *
 * The 64 bytes of a row are four chunks of 16. They occupy four of the eight chunks of the row's 128 bytes, chosen so
 * that the rows that a warp writes, and the rows that one 8 x 8 matrix of ldmatrix reads, lie in different banks.
 * ldmatrix transposes 16-bit elements, here two adjacent bytes. The lanes pass row addresses such that each lane gets
 * sixteen consecutive rows of two columns; then only the bytes within words have to be reordered.
 *
 * Bytes: one an element, in runs of 64. A separate transpose kernel (te/fp8/impl/cast_transpose.h) would move two.
 */
/* target: cuda */
#ifndef TE_GEMM_SM90_EPILOGUE_TRANSPOSE_H
#define TE_GEMM_SM90_EPILOGUE_TRANSPOSE_H

#include "gemm_sm90_scheduler.h" /* te__sm90_gemm_params */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* The address of 16-column chunk `chunk` of row `row` of 128. staging: of row 0, the first consumer warp's subtile. */
TE_FN uint32_t te__sm90_transpose_at(uint32_t staging, int row, int chunk) {
    const uint32_t r = (uint32_t)row, place = (r / 16 % 4 * 2 + r % 2) ^ (uint32_t)chunk * 2;
    return staging + r / 16 * 2 * TE_SM90_GEMM_SUBTILE_BYTES + r % 16 * 128 + place * 16;
}
/* Store a lane's eight columns of `row` to the staging buffer. The whole warp calls it, after it has loaded these
 * rows. */
TE_FN void te__sm90_transpose_stage(uint32_t staging, int row, int lane, const uint32_t fp8[2]) {
    const uint32_t to = te__sm90_transpose_at(staging, row, lane % 8 / 2) + (uint32_t)(lane % 2 * 8);
    __syncwarp();
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(fp8[0]), "r"(fp8[1]) : "memory");
}
/* Load eight rows of columns 2 c (to `low`) and 2 c + 1 (to `high`) of a chunk, c = lane / 4. The lanes lane % 4 = 0 to
 * 3 get the eight rows from first, first + 16, first + 32 and first + 48 on. */
TE_FN void te__sm90_transpose_load(uint32_t low[2], uint32_t high[2], uint32_t staging, int first, int chunk,
                                   int lane) {
    const int row = first + lane % 8 / 2 * 16 + lane / 8 * 2 + lane % 2; /* this lane passes its address to ldmatrix */
    uint32_t w[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(te__sm90_transpose_at(staging, row, chunk))
                 : "memory");
    TE_UNROLL for (int i = 0; i < 2; i++) {
        low[i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x6420);
        high[i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x7531);
    }
}
/* Store 64 columns from `col` on, 128 rows from `row` on, once all warps of the epilogue have staged their rows in
 * `buffer`. Of the three warps the second and third do this, while the first one continues with the next columns, in
 * the other buffer: it has a fifth more rows than they have, and when all three stored, the other two waited for it a
 * tenth of their time. For a block's last tile all warps do it. */
TE_FN void te__sm90_transpose_store(const te__sm90_gemm_params *p, uint32_t staging, int row, int col, int warp,
                                    int lane, int buffer, int is_last) {
    const int warps = is_last ? TE_SM90_GEMM_LAST_TILE_WARPS : TE_SM90_GEMM_EPILOGUE_WARPS;
    if (warp == 0 && !is_last) {
        __syncwarp();
        asm volatile("bar.arrive %0, %1;" ::"r"(1 + buffer), "r"(32 * warps) : "memory");
        return;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + buffer), "r"(32 * warps) : "memory");
#pragma unroll 1
    for (int unit = is_last ? warp : warp - 1; unit < 8; unit += is_last ? warps : warps - 1) { /* 64 rows x 16 */
        const int first = unit / 4 * 64, chunk = unit % 4, x = col + chunk * 16 + lane / 4 * 2;
        const int y = row + first + lane % 4 * 16;
        uint32_t low[4], high[4];
        __syncwarp(); /* lanes beyond the matrix store nothing, and must not run ahead into ldmatrix */
        te__sm90_transpose_load(low, high, staging, first, chunk, lane);
        te__sm90_transpose_load(low + 2, high + 2, staging, first + 8, chunk, lane);
        if (y < p->transposed_rows && x < p->n) { /* n is even */
            uint8_t *to = p->transposed + (int64_t)x * p->transposed_rows + y;
            *(uint4 *)to = make_uint4(low[0], low[1], low[2], low[3]);
            *(uint4 *)(to + p->transposed_rows) = make_uint4(high[0], high[1], high[2], high[3]);
        }
    }
}
#endif

#endif
