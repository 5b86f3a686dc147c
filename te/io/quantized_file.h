/* quantized_file.h -- binds the parameters of models to the tensors of a safetensors file. A table (packed.h) names the
 * tensors of each parameter. The file's weights have 4 bits, as in GPTQ, AWQ and gpt-oss, or are floats, which can be
 * cast to 4 bits.
 *
 * Do this:
 *     static const te_packed parts[] = {{"self_attn.q_proj.weight", "qkv", "weight", 4096, 0}};
 *     te_block_weights w;                                 // must live as long as `block`
 *     te_quantized_source from = te_quantized_source_of(&file); // file: mapped by te_safetensors_map; stays open
 *     TE_TRY(te_quantized_bind(&w, &block.model, parts, 1, "model.layers.0.", &from, &ctx));
 *     te_block_weights_release(&w, &ctx);
 *
 * The file must have one of these three groups of tensors for each <name> in the table; they are tried in order:
 *     <name>                     F32, F16 or BF16; cast to the op's format of blocks, or converted to the list's dtype
 *     <name>_blocks, <name>_scales
 *                                MXFP4 as in gpt-oss: U8 [experts, rows, cols / 32, 16] and [experts, rows, cols / 32];
 *                                for an expert_linear (TE_PACKED_EXPERTS), or one of the experts for a linear
 *     <name> with its ending "weight" replaced by qweight, qzeros, scales, and perhaps g_idx
 *                                GPTQ, qweight I32 [cols / 8, rows]; AWQ (GEMM version), qweight I32 [cols, rows / 8]
 * Codes and scales of 4-bit weights are not rounded. MXFP4 becomes the format mxfp4. GPTQ and AWQ become int4 or int4z
 * with blocks of 128, 64 or 32 weights, the largest of these sizes that divides the file's group size. te_mxfp4_load
 * converts MXFP4 to parameters in floats, through the views of te_packed_add.
 *
 * Source: AutoGPTQ's QuantLinear (a stored zero point is one less than the zero point), AutoAWQ's WQLinear_GEMM,
 * transformers' Mxfp4 integration.
 */
#ifndef TE_QUANTIZED_FILE_H
#define TE_QUANTIZED_FILE_H

#include "block_weights.h" /* te_block_weights, te__block_weights_bind */

typedef struct te_quantized_source {
    const te_safetensors *file; /* [files]: a weight's tensors may lie in different files */
    int files;
    int gptq_v2; /* for GPTQ: 1 if config.json says "checkpoint_format": "gptq_v2". The file then stores the zero
                  * points, else the zero points minus 1 */
    int expert;  /* for MXFP4: the index of the expert to bind. With TE_PACKED_EXPERTS, all experts are bound, and this
                  * index is not used */
} te_quantized_source;
TE_API te_quantized_source te_quantized_source_of(const te_safetensors *file) {
    te_quantized_source s;
    memset(&s, 0, sizeof s);
    s.file = file, s.files = 1;
    return s;
}

enum { TE_QUANTIZED_MAX_NAME = 256, TE__NIBBLES = 8 /* codes of a word of GPTQ and AWQ */ };

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Return the file that has tensor t. */
TE_API const te_safetensors *te__quantized_file_of(const te_quantized_source *from, const te_safetensor *t) {
    int i = 0;
    while (i < from->files - 1 && !(t >= from->file[i].tensor && t < from->file[i].tensor + from->file[i].count)) i++;
    return &from->file[i];
}
/* Set *at to the address of a tensor's bytes. If the file is mapped, the address is in the mapping. Otherwise this
 * function reads the bytes into host memory that is freed with b->w. */
TE_API te_status te__quantized_bytes(const uint8_t **at, const te__block_binding *b, const te_safetensor *t,
                                     te_context *ctx) {
    const te_safetensors *f = te__quantized_file_of((const te_quantized_source *)b->source, t);
    void *memory = 0;
    if (f->memory) return *at = (const uint8_t *)f->memory + f->data_at + t->offset, TE_OK;
    TE_TRY(te__blocks_host(&memory, b->w, (size_t)t->bytes, ctx));
    *at = (const uint8_t *)memory;
    return te__safetensors_get(f, memory, (size_t)t->bytes, f->data_at + t->offset, ctx);
}
/* Find a tensor in the file. Its name is the name of entry n of the table without the last `cut` characters, followed
 * by the text `end`. */
