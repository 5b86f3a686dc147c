// attention_reference.h -- the reference of the attention kernels: forward and backward in double, one query after the other, from the
// formula. A library of its own, which is optimised even where the tests are not.
#ifndef TESTS_ATTENTION_REFERENCE_H
#define TESTS_ATTENTION_REFERENCE_H

#include <vector>

#include "te/core/philox.h" // te_rng

namespace attention_reference {

// The options of an attention kernel, in the order of te/attention/attention_options.h.
struct form {
    int left, right;
    double softcap = 0, dropout = 0;
    int varlen = 0, alibi = 0, sinks = 0, only = 0, cross = 0, bias = 0, first = 0, second = 0, top = 0, value = 0;
    bool sees(int query, int key) const {
        return (left < 0 || key >= query - left) && (right < 0 || key <= query + right);
    }
};
struct reference {
    std::vector<double> out, lse, dqkv, dsinks, dsinks_size; // dsinks_size: the sums of |terms| of dsinks
};

// The indices of the keys that a query sees.
std::vector<size_t> keys_of(const form &f, size_t query, size_t seq);
// ALiBi's slopes as in the code of the paper. For a power of two they are a geometric series whose first term is its ratio. For another number of
// heads they are the slopes of the next lower power of two, followed by every other slope of twice that power.
std::vector<double> alibi_slopes(int heads);
// The factor by which dropout multiplies a probability. One Philox counter yields four words for a tile of 16 queries and 32 keys: their halves are
// for queries q and q + 8, the words for keys k, k + 8, k + 16 and k + 24 (te/attention/attention_options.h). head counts over all sequences.
struct drawn {
    te_rng rng = {0, 0};
    uint32_t id = 0;
    // of one of several packed sequences: the index of its first head, and the maximum length; 0: one sequence
    size_t first_head = 0, seq = 0;
    size_t heads = 0;               // heads of a sequence on all ranks, if that is more than those of the call
};
double dropout_factor(const form &f, const drawn &from, size_t head, size_t query, size_t key, size_t seq);
// stored: the rounded `out` from which the tested backward computes delta. Where a query sees one key, dS is the error of that rounding only.
reference attention(const form &f, int heads, int kv_heads, int dim, int batch, int seq, double scale, const std::vector<double> &qkv, const std::vector<double> &dout,
                    const drawn &from = drawn(), const std::vector<double> *stored = nullptr, const std::vector<double> *sinks = nullptr);

// Of columns [from, to) of rows of `width`. whole: ||x - ref|| / ||ref||. worst: the largest error of one element, relative to the RMS of ref plus
// the element. The RMS counts as at least `floor`: if all gradients cancel (seq 1), ||ref|| is 0, and 0.05 is their usual size.
struct distance { double whole, worst; };
distance distance_of(const std::vector<double> &x, const std::vector<double> &ref, size_t width, size_t from, size_t to, double floor = 0.05);

} // namespace attention_reference

#endif
