/* gemm_hopper_epilogue.h -- the epilogue of gemm_hopper.h: which rows of a tile a warp has, and the loops that call the
 * te_epilogue_fn or, where it needs sixteen elements of a row at once, the te_couple_fn.
 *
 * Three warps run it beside the multiplication of the next tile. Of a block's last tile all eleven do: the multipliers
 * have left all of it where the ring was, give back their registers and come here.
 */
/* target: cuda */
#ifndef TE_GEMM_HOPPER_EPILOGUE_H
#define TE_GEMM_HOPPER_EPILOGUE_H

#include "../core/amax.h"         /* te_amax_raise */
#include "../fp8/scales.h"        /* te_scale_keep */
#include "gemm_hopper_multiply.h" /* te__hopper_piece */
#include "gemm_hopper_ranks.h"    /* te__scatter_begin */
#include "gemm_hopper_turn.h"     /* te__hopper_turn */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__

/* A warp works on a part of 64 columns at a time: four rows, eight lanes each. The row of this lane in part `part`. */
TE_FN int te__hopper_row(int part, int lane) { return part * 4 + lane / 8; }
/* What the epilogue reads is prefetched to the L2 by the loader (te__hopper_fetch), and loaded into registers one part
 * ahead: if they waited for memory at each part, three warps would fall behind the tensor cores. */
enum { TE_HOPPER_AHEAD = 12 }; /* words of 32 bits: eight elements, and eight of the second half or of two more ranks */
TE_FN const uint16_t *te__hopper_place(const te_hopper *p, int row, int col, const te_hopper_kind k) {
    return (const uint16_t *)p->ahead + ((int64_t)row << k.twice) * p->n + col;
}
TE_FN void te__hopper_ahead(const te_hopper *p, uint32_t ahead[TE_HOPPER_AHEAD], int row, int col,
                            const te_hopper_kind k) {
    if (!p->ahead || row >= p->m || col >= p->n) return;
    const uint16_t *from = te__hopper_place(p, row, col, k);
    te__load_now(ahead, from);
    if (k.twice) te__load_now(ahead + 4, from + p->n);
}
/* The address of this lane's eight elements. boxes: those of the multipliers' first warp, which has the first 16 rows.
 */
TE_FN uint32_t te__hopper_part(uint32_t boxes, int row, int lane) {
    const uint32_t r = (uint32_t)row;
    return te__hopper_piece(boxes + r / 16 * 2 * TE_HOPPER_BOX, (int)(r % 16), lane % 8);
}
/* The parts of a quarter that a warp works on: every `warps`-th from `at` on. */
typedef struct te_hopper_share { int at, warps; } te_hopper_share;
/* Of the last tile eleven warps share 32 parts or 16 pairs; which of them have one more changes with the quarter. */
TE_FN te_hopper_share te__hopper_share_of(int warp, int quarter, int last) {
    te_hopper_share s = {warp, TE_HOPPER_FEW};
    if (last) s.at = (warp + 5 * quarter) % TE_HOPPER_ALL, s.warps = TE_HOPPER_ALL;
    return s;
}
/* All warps of the last tile's epilogue. racecheck of CUDA 13.0 does not know barriers of a part of a block: it reports
 * what this one orders, and those of gemm_hopper_turn.h. */
TE_FN void te__hopper_all_sync(void) { asm volatile("bar.sync 4, %0;" ::"n"(32 * TE_HOPPER_ALL) : "memory"); }
/* A quarter of a tile that lies wholly within D, by an epilogue without branches (te_usual). A warp of the epilogue is
 * alone on its scheduler, so nothing else runs while it waits for a result: a lane works on two rows at a time. next:
 * what the epilogue reads of the first two. */
