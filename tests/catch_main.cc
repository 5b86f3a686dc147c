// catch_main.cc -- the main function of every Catch2 test, compiled once. A CUDA test exits with 77 and a message if there is no GPU.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

// Only CUDA tests link this function; in a host test it is null.
extern "C" __attribute__((weak)) int cudaGetDeviceCount(int *count);

// A child process asks for the GPU, because a process that has used CUDA cannot fork children that use it, as tests/misuse.h does.
static bool has_device() {
    int devices = 0, status = 0;
    const pid_t child = fork();
    if (child == 0) _exit(cudaGetDeviceCount(&devices) == 0 && devices > 0);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

int main(int argc, char **argv) {
    if (cudaGetDeviceCount && !has_device()) {
        std::printf("SKIP: no CUDA device\n");
        return 77;
    }
    return Catch::Session().run(argc, argv);
}

// Memory that clang's OpenMP holds until the process ends is not reported as a leak.
extern "C" const char *__lsan_default_suppressions();
extern "C" const char *__lsan_default_suppressions() { return "leak:libomp"; }
