/* Page faults, mappings, protection, and copy on write. */
#include "bench.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, TOUCHED = 16384, MAPPINGS = 64, FAULTS = 64, SHARED = 256 };

static uint8_t *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    /* Each page is mapped by itself, whatever the kernel would prefer. */
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return memory;
}

static uint64_t touch(void) {
    volatile uint8_t *memory = map((size_t)TOUCHED * PAGE);
    for (int page = 0; page < TOUCHED; page++)
        memory[(size_t)page * PAGE] = 1;
    munmap((void *)memory, (size_t)TOUCHED * PAGE);
    return 0;
}

static uint64_t mmap_munmap(void) {
    for (int count = 0; count < MAPPINGS; count++) {
        volatile uint8_t *memory = map(4 * PAGE);
        memory[PAGE] = 1;
        munmap((void *)memory, 4 * PAGE);
    }
    return 0;
}

static uint8_t *guarded;
static volatile sig_atomic_t faults;

static void allow(int signal) {
    (void)signal;
    faults = faults + 1;
    mprotect(guarded, PAGE, PROT_READ | PROT_WRITE);
}

static uint64_t protection_fault(void) {
    struct sigaction action = {.sa_handler = allow}, before;
    if (!guarded)
        guarded = map(PAGE);
    faults = 0;
    sigaction(SIGSEGV, &action, &before);
    for (int count = 0; count < FAULTS; count++) {
        mprotect(guarded, PAGE, PROT_READ);
        *(volatile uint8_t *)guarded = count;
    }
    sigaction(SIGSEGV, &before, NULL);
    return faults;
}

static uint64_t fork_copy(void) {
    static volatile uint8_t *memory;
    if (!memory)
        memory = map(SHARED * PAGE);
    for (int page = 0; page < SHARED; page++)
        memory[page * PAGE] = 1;
    pid_t child = fork();
    if (child < 0)
        die("fork");
    for (int page = 0; page < SHARED && child == 0; page++)
        memory[page * PAGE] = 2;
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    return memory[0];
}

const struct row paging_rows[] = {
    {"mm", "touch64M_page", TOUCHED, touch},
    {"mm", "mmap_munmap", MAPPINGS, mmap_munmap},
    {"mm", "protfault_sig", FAULTS, protection_fault},
    {"mm", "fork_cow256", 1, fork_copy},
    {0},
};
