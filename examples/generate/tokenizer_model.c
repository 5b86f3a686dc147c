/* tokenizer_model.c -- the vocabulary of a tokenizer.json and how a word becomes tokens: the merges of BPE, the scores
 * of SentencePiece's BPE, or WordPiece. Part of tokenizer_file.c's reading, by the same rules.
 */
#include <limits.h> /* INT_MAX */

#include "tokenizer_values.h" /* loader */

enum { MAX_SCORED = 1 << 10 };

static uint32_t table_mask(size_t count) {
    uint32_t size = 16;
    while (size < count + count / 2) size *= 2;
    return size - 1;
}
/* Make t->token and its hash table; added tokens may have ids beyond those of the vocabulary. */
static int load_vocabulary(loader *l, const json *vocabulary, const json *added) {
    tokenizer *t = l->t;
    const json *item;
    size_t count = 0;
    int32_t id = 0;
    for (item = vocabulary ? vocabulary->child : NULL; item; item = item->next) {
        if (!get_id(l, item, item->key.p, &id)) return 0;
        if (id >= t->vocabulary) t->vocabulary = id + 1;
        count++;
    }
    for (item = added ? added->child : NULL; item; item = item->next) {
        const json *content = member(item, "content");
        if (!is_text(content)) return fail(l, "an added token without \"content\"");
        if (!get_id(l, member(item, "id"), content->text.p, &id)) return 0;
        if (id >= t->vocabulary) t->vocabulary = id + 1;
    }
    t->slot_mask = table_mask(count);
    t->slot = (tokenizer_slot *)allocate(l, (size_t)t->slot_mask + 1, sizeof *t->slot);
    t->token = (tokenizer_token *)allocate(l, (size_t)t->vocabulary, sizeof *t->token);
    if (!t->slot || !t->token) return 0;
    for (item = vocabulary ? vocabulary->child : NULL; item; item = item->next) {
        const size_t n = item->key.n;
        if (n > MAX_TOKEN) return fail(l, "\"%.40s..\" has more than %d bytes", item->key.p, MAX_TOKEN);
        const tokenizer_text name = keep(l, item->key.p, n);
        if (!name.p) return 0;
        const uint32_t hash = tokenizer_hash(name.p, n);
        uint32_t at = hash & t->slot_mask;
        while (t->slot[at].p && (t->slot[at].hash != hash || t->slot[at].n != n || memcmp(t->slot[at].p, name.p, n)))
            at = (at + 1) & t->slot_mask;
        tokenizer_slot *s = &t->slot[at];
        s->p = name.p, s->n = (uint32_t)n, s->hash = hash, s->id = (int32_t)item->number;
        t->token[s->id].spelling = name;
    }
    for (int c = 0; c < TOKENIZER_DIRECT; c++) {
        char bytes[4];
        t->direct[c] = tokenizer_find(t, bytes, (size_t)tokenizer_put_utf8(bytes, (uint32_t)c));
    }
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        t->byte[b] = tokenizer_find(t, name, 6);
    }
    return 1;
}
/* The two tokens of a merge, "a b" or ["a", "b"]. */
static int get_merge(loader *l, const json *item, int number, tokenizer_text pair[2]) {
    if (is_kind(item, JSON_array)) {
        const json *a = item->child, *b = a ? a->next : NULL;
        if (!is_text(a) || !is_text(b) || b->next) return fail(l, "merge %d is not of two strings", number);
        pair[0].p = a->text.p, pair[0].n = a->text.n;
        pair[1].p = b->text.p, pair[1].n = b->text.n;
        return 1;
    }
    const char *end = is_text(item) ? item->text.p + item->text.n : NULL;
    const char *space = end ? (const char *)memchr(item->text.p, ' ', item->text.n) : NULL;
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return fail(l, "merge %d is not of two strings with one space between", number);
    pair[0].p = item->text.p, pair[0].n = (size_t)(space - item->text.p);
    pair[1].p = space + 1, pair[1].n = (size_t)(end - space - 1);
    return 1;
}
/* An empty table for so many merges. */
static int make_merges(loader *l, size_t count) {
    tokenizer *t = l->t;
    t->merge_mask = table_mask(count);
    t->merge = (tokenizer_merge *)allocate(l, (size_t)t->merge_mask + 1, sizeof *t->merge);
    for (uint32_t i = 0; t->merge && i <= t->merge_mask; i++) t->merge[i].rank = UINT32_MAX;
    return t->merge != NULL;
}
static void enter_merge(tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & t->merge_mask;
    while (t->merge[at].rank != UINT32_MAX && t->merge[at].pair != key) at = (at + 1) & t->merge_mask;
    t->merge[at].pair = key, t->merge[at].rank = rank, t->merge[at].id = id;
}
static int load_merges(loader *l, const json *merges) {
    tokenizer *t = l->t;
    const json *item;
    size_t count = 0;
    char *both = (char *)malloc(2 * MAX_TOKEN);
    for (item = merges ? merges->child : NULL; item; item = item->next) count++;
    int ok = both ? make_merges(l, count) : no_memory(l), rank = 0;
    for (item = merges->child; ok && item; item = item->next, rank++) {
        tokenizer_text pair[2] = {{NULL, 0}, {NULL, 0}};
        int32_t id[3] = {-1, -1, -1};
        if (!(ok = get_merge(l, item, rank, pair))) break;
        for (int k = 0; k < 2; k++) id[k] = tokenizer_find(t, pair[k].p, pair[k].n);
        if (id[0] >= 0 && id[1] >= 0) { /* so neither is longer than MAX_TOKEN */
            memcpy(both, pair[0].p, pair[0].n), memcpy(both + pair[0].n, pair[1].p, pair[1].n);
            id[2] = tokenizer_find(t, both, pair[0].n + pair[1].n);
        }
        if (id[2] < 0) {
            ok = fail(l, "merge %d, \"%.40s\" and \"%.40s\": the vocabulary lacks %s", rank, pair[0].p, pair[1].p,
                      id[0] < 0 ? "the first" : id[1] < 0 ? "the second" : "both together");
            break;
        }
        enter_merge(t, id[0], id[1], (uint32_t)rank, id[2]);
    }
    free(both);
    return ok;
}
typedef struct scored { double score; int32_t id; } scored;
static int by_score(const void *a, const void *b) {
    const scored *x = (const scored *)a, *y = (const scored *)b;
    return x->score != y->score ? (x->score > y->score ? -1 : 1) : 0;
}
/* The pairs of tokens that are a token together: of the first token of a pair its first `at` bytes. Returns their
 * number; with a table of merges, enters them. */
