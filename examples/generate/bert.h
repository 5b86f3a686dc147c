/* bert.h -- the lists of BERT, an encoder, and the names of their tensors in the files of Hugging Face; for
 * embed_model.c.
 *
 * Do this:
 *     examples/generate/configure.py FOLDER >model.h
 *     cc -DMODEL_CONFIG='"model.h"' ..
 *
 * A model is an embedding and MODEL_LAYERS blocks. The stream between them is f32, weights are MODEL_DTYPE. All tokens
 * of a text are of the first segment, whose embedding is therefore a bias (token_type).
 */
#ifndef BERT_H
#define BERT_H

#include MODEL_CONFIG     /* MODEL_HIDDEN, .. */
#include "checkpoint.h"   /* from, load_tensors */
#include "te/infer.h"     /* TE_INFERENCE */

#ifndef MODEL_DTYPE
#define MODEL_DTYPE TE_JOIN1(MODEL_DTYPE_, TE_CUDA)
#define MODEL_DTYPE_0 f32
#define MODEL_DTYPE_1 bf16
#endif

/* [lists] */
TE_INFERENCE(embed, (MODEL_DTYPE, (out, f32)), (embedding, word, MODEL_VOCABULARY, MODEL_HIDDEN),
             (positions, position, MODEL_POSITIONS, MODEL_HIDDEN), (bias, token_type, MODEL_HIDDEN),
             (layernorm, norm, MODEL_HIDDEN, (eps, MODEL_EPS)))
TE_INFERENCE(block, (MODEL_DTYPE, (in, f32), (residual, f32), (out, f32)),
             TE_BERT_BLOCK(b, MODEL_HIDDEN, MODEL_FFN, MODEL_HEADS, 0, MODEL_EPS))
/* [lists] */

static const te_packed embed_tensors[] = {{"word_embeddings.weight", "word", "weight", 0, 0},
                                          {"position_embeddings.weight", "position", "weight", 0, 0},
                                          {"LayerNorm.weight", "norm", "weight", 0, 0},
                                          {"LayerNorm.bias", "norm", "bias", 0, 0},
                                          END};
static const te_packed block_tensors[] = {
    {"attention.self.query.weight", "b_qkv", "weight", MODEL_HIDDEN, 0},
    {"attention.self.key.weight", "b_qkv", "weight", MODEL_HIDDEN, 0},
    {"attention.self.value.weight", "b_qkv", "weight", MODEL_HIDDEN, 0},
    {"attention.self.query.bias", "b_qkv_bias", "bias", MODEL_HIDDEN, 0},
    {"attention.self.key.bias", "b_qkv_bias", "bias", MODEL_HIDDEN, 0},
    {"attention.self.value.bias", "b_qkv_bias", "bias", MODEL_HIDDEN, 0},
    {"attention.output.dense.weight", "b_proj", "weight", 0, 0},
    {"attention.output.dense.bias", "b_proj_bias", "bias", 0, 0},
    {"attention.output.LayerNorm.weight", "b_norm1", "weight", 0, 0},
    {"attention.output.LayerNorm.bias", "b_norm1", "bias", 0, 0},
    {"intermediate.dense.weight", "b_fc1", "weight", 0, 0},
    {"intermediate.dense.bias", "b_fc1_bias", "bias", 0, 0},
    {"output.dense.weight", "b_fc2", "weight", 0, 0},
    {"output.dense.bias", "b_fc2_bias", "bias", 0, 0},
    {"output.LayerNorm.weight", "b_norm2", "weight", 0, 0},
    {"output.LayerNorm.bias", "b_norm2", "bias", 0, 0},
    END};
/* What may stand in front of all names: "bert." in files of models with a head. */
static const char *const name_prefixes[] = {"", "bert."};

enum { PARTS = 1 + MODEL_LAYERS }; /* the embedding, and the blocks */
static part parts[PARTS];

/* The embedding of the first segment, the first row of a table. */
static te_status load_token_type(te_context *ctx) {
    char name[MAX_NAME];
    const te_safetensors *file;
    te_param *bias = &parts[0].param[2]; /* in the order of the list: word, position, token_type */
    snprintf(name, sizeof name, "%sembeddings.token_type_embeddings.weight", from.prefix);
    te_safetensor row = te_safetensor_matrix(name, bias->dtype, MODEL_TOKEN_TYPES, MODEL_HIDDEN, bias->data);
    row = te_safetensor_slice(row, 0, 1, 0, MODEL_HIDDEN);
    row.written = &bias->written;
    TE_TRY(file_of(&file, name, ctx));
    return te_safetensors_load(file, &row, 1, 0, ctx);
}
static te_status load_model(const char *folder, te_context *ctx) {
    char prefix[MAX_NAME];
    from.folder = folder;
    TE_TRY(check_config(ctx));
    TE_TRY(open_files(name_prefixes, 2, "embeddings.word_embeddings.weight", 0, ctx));
    for (int i = 0; i < PARTS; i++) {
        parts[i].plan = i ? block_plan() : embed_plan();
        TE_TRY(bind_part(&parts[i], 1, ctx));
        if (i) snprintf(prefix, sizeof prefix, "%sencoder.layer.%d.", from.prefix, i - 1);
        else snprintf(prefix, sizeof prefix, "%sembeddings.", from.prefix);
        TE_TRY(load_tensors(&parts[i], i ? block_tensors : embed_tensors, prefix, ctx));
    }
    return load_token_type(ctx);
}
static void unload_model(te_context *ctx) {
    for (int i = 0; i < PARTS; i++) te_release(ctx, (void *)(uintptr_t)parts[i].model.params);
    close_files();
}

#endif
