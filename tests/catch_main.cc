// The main function of every Catch2 test, compiled once. A CUDA test says so and exits with 77 where there is no GPU.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

// Linked in by CUDA tests alone; null in a host test.
extern "C" __attribute__((weak)) int cudaGetDeviceCount(int *count);

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount && (cudaGetDeviceCount(&devices) != 0 || devices == 0)) {
        std::printf("SKIP: no CUDA device\n");
        return 77;
    }
    return Catch::Session().run(argc, argv);
}

// What clang's OpenMP keeps until the process ends is no leak of ours.
extern "C" const char *__lsan_default_suppressions();
extern "C" const char *__lsan_default_suppressions() { return "leak:libomp"; }
