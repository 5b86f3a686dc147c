// launchers_test.cc -- rank and size from the environment: which launcher counts where several are nested, and variables that are none.
#include "folder.h"
#include "te/te.h"

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {
const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS",
                             "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"};
typedef std::map<std::string, std::string> environment;
const environment srun_of_nodes = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}};
const environment sbatch = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};
const environment torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "3"}, {"TORCHELASTIC_RUN_ID", "none"}};
const environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "6"}};
const environment mpich = {{"PMI_RANK", "6"}, {"PMI_SIZE", "7"}};
const environment by_hand = {{"RANK", "1"}, {"WORLD_SIZE", "3"}};
} // namespace

TEST_CASE("the innermost launcher counts") {
    const struct { const char *name; std::vector<environment> set; int rank, size; } cases[] = {
        {"no launcher", {}, 0, 1},
        {"srun", {srun_of_nodes}, 1, 2},
        {"torchrun", {torchrun}, 3, 8},
        {"torchrun under srun", {srun_of_nodes, torchrun}, 3, 8},
        {"torchrun under mpirun", {open_mpi, torchrun}, 3, 8},
        {"one process in a batch script of four tasks", {sbatch}, 0, 1},
        {"mpirun in a batch script", {sbatch, open_mpi}, 5, 6},
        {"mpirun under srun", {srun_of_nodes, open_mpi}, 5, 6},
        {"MPICH in a batch script", {sbatch, mpich}, 6, 7},
        {"variables of one's own", {by_hand}, 1, 3},
        {"variables of one's own under srun", {srun_of_nodes, by_hand}, 1, 3},
        {"variables of one's own under mpirun", {by_hand, open_mpi}, 5, 6},
        {"a rank without a size", {{{"RANK", "2"}}}, 0, 1},
        {"an empty variable", {{{"RANK", ""}, {"WORLD_SIZE", "4"}}}, 0, 1},
        {"a rank outside of the size", {{{"RANK", "4"}, {"WORLD_SIZE", "4"}}}, -1, -1},
        {"a negative rank", {{{"RANK", "-1"}, {"WORLD_SIZE", "4"}}}, -1, -1},
        {"no number", {{{"RANK", "one"}, {"WORLD_SIZE", "4"}}}, -1, -1},
        {"a number and more", {{{"RANK", "1x"}, {"WORLD_SIZE", "4"}}}, -1, -1},
        {"a size of 0", {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}}, -1, -1},
        {"too large a number", {{{"RANK", "1"}, {"WORLD_SIZE", "99999999999"}}}, -1, -1},
        {"a number beyond an int", {{{"RANK", "1"}, {"WORLD_SIZE", "4294967298"}}}, -1, -1},
    };
    for (const auto &c : cases) {
        for (const char *name : names) unsetenv(name);
        for (const environment &e : c.set)
            for (const auto &v : e) setenv(v.first.c_str(), v.second.c_str(), 1);
        int rank = -7, size = -7;
        te_comm_rank_from_env(&rank, &size);
        INFO(c.name);
        CHECK(rank == c.rank);
        CHECK(size == c.size);
    }
    for (const char *name : names) unsetenv(name);
}

TEST_CASE("the number of a process among those on its host") {
    const struct { const char *name; std::vector<environment> set; int local; } cases[] = {
        {"no launcher", {}, 0},
        {"torchrun", {torchrun, {{"LOCAL_RANK", "1"}}}, 1},
        {"torchrun under mpirun", {open_mpi, torchrun, {{"LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}}, 1},
        {"Open MPI", {open_mpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}}, 2},
        {"MPICH", {mpich, {{"MPI_LOCALRANKID", "3"}}}, 3},
        {"srun", {srun_of_nodes, {{"SLURM_LOCALID", "0"}}}, 0},
        {"variables of one's own", {by_hand, {{"LOCAL_RANK", "0"}}}, 0},
        {"without a variable it is the rank", {by_hand}, 1},
        {"another launcher's variable does not count", {mpich, {{"LOCAL_RANK", "2"}}}, 6},
        {"no number", {by_hand, {{"LOCAL_RANK", "x"}}}, -1},
    };
    for (const auto &c : cases) {
        for (const char *name : names) unsetenv(name);
        for (const environment &e : c.set)
            for (const auto &v : e) setenv(v.first.c_str(), v.second.c_str(), 1);
        INFO(c.name);
        CHECK(te_comm_local_rank_from_env() == c.local);
    }
    for (const char *name : names) unsetenv(name);
}
