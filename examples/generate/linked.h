/* linked.h -- the files of a model that link_model.sh has linked into the program (-DMODEL_LINKED). A path in the folder
 * "linked" means such a file.
 *
 * Do this:
 *     const linked_file *in = linked(path);      // null: not linked, so open the file at this path
 *     if (in) check(te_gguf_open_memory(&file, in->bytes, linked_size(in), &ctx), path);
 */
#ifndef LINKED_H
#define LINKED_H

#include <stddef.h> /* NULL, size_t */
#include <stdio.h>  /* FILE */
#include <string.h> /* strcmp, strncmp */

#define LINKED_FOLDER "linked"

typedef struct linked_file { const char *name, *bytes, *end; } linked_file;

#ifdef MODEL_LINKED
#ifdef __cplusplus
extern "C" const linked_file linked_files[];
#else
extern const linked_file linked_files[]; /* link_model.sh writes it; behind the last one there is a null name */
extern FILE *fmemopen(void *bytes, size_t size, const char *mode); /* not declared with -std=c11 */
#endif
static inline const linked_file *linked(const char *path) {
    const size_t n = sizeof LINKED_FOLDER - 1;
    if (strncmp(path, LINKED_FOLDER, n) || (path[n] && path[n] != '/')) return NULL;
    for (const linked_file *f = linked_files; f->name; f++)
        if (!strcmp(f->name, path[n] ? path + n + 1 : "")) return f;
    return NULL;
}
static inline FILE *linked_open(const linked_file *f) {
    return fmemopen((void *)(size_t)f->bytes, (size_t)(f->end - f->bytes), "rb");
}
#else
static inline const linked_file *linked(const char *path) { return (void)path, (const linked_file *)NULL; }
static inline FILE *linked_open(const linked_file *f) { return (void)f, (FILE *)NULL; }
#endif
static inline size_t linked_size(const linked_file *f) { return (size_t)(f->end - f->bytes); }
/* Open a file to read it, in the program or at its path. */
static inline FILE *open_to_read(const char *path) {
    const linked_file *in = linked(path);
    return in ? linked_open(in) : fopen(path, "rb");
}

#endif
