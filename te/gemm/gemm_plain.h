/* gemm_plain.h -- a matrix product for every shape on compute capability 8.0 and up, which asks for no library: what
 * a build without cuBLASLt (TE_NO_CUBLASLT) runs where neither gemm_few.h nor gemm_hopper.h takes a product.
 *
 * In 16 bits a block of eight warps owns a tile of 128 x 128 of D, or of 64 x 128 for up to 64 rows. Steps of 64 of k
 * come by cp.async into a ring of 96 KB, so that two blocks fit on a multiprocessor of Hopper; ldmatrix, which
 * transposes where an operand lies across, takes them to mma.sync. Rows whose length is no multiple of eight cannot be
 * copied in 16 bytes and are loaded one element at a time. In f32 a thread owns 8 x 8 of a tile of 128 x 128, by plain
 * multiplications and additions in float.
 *
 * Where the tiles are fewer than the blocks that fit, k is shared out in parts: each leaves its sums in the workspace,
 * and a second kernel adds them up in the order of k. Only sizes and the number of multiprocessors decide, so the same
 * inputs give the same bits.
 *
 * Flops: 2 m n k; on an H200 346 TFLOP/s at 2048 x 16384 x 4096, 265 for a weight's gradient of 16384 x 4096 x 2048.
 * Bytes at up to 64 rows: the weight once, and 8 m n bytes for each part: 64 x 12288 x 4096 takes 41 us, 2.4 TB/s.
 */
/* target: cuda */
#ifndef TE_GEMM_PLAIN_H
#define TE_GEMM_PLAIN_H

#include "../core/launch_cuda.h" /* te__cuda_launch */
#include "../core/mma_cuda.h"    /* te__mma, te__shared_address */
#include "../core/target.h"      /* te_kernel_begin, TE_KERNEL */
#include "gemm_types.h"          /* te_gemm */

enum {
    TE_PLAIN_COLUMNS = 128,
    TE_PLAIN_FEW = 64, /* rows up to which a tile has as many; else 128 */
    TE_PLAIN_STEP = 64,
    TE_PLAIN_THREADS = 256, /* two warps above each other, four beside each other */
    TE_PLAIN_SHARED = 96 << 10,
    TE_PLAIN_BAND = 8, /* tiles above each other before the next column of tiles: what they read stays in the L2 */
    TE_PLAIN_F32_STEP = 16
};

typedef struct te_plain {
    const void *a, *b, *c, *bias; /* bias: null: none */
    void *d;
    float *sums; /* [parts, m, n]; null where there is one part */
    float alpha, beta;
    int m, n, k, trans_a, trans_b;
    int rows, columns; /* of tiles */
    int each, parts;   /* of k: elements of a part, a multiple of TE_PLAIN_STEP; how many there are */
    te_dtype dtype, out;
} te_plain;

/* The first row and column of this block's tile, and the part [first, last) of k that it takes. */
typedef struct te_plain_work { int y, x, first, last; } te_plain_work;
TE_FN te_plain_work te__plain_work(const te_plain *p, int tile_rows) {
    te_plain_work w;
    const int i = (int)blockIdx.x, band = i / (TE_PLAIN_BAND * p->columns), top = band * TE_PLAIN_BAND;
    const int high = te_min(TE_PLAIN_BAND, p->rows - top), at = i - top * p->columns;
    w.y = (top + at % high) * tile_rows, w.x = at / high * TE_PLAIN_COLUMNS;
    w.first = (int)blockIdx.y * p->each, w.last = te_min(p->k - w.first, p->each) + w.first;
    return w;
}

/* ---- what a sum becomes ------------------------------------------------------------------------------------------ */

