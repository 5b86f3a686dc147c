/* load_safetensors.h -- the weights of a model in a folder of Hugging Face (checkpoint.h). Part of load_model.h.
 *
 * Files are mapped. On the host the table of the embedding, which is that of a tied head too, is used where it lies if
 * the file has it in MODEL_DTYPE; all other tensors are copied, because q, k and v, and gate and up, become one weight
 * each. te_safetensors_load checks names and shapes, and converts the dtype.
 *
 * A folder of GPTQ or AWQ, and one whose weights are cast (-DMODEL_WEIGHTS=int4_128), are read by te_quantized_bind
 * (te/io/quantized_file.h), and on the host so is gpt-oss with experts in MXFP4. On the host weights that are not cast
 * stay in the mapped file, if it has them in floats.
 */
#ifndef LOAD_SAFETENSORS_H
#define LOAD_SAFETENSORS_H

#include "checkpoint.h" /* open_files, load_tensors */
#include "load_model.h" /* parts, weights */
#ifdef MODEL_WEIGHTS
#include "te/io/quantized_file.h" /* te_quantized_bind */
#if MODEL_EXPERTS && !MODEL_MXFP4_EXPERTS
#error "MODEL_WEIGHTS: of models with experts, only gpt-oss in MXFP4 has weights in few bits"
#endif
#endif

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Bind a list, and load the parameters that the tables describe (load_tables), which are all that it has. */
static te_status load_part(part *p, const te_packed *table, const te_packed_heads *heads, const char *prefix,
                           te_context *ctx) {
#ifdef MODEL_WEIGHTS
    te_quantized_source source = te_quantized_source_of(from.file);
    int count = 0;
    while (table[count].name) count++;
    TE_REQUIRE(!heads || !heads[0].name, ctx, TE_ERROR_VALUE, "weights head by head are not in few bits");
    source.files = from.files, source.gptq_v2 = MODEL_GPTQ_V2;
    TE_TRY(bind_part(p, 0, ctx));
    return te_quantized_bind(&weights[p - parts], &p->model, table, count, prefix, &source, ctx);
#else
    TE_TRY(bind_part(p, 1, ctx));
    return load_tables(p, table, heads, prefix, ctx);
#endif
}
static const char *head_prefix(void) { return strncmp(from.prefix, "language_model.", 15) ? "" : "language_model."; }
/* A table of the head alone, by the name that the files have of it. */
static void get_head_table(te_packed table[2]) {
    int i = 0;
    char name[MAX_NAME];
    for (int k = 0; head_tensors[k].name; k++) {
        snprintf(name, sizeof name, "%s%s", head_prefix(), head_tensors[k].name);
        if (has_tensor(name)) i = k;
    }
    memset(table, 0, 2 * sizeof *table);
    table[0] = head_tensors[i];
}
/* Load the embedding of a model with a tied head from the tensor of the head: some programs save only that. */
static te_status load_embedding_from_head(te_context *ctx) {
    te_packed table[2];
    get_head_table(table);
    table[0].op = embed_tensors[0].op;
#ifdef MODEL_WEIGHTS
    return load_part(&parts[0], table, 0, head_prefix(), ctx);
#else
    TE_TRY(bind_part(&parts[0], 1, ctx));
    TE_TRY(load_tensors(&parts[0], embed_tensors + 1, from.prefix, ctx));
    return load_tensors(&parts[0], table, head_prefix(), ctx);
#endif
}
/* Use the table of the embedding in the mapped file, or load it if the target, its dtype or its place forbids that. */
static te_status load_embedding(te_context *ctx) {
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s%s", from.prefix, embed_tensors[0].name);
    if (MODEL_TIED && !has_tensor(name)) return load_embedding_from_head(ctx);
#ifdef MODEL_WEIGHTS
    return load_part(&parts[0], embed_tensors, 0, from.prefix, ctx);
#else
    const te_safetensors *file;
    te_named_model model;
    TE_TRY(file_of(&file, name, ctx));
    snprintf(name, sizeof name, "%s", from.prefix);
    if (*name) name[strlen(name) - 1] = 0; /* te_weights_use adds the dot */
    model.name = name, model.model = &parts[0].model;
    TE_TRY(bind_part(&parts[0], 0, ctx));
    if (te_weights_use(&model, 1, file, ctx) == TE_OK) return TE_OK;
    TE_TRY(bind_part(&parts[0], 1, ctx));
    return load_tensors(&parts[0], embed_tensors, from.prefix, ctx);
#endif
}
static te_status load_head(part *p, te_context *ctx) {
    te_packed table[2];
    if (MODEL_TIED) {
        TE_TRY(bind_part(p, 0, ctx));
        return te_tie(&p->param[0], &parts[0].param[0], ctx);
    }
    get_head_table(table);
    return load_part(p, table, 0, head_prefix(), ctx);
}
/* ---- what load_model.h calls ------------------------------------------------------------------------------------- */