TE_FN void te__hopper_pairs(const te_hopper *p, uint32_t boxes, int y, int col, const te_hopper_share *share,
                            te_epilogue_fn epilogue, const void *arg, te_epilogue_lane *own,
                            uint32_t next[2][TE_HOPPER_AHEAD], int turns, const te_usual usual,
                            const te_hopper_kind k) {
    const int lane = (int)threadIdx.x % 32;
    own->usual = usual;
#pragma unroll 1
    for (int pair = share->at; pair < 16; pair += share->warps) {
        uint32_t w[2][4], ahead[2][TE_HOPPER_AHEAD], fp8[2][2];
        TE_UNROLL for (int i = 0; i < 2; i++) {
            const int row = te__hopper_row(2 * pair + i, lane);
            te__load_piece(w[i], te__hopper_part(boxes, row, lane));
            TE_UNROLL for (int e = 0; e < TE_HOPPER_AHEAD; e++) ahead[i][e] = next[i][e];
        }
        const int behind = pair + share->warps;
        const int then = behind < 16 ? behind : pair; /* the last one loads again what it has */
        TE_UNROLL for (int i = 0; k.reads && i < 2; i++)
            te__load_now(next[i], te__hopper_place(p, y + te__hopper_row(2 * then + i, lane), col, k));
        TE_UNROLL for (int i = 0; i < 2; i++) {
            epilogue(arg, w[i], ahead[i], y + te__hopper_row(2 * pair + i, lane), col, own);
            fp8[i][0] = own->fp8[0], fp8[i][1] = own->fp8[1];
        }
        TE_UNROLL for (int i = 0; turns && i < 2; i++)
            te__hopper_turn_leave(boxes, te__hopper_row(2 * pair + i, lane), lane, fp8[i]);
    }
    own->usual = TE_USUAL_not;
}
/* What a warp stores once, behind its last tile: its amax; and one thread of the grid the scale. */
TE_FN void te__hopper_epilogue_end(const te_hopper *p, const te_epilogue_lane *own) {
    if (p->amax) {
        int group;
        te_amax_raise(p->amax, own->most, te_lanes_here(32, &group));
    }
    if (p->inverse && blockIdx.x == 0 && threadIdx.x == 32) te_scale_keep(p->inverse, *p->scale);
}
/* This warp's sums over its rows of a quarter, one a column. te_hopper.sums has room for three warps a tile; the eleven
 * of the last tile leave theirs in shared memory for te__hopper_last_sums. */
TE_FN void te__hopper_sums(const te_hopper *p, uint32_t ring, float sum[8], int y, int col, int quarter, int last) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32;
    TE_UNROLL
    for (int e = 0; e < 8; e++)
        sum[e] += __shfl_xor_sync(~0u, sum[e], 8), sum[e] += __shfl_xor_sync(~0u, sum[e], 16);
    if (lane >= 8) return;
    if (last) {
        const uint32_t to = te__hopper_last_sum(ring, quarter, warp, lane * 8);
        TE_UNROLL for (int e = 0; e < 8; e++) te__store_float(to + 4 * e, sum[e]);
    } else if (y < p->m && col < p->n)
        te_store8(p->sums, ((int64_t)y / TE_TILE_M * TE_HOPPER_FEW + warp) * p->n + col, sum, 8, 1, TE_f32);
}
/* Three of the eleven warps add these up, in the order of the warps. */
TE_FN void te__hopper_last_sums(const te_hopper *p, uint32_t ring, int x, int y) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32;
    te__hopper_all_sync();
    for (int i = lane; warp < TE_HOPPER_FEW && i < TE_TILE_N; i += 32) {
        float sum = 0;
        for (int of = warp; of < TE_HOPPER_ALL; of += TE_HOPPER_FEW)
            sum += te__load_float(te__hopper_last_sum(ring, i / 64, of, i % 64));
        if (y < p->m && x + i < p->n) p->sums[((int64_t)y / TE_TILE_M * TE_HOPPER_FEW + warp) * p->n + x + i] = sum;
    }
}
/* All tiles of a warp, eight elements a lane at a time. A multiplier has the last tile alone. */
TE_FN void te__hopper_epilogue(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars, te_epilogue_fn epilogue,
                               te_usual usual, const void *arg, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32, turns = k.turns && p->turned;
    const int final = te__hopper_final(p);
    te_hopper_work w;
    te_epilogue_lane own;
    own.most = 0, own.usual = TE_USUAL_not;
    for (int j = warp < TE_HOPPER_FEW ? 0 : final; j >= 0 && te__hopper_work(&w, p, j); j++) {
        const int x = w.x, y = w.y, last = j == final;
        const int whole = k.turns && usual != TE_USUAL_not && y + TE_TILE_M <= p->m && x + TE_TILE_N <= p->n;
        if (w.part > 0) continue;
        const int reads = !k.scatters || te__scatter_begin((const te_scatter *)arg, x, y, warp, last);
        if (k.scatters && reads) te__scatter_fetch((const te_scatter *)arg, x, y, last);
        if (last) te__hopper_all_sync();
#pragma unroll 1
        for (int quarter = 0; quarter < 4; quarter++) {
            const te_hopper_share share = te__hopper_share_of(warp, quarter, last);
            const int box = quarter % 2, col = x + quarter * 64 + lane % 8 * 8;
            const uint32_t boxes = last ? te__hopper_last(ring, quarter) : te__hopper_boxes(ring, box);
            uint32_t next[2][TE_HOPPER_AHEAD] = {{0}, {0}};
            TE_UNROLL for (int i = 0; i < 2; i++)
                if (!k.scatters && (i == 0 || whole))
                    te__hopper_ahead(p, next[i], y + te__hopper_row(whole ? 2 * share.at + i : share.at, lane), col, k);
            if (k.scatters && reads)
                te__scatter_ahead((const te_scatter *)arg, next[0], y + te__hopper_row(share.at, lane), col);
            if (!last) te__barrier_wait(te__shared_address(&bars->done[box]), quarter / 2);
            if (k.scatters && reads && quarter < 3)
                te__scatter_fetch((const te_scatter *)arg, x + 64 * (quarter + 1), y, last);
            TE_UNROLL for (int e = 0; e < 8; e++) own.sum[e] = 0;
            if (whole && usual == TE_USUAL_all)
                te__hopper_pairs(p, boxes, y, col, &share, epilogue, arg, &own, next, turns, TE_USUAL_all, k);
            if (whole && usual == TE_USUAL_result)
                te__hopper_pairs(p, boxes, y, col, &share, epilogue, arg, &own, next, turns, TE_USUAL_result, k);
#pragma unroll 1
            for (int part = whole ? 32 : share.at; part < 32; part += share.warps) {
                const int row = te__hopper_row(part, lane), behind = part + share.warps;
                uint32_t w[4], ahead[TE_HOPPER_AHEAD];
                TE_UNROLL for (int e = 0; e < TE_HOPPER_AHEAD; e++) ahead[e] = next[0][e];
                if (behind < 32 && k.scatters && reads)
                    te__scatter_ahead((const te_scatter *)arg, next[0], y + te__hopper_row(behind, lane), col);
                if (behind < 32 && !k.scatters) te__hopper_ahead(p, next[0], y + te__hopper_row(behind, lane), col, k);
                te__load_piece(w, te__hopper_part(boxes, row, lane));
                own.fp8[0] = own.fp8[1] = 0;
                if (y + row < p->m && col < p->n) epilogue(arg, w, ahead, y + row, col, &own);
                if (turns) te__hopper_turn_leave(boxes, row, lane, own.fp8);
            }
            if (turns) te__hopper_turn(p, boxes, y, x + quarter * 64, warp, lane, box, last);
            __syncwarp();
            if (lane == 0 && !last) te__barrier_arrive(te__shared_address(&bars->taken[box]));
            if (k.sums && p->sums) te__hopper_sums(p, ring, own.sum, y, col, quarter, last);
        }
        if (k.scatters && !reads && last) te__hopper_all_sync();
        if (k.scatters && !reads) te__scatter_end((const te_scatter *)arg, x, y, warp);
        if (last && k.sums && p->sums) te__hopper_last_sums(p, ring, x, y);
    }
    te__hopper_epilogue_end(p, &own);
}

