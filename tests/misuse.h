// misuse.h -- the table of misuse: each entry is a wrong call, and the expected reaction. Either it is refused with this status and a
// text that contains this word, and has written nothing; or it is documented as fine, and its result is checked.
//
// Do this:
//     refuse<scene>(t, "te_copy: no source", TE_ERROR_NULL, "te_copy", [](scene &s) { return te_copy(s.ctx, s.a, nullptr, 16); });
//     fine<scene>(t, "te_copy: nothing from nowhere", [](scene &s) { return te_copy(s.ctx, nullptr, nullptr, 0) == TE_OK; });
//
// A scene has `te_context *ctx`, `bytes state()`, the bytes that a refused call must not change, and `bool works()`, which checks that
// valid calls still succeed afterwards. Entries run in a child process: an entry that crashes or hangs has failed, and those behind it
// run in the next child.
#ifndef TESTS_MISUSE_H
#define TESTS_MISUSE_H

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "te/te.h"

namespace misuse {

typedef std::vector<uint8_t> bytes;

enum outcome { NOT_RUN, RUNNING, AS_EXPECTED, SILENTLY_WRONG, REFUSED_OTHERWISE, CRASHED, HUNG, OUTCOMES };

struct verdict {
    outcome what = AS_EXPECTED;
    std::string why;
};
struct row {
    std::string name;
    bool is_fine;
    std::function<verdict()> run;
};
typedef std::vector<row> table;

// A call that must succeed for the test itself to work.
inline void need(te_status status, const te_context *ctx, const char *what) {
    if (status != TE_OK) throw std::runtime_error(std::string(what) + ": " + te_status_string(status) + ", " + te_last_error(ctx));
}
#define NEED(call, ctx) need(call, ctx, #call)

// Target memory that is handed out in pieces, with a guard between them. All of it is 0xff at first.
struct arena {
    enum { GUARD = 256 };
    te_context *ctx;
    size_t size, used = GUARD;
    char *base = nullptr;
    arena(te_context *c, size_t n) : ctx(c), size(n) {
        void *p = nullptr;
        NEED(te_allocate(ctx, &p, size), ctx);
        base = (char *)p;
        NEED(te_fill(ctx, base, 0xff, size), ctx);
    }
    arena(const arena &) = delete;
    arena &operator=(const arena &) = delete;
    ~arena() { te_release(ctx, base); }
    char *take(size_t n) {
        char *p = base + used;
        used += (size_t)te_round_up((int64_t)n, GUARD) + GUARD;
        if (used > size) throw std::runtime_error("the arena is too small");
        return p;
    }
    bytes content() const {
        bytes all(size);
        NEED(te_copy(ctx, all.data(), base, size), ctx);
        NEED(te_synchronize(ctx), ctx);
        return all;
    }
    void write(void *to, const void *from, size_t n) {
        NEED(te_copy(ctx, to, from, n), ctx);
        NEED(te_synchronize(ctx), ctx);
    }
};
inline void append(bytes &to, const void *p, size_t n) { to.insert(to.end(), (const uint8_t *)p, (const uint8_t *)p + n); }
inline void append(bytes &to, const bytes &from) { append(to, from.data(), from.size()); }
// The bytes of an instance, a struct that TE_SEQUENTIAL declares, without the counts of writes, which every te_model_bind changes.
template <class M> void append_instance(bytes &to, const M &m) {
    M copy = m;
    for (te_param *p = (te_param *)(void *)(&copy.model + 1); (char *)(p + 1) <= (char *)(&copy + 1); p++) p->written = 0;
    append(to, &copy, sizeof copy);
}
inline void append_rng(bytes &to, te_context *ctx) {
    te_rng rng;
    NEED(te_rng_get(&rng, ctx), ctx);
    append(to, &rng, sizeof rng);
}

// Checks a wrong call: it returns `status` and a text with `word`, it writes nothing, and the scene still works.
template <class Scene> verdict refused(te_status status, const std::string &word, const std::function<te_status(Scene &)> &call) {
    Scene s;
    verdict v;
    const bytes before = s.state();
    s.ctx->error[0] = 0;
    const te_status got = call(s);
    const std::string text = te_last_error(s.ctx);
    s.restore();
    NEED(te_synchronize(s.ctx), s.ctx);
    if (s.state() != before) v.what = SILENTLY_WRONG, v.why = "something was written";
    else if (got == TE_OK) v.what = SILENTLY_WRONG, v.why = "it is not refused";
    else if (got != status) v.what = REFUSED_OTHERWISE, v.why = std::string("refused as ") + te_status_string(got) + ": " + text;
    else if (text.find(word) == std::string::npos) v.what = REFUSED_OTHERWISE, v.why = "the text does not say '" + word + "': " + text;
    else if (!s.works()) v.what = SILENTLY_WRONG, v.why = std::string("what works without it does not work behind it: ") + te_last_error(s.ctx);
    return v;
}
template <class Scene> void refuse(table &t, const std::string &name, te_status status, const std::string &word, std::function<te_status(Scene &)> call) {
    t.push_back({name, false, [=] { return refused<Scene>(status, word, call); }});
}
template <class Scene> void fine(table &t, const std::string &name, std::function<bool(Scene &)> call) {
    t.push_back({name, true, [=] {
                     Scene s;
                     verdict v;
                     if (!call(s)) v.what = SILENTLY_WRONG, v.why = std::string("documented as fine: ") + te_last_error(s.ctx);
                     s.restore();
                     if (v.what == AS_EXPECTED && !s.works()) v.what = SILENTLY_WRONG, v.why = std::string("what works without it does not work behind it: ") + te_last_error(s.ctx);
                     return v;
                 }});
}

// ---- running the entries in child processes -------------------------------------------------------------------------

enum { SECONDS_A_ROW = 60, TEXT = 400, MOST_ROWS = 4096 };
struct report {
    int what;
    char why[TEXT];
};
struct reports {
    int count; // number of entries, once a child has made the table
    report row[MOST_ROWS];
};

inline void run_one(const row &r, report *to) {
    verdict v;
    to->what = RUNNING;
    alarm(SECONDS_A_ROW);
    try {
        v = r.run();
    } catch (const std::exception &e) {
        v.what = SILENTLY_WRONG, v.why = e.what();
    } catch (...) {
        v.what = SILENTLY_WRONG, v.why = "an exception";
    }
    alarm(0);
    snprintf(to->why, sizeof to->why, "%s", v.why.c_str());
    to->what = v.what;
}
// Runs the table that `make` fills. Each child makes the table itself, because neither CUDA nor threads survive a fork. This process
// makes it last, after all forks.
inline std::vector<verdict> run(table &t, void (*make)(table &)) {
    reports *all = (reports *)mmap(nullptr, sizeof(reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::runtime_error("no shared memory");
    for (int next = 0; next < MOST_ROWS;) {
        fflush(nullptr);
        const pid_t child = fork();
        if (child < 0) throw std::runtime_error("no child process");
        if (child == 0) {
            for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGTERM}) signal(s, SIG_DFL);
            make(t);
            all->count = (int)t.size();
            for (int i = next; i < all->count && i < MOST_ROWS; i++) run_one(t[(size_t)i], &all->row[i]);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        while (next < all->count && next < MOST_ROWS && all->row[next].what > RUNNING) next++;
        if (next == all->count && next > 0) break;
        if (next == MOST_ROWS) throw std::runtime_error("more than MOST_ROWS rows");
        const bool hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        report *r = &all->row[next++];
        r->what = hung ? HUNG : CRASHED;
        snprintf(r->why, TEXT, "the process ended with %s %d", WIFSIGNALED(status) ? "signal" : "exit code", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (!all->count) throw std::runtime_error("making the table: " + std::string(r->why));
    }
    make(t);
    std::vector<verdict> verdicts(t.size());
    for (size_t i = 0; i < t.size(); i++) verdicts[i].what = (outcome)all->row[i].what, verdicts[i].why = all->row[i].why;
    munmap(all, sizeof(reports));
    return verdicts;
}

} // namespace misuse

#endif
