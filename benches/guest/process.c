/* Processes: switching between them, starting and ending them. */
#include "bench.h"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PASSES = 400, MOST = 8 };

/* Passes a token round a ring of processes; each touches `bytes` of memory when it has the token.
   This process is one of them. */
static uint64_t ring(int processes, size_t bytes) {
    int pipes[MOST][2];
    pid_t children[MOST];
    char token = 't';
    static volatile uint8_t memory[64 << 10];
    for (int index = 0; index < processes; index++)
        if (pipe(pipes[index]))
            die("pipe");
    for (int index = 1; index < processes; index++) {
        children[index] = fork();
        if (children[index] < 0)
            die("fork");
        if (children[index] > 0)
            continue;
        int from = pipes[index][0], to = pipes[(index + 1) % processes][1];
        for (int pass = 0; pass < PASSES; pass++) {
            if (read(from, &token, 1) != 1)
                _exit(1);
            for (size_t at = 0; at < bytes; at += 64)
                memory[at]++;
            if (write(to, &token, 1) != 1)
                _exit(1);
        }
        _exit(0);
    }
    for (int pass = 0; pass < PASSES; pass++) {
        for (size_t at = 0; at < bytes; at += 64)
            memory[at]++;
        if (write(pipes[1][1], &token, 1) != 1 || read(pipes[0][0], &token, 1) != 1)
            die("pipe");
    }
    for (int index = 1; index < processes; index++) {
        int status;
        if (waitpid(children[index], &status, 0) < 0 || status)
            die("a process of the ring");
    }
    for (int index = 0; index < processes; index++)
        close(pipes[index][0]), close(pipes[index][1]);
    return token;
}

static uint64_t pipe_round_trip(void) { return ring(2, 0); }
static uint64_t ctx2(void) { return ring(2, 0); }
static uint64_t ctx4(void) { return ring(4, 0); }
static uint64_t ctx8(void) { return ring(8, 0); }
static uint64_t ctx8_64k(void) { return ring(8, 64 << 10); }

enum { FORKS = 8 };

static void await(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0 || status)
        die("a child");
}

static uint64_t fork_exit(void) {
    for (int count = 0; count < FORKS; count++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        await(child);
    }
    return 0;
}

static uint64_t fork_exec(void) {
    for (int count = 0; count < FORKS; count++) {
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "bench", "--nothing", NULL);
            _exit(127);
        }
        await(child);
    }
    return 0;
}

static uint64_t sh_c(void) {
    for (int count = 0; count < FORKS; count++)
        if (system(":"))
            die("sh");
    return 0;
}

/* An operation of a ring is one step of the token; of pipe_rt, a step there and back. */
const struct row process_rows[] = {
    {"proc", "pipe_rt", PASSES, pipe_round_trip},
    {"proc", "ctx2", 2 * PASSES, ctx2},
    {"proc", "ctx4", 4 * PASSES, ctx4},
    {"proc", "ctx8", 8 * PASSES, ctx8},
    {"proc", "ctx8_64K", 8 * PASSES, ctx8_64k},
    {"proc", "fork_exit", FORKS, fork_exit},
    {"proc", "fork_exec", FORKS, fork_exec},
    {"proc", "sh_c", FORKS, sh_c},
    {0},
};
