// pipeline_test.cc -- the schedule of a pipeline (te/comm/pipeline.h), for all numbers of stages from 1 to 8, of micro-batches from 1 to 32 and of chunks from 1 to 4.
// The test carries out the slots of all stages, with the messages that they name, and knows nothing of how the schedule is made.
#include "te/comm/pipeline.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

namespace {
typedef std::vector<te_pipeline_slot> slots;

// One tensor of the buffers that te_pipeline_buffers_of counts: the micro-batch that it holds; -1: none.
typedef std::vector<int> buffers;

// A run of all slots. Returns what went wrong, or null.
struct run {
    te_pipeline p;
    std::vector<slots> stage;
    int count = 0;

    explicit run(te_pipeline sizes) : p(sizes) {
        for (int s = 0; s < p.stages; s++) {
            count = te_pipeline_schedule(nullptr, 0, p, s);
            stage.emplace_back((size_t)count);
            if (te_pipeline_schedule(stage.back().data(), count, p, s) != count) count = -1;
        }
    }
    // Every message is sent and received in the same slot, by the stages that name each other, and it is the output that the receiver's pass consumes.
    const char *messages() const {
        for (int t = 0; t < count; t++) {
            int sent = 0, received = 0;
            for (int s = 0; s < p.stages; s++) {
                const te_pipeline_slot &a = stage[(size_t)s][(size_t)t];
                sent += a.to >= 0;
                for (int k = 0; k < 2; k++) {
                    const te_pipeline_pass r = a.receive[k];
                    if ((r.kind == TE_PIPELINE_idle) != (a.from[k] < 0)) return "a message without a sender";
                    if (r.kind == TE_PIPELINE_idle) continue;
                    received++;
                    if (r.kind != (k ? TE_PIPELINE_backward : TE_PIPELINE_forward)) return "the message is of another kind";
                    const te_pipeline_slot &from = stage[(size_t)a.from[k]][(size_t)t];
                    const int mine = r.chunk * p.stages + s, theirs = from.pass.chunk * p.stages + a.from[k];
                    if (from.to != s || from.pass.kind != r.kind || from.pass.micro_batch != r.micro_batch) return "the sender sends something else";
                    if (theirs != mine + (k ? 1 : -1)) return "the message is of another part";
                }
            }
            if (sent != received) return "a message that nobody receives";
        }
        return nullptr;
    }
    // Each pass runs once, on inputs that exist: made on the same stage or received in an earlier slot, and still in their buffers.
    const char *passes() const {
        const int parts = p.stages * p.chunks;
        std::vector<std::vector<int>> forward((size_t)parts, std::vector<int>((size_t)p.micro_batches, -1)), backward = forward;
        for (int s = 0; s < p.stages; s++) {
            std::vector<buffers> inputs, gradients;
            for (int c = 0; c < p.chunks; c++) {
                const te_pipeline_buffers b = te_pipeline_buffers_of(stage[(size_t)s].data(), count, c);
                inputs.emplace_back((size_t)b.inputs, -1), gradients.emplace_back((size_t)b.gradients, -1);
            }
            for (int t = 0; t < count; t++) {
                const te_pipeline_slot &a = stage[(size_t)s][(size_t)t];
                const te_pipeline_pass x = a.pass;
                const int part = x.chunk * p.stages + s, m = x.micro_batch;
                if (x.kind != TE_PIPELINE_idle) {
                    if (x.chunk < 0 || x.chunk >= p.chunks || m < 0 || m >= p.micro_batches) return "no such pass";
                    auto &when = x.kind == TE_PIPELINE_forward ? forward : backward;
                    if (when[(size_t)part][(size_t)m] >= 0) return "a pass runs twice";
                    when[(size_t)part][(size_t)m] = t;
                    buffers &in = inputs[(size_t)x.chunk], &dy = gradients[(size_t)x.chunk];
                    int &held = in[(size_t)m % in.size()];
                    const bool arrives = p.stages > 1 && part > 0;
                    if (x.kind == TE_PIPELINE_forward && !arrives) {
                        if (held >= 0) return "a forward overwrites an activation";
                        held = m;
                    }
                    if (held != m) return "the input is not there";
                    if (x.kind == TE_PIPELINE_backward) {
                        if (forward[(size_t)part][(size_t)m] < 0) return "a backward before its forward";
                        held = -1;
                        if (p.stages > 1 && part + 1 < parts) {
                            int &gradient = dy[(size_t)m % dy.size()];
                            if (gradient != m) return "the gradient is not there";
                            gradient = -1;
                        }
                    }
                }
                for (int k = 0; k < 2; k++) {
                    const te_pipeline_pass r = a.receive[k];
                    if (r.kind == TE_PIPELINE_idle) continue;
                    buffers &to = k ? gradients[(size_t)r.chunk] : inputs[(size_t)r.chunk];
                    int &held = to[(size_t)r.micro_batch % to.size()];
                    if (held >= 0) return "a message overwrites a tensor that is in use";
                    held = r.micro_batch;
                }
            }
        }
        for (int part = 0; part < parts; part++)
            for (int m = 0; m < p.micro_batches; m++) {
                const int f = forward[(size_t)part][(size_t)m], b = backward[(size_t)part][(size_t)m];
                if (f < 0 || b < 0) return "a pass does not run";
                if (part && forward[(size_t)part - 1][(size_t)m] >= f) return "a forward before the one of the part in front";
                if (part + 1 < parts && backward[(size_t)part + 1][(size_t)m] >= b) return "a backward before the one of the part behind";
                if (m && backward[(size_t)part][(size_t)m - 1] >= b) return "backwards of a part are out of order"; // the first overwrites the gradients
            }
        return nullptr;
    }
    // The largest number of activations that a stage keeps, in chunks of micro-batches.
    int peak(int s) const {
        int kept = 0, most = 0;
        for (const te_pipeline_slot &a : stage[(size_t)s]) {
            kept += a.pass.kind == TE_PIPELINE_forward ? 1 : a.pass.kind == TE_PIPELINE_backward ? -1 : 0;
            most = kept > most ? kept : most;
        }
        return most;
    }
};
} // namespace