TE_API const te_safetensor *te__quantized_find(const te__block_binding *b, int n, int cut, const char *end) {
    char name[TE_QUANTIZED_MAX_NAME];
    const te_quantized_source *from = (const te_quantized_source *)b->source;
    const te_safetensor *found = 0;
    const char *of_part = b->parts[n].name;
    const int length = (int)te_min((int64_t)strlen(of_part), TE_QUANTIZED_MAX_NAME) - cut;
    const int all = length < 0 ? -1 : snprintf(name, sizeof name, "%s%.*s%s", b->prefix, length, of_part, end);
    if (all < 0 || all >= TE_QUANTIZED_MAX_NAME) return 0;
    for (int i = 0; i < from->files && !found; i++) found = te_safetensors_find(&from->file[i], name);
    return found;
}
/* The dtype and the shape of a tensor, as a text for messages: "I32 [512, 4096]". */
typedef struct te__tensor_text {
    char text[128];
} te__tensor_text;
TE_API te__tensor_text te__quantized_shape(const te_safetensor *t) {
    te__tensor_text s;
    const int known = (int)t->dtype < (int)TE_SAFETENSORS_DTYPE_COUNT;
    size_t n = (size_t)snprintf(s.text, sizeof s.text, "%.16s [",
                                known           ? te_safetensors_dtype_name(t->dtype)
                                : t->dtype_text ? t->dtype_text
                                                : "?");
    for (int i = 0; i < t->rank && i < 4; i++)
        n += (size_t)snprintf(s.text + n, sizeof s.text - n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(s.text + n, sizeof s.text - n, "%s]", t->rank > 4 ? ", .." : "");
    return s;
}
TE_API int te__quantized_is(const te_safetensor *t, te_safetensors_dtype dtype, int64_t rows, int64_t cols) {
    return t->dtype == dtype && t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols;
}
TE_API te_block_format te__quantized_float_format(te_safetensors_dtype t) {
    return t == TE_SAFETENSORS_F32    ? TE_BLOCK_f32
           : t == TE_SAFETENSORS_F16  ? TE_BLOCK_f16
           : t == TE_SAFETENSORS_BF16 ? TE_BLOCK_bf16
                                      : TE_BLOCK_none;
}

/* Return the index that row i of an expert has among the expert's `count` rows in the file. (If the parameter is a
 * bias, the same holds of columns.) With TE_PACKED_INTERLEAVED, the rows of gate and up alternate in the file; in the
 * parameter, all rows of gate come first. */
TE_API int64_t te__expert_place(const te_packed *part, int64_t i, int64_t count) {
    return part->form & TE_PACKED_INTERLEAVED ? i % (count / 2) * 2 + i / (count / 2) : i;
}

/* ---- floats ------------------------------------------------------------------------------------------------------ */

/* A tensor of floats. */
TE_API te_status te__quantized_plain(te_weight_part *part, const te__block_binding *b, int n, const te_safetensor *t,
                                     const te_param *p, int64_t units, te_context *ctx) {
    const char *path = te__quantized_file_of((const te_quantized_source *)b->source, t)->path;
    const int64_t rows = p->rows == 1 ? 1 : units, cols = p->rows == 1 ? units : p->cols;
    const int64_t is_rows = t->rank == 2 ? t->shape[0] : 1, is_cols = t->rank ? t->shape[t->rank == 2] : 1;
    const te_block_format f = te__quantized_float_format(t->dtype);
    const uint8_t *data = 0;
    TE_REQUIRE(t->rank <= 2 && is_rows == rows && is_cols == cols, ctx, TE_ERROR_SHAPE,
               "%.120s: tensor %.60s is %s, it should be [%lld, %lld]", path, t->name,
               te__quantized_shape(t).text, (long long)rows, (long long)cols);
    TE_REQUIRE(f != TE_BLOCK_none, ctx, TE_ERROR_DTYPE, "%.120s: tensor %.60s is %s; F32, F16 and BF16 are supported",
               path, t->name, te__quantized_shape(t).text);
    TE_TRY(te__quantized_bytes(&data, b, t, ctx));
    part->data = data, part->format = f;
    if (!(b->parts[n].form & TE_PACKED_INTERLEAVED)) return TE_OK;
    const size_t size = te_block_row_bytes(f, 1);
    void *memory = 0;
    TE_REQUIRE(te__packed_experts(b->m, p) == p->rows && p->cols % 2 == 0, ctx, TE_ERROR_SHAPE,
               "%.120s: tensor %.60s: %s.%s is no bias of experts with pairs of columns", path, t->name, p->op,
               p->field);
    TE_TRY(te__blocks_host(&memory, b->w, (size_t)(p->rows * p->cols) * size, ctx));
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        const int64_t from = i / p->cols * p->cols + te__expert_place(&b->parts[n], i % p->cols, p->cols);
        memcpy((char *)memory + (size_t)i * size, data + (size_t)from * size, size);
    }
    part->data = memory;
    return TE_OK;
}