static te_status open_model(const char *folder, te_context *ctx) {
    from.folder = folder;
    TE_TRY(check_config(ctx));
    /* The table of a tied embedding may be there as the head. */
    TE_TRY(open_files(name_prefixes, sizeof name_prefixes / sizeof name_prefixes[0], embed_tensors[0].name,
                      MODEL_TIED ? last_tensors[0].name : 0, ctx));
#ifdef MODEL_WEIGHTS
    TE_TRY(open_all_files(ctx));
#endif
    return TE_OK;
}
#if defined MODEL_EXPERTS_IN_ONE && defined MODEL_WEIGHTS
/* Bind a block whose experts are in MXFP4, as [experts, out, in / 32, 16]. Their blocks are copied, because in the file
 * codes and scales are apart; the weights of linears stay there. */
static te_status load_block_of_experts(part *p, const char *prefix, te_context *ctx) {
    enum { OF_EXPERTS = sizeof expert_tensors / sizeof *expert_tensors - 1 };
    te_packed table[OF_EXPERTS + sizeof block_tensors / sizeof *block_tensors];
    memcpy(table, expert_tensors, OF_EXPERTS * sizeof *table);
    memcpy(table + OF_EXPERTS, block_tensors, sizeof block_tensors);
    for (int i = 0; i < OF_EXPERTS; i++) table[i].form &= ~(int)TE_PACKED_TRANSPOSED;
    return load_part(p, table, block_heads, prefix, ctx);
}
#elif defined MODEL_EXPERTS_IN_ONE
/* Load the tensors that have the weights of all experts. Floats are stored as [experts, in, out], MXFP4 as
 * [experts, out, in / 32, 16]. */
static te_status load_experts(part *p, const char *prefix, te_context *ctx) {
    te_packed table[sizeof expert_tensors / sizeof *expert_tensors];
    char name[3 * MAX_NAME];
    memcpy(table, expert_tensors, sizeof table);
    for (te_packed *t = table; t->name; t++) {
        snprintf(name, sizeof name, "%s%s_blocks", prefix, t->name);
        if (has_tensor(name)) t->form &= ~TE_PACKED_TRANSPOSED;
    }
    return load_tensors(p, table, prefix, ctx);
}
#elif MODEL_EXPERTS
/* Load gate, up and down of all experts. A file has a tensor for each of them; a list has one weight with gate and up of
 * all experts, and one with down. */
static te_status load_experts(part *p, const char *prefix, te_context *ctx) {
    enum { PER_EXPERT = 3, COUNT = PER_EXPERT * MODEL_EXPERTS };
    static char name[COUNT][MAX_NAME];
    te_packed table[COUNT + 1];
    memset(table, 0, sizeof table);
    for (int i = 0; i < COUNT; i++) {
        const int is_down = i % PER_EXPERT == 2;
        snprintf(name[i], MAX_NAME, expert_names[i % PER_EXPERT], i / PER_EXPERT);
        table[i].name = name[i], table[i].op = is_down ? "fc2" : "fc1", table[i].field = "weight";
        table[i].rows = is_down ? MODEL_HIDDEN : MODEL_FFN;
    }
    return load_tensors(p, table, prefix, ctx);
}
#endif
/* In the first layers of some models, an MLP is in place of the experts. */
static inline int is_dense(const part *p) { return MODEL_HAS_dense && p->plan == block_plans[3](); }
static te_status load_block(part *p, int layer, te_context *ctx) {
    char name[MAX_NAME], prefix[2 * MAX_NAME];
    snprintf(name, sizeof name, layer_prefix, layer);
    snprintf(prefix, sizeof prefix, "%s%s", from.prefix, name);
#if MODEL_EXPERTS && defined MODEL_WEIGHTS
    return load_block_of_experts(p, prefix, ctx);
#elif MODEL_EXPERTS
    TE_TRY(bind_part(p, 1, ctx));
    if (!is_dense(p)) TE_TRY(load_experts(p, prefix, ctx));
#if MODEL_LATENT
    te_packed_list views = te_packed_none();
    const te_status status = te_packed_add_head_rows(&views, &p->model, latent_tensors, 2, prefix, ctx);
    TE_TRY(load_views(&views, status, ctx));
#endif
#if MODEL_QK_NORM
    for (int i = 0; i < p->model.param_count; i++) { /* the files have no weights of these norms */
        const te_param *w = &p->param[i];
        if (!strcmp(w->op, "heads")) TE_TRY(te_fill(ctx, w->data, 0, (size_t)w->cols * te_dtype_bytes(w->dtype)));
    }
#endif
    return load_tables(p, is_dense(p) ? dense_tensors : block_tensors, block_heads, prefix, ctx);
#else
    return load_part(p, block_tensors, block_heads, prefix, ctx);
#endif
}
static te_status load_last(part *p, te_context *ctx) {
    return load_part(p, last_tensors, 0, from.prefix, ctx);
}
static void close_model(te_context *ctx) {
    for (int i = 0; i < PARTS; i++) te_block_weights_release(&weights[i], ctx);
    close_files();
}

#endif