TEST_CASE("the schedule runs every pass once, on inputs that have come, with the paper's activations and length", "[pipeline]") {
    int longest = 0;
    for (int stages = 1; stages <= 8; stages++)
        for (int micro_batches = 1; micro_batches <= 32; micro_batches++)
            for (int chunks = 1; chunks <= 4; chunks++) {
                const run r(te_pipeline_of(stages, chunks, micro_batches));
                INFO("stages " << stages << ", micro-batches " << micro_batches << ", chunks " << chunks);
                const char *messages = r.messages(), *passes = r.passes();
                CHECK(std::string(messages ? messages : "right") == "right");
                CHECK(std::string(passes ? passes : "right") == "right");
                const int work = 2 * chunks * micro_batches, even = work + 2 * (stages - 1);
                // The bubble is (stages - 1) / (chunks * micro_batches) of the work.
                if (chunks == 1 || micro_batches % stages == 0) CHECK(r.count == even);
                CHECK(r.count >= even);
                longest = std::max(longest, r.count - even);
                for (int s = 0; s < stages; s++) {
                    // 1F1B: at most `stages` micro-batches are in flight; interleaved: 2 (stages - 1 - s) + (chunks - 1) stages + 1 chunks of them
                    const int behind = stages - 1 - s, limit = chunks == 1 ? behind + 1 : 2 * behind + (chunks - 1) * stages + 1;
                    const int most = std::min(limit, chunks * micro_batches);
                    CHECK(r.peak(s) <= most);
                    if (chunks == 1 || micro_batches % stages == 0) CHECK(r.peak(s) == most);
                }
            }
    CHECK(longest <= 2 * 4 * 8); // a last group that is not full costs less than one full group
}

TEST_CASE("sizes that no pipeline has", "[pipeline]") {
    const te_pipeline bad[] = {te_pipeline_of(0, 1, 1), te_pipeline_of(1, 0, 1), te_pipeline_of(1, 1, 0), te_pipeline_of(TE_PIPELINE_MAX_STAGES + 1, 1, 1), te_pipeline_of(64, 1 << 20, 1 << 20),
                               te_pipeline_of(-1, -1, 4)};
    for (const te_pipeline p : bad) CHECK(te_pipeline_schedule(nullptr, 0, p, 0) == 0);
    CHECK(te_pipeline_schedule(nullptr, 0, te_pipeline_of(4, 1, 8), 4) == 0);
    CHECK(te_pipeline_schedule(nullptr, 0, te_pipeline_of(4, 1, 8), -1) == 0);
    te_pipeline_slot one[2];
    one[1].to = 77;
    CHECK(te_pipeline_schedule(one, 1, te_pipeline_of(2, 1, 3), 0) == 8); // writes no more than the capacity
    CHECK((one[0].pass.kind == TE_PIPELINE_forward && one[0].to == 1 && one[1].to == 77));
}
