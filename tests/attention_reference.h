// attention_reference.h -- attention in double, forward and backward, for the tests of its kernels: one query after the other, from the
// formula. Compiled once, optimised, for all tests.
#ifndef TESTS_ATTENTION_REFERENCE_H
#define TESTS_ATTENTION_REFERENCE_H

#include <vector>

#include "te/core/philox.h" // te_rng

namespace attention_reference {

// The options of te/attention/attention_options.h.
struct form {
    int left, right;
    double softcap = 0, dropout = 0;
    int varlen = 0, alibi = 0, sinks = 0, only = 0, cross = 0, bias = 0, first = 0, second = 0, top = 0, value = 0;
    bool sees(int query, int key) const {
        return (left < 0 || key >= query - left) && (right < 0 || key <= query + right);
    }
};
struct reference {
    std::vector<double> out, lse, dqkv, dsinks, dsinks_size; // size: the sum of |terms|
};

// The keys that a query sees, one by one.
std::vector<size_t> keys_of(const form &f, size_t query, size_t seq);
// ALiBi's slopes as the paper's own code has them: of a power of two a geometric series that begins with its ratio, of other numbers those of the next
// lower power of two, and every other one of twice as many.
std::vector<double> alibi_slopes(int heads);
// What dropout multiplies a probability by: the words of a counter are for queries q, q + 8 of 16 and keys k, k + 8, k + 16, k + 24 of 32.
// te/attention/attention_options.h says it for the kernels. head: of all sequences.
struct drawn {
    te_rng rng = {0, 0};
    uint32_t id = 0;
    size_t first_head = 0, seq = 0; // of a sequence among others: what its heads are counted from, and the longest one; 0: there are no others
    size_t heads = 0;               // of a sequence, if other ranks have some: more than the call's
};
double dropout_factor(const form &f, const drawn &from, size_t head, size_t query, size_t key, size_t seq);
// stored: the `out` that a backward reads for delta, if that is not exact. Where a row sees one key, nothing but its rounding is left of dS.
reference attention(const form &f, int heads, int kv_heads, int dim, int batch, int seq, double scale, const std::vector<double> &qkv, const std::vector<double> &dout,
                    const drawn &from = drawn(), const std::vector<double> *stored = nullptr, const std::vector<double> *sinks = nullptr);

// Columns [from, to) of rows of `width`: ||x - ref|| / ||ref||, and the largest difference of one element, relative to the RMS and itself.
// The RMS counts as at least `floor`. Where all gradients cancel (seq 1), ||ref|| is 0; gradients have a size of 0.05 elsewhere.
struct distance { double whole, worst; };
distance distance_of(const std::vector<double> &x, const std::vector<double> &ref, size_t width, size_t from, size_t to, double floor = 0.05);

} // namespace attention_reference

#endif
