/* gemm_hopper_turn.h -- the transpose, in FP8, of what the epilogue of gemm_hopper.h makes: eight bits an element go
 * back to where the warps of the epilogue have taken sixteen from, 128 rows of 64 columns, and leave from there by
 * columns.
 *
 * A row's 64 bytes are four pieces of 16, and lie in four of the eight places of its 128 bytes: so that both the rows
 * that a warp writes and those that one 8 x 8 matrix of ldmatrix reads fall on different banks. ldmatrix turns 16-bit
 * numbers, here two bytes beside each other; which rows a lane asks for decides that it gets sixteen rows that follow
 * each other, two columns of them, so that bytes in words are all that is left to sort.
 *
 * Bytes: one an element, in runs of 64. The kernel that transposes what lies in memory (quantize.h) takes two.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_TURN_H
#define TE_GEMM_HOPPER_TURN_H

#include "gemm_hopper_tiles.h" /* te_hopper */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* Where the 16 columns `piece` of row `row` of 128 lie. boxes: of the first warp that left its rows here. */
TE_FN uint32_t te__hopper_turn_at(uint32_t boxes, int row, int piece) {
    const uint32_t r = (uint32_t)row, place = (r / 16 % 4 * 2 + r % 2) ^ (uint32_t)piece * 2;
    return boxes + r / 16 * 2 * TE_HOPPER_BOX + r % 16 * 128 + place * 16;
}
/* A lane's eight columns of `row`. The whole warp calls it, behind its loads of these rows. */
TE_FN void te__hopper_turn_leave(uint32_t boxes, int row, int lane, const uint32_t w[2]) {
    const uint32_t to = te__hopper_turn_at(boxes, row, lane % 8 / 2) + (uint32_t)(lane % 2 * 8);
    __syncwarp();
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(w[0]), "r"(w[1]) : "memory");
}
/* Bytes of eight rows, from `first` on, of columns 2 c and 2 c + 1, c = lane / 4: to words of each. Lane q = lane % 4
 * of four gets the rows from first + 16 q on. */
TE_FN void te__hopper_turn_load(uint32_t low[2], uint32_t high[2], uint32_t boxes, int first, int piece, int lane) {
    const int row = first + lane % 8 / 2 * 16 + lane / 8 * 2 + lane % 2; /* of the address that this lane gives */
    uint32_t w[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(te__hopper_turn_at(boxes, row, piece))
                 : "memory");
    TE_UNROLL for (int i = 0; i < 2; i++) {
        low[i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x6420);
        high[i] = __byte_perm(w[2 * i], w[2 * i + 1], 0x7531);
    }
}
/* Once all warps of the epilogue have left what they have of 64 columns from `col`, rows from `row` on. The first warp
 * has a fifth more rows than each of the two others: these do it, while the first goes on with the next columns, which
 * lie in the other `box`. When all three did it they waited for the first, a tenth of their time. Of the last tile all
 * warps do it. */
TE_FN void te__hopper_turn(const te_hopper *p, uint32_t boxes, int row, int col, int warp, int lane, int box,
                           int last) {
    const int warps = last ? TE_HOPPER_ALL : TE_HOPPER_FEW;
    if (warp == 0 && !last) {
        __syncwarp();
        asm volatile("bar.arrive %0, %1;" ::"r"(1 + box), "r"(32 * warps) : "memory");
        return;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(1 + box), "r"(32 * warps) : "memory");
#pragma unroll 1
    for (int unit = last ? warp : warp - 1; unit < 8; unit += last ? warps : warps - 1) { /* 64 rows of 16 columns */
        const int first = unit / 4 * 64, piece = unit % 4, x = col + piece * 16 + lane / 4 * 2;
        const int y = row + first + lane % 4 * 16;
        uint32_t low[4], high[4];
        __syncwarp(); /* lanes beyond the end store nothing */
        te__hopper_turn_load(low, high, boxes, first, piece, lane);
        te__hopper_turn_load(low + 2, high + 2, boxes, first + 8, piece, lane);
        if (y < p->turned_rows && x < p->n) { /* n is even */
            uint8_t *to = p->turned + (int64_t)x * p->turned_rows + y;
            *(uint4 *)to = make_uint4(low[0], low[1], low[2], low[3]);
            *(uint4 *)(to + p->turned_rows) = make_uint4(high[0], high[1], high[2], high[3]);
        }
    }
}
#endif

#endif
