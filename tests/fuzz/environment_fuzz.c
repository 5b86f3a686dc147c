/* environment_fuzz.c -- a libFuzzer entry for the environment variables from which a rank is read (te_comm_rank_from_env). The
 * input is a list of texts, one for each variable; an empty one leaves its variable unset. The result is a rank below the
 * size, as the innermost launcher says it, or -1 of -1. tests/fuzz.sh builds and runs it.
 */
#include "te/te.h"

static const char *const names[] = {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                                    "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "MPI_LOCALRANKID", "SLURM_LOCALID"};
enum { NAMES = sizeof names / sizeof *names, TEXT = 64 };

/* The number that a text of digits alone is, by another way than the library's; -1: none. */
static int number_of(const char *text) {
    int64_t v = 0;
    int n = 0;
    for (; *text; text++, n++) {
        if (*text < '0' || *text > '9' || n == 10) return -1;
        v = 10 * v + *text - '0';
    }
    return n && v <= INT32_MAX ? (int)v : -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static const char *const numbers[] = {"0", "1", "7", "8", "2147483647", "2147483648", "4294967296", "99999999999", "-1", "+1", " 1", "1 ", "0x1", "01"};
    int rank = -7, size = -7;
    for (int i = 0; i < NAMES; i++) {
        char text[TEXT] = "";
        int length = 0;
        const int kind = n ? (n--, *bytes++) : 0;
        if (kind % 4 == 1)
            length = snprintf(text, sizeof text, "%s", numbers[kind / 4 % (sizeof numbers / sizeof *numbers)]);
        else if (kind % 4 == 2)
            for (; n && *bytes && length < TEXT - 1; n--) text[length++] = (char)*bytes++;
        text[length] = 0;
        if (kind % 4 == 0) unsetenv(names[i]);
        else if (setenv(names[i], text, 1)) abort();
    }
    te_comm_rank_from_env(&rank, &size);
    const te__launcher *l = te__launcher_found();
    if (!l && (rank != 0 || size != 1)) abort();
    if (!l) return 0;
    const int is = number_of(getenv(l->rank)), of = number_of(getenv(l->size)), good = is >= 0 && is < of;
    if (rank != (good ? is : -1) || size != (good ? of : -1)) abort();
    const char *const local = getenv(l->local);
    if (te_comm_local_rank_from_env() != number_of(local && *local ? local : getenv(l->rank))) abort();
    return 0;
}