static size_t scored_pairs(tokenizer *t, int32_t id, uint32_t rank, int enter) {
    const tokenizer_text text = t->token[id].spelling;
    size_t count = 0;
    if (!text.p || tokenizer_find(t, text.p, text.n) != id) return 0; /* another token is spelled the same */
    for (size_t at = text.n ? (size_t)tokenizer_utf8_bytes(text.p) : 0; at < text.n;
         at += (size_t)tokenizer_utf8_bytes(text.p + at)) {
        const int32_t left = tokenizer_find(t, text.p, at), right = tokenizer_find(t, text.p + at, text.n - at);
        if (left < 0 || right < 0) continue;
        count++;
        if (enter) enter_merge(t, left, right, rank, id);
    }
    return count;
}
/* Merges from scores, as SentencePiece's BPE has them: a pair has the rank of its token by score, and tokens with the
 * same score have the same rank, so that the pair that is further left is merged first. */
static int load_scores(loader *l, const json *scores) {
    tokenizer *t = l->t;
    scored *order = (scored *)allocate(l, (size_t)t->vocabulary, sizeof *order);
    size_t count = 0;
    int n = 0, ok = order != NULL;
    for (const json *item = scores->child; ok && item; item = item->next, n++) {
        if (n == t->vocabulary || !is_kind(item, JSON_number)) ok = fail(l, "\"scores\" should be numbers, one a token");
        else if (t->token[n].spelling.n > MAX_SCORED)
            ok = fail(l, "\"%.40s..\" has more than %d bytes", t->token[n].spelling.p, MAX_SCORED);
        else order[n].score = item->number, order[n].id = n, count += scored_pairs(t, n, 0, 0);
    }
    ok = ok && make_merges(l, count);
    if (ok && n) qsort(order, (size_t)n, sizeof *order, by_score);
    for (int i = 0, rank = 0; ok && i < n; i++) {
        if (i && order[i].score < order[i - 1].score) rank = i;
        (void)scored_pairs(t, order[i].id, (uint32_t)rank, 1);
    }
    free(order);
    return ok;
}
/* An option that would change the ids and that no model of these families uses: it may only be empty. */
static int check_unused(loader *l, const json *model, const char *key) {
    const json *value = member(model, key);
    const int empty = is_text(value) ? !*value->text.p : is_kind(value, JSON_number) ? value->number == 0 : !value;
    return empty ? 1 : fail(l, "\"%s\" of the model is not supported", key);
}
static int load_wordpiece(loader *l, const json *model, const json *added) {
    tokenizer *t = l->t;
    tokenizer_text unk = {NULL, 0};
    if (!get_text(l, model, "continuing_subword_prefix", &t->continues) || !get_text(l, model, "unk_token", &unk) ||
        !get_count(l, model, "max_input_chars_per_word", INT_MAX, &t->max_word)) return 0;
    if (!load_vocabulary(l, member(model, "vocab"), added)) return 0;
    t->unk = tokenizer_find(t, unk.p, unk.n);
    return t->unk >= 0 ? 1 : fail(l, "the vocabulary lacks \"unk_token\", \"%.40s\"", unk.p);
}
int tokenizer_load_model(loader *l, const json *root) {
    tokenizer *t = l->t;
    const json *model = member(root, "model"), *unk = member(model, "unk_token");
    const json *vocabulary = member(model, "vocab"), *merges = member(model, "merges");
    const json *scores = member(model, "scores"); /* of a GGUF file */
    if (!is_kind(model, JSON_object)) return fail(l, "has no \"model\"");
    if (!is_kind(vocabulary, JSON_object)) return fail(l, "the model has no \"vocab\"");
    if (is(model, "WordPiece")) return load_wordpiece(l, model, member(root, "added_tokens"));
    if (member(model, "type") && !is(model, "BPE"))
        return fail(l, "the model \"%.60s\" is not supported, only BPE and WordPiece are", type_of(model));
    if (!is_kind(merges, JSON_array) && !is_kind(scores, JSON_array)) return fail(l, "the model has no \"merges\"");
    if (!check_unused(l, model, "dropout") || !check_unused(l, model, "continuing_subword_prefix") ||
        !check_unused(l, model, "end_of_word_suffix")) return 0;
    if (!get_bool(l, model, "byte_fallback", 0, &t->byte_fallback) ||
        !get_bool(l, model, "fuse_unk", 0, &t->fuse_unk) ||
        !get_bool(l, model, "ignore_merges", 0, &t->ignore_merges)) return 0;
    if (!load_vocabulary(l, vocabulary, member(root, "added_tokens"))) return 0;
    if (merges ? !load_merges(l, merges) : !load_scores(l, scores)) return 0;
    t->unk = -1;
    if (unk && !is_text(unk)) return fail(l, "\"unk_token\" should be a string");
    if (unk) t->unk = tokenizer_find(t, unk->text.p, unk->text.n);
    if (unk && t->unk < 0) t->unk = TOKENIZER_NO_TOKEN;
    return 1;
}
