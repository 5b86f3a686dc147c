/* allocations.c -- counts the allocations of a program that is linked with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,
 * --wrap=aligned_alloc,--wrap=putchar: how many there are until the first byte is printed, and how many behind it. tests/generate.sh links
 * it to examples/generate. */
#include <stdio.h>
#include <stdlib.h>

static long before, after, printed;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_putchar(int c);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_putchar(int c);

static void count(void) { printed ? after++ : before++; }
void *__wrap_malloc(size_t bytes) { return count(), __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t bytes) { return count(), __real_calloc(n, bytes); }
void *__wrap_realloc(void *p, size_t bytes) { return count(), __real_realloc(p, bytes); }
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) { return count(), __real_aligned_alloc(alignment, bytes); }
int __wrap_putchar(int c) { return printed = 1, __real_putchar(c); }

__attribute__((destructor)) static void report(void) { fprintf(stderr, "%ld allocations, then %ld\n", before, after); }