/* The same by couples: a lane has one of the eight couples of a row in 128 columns. */
TE_FN void te__hopper_epilogue_couples(const te_hopper *p, uint32_t ring, te_hopper_barriers *bars,
                                       te_couple_fn epilogue, const void *arg, const te_hopper_kind k) {
    const int warp = (int)threadIdx.x / 32 - 1, lane = (int)threadIdx.x % 32, final = te__hopper_final(p);
    const int couples = k.couples.group / 2, i = lane % 8 % couples, near = i < k.couples.apart;
    const int first = lane % 8 / couples * k.couples.group + i + (near ? 0 : k.couples.apart);
    const int second = first + (near ? k.couples.apart : couples - k.couples.apart);
    const int end = k.couples.halves ? p->n / 2 : p->n;
    te_hopper_work w;
    te_epilogue_lane own;
    own.most = 0;
    for (int j = warp < TE_HOPPER_FEW ? 0 : final; j >= 0 && te__hopper_work(&w, p, j); j++) {
        const int x = w.x, y = w.y, last = j == final;
        if (w.part > 0) continue;
        if (last) te__hopper_all_sync();
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const te_hopper_share share = te__hopper_share_of(warp, half, last);
            const uint32_t boxes = last ? te__hopper_last(ring, 2 * half) : te__hopper_boxes(ring, 0);
            const int col = te__hopper_columns(p, x, 2 * half + first / 8, k) + first % 8 * 8;
            const int other = te__hopper_columns(p, x, 2 * half + second / 8, k) + second % 8 * 8;
            TE_UNROLL for (int b = 0; b < 2; b++)
                if (!last) te__barrier_wait(te__shared_address(&bars->done[b]), half);
#pragma unroll 1
            for (int part = share.at; part < 32; part += share.warps) {
                const int row = te__hopper_row(part, lane);
                const uint32_t rows = boxes + part / 4 * 2 * TE_HOPPER_BOX;
                uint32_t a[4], b[4];
                te__load_piece(a, te__hopper_piece(rows + first / 8 * TE_HOPPER_BOX, row % 16, first % 8));
                te__load_piece(b, te__hopper_piece(rows + second / 8 * TE_HOPPER_BOX, row % 16, second % 8));
                if (y + row < p->m && col < end) epilogue(arg, a, b, y + row, col, other, &own);
            }
            __syncwarp();
            TE_UNROLL for (int b = 0; b < 2; b++)
                if (lane == 0 && !last) te__barrier_arrive(te__shared_address(&bars->taken[b]));
        }
    }
    if (k.a != k.dtype) te__hopper_epilogue_end(p, &own); /* of operands in 16 bits nobody wants an amax */
}
#endif

#endif
