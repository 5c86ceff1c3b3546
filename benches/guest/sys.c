/* System calls and signals. */
#include "bench.h"
#include <fcntl.h>
#include <signal.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 256 };

static uint64_t get_ppid(void) {
    for (int call = 0; call < CALLS; call++)
        if (syscall(SYS_getppid) < 0)
            die("getppid");
    return 0;
}

static sigjmp_buf no_int80;
static void refused(int signal) {
    (void)signal;
    siglongjmp(no_int80, 1);
}

/* Calls getppid by the gate of 32-bit programs, which a 64-bit kernel may lack. */
static uint64_t get_ppid_int80(void) {
    static int available = -1;
    struct sigaction action = {.sa_handler = refused}, before;
    if (available < 0)
        sigaction(SIGSEGV, &action, &before);
    if (sigsetjmp(no_int80, available < 0)) {
        available = 0;
        sigaction(SIGSEGV, &before, NULL);
    }
    if (available == 0)
        return UNAVAILABLE;
    for (int call = 0; call < CALLS; call++) {
        long result = 64;
        __asm__ volatile("int $0x80" : "+a"(result)::"memory"
#ifdef __x86_64__
                         , "r8", "r9", "r10", "r11"
#endif
        );
        if (result < 0)
            return available = 0, UNAVAILABLE;
    }
    if (available < 0)
        sigaction(SIGSEGV, &before, NULL);
    available = 1;
    return 0;
}

static uint64_t read_1(void) {
    static int file = -1;
    if (file < 0 && (file = open("/dev/zero", O_RDONLY)) < 0)
        die("/dev/zero");
    char byte;
    for (int call = 0; call < CALLS; call++)
        if (read(file, &byte, 1) != 1)
            die("read");
    return 0;
}

static uint64_t stat_file(void) {
    struct stat status;
    for (int call = 0; call < CALLS; call++)
        if (stat("/dev/null", &status))
            die("stat");
    return 0;
}

static uint64_t open_close(void) {
    for (int call = 0; call < CALLS; call++) {
        int file = open("/dev/null", O_RDONLY);
        if (file < 0 || close(file))
            die("/dev/null");
    }
    return 0;
}

static uint64_t clock_gettime_row(void) {
    struct timespec time;
    for (int call = 0; call < CALLS; call++)
        clock_gettime(CLOCK_MONOTONIC, &time);
    return 0;
}

static volatile sig_atomic_t signals;
static void count_signal(int signal) {
    (void)signal;
    signals = signals + 1;
}

static uint64_t signal_row(void) {
    struct sigaction action = {.sa_handler = count_signal};
    sigaction(SIGUSR1, &action, NULL);
    signals = 0;
    pid_t self = getpid();
    for (int call = 0; call < CALLS; call++)
        kill(self, SIGUSR1);
    return signals;
}

const struct row sys_rows[] = {
    {"sys", "getppid", CALLS, get_ppid},
    {"sys", "read1", CALLS, read_1},
    {"sys", "stat", CALLS, stat_file},
    {"sys", "openclose", CALLS, open_close},
    {"sys", "clock_gettime", CALLS, clock_gettime_row},
    {"sys", "signal", CALLS, signal_row},
    {"sys", "getppid_int80", CALLS, get_ppid_int80},
    {0},
};
