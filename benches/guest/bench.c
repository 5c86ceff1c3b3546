/* bench - times small programs inside a guest
 *
 * usage: bench [--milliseconds N] [--repeat N] [--list] [GROUP|ROW...]
 *
 * Prints for each row its group, its name, nanoseconds per operation (the best of the
 * repetitions), and a check sum, which does not depend on the machine. Rows that the
 * machine cannot run print "-" for both. Each row runs in a process of its own, so that
 * none finds the memory, or the page tables, that an earlier one has left. */
#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct row *const groups[] = {
    int_rows,  call_rows, memory_rows,  chase_rows,  fp_rows,
#ifdef __i386__
    fp_sse2_rows,
#endif
    long_double_rows, simd_rows, sys_rows, process_rows, paging_rows, jit_rows, job_rows,
};

void die(const char *what) {
    perror(what);
    exit(1);
}

void *pages(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

/* The nanoseconds that `calls` calls take. */
static double time_calls(const struct row *row, unsigned calls, uint64_t sum) {
    double start = now();
    for (unsigned call = 0; call < calls; call++)
        if (row->run() != sum) {
            fprintf(stderr, "bench: %s computed different results\n", row->name);
            exit(1);
        }
    return now() - start;
}

static void measure(const struct row *row, double wanted, int repeat) {
    uint64_t sum = row->run();
    if (sum == UNAVAILABLE) {
        printf("%s %s - -\n", row->group, row->name);
        return;
    }
    unsigned calls = 1;
    double best = time_calls(row, calls, sum);
    while (best < wanted && calls < 1u << 20) {
        double factor = best > 0 ? wanted / best * 1.2 : 16;
        calls = calls * (factor < 2 ? 2 : factor > 16 ? 16 : factor);
        best = time_calls(row, calls, sum);
    }
    /* A row whose single call takes long is not repeated. */
    for (int round = 1; round < repeat && best < wanted * 10; round++) {
        double time = time_calls(row, calls, sum);
        best = time < best ? time : best;
    }
    printf("%s %s %.2f %016llx\n", row->group, row->name, best / calls / row->ops, (unsigned long long)sum);
}

static void measure_apart(const struct row *row, double wanted, int repeat) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        measure(row, wanted, repeat);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0 || status) {
        fprintf(stderr, "bench: %s failed\n", row->name);
        exit(1);
    }
}

static int is_wanted(const struct row *row, char **names, int count) {
    for (int index = 0; index < count; index++)
        if (!strcmp(row->group, names[index]) || !strcmp(row->name, names[index]))
            return 1;
    return count == 0;
}

int main(int argc, char **argv) {
    double wanted = 50e6;
    int repeat = 3, list = 0;
    argv++, argc--;
    /* The program that the rows about processes start. */
    if (argc == 1 && !strcmp(argv[0], "--nothing"))
        return 0;
    while (argc > 0 && argv[0][0] == '-') {
        if (!strcmp(argv[0], "--list")) {
            list = 1;
        } else if (argc > 1 && !strcmp(argv[0], "--milliseconds")) {
            wanted = atof(*++argv) * 1e6, argc--;
        } else if (argc > 1 && !strcmp(argv[0], "--repeat")) {
            repeat = atoi(*++argv), argc--;
        } else {
            fprintf(stderr, "bench: unknown argument '%s'\n", argv[0]);
            return 2;
        }
        argv++, argc--;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t group = 0; group < sizeof groups / sizeof *groups; group++)
        for (const struct row *row = groups[group]; row->name; row++) {
            if (!is_wanted(row, argv, argc))
                continue;
            if (list)
                printf("%s %s\n", row->group, row->name);
            else
                measure_apart(row, wanted, repeat);
        }
    return 0;
}
