// llama_cpp_driver.cc -- what llama.cpp says about a GGUF file, for tests/generate_gguf.sh, which compiles it against a build of
// llama.cpp outside this tree.
//
//     llama_cpp_driver MODEL ids FILE              the token ids of each line of FILE, a line each; \n and \\ are read as escapes
//     llama_cpp_driver MODEL greedy FILE N         N greedy tokens behind each line, and behind each by how much its logit is the
//                                                  largest: "id:margin"; stops at an end token
//     llama_cpp_driver MODEL speed ROWS N          tokens/s of a prefill of ROWS tokens, and of N tokens one by one behind them
//
// THREADS=2 in the environment chooses the threads. FORCE=FILE2: with `greedy`, the tokens of FILE2's lines are fed instead of the
// chosen ones, and each token is followed by the logit's distance from the largest of the fed one: "chosen:margin:fed:distance".
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

static std::string unescape(const std::string &line) {
    std::string s;
    for (size_t i = 0; i < line.size(); i++) {
        if (line[i] == '\\' && i + 1 < line.size()) s += line[++i] == 'n' ? '\n' : line[i];
        else s += line[i];
    }
    return s;
}
static std::vector<llama_token> encode(const llama_vocab *v, const std::string &s) {
    std::vector<llama_token> ids(s.size() + 16);
    const int n = llama_tokenize(v, s.data(), (int)s.size(), ids.data(), (int)ids.size(), true, true);
    ids.resize(n < 0 ? 0 : (size_t)n);
    return ids;
}
static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static void run(llama_context *c, std::vector<llama_token> ids) {
    if (llama_decode(c, llama_batch_get_one(ids.data(), (int)ids.size()))) std::cerr << "llama_decode failed\n", std::exit(1);
}

int main(int argc, char **argv) {
    if (argc < 4) return 1;
    const std::string mode = argv[2];
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0, mp.vocab_only = mode == "ids";
    llama_model *m = llama_model_load_from_file(argv[1], mp);
    if (!m) return std::cerr << "cannot load " << argv[1] << "\n", 1;
    const llama_vocab *v = llama_model_get_vocab(m);
    if (mode == "ids") {
        std::ifstream f(argv[3]);
        for (std::string line; std::getline(f, line);) {
            const auto ids = encode(v, unescape(line));
            for (size_t i = 0; i < ids.size(); i++) std::printf(i ? " %d" : "%d", ids[i]);
            std::printf("\n");
        }
        return 0;
    }
    llama_context_params cp = llama_context_default_params();
    const int threads = std::getenv("THREADS") ? std::atoi(std::getenv("THREADS")) : 2;
    cp.n_ctx = 2048, cp.n_batch = 2048, cp.n_ubatch = 512, cp.n_threads = cp.n_threads_batch = threads;
    if (!std::getenv("F16_CACHE")) // as ours: keys and values in f32
        cp.type_k = cp.type_v = GGML_TYPE_F32, cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *c = llama_init_from_model(m, cp);
    const int n = llama_vocab_n_tokens(v);
    if (mode == "speed") {
        const int rows = std::atoi(argv[3]), count = std::atoi(argv[4]);
        std::vector<llama_token> ids;
        for (int i = 0; i < rows; i++) ids.push_back(1000 + i % 1000);
        run(c, ids), llama_memory_clear(llama_get_memory(c), true);
        double t = seconds();
        run(c, ids), llama_synchronize(c);
        const double prefill = rows / (seconds() - t);
        t = seconds();
        for (int i = 0; i < count; i++) run(c, {1000 + i}), llama_synchronize(c);
        std::printf("prefill %.1f decode %.1f tokens/s\n", prefill, count / (seconds() - t));
        return 0;
    }
    std::ifstream f(argv[3]), forced;
    if (std::getenv("FORCE")) forced.open(std::getenv("FORCE"));
    for (std::string line; std::getline(f, line);) {
        auto ids = encode(v, unescape(line));
        std::string rest;
        std::vector<int> fed;
        if (forced.is_open() && std::getline(forced, rest)) {
            std::istringstream words(rest);
            for (int id; words >> id;) fed.push_back(id);
        }
        llama_memory_clear(llama_get_memory(c), true);
        run(c, ids);
        for (int i = 0; i < std::atoi(argv[4]); i++) {
            const float *logits = llama_get_logits_ith(c, -1);
            const int best = (int)(std::max_element(logits, logits + n) - logits);
            float second = -1e30f;
            for (int k = 0; k < n; k++) if (k != best && logits[k] > second) second = logits[k];
            std::printf(i ? " %d:%.6f" : "%d:%.6f", best, logits[best] - second);
            int next = best;
            if (forced.is_open()) {
                if (i >= (int)fed.size()) break;
                next = fed[(size_t)i];
                std::printf(":%d:%.6f", next, logits[best] - logits[next]);
            }
            if (llama_vocab_is_eog(v, next)) break;
            run(c, {next});
        }
        std::printf("\n");
    }
    return 0;
}