/* ---- MXFP4 ------------------------------------------------------------------------------------------------------- */

/* Write n blocks in the format mxfp4 to `to`. Input from the file: 16 bytes of codes for each block (q), and one scale
 * for each block. A byte of q has the codes of two adjacent weights, the first weight's code in the low half. Returns
 * the index of the first scale that is NaN, or -1 if there is none. */
TE_API int64_t te__mxfp4_blocks(uint8_t *to, const uint8_t *q, const uint8_t *scale, int64_t n) {
    for (int64_t i = 0; i < n; i++, q += 16, to += 17) {
        uint8_t code[32];
        if (scale[i] == 255) return i;
        for (int k = 0; k < 16; k++) code[2 * k] = q[k] & 15, code[2 * k + 1] = q[k] >> 4;
        to[0] = scale[i];
        te__pack_32(to + 1, 0, code);
    }
    return -1;
}
/* Describe a weight in MXFP4 in *part. t: the file's tensor <name>_blocks. units: the number of rows of the one expert
 * that is bound or, with TE_PACKED_EXPERTS, of all experts together. */
TE_API te_status te__quantized_mxfp4(te_weight_part *part, const te__block_binding *b, int n, const te_safetensor *t,
                                     const te_param *p, int64_t units, te_context *ctx) {
    const te_quantized_source *from = (const te_quantized_source *)b->source;
    const int of_all = b->parts[n].form & TE_PACKED_EXPERTS;
    const int64_t count = of_all ? te__packed_experts(b->m, p) : 1, rows = units / count;
    const te_safetensor *scales = te__quantized_find(b, n, 0, "_scales");
    const int64_t groups = p->cols / 32, experts = t->rank == 4 ? t->shape[0] : 1;
    const size_t row_bytes = (size_t)groups * 17;
    const int s = t->rank == 4; /* dimensions in front of the rows */
    const uint8_t *q = 0, *e = 0;
    void *memory = 0;
    TE_REQUIRE(scales, ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s has no scales", from->file->path, t->name);
    TE_REQUIRE((!of_all || experts == count) && (rows % 2 == 0 || !(b->parts[n].form & TE_PACKED_INTERLEAVED)) &&
                   p->cols % 32 == 0 && t->dtype == TE_SAFETENSORS_U8 && t->rank == 3 + s && t->shape[s] == rows &&
                   t->shape[s + 1] == groups && t->shape[s + 2] == 16,
               ctx, TE_ERROR_SHAPE,
               "%.120s: tensor %.60s is %s, it should be U8 [experts, %lld, %lld, 16] of %lld experts",
               from->file->path, t->name, te__quantized_shape(t).text, (long long)rows, (long long)groups,
               (long long)(of_all ? count : experts));
    TE_REQUIRE(scales->dtype == TE_SAFETENSORS_U8 && scales->rank == 2 + s && (!s || scales->shape[0] == experts) &&
                   scales->shape[s] == rows && scales->shape[s + 1] == groups,
               ctx, TE_ERROR_SHAPE, "%.120s: tensor %.60s is %s, it should be U8 [%lld, %lld, %lld]", from->file->path,
               scales->name, te__quantized_shape(scales).text, (long long)experts, (long long)rows, (long long)groups);
    TE_REQUIRE(from->expert >= 0 && from->expert < experts, ctx, TE_ERROR_VALUE,
               "%.120s: tensor %.60s has no expert %d of %lld", from->file->path, t->name, from->expert,
               (long long)experts);
    TE_TRY(te__quantized_bytes(&q, b, t, ctx));
    TE_TRY(te__quantized_bytes(&e, b, scales, ctx));
    TE_TRY(te__blocks_host(&memory, b->w, (size_t)units * row_bytes, ctx));
    for (int64_t i = 0; i < units; i++) {
        const int64_t expert = of_all ? i / rows : from->expert;
        const int64_t row = te__expert_place(&b->parts[n], i % rows, rows), at = (expert * rows + row) * groups;
        const int64_t bad = te__mxfp4_blocks((uint8_t *)memory + (size_t)i * row_bytes, q + at * 16, e + at, groups);
        TE_REQUIRE(bad < 0, ctx, TE_ERROR_VALUE, "%.120s: scale %lld of expert %lld of %.60s is NaN", from->file->path,
                   (long long)(row * groups + bad), (long long)expert, scales->name);
    }
    part->data = memory, part->format = TE_BLOCK_mxfp4;
    return TE_OK;
}

/* ---- GPTQ and AWQ ------------------------------------------------------------------------------------------------ */

typedef struct te__packed_int4 {
    const uint8_t *q, *zeros, *scales; /* q and zeros: 32-bit words of eight codes each; scales: 16-bit or 32-bit
                                        * floats */
    te_safetensors_dtype of_scales;
    int awq, zero_offset; /* zero_offset: number added to each stored zero point */
    int64_t rows, cols, group;
} te__packed_int4;
/* Return the place (0 to 7) of the code of column `col` in its word of eight codes. AWQ stores a word's columns in the
 * order 0, 2, 4, 6, 1, 3, 5, 7; GPTQ stores them in ascending order. */
TE_API int te__int4_place(int64_t col, int awq) { return (int)(awq ? col % 2 * 4 + col % 8 / 2 : col % 8); }
TE_API int te__int4_nibble(const uint8_t *words, int64_t word, int place) {
    return (int)(te__read_u32(words + 4 * word) >> 4 * place & 15u);
}
TE_API int te__int4_code(const te__packed_int4 *w, int64_t row, int64_t col) {
    if (w->awq) return te__int4_nibble(w->q, col * (w->rows / TE__NIBBLES) + row / TE__NIBBLES, te__int4_place(row, 1));
    return te__int4_nibble(w->q, col / TE__NIBBLES * w->rows + row, (int)(col % TE__NIBBLES));
}
TE_API int te__int4_zero(const te__packed_int4 *w, int64_t row, int64_t group) {
    return te__int4_nibble(w->zeros, group * (w->rows / TE__NIBBLES) + row / TE__NIBBLES, te__int4_place(row, w->awq)) +
           w->zero_offset;
}
TE_API float te__int4_scale(const te__packed_int4 *w, int64_t row, int64_t group) {
    const size_t at = (size_t)(group * w->rows + row);
    return w->of_scales == TE_SAFETENSORS_F16    ? te__read_f16(w->scales + 2 * at)
           : w->of_scales == TE_SAFETENSORS_BF16 ? te_float_of_bf16(te__read_u16(w->scales + 2 * at))
                                                 : te__read_f32(w->scales + 4 * at);
}
/* Return the format of blocks for the weight w. Its block size is the largest of 128, 64 and 32 that divides w->group,
 * and it has no zero points (int4) if all of w's zero points are 8. If w->group is not a multiple of 32, return
 * TE_BLOCK_none. */
TE_API te_block_format te__int4_format(const te__packed_int4 *w) {
    static const te_block_format formats[3][2] = {{TE_BLOCK_int4_128, TE_BLOCK_int4z_128},
                                                  {TE_BLOCK_int4_64, TE_BLOCK_int4z_64},
                                                  {TE_BLOCK_q4_0, TE_BLOCK_int4z_32}};
    int affine = 0, size = 0;
    for (int64_t g = 0; g < w->cols / w->group && !affine; g++)
        for (int64_t r = 0; r < w->rows && !affine; r++) affine = te__int4_zero(w, r, g) != 8;
    while (size < 3 && w->group % (128 >> size)) size++;
    return size < 3 ? formats[size][affine] : TE_BLOCK_none;
}
/* Write the rows first to end - 1 of the weight w to `to`, in the format of blocks f. Returns the index of the first
 * group whose scale is not finite or not exactly representable in f16; -1 if all scales are valid. */
TE_API int64_t te__int4_rows(uint8_t *to, const te__packed_int4 *w, int64_t first, int64_t end, te_block_format f) {
    const int values = te_block_values(f), header = te__block_has_zero_point(f) ? 4 : 2;
    const size_t row_bytes = te_block_row_bytes(f, w->cols), bytes = (size_t)te_block_bytes(f);
    uint8_t code[TE_BLOCK_MAX_VALUES];
    for (int64_t k = 0; k < w->cols; k += values)
        for (int64_t r = first; r < end; r++) {
            uint8_t *block = to + (size_t)(r - first) * row_bytes + (size_t)(k / values) * bytes;
            const float scale = te__int4_scale(w, r, k / w->group);
            te__write_f16(block, scale);
            if (!(fabsf(scale) < INFINITY) || te__read_f16(block) != scale) return k / w->group;
            if (header == 4) block[2] = (uint8_t)te__int4_zero(w, r, k / w->group), block[3] = 0;
            for (int i = 0; i < values; i++) code[i] = (uint8_t)te__int4_code(w, r, k + i);
            for (int i = 0; i < values; i += 32) te__pack_32(block + header + i / 2, 0, code + i);
        }
    return -1;
}
/* Check the tensor g_idx, which has the group number of each column. Return an error if the columns of a group are not
 * adjacent, as in files made with act-order ("desc_act"). */
TE_API te_status te__int4_check_order(const te_safetensor *order, const te__block_binding *b, const te__packed_int4 *w,
                                      te_context *ctx) {
    const char *path = te__quantized_file_of((const te_quantized_source *)b->source, order)->path;
    const uint8_t *data = 0;
    TE_REQUIRE(order->dtype == TE_SAFETENSORS_I32 && order->rank == 1 && order->shape[0] == w->cols, ctx,
               TE_ERROR_SHAPE, "%.120s: tensor %.60s is %s, it should be I32 [%lld]", path, order->name,
               te__quantized_shape(order).text, (long long)w->cols);
    TE_TRY(te__quantized_bytes(&data, b, order, ctx));
    for (int64_t i = 0; i < w->cols; i++)
        TE_REQUIRE(
            (int64_t)(int32_t)te__read_u32(data + 4 * i) == i / w->group, ctx, TE_ERROR_VALUE,
            "%.120s: tensor %.60s is that of act-order (desc_act), which is not supported: column %lld is in group "
            "%d, not %lld",
            path, order->name, (long long)i, (int)te__read_u32(data + 4 * i), (long long)(i / w->group));
    return TE_OK;
}
/* Describe a weight of GPTQ or AWQ in *part, after converting it to a format of blocks. t: the file's tensor
 * qweight. */
TE_API te_status te__quantized_int4(te_weight_part *part, const te__block_binding *b, int n, const te_safetensor *t,
                                    const te_param *p, int64_t rows, te_context *ctx) {
    const te_quantized_source *from = (const te_quantized_source *)b->source;
    const char *path = te__quantized_file_of(from, t)->path;
    const te_safetensor *zeros = te__quantized_find(b, n, 6, "qzeros"), *scales = te__quantized_find(b, n, 6, "scales");
    const te_safetensor *order = te__quantized_find(b, n, 6, "g_idx");
    const int64_t cols = p->cols, groups = scales && scales->rank == 2 ? scales->shape[0] : 0;
    te__packed_int4 w;
    void *memory = 0;
    memset(&w, 0, sizeof w);
    TE_REQUIRE(zeros && scales, ctx, TE_ERROR_FORMAT, "%.120s: tensor %.60s has no %s beside it", path,
               t->name, zeros ? "scales" : "qzeros");
    w.awq = te__quantized_is(t, TE_SAFETENSORS_I32, cols, rows / TE__NIBBLES);
    TE_REQUIRE(rows % TE__NIBBLES == 0 && cols % TE__NIBBLES == 0 &&
                   (w.awq || te__quantized_is(t, TE_SAFETENSORS_I32, cols / TE__NIBBLES, rows)),
               ctx, TE_ERROR_SHAPE,
               "%.120s: tensor %.60s is %s; for %lld x %lld in 4 bits it should be I32 [%lld, %lld] of GPTQ or [%lld, "
               "%lld] of AWQ",
               path, t->name, te__quantized_shape(t).text, (long long)rows, (long long)cols,
               (long long)cols / TE__NIBBLES, (long long)rows, (long long)cols, (long long)rows / TE__NIBBLES);
    TE_REQUIRE(groups > 0 && cols % groups == 0 && scales->shape[1] == rows &&
                   te__quantized_float_format(scales->dtype) != TE_BLOCK_none,
               ctx, TE_ERROR_SHAPE, "%.120s: tensor %.60s is %s, it should be F16 [groups, %lld]", path,
               scales->name, te__quantized_shape(scales).text, (long long)rows);
    TE_REQUIRE(te__quantized_is(zeros, TE_SAFETENSORS_I32, groups, rows / TE__NIBBLES), ctx, TE_ERROR_SHAPE,
               "%.120s: tensor %.60s is %s, it should be I32 [%lld, %lld]", path, zeros->name,
               te__quantized_shape(zeros).text, (long long)groups, (long long)rows / TE__NIBBLES);
    w.rows = rows, w.cols = cols, w.group = cols / groups, w.of_scales = scales->dtype;
    w.zero_offset = !w.awq && !from->gptq_v2;
    TE_TRY(te__quantized_bytes(&w.q, b, t, ctx));
    TE_TRY(te__quantized_bytes(&w.zeros, b, zeros, ctx));
    TE_TRY(te__quantized_bytes(&w.scales, b, scales, ctx));
    if (order) TE_TRY(te__int4_check_order(order, b, &w, ctx));
    const te_block_format f = te__int4_format(&w);
    TE_REQUIRE(f != TE_BLOCK_none, ctx, TE_ERROR_VALUE,
               "%.120s: tensor %.60s has groups of %lld columns; multiples of 32 are supported", path,
               t->name, (long long)w.group);
    const size_t row_bytes = te_block_row_bytes(f, cols);
    TE_TRY(te__blocks_host(&memory, b->w, row_bytes * (size_t)rows, ctx));
    for (int64_t r = 0; r < rows; r += 16) { /* 16 rows at a time, because the words of 16 adjacent rows are adjacent in
                                              * the file */
        const int64_t bad = te__int4_rows((uint8_t *)memory + (size_t)r * row_bytes, &w, r, te_min(r + 16, rows), f);
        TE_REQUIRE(
            bad < 0, ctx, TE_ERROR_VALUE,
            "%.120s: tensor %.60s: a scale of group %lld in rows %lld to %lld is not finite, or no number of f16",
            path, scales->name, (long long)bad, (long long)r, (long long)te_min(r + 15, rows - 1));
    }
    part->data = memory, part->format = f;
    return TE_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

TE_API te_status te__quantized_tensor_of(te_weight_part *part, const te__block_binding *b, int n, const te_param *p,
                                         int64_t units, te_context *ctx) {
    const char *name = b->parts[n].name;
    const char *path = ((const te_quantized_source *)b->source)->file->path;
    const size_t length = strlen(name);
    const int is_weight = length >= 6 && !strcmp(name + length - 6, "weight");
    const te_safetensor *plain = te__quantized_find(b, n, 0, ""), *blocks = te__quantized_find(b, n, 0, "_blocks");
    const te_safetensor *int4 = is_weight ? te__quantized_find(b, n, 6, "qweight") : 0;
    if (plain) return te__quantized_plain(part, b, n, plain, p, units, ctx);
    TE_REQUIRE(blocks || int4, ctx, TE_ERROR_FORMAT, "%.120s: has no tensor %.60s%.60s, and none of it in 4 bits", path,
               b->prefix, name);
    TE_REQUIRE(p->rows > 1, ctx, TE_ERROR_SHAPE, "%.120s: %.60s%.60s is in 4 bits; %s.%s is no matrix", path, b->prefix,
               name, p->op, p->field);
    return blocks ? te__quantized_mxfp4(part, b, n, blocks, p, units, ctx)
                  : te__quantized_int4(part, b, n, int4, p, units, ctx);
}
/* Bind all parameters of m to the tensors that the table parts[count] names (see the head of this file). m must be an
 * instance of a list of ops for inference, and be bound to no memory. With the option (weights, ..), the weights of
 * linears and embeddings keep the file's 4 bits, or are cast to a format of blocks (block_weights.h); without this
 * option they are converted to the dtype of the list of ops. prefix: the text with which the names of all these tensors
 * begin. Call te_tie afterwards if parameters are tied. Waits for the stream. After an error m must be bound again, and
 * no allocated memory is left. Errors: TE_ERROR_FORMAT: a tensor is missing; TE_ERROR_SHAPE: a tensor has another
 * shape, the tensors have more or fewer rows than the parameter, or a parameter of one row is in 4 bits;
 * TE_ERROR_DTYPE; TE_ERROR_VALUE: a group size that is not a multiple of 32, act-order, a scale that is not finite or
 * not exact in f16, a number that does not fit the format, a tensor in another format than the option (weights, ..)
 * says, an unknown expert; TE_ERROR_STATE: m has memory, or its parameters are sharded over ranks; TE_ERROR_MEMORY;
 * TE_ERROR_IO. */
TE_API te_status te_quantized_bind(te_block_weights *w, te_model *m, const te_packed *parts, int count,
                                   const char *prefix, const te_quantized_source *from, te_context *ctx) {
    te__block_binding b;
    if (w) memset(w, 0, sizeof *w);
    TE_TRY(te__check_context(ctx, "te_quantized_bind"));
    TE_REQUIRE(w && m && m->plan && prefix && from && from->file && from->files > 0 && from->file->path &&
                   (parts || !count), ctx,
               TE_ERROR_NULL,
               "te_quantized_bind: the instance, the table or the prefix is null, or the file is not open");
    b.w = w, b.m = m, b.parts = parts, b.count = count, b.prefix = prefix, b.caller = "te_quantized_bind";
    b.takes_experts = 1, b.converts = 0, b.tensor_of = te__quantized_tensor_of, b.source = from;
    return te__block_weights_bind(&b, ctx);
}
/* Check that t is U8 and has the shape of the view `want`, except for the last dimension: each 32 elements of `want`
 * are stored in `bytes` elements of t. */
TE_API te_status te__mxfp4_check(const te_safetensors *f, const te_safetensor *t, const te_safetensor *want, int bytes,
                                 te_context *ctx) {
    const int64_t matrices = want->matrices ? want->matrices : 1, rows = te__safetensor_rows(want) / matrices;
    const int64_t groups = te__safetensor_cols(want) / 32;
    const int s = want->matrices > 0; /* dimensions in front of the rows */
    TE_REQUIRE(t->dtype == TE_SAFETENSORS_U8 && t->rank == 2 + s + (bytes > 1) && (!s || t->shape[0] == matrices) &&
                   t->shape[s] == rows && t->shape[s + 1] == groups && (bytes == 1 || t->shape[s + 2] == bytes),
               ctx, TE_ERROR_SHAPE, "%.120s: tensor %.60s is %s, it should be U8 [%lld, %lld, %lld%s]", f->path,
               t->name, te__quantized_shape(t).text, (long long)matrices, (long long)rows, (long long)groups,
               bytes > 1 ? ", 16" : "");
    return TE_OK;
}
/* Read a matrix, or the matrices of all experts, from MXFP4 tensors into the view `want`, and convert the numbers to
 * the view's dtype. The tensor <name>_blocks is in the file `blocks`, and <name>_scales in the file `scales`, which may
 * be the same file. Waits for the stream. Errors: TE_ERROR_FORMAT: a tensor is missing; TE_ERROR_SHAPE; TE_ERROR_VALUE:
 * the view is transposed, or has only a part of the columns; a scale is NaN; a value does not fit the view's dtype. */
TE_API te_status te_mxfp4_load(const te_safetensors *blocks, const te_safetensors *scales, const te_safetensor *want,
                               te_context *ctx) {
    char name[2][TE_QUANTIZED_MAX_NAME];
    te_dtype as = TE_f32;
    TE_TRY(te__check_context(ctx, "te_mxfp4_load"));
    TE_REQUIRE(blocks && scales && want && want->name, ctx, TE_ERROR_NULL, "te_mxfp4_load: a file or the view is null");
    const int64_t cols = te__safetensor_cols(want), groups = cols / 32;
    TE_REQUIRE(te__safetensors_is_valid(want) && te__safetensors_converts(&as, want->dtype) && !want->transposed &&
                   cols % 32 == 0 && (!want->sliced || want->count[1] == cols),
               ctx, TE_ERROR_VALUE, "te_mxfp4_load: %.60s: the view is no matrix of whole rows in f32, bf16 or f16",
               want->name);
    snprintf(name[0], sizeof name[0], "%.200s_blocks", want->name);
    snprintf(name[1], sizeof name[1], "%.200s_scales", want->name);
    const te_safetensor *q = te_safetensors_find(blocks, name[0]), *e = te_safetensors_find(scales, name[1]);
    TE_REQUIRE(q && e, ctx, TE_ERROR_FORMAT, "%.120s: has no tensor %.100s", (q ? scales : blocks)->path, name[q != 0]);
    TE_TRY(te__mxfp4_check(blocks, q, want, 16, ctx));
    TE_TRY(te__mxfp4_check(scales, e, want, 1, ctx));
    const int64_t first = want->sliced ? want->first[0] : 0, step = want->sliced ? want->step[0] : 1;
    const int64_t rows = want->sliced ? want->count[0] : te__safetensor_rows(want);
    const size_t size = te_dtype_bytes(as), row_bytes = (size_t)cols * size;
    /* Memory for one row: the row in f32, the row in the view's dtype, and for each group 16 bytes of codes and 1 byte
     * of scale as in the file, and a block of 17 bytes in the format mxfp4 */
    float *row = (float *)malloc((size_t)cols * sizeof(float) + row_bytes + (size_t)groups * 34);
    te_status status = row ? TE_OK : te_fail(ctx, TE_ERROR_MEMORY, "te_mxfp4_load: cannot allocate a row");
    char *to = (char *)(row + cols);
    uint8_t *at = (uint8_t *)to + row_bytes;
    if (want->written) te__count_write(want->written, ctx);
    for (int64_t r = 0; r < rows && status == TE_OK; r++) {
        const uint64_t of = (uint64_t)((first + r * step) * groups);
        const uint64_t codes_at = blocks->data_at + q->offset + of * 16, scales_at = scales->data_at + e->offset + of;
        status = te__safetensors_get(blocks, at, (size_t)groups * 16, codes_at, ctx);
        if (status == TE_OK) status = te__safetensors_get(scales, at + groups * 16, (size_t)groups, scales_at, ctx);
        if (status != TE_OK) break;
        if (te__mxfp4_blocks(at + groups * 17, at, at + groups * 16, groups) >= 0)
            status = te_fail(ctx, TE_ERROR_VALUE, "%.120s: a scale of row %lld of %.100s is NaN", scales->path,
                             (long long)(first + r * step), name[1]);
        te_dequantize_row(row, at + groups * 17, cols, TE_BLOCK_mxfp4);
        if (status == TE_OK && te__safetensors_convert(0, as, row, TE_f32, cols) >= 0)
            status = te_fail(ctx, TE_ERROR_VALUE, "%.120s: a value of row %lld of %.100s does not fit %s", blocks->path,
                             (long long)(first + r * step), name[0], te_dtype_name(as));
        if (status != TE_OK) break;
        (void)te__safetensors_convert(to, as, row, TE_f32, cols);
        status = te_copy(ctx, (char *)want->data + (size_t)r * row_bytes, to, row_bytes);
        if (status == TE_OK) status = te_synchronize(ctx);
    }
    free(row);
    return status;
}

#endif