TE_FN float te__plain_value(const te_plain *p, int64_t at, int col, float sum) {
    float v = p->alpha * sum;
    if (p->beta != 0) v += p->beta * te__load_wide(p->c, at, p->out);
    return p->bias ? v + te__load_wide(p->bias, col, p->dtype) : v;
}
/* Two sums beside each other, of which the second may lie beyond the end. */
TE_FN void te__plain_put(const te_plain *p, int row, int col, float first, float second) {
    if (row >= p->m || col >= p->n) return;
    const int64_t at = (int64_t)row * p->n + col, all = (int64_t)p->m * p->n;
    const int pair = p->n % 2 == 0, two = col + 1 < p->n;
    if (p->sums) {
        float *sums = p->sums + (int64_t)blockIdx.y * all + at;
        if (pair) *(float2 *)sums = make_float2(first, second);
        else {
            sums[0] = first;
            if (two) sums[1] = second;
        }
        return;
    }
    const float u = te__plain_value(p, at, col, first), v = two ? te__plain_value(p, at + 1, col + 1, second) : 0.0f;
    if (pair && p->out == TE_f32) *(float2 *)((float *)p->d + at) = make_float2(u, v);
    else if (pair) *(uint32_t *)((uint16_t *)p->d + at) = te_pair_of_floats(u, v, p->out);
    else {
        te__store_wide(p->d, at, u, p->out);
        if (two) te__store_wide(p->d, at + 1, v, p->out);
    }
}
/* One element of D from the sums of all parts, in the order of k. */
TE_FN void te__plain_add_body(const te_plain *p, te_block b) {
    const int64_t at = (int64_t)b.x * TE_PLAIN_THREADS + (int)threadIdx.x, all = (int64_t)p->m * p->n;
    float sum = 0;
    if (at >= all) return;
    for (int i = 0; i < p->parts; i++) sum += p->sums[i * all + at];
    te__store_wide(p->d, at, te__plain_value(p, at, (int)(at % p->n), sum), p->out);
}
TE_KERNEL_IF_USED(te__plain_add, TE_PLAIN_THREADS, 1, te_plain, te__plain_add_body(te_args, te_at))

/* ---- 16 bits ----------------------------------------------------------------------------------------------------- */

/* Of row `row` of a tile in shared memory the 16 bytes `piece`, of `pieces` in a row: eight rows below each other lie
 * on different banks. */
TE_FN uint32_t te__plain_piece(uint32_t tile, int row, int piece, int pieces) {
    return tile + (uint32_t)((row * pieces + (piece ^ (row & 7))) << 4);
}
/* Eight elements of a row that cannot be copied in 16 bytes; those beyond the end are zeros. */
TE_FN void te__plain_gather(uint32_t to, const uint16_t *from, int count) {
    uint32_t w[4];
    TE_UNROLL for (int i = 0; i < 4; i++) {
        const uint32_t low = 2 * i < count ? from[2 * i] : 0u, high = 2 * i + 1 < count ? from[2 * i + 1] : 0u;
        w[i] = low | high << 16;
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
/* A tile of WIDTH lines (rows of A, columns of B) from `line` on, TE_PLAIN_STEP of k from `k` on. It lies in shared
 * memory as in memory: a line is a row, or ACROSS, and k is. */
template <int WIDTH, int ACROSS>
TE_FN void te__plain_bring(uint32_t tile, const uint16_t *from, int lines, int deep, int line, int k) {
    enum { PIECES = (ACROSS ? WIDTH : TE_PLAIN_STEP) / 8, ROWS = ACROSS ? TE_PLAIN_STEP : WIDTH };
    const int rows = ACROSS ? deep : lines, columns = ACROSS ? lines : deep;
    TE_UNROLL for (int i = 0; i < ROWS * PIECES / TE_PLAIN_THREADS; i++) {
        const int index = i * TE_PLAIN_THREADS + (int)threadIdx.x, row = index / PIECES, piece = index % PIECES;
        const int y = (ACROSS ? k : line) + row, x = (ACROSS ? line : k) + piece * 8;
        const int count = y < rows ? te_min(8, columns - x) : 0;
        const uint16_t *at = from + (count > 0 ? (int64_t)y * columns + x : 0);
        const uint32_t to = te__plain_piece(tile, row, piece, PIECES);
        if (columns % 8 == 0)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(at), "r"(count > 0 ? 16 : 0)
                         : "memory");
        else te__plain_gather(to, at, count);
    }
}
TE_FN void te__plain_matrices(uint32_t w[4], uint32_t from, const int across) {
    if (across)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(from) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(from) : "memory");
}
/* The four 8 x 8 matrices of 16 lines by 16 of k: in the order of an A of mma.sync the lower lines come second, in that
 * of two B beside each other (`b`) the larger k does. */
