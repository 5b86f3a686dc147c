/* program.h -- what the programs of this folder share: messages, memory, texts that grow, and numbers as arguments.
 *
 * Do this:
 *     #define PROGRAM "generate"     // in front of the messages
 *     #include "program.h"
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdio.h>  /* FILE */
#include <stdlib.h> /* realloc, strtol */
#include <time.h>   /* timespec_get */
#include <unistd.h> /* execv */

#include "te/infer.h" /* te_context */

#ifndef __cplusplus
extern int setenv(const char *name, const char *value, int replace); /* not declared with -std=c11 */
#endif

static te_context ctx;

/* Let idle threads of OpenMP sleep instead of spin, unless the user has set OMP_WAIT_POLICY. While other programs run,
 * a thread that spins takes the time in which the thread that it waits for could run. OpenMP reads the variable when it
 * is loaded, so set the variable and start this program again. */
static inline void sleep_while_waiting(char **argv) {
#if defined _OPENMP && !TE_CUDA
    if (!getenv("OMP_WAIT_POLICY") && !setenv("OMP_WAIT_POLICY", "passive", 1)) execv("/proc/self/exe", argv);
#endif
    (void)argv;
}
static inline void die(const char *what, const char *why) {
    fprintf(stderr, PROGRAM ": %s%s%s\n", what, *why ? ": " : "", why);
    exit(1);
}
static inline void check(te_status status, const char *what) {
    if (status != TE_OK) die(what, te_last_error(&ctx));
}
static inline void *memory(void *p, size_t bytes) {
    if (!(p = realloc(p, bytes ? bytes : 1))) die("no memory", "");
    return p;
}
static inline void *target_memory(size_t bytes) {
    void *p = NULL;
    check(te_allocate(&ctx, &p, bytes), "memory");
    return p;
}
static inline double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

typedef struct text { char *p; size_t n, capacity; } text; /* a NUL is behind p[n] */

static inline void append(text *t, const char *p, size_t n) {
    if (t->n + n + 1 > t->capacity) t->p = (char *)memory(t->p, t->capacity = 2 * (t->n + n + 1));
    if (n) memcpy(t->p + t->n, p, n);
    t->p[t->n += n] = 0;
}
static inline void read_all(text *t, FILE *f, const char *name) {
    char bytes[4096];
    append(t, "", 0);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, f)) > 0;) append(t, bytes, n);
    if (ferror(f)) die("cannot read", name);
}
/* A line without its end; 0: there is none. */
static inline int read_line(text *t, FILE *f) {
    int c;
    t->n = 0;
    append(t, "", 0);
    for (; (c = getc(f)) != EOF && c != '\n';) {
        const char byte = (char)c;
        append(t, &byte, 1);
    }
    if (t->n && t->p[t->n - 1] == '\r') t->p[--t->n] = 0;
    return c != EOF || t->n;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static inline double real(const char *value, double min, double max, const char *name) {
    char *end;
    const double x = value ? strtod(value, &end) : 0;
    if (!value || *end || end == value || !(x >= min && x <= max)) die("not a number, or out of range, after", name);
    return x;
}
static inline int64_t number(const char *value, int64_t min, int64_t max, const char *name) {
    char *end;
    const long long x = value ? strtoll(value, &end, 10) : 0;
    if (!value || *end || end == value || x < min || x > max) die("not a number, or out of range, after", name);
    return x;
}

#endif
