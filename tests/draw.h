// draw.h -- two environment variables that every test obeys:
//     TE_SEED=<seed>     draws the same random numbers as the run that printed that seed
//     TE_BRIEF=1         runs fewer cases: for sanitizers, under which a kernel is a thousand times slower
#ifndef TESTS_DRAW_H
#define TESTS_DRAW_H

#include <cstdlib>
#include <random>

inline unsigned fresh_seed() {
    const char *given = std::getenv("TE_SEED");
    return given ? (unsigned)std::strtoul(given, nullptr, 10) : std::random_device{}();
}
inline bool brief() { return std::getenv("TE_BRIEF") != nullptr; }

#endif