template <int WIDTH, int ACROSS>
TE_FN void te__plain_fragment(uint32_t w[4], uint32_t tile, int line, int k, const int b) {
    enum { PIECES = (ACROSS ? WIDTH : TE_PLAIN_STEP) / 8 };
    const int lane = (int)threadIdx.x % 32, matrix = lane / 8, later = b ? matrix / 2 : matrix % 2,
              deeper = b ? matrix % 2 : matrix / 2;
    const int row = ACROSS ? k + 8 * deeper + lane % 8 : line + 8 * later + lane % 8;
    const int piece = ACROSS ? line / 8 + later : k / 8 + deeper;
    te__plain_matrices(w, te__plain_piece(tile, row, piece, PIECES), ACROSS);
}

template <te_dtype T, int TA, int TB, int M> struct te_plain_mma {
    enum {
        HIGH = M / 32, WIDE = 4, /* blocks of 16 x 8 of a warp: it has M / 2 rows, 32 columns */
        A_BYTES = M * TE_PLAIN_STEP * 2, STAGE = A_BYTES + TE_PLAIN_COLUMNS * TE_PLAIN_STEP * 2,
        STAGES = TE_PLAIN_SHARED / STAGE
    };
    TE_FN void bring(const te_plain *p, const te_plain_work *w, uint32_t ring, int step) {
        const int k = w->first + step * TE_PLAIN_STEP;
        const uint32_t stage = ring + (uint32_t)(step % STAGES * STAGE);
        if (k < w->last) {
            te__plain_bring<M, TA>(stage, (const uint16_t *)p->a, p->m, p->k, w->y, k);
            te__plain_bring<TE_PLAIN_COLUMNS, !TB>(stage + A_BYTES, (const uint16_t *)p->b, p->n, p->k, w->x, k);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    TE_FN void multiply(float c[HIGH][WIDE][4], uint32_t stage, int row, int column) {
        TE_UNROLL for (int k = 0; k < TE_PLAIN_STEP; k += 16) {
            uint32_t a[HIGH][4], b[WIDE / 2][4];
            TE_UNROLL for (int i = 0; i < HIGH; i++) te__plain_fragment<M, TA>(a[i], stage, row + 16 * i, k, 0);
            TE_UNROLL for (int j = 0; j < WIDE / 2; j++)
                te__plain_fragment<TE_PLAIN_COLUMNS, !TB>(b[j], stage + A_BYTES, column + 16 * j, k, 1);
            TE_UNROLL for (int i = 0; i < HIGH; i++)
                TE_UNROLL for (int j = 0; j < WIDE; j++)
                    te__mma(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T);
        }
    }
    TE_FN void body(const te_plain *p, uint32_t ring) {
        const te_plain_work w = te__plain_work(p, M);
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        const int row = warp / 4 * (M / 2), column = warp % 4 * 32, steps = (w.last - w.first + 63) / TE_PLAIN_STEP;
        float c[HIGH][WIDE][4];
        TE_UNROLL for (int i = 0; i < HIGH; i++)
            TE_UNROLL for (int j = 0; j < WIDE; j++) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0;
        TE_UNROLL for (int s = 0; s < STAGES - 1; s++) bring(p, &w, ring, s);
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads(); /* the stage is there, and all have done with the one before it, which is filled next */
            bring(p, &w, ring, s + STAGES - 1);
            multiply(c, ring + (uint32_t)(s % STAGES * STAGE), row, column);
        }
        TE_UNROLL for (int i = 0; i < HIGH; i++)
            TE_UNROLL for (int j = 0; j < WIDE; j++)
                TE_UNROLL for (int h = 0; h < 2; h++)
                    te__plain_put(p, w.y + row + 16 * i + 8 * h + lane / 4, w.x + column + 8 * j + lane % 4 * 2,
                                  c[i][j][2 * h], c[i][j][2 * h + 1]);
    }
};
template <te_dtype T, int TA, int TB, int M>
static __global__ void __launch_bounds__(TE_PLAIN_THREADS, 2) te_plain_16(const __grid_constant__ te_plain p) {
    extern __shared__ uint4 te_plain_ring[];
    te_kernel_begin();
    te_plain_mma<T, TA, TB, M>::body(&p, te__shared_address(te_plain_ring));
}

/* ---- f32 --------------------------------------------------------------------------------------------------------- */

typedef struct te_plain_tiles { float a[TE_PLAIN_F32_STEP][132], b[TE_PLAIN_F32_STEP][132]; } te_plain_tiles;

/* Which of a tile's 128 lines and of its 16 of k element `i` of this thread is: neighbours lie beside each other in
 * memory. across: lines do, not k. */
TE_FN void te__plain_place(int *line, int *k, int i, int across) {
    const int index = i * TE_PLAIN_THREADS + (int)threadIdx.x;
    *line = across ? index % 128 : index / TE_PLAIN_F32_STEP;
    *k = across ? index / 128 : index % TE_PLAIN_F32_STEP;
}
TE_FN void te__plain_read(float v[8], const float *from, int lines, int deep, int line, int k, int last, int across) {
    TE_UNROLL for (int i = 0; i < 8; i++) {
        int l, j;
        te__plain_place(&l, &j, i, across);
        l += line, j += k;
        v[i] = l < lines && j < last ? from[across ? (int64_t)j * lines + l : (int64_t)l * deep + j] : 0.0f;
    }
}
TE_FN void te__plain_leave(float tile[TE_PLAIN_F32_STEP][132], const float v[8], int across) {
    TE_UNROLL for (int i = 0; i < 8; i++) {
        int l, j;
        te__plain_place(&l, &j, i, across);
        tile[j][l] = v[i];
    }
}
/* Eight lines of this thread: four from 4 i on, four 64 behind. */
TE_FN void te__plain_eight(float v[8], const float *line, int i) {
    const float4 u = *(const float4 *)(line + 4 * i), w = *(const float4 *)(line + 64 + 4 * i);
    v[0] = u.x, v[1] = u.y, v[2] = u.z, v[3] = u.w, v[4] = w.x, v[5] = w.y, v[6] = w.z, v[7] = w.w;
}
TE_IF_USED static __global__ void __launch_bounds__(TE_PLAIN_THREADS, 2)
te_plain_32(const __grid_constant__ te_plain p) {
    __shared__ __align__(16) te_plain_tiles s;
    te_kernel_begin();
    const te_plain_work w = te__plain_work(&p, 128);
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    float c[8][8], a[8], b[8];
    TE_UNROLL for (int i = 0; i < 8; i++) TE_UNROLL for (int j = 0; j < 8; j++) c[i][j] = 0;
#pragma unroll 1
    for (int k = w.first; k < w.last; k += TE_PLAIN_F32_STEP) {
        te__plain_read(a, (const float *)p.a, p.m, p.k, w.y, k, w.last, p.trans_a);
        te__plain_read(b, (const float *)p.b, p.n, p.k, w.x, k, w.last, !p.trans_b);
        __syncthreads(); /* all have done with the step before */
        te__plain_leave(s.a, a, p.trans_a), te__plain_leave(s.b, b, !p.trans_b);
        __syncthreads();
        TE_UNROLL for (int j = 0; j < TE_PLAIN_F32_STEP; j++) {
            te__plain_eight(a, s.a[j], ty), te__plain_eight(b, s.b[j], tx);
            TE_UNROLL for (int i = 0; i < 8; i++) TE_UNROLL for (int l = 0; l < 8; l++) c[i][l] += a[i] * b[l];
        }
    }
    TE_UNROLL for (int i = 0; i < 8; i++)
        TE_UNROLL for (int j = 0; j < 8; j += 2)
            te__plain_put(&p, w.y + 4 * ty + i % 4 + i / 4 * 64, w.x + 4 * tx + j % 4 + j / 4 * 64, c[i][j],
                          c[i][j + 1]);
}

#endif
