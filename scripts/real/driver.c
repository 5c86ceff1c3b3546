/*
 * driver - first process of the machines that scripts/compare-real boots
 *
 * Runs the rows of /real/rows one after another, times each run with the monotonic
 * clock, and reports to the host on standard output, which is the serial port or a pipe:
 *
 *     real: begin ROW                       the host takes the time of its arrival
 *     real: end ROW NANOSECONDS CPU STATUS HASH VALUE
 *     real: complete
 *
 * CPU is the processor time of the programs in nanoseconds, by this kernel's account.
 * STATUS is 0 where the program ended well; HASH is that of its standard output;
 * VALUE is the last number that it printed, of rows of kind `rate`, otherwise 0.
 * A line of /real/rows has five fields with tabs between them:
 *
 *     ROW  KIND  RUNS  PREPARE  COMMAND
 *
 * KIND is `program` (COMMAND is started without a shell), `shell` or `rate` (bash
 * runs it), or `series`: COMMAND is started RUNS times without a shell, the lines are those
 * of ROW_10th and ROW_last, each with the sum of 20 runs: the 10th to the 29th and the
 * last 20. `twenties` is a series of 100 runs with the lines ROW_first, ROW_second and
 * ROW_fifth: the runs 1 to 20, 21 to 40 and 81 to 100. bash runs PREPARE once beforehand,
 * untimed.
 *
 * The environment variable real_mode (a word of the kernel's command line) chooses:
 * `rows` as above, and then the power is switched off; `native` the same without that;
 * `systemd` prints `real: init NANOSECONDS` and becomes systemd, whose last unit starts
 * `driver --ready`, which prints `real: ready NANOSECONDS` and switches the power off.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define OUTPUT "/tmp/real.out"
#define ERRORS "/tmp/real.err"
#define WORDS 64
/* Runs of a series that are timed together. */
#define PART 20

static char *environment[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root", "LANG=C.UTF-8", "TERM=dumb", "USER=root", "LC_ALL=C.UTF-8", NULL,
};

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* The processor time of all children that have ended, and of their children. */
static long long children_cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000LL +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000LL;
}

/* The processor time of all processes, and of their children that have ended, in units of a clock
   tick (10 ms). It is needed for servers, because no process waits for a server's end. */
static long long all_cpu(void)
{
    long long sum = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        char path[300], text[1024], *fields;
        unsigned long long ticks[4];
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = atoi(entry->d_name) ? fopen(path, "r") : NULL;
        size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file)
            fclose(file);
        text[length] = 0;
        /* The name, in parentheses, may hold anything; eleven fields later come utime, stime, cutime, cstime. */
        fields = strrchr(text, ')');
        for (int i = 0; fields && i < 12; i++)
            fields = strchr(fields + 1, ' ');
        if (fields && sscanf(fields, "%llu %llu %llu %llu", &ticks[0], &ticks[1], &ticks[2], &ticks[3]) == 4)
            sum += ticks[0] + ticks[1] + ticks[2] + ticks[3];
    }
    if (processes)
        closedir(processes);
    return sum * (1000000000LL / sysconf(_SC_CLK_TCK));
}

/* Waits until the serial port has sent what was printed. */
static void flush(void)
{
    fflush(stdout);
    tcdrain(STDOUT_FILENO);
}

static pid_t start(char **words, int quiet)
{
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, quiet ? "/dev/null" : OUTPUT,
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_addopen(&actions, 2, quiet ? "/dev/null" : ERRORS,
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int error = posix_spawnp(&child, words[0], &actions, NULL, words, environment);
    posix_spawn_file_actions_destroy(&actions);
    if (error) {
        printf("real: cannot start %s: %s\n", words[0], strerror(error));
        return -1;
    }
    return child;
}

/* Runs a program to its end and returns its exit code: 128 + N for signal N, 127 if it cannot be
   started. */
static int run(char **words, int quiet)
{
    int status;
    pid_t child = start(words, quiet);
    if (child < 0)
        return 127;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Computes the FNV-1a hash of the output, and finds the last number in the text. */
static unsigned long long read_output(double *value)
{
    unsigned long long hash = 0xcbf29ce484222325;
    static char tail[256];
    size_t length = 0;
    FILE *file = fopen(OUTPUT, "r");
    for (int byte; file && (byte = getc(file)) != EOF;) {
        hash = (hash ^ (unsigned)byte) * 0x100000001b3;
        if (length == sizeof tail - 1)
            memmove(tail, tail + 1, --length);
        tail[length++] = byte;
    }
    tail[length] = 0;
    if (file)
        fclose(file);
    while (length && strchr(" \n", tail[length - 1]))
        tail[--length] = 0;
    char *last = strrchr(tail, '\n'), *word = strrchr(tail, ' ');
    *value = strtod(word > last ? word + 1 : last ? last + 1 : tail, NULL);
    return hash;
}

/* Shows the error output of a failed program, as much as fits. */
static void show_errors(void)
{
    char line[256];
    FILE *file = fopen(ERRORS, "r");
    for (int i = 0; file && i < 8 && fgets(line, sizeof line, file); i++)
        printf("real: | %s%s", line, strchr(line, '\n') ? "" : "\n");
    if (file)
        fclose(file);
}

static void begin(const char *row, const char *part)
{
    printf("real: begin %s%s\n", row, part);
    flush();
}

/* A part of a series: PART runs that are timed together. */
struct part {
    const char *name;
    int first;
};

static void series(const char *row, char **words, const struct part *parts, int count)
{
    for (int i = 0, part = 0; part < count; part++) {
        int status = 0;
        for (; i < parts[part].first; i++)
            status |= run(words, 1);
        begin(row, parts[part].name);
        long long wall = now(), cpu = children_cpu();
        for (; i < parts[part].first + PART; i++)
            status |= run(words, 1);
        wall = now() - wall;
        printf("real: end %s%s %lld %lld %d 0 0\n", row, parts[part].name, wall, children_cpu() - cpu, status);
        flush();
    }
}

static void measure(const char *row, const char *kind, int runs, char *prepare, char *command)
{
    char *shell[] = {"/bin/bash", "-o", "pipefail", "-c", command, NULL}, *words[WORDS + 1], **program = shell;
    int direct = !strcmp(kind, "program") || !strcmp(kind, "series") || !strcmp(kind, "twenties");
    if (direct) {
        int count = 0;
        for (char *word = strtok(command, " "); word && count < WORDS; word = strtok(NULL, " "))
            words[count++] = word;
        words[count] = NULL;
        program = words;
    }
    if (*prepare) {
        char *preparation[] = {"/bin/bash", "-c", prepare, NULL};
        int status = run(preparation, 0);
        if (status) {
            printf("real: end %s 0 0 %d 0 0\n", row, status);
            show_errors();
            return;
        }
    }
    if (!strcmp(kind, "series") && runs >= 9 + 2 * PART) {
        const struct part parts[] = {{"_10th", 9}, {"_last", runs - PART}};
        series(row, program, parts, 2);
        return;
    }
    if (!strcmp(kind, "twenties")) {
        const struct part parts[] = {{"_first", 0}, {"_second", PART}, {"_fifth", 4 * PART}};
        series(row, program, parts, 3);
        return;
    }
    for (int i = 0; i < runs; i++) {
        double value = 0;
        begin(row, "");
        int is_rate = !strcmp(kind, "rate");
        long long wall = now(), cpu = is_rate ? all_cpu() : children_cpu();
        int status = run(program, 0);
        wall = now() - wall;
        cpu = (is_rate ? all_cpu() : children_cpu()) - cpu;
        unsigned long long hash = read_output(&value);
        printf("real: end %s %lld %lld %d %016llx %.6g\n", row, wall, cpu, status, hash,
               is_rate ? value : 0.0);
        if (status)
            show_errors();
        flush();
        if (status)
            return;
    }
}

static void mount_all(void)
{
    mkdir("/proc", 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mkdir("/sys", 0755);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    mkdir("/dev/pts", 0755);
    mount("devpts", "/dev/pts", "devpts", 0, NULL);
    mkdir("/dev/shm", 01777);
    mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
    mount("tmpfs", "/run", "tmpfs", 0, NULL);
    mkdir("/tmp", 01777);
}

static void run_rows(void)
{
    static char line[65536];
    FILE *rows = fopen("/real/rows", "r");
    if (!rows) {
        printf("real: cannot read /real/rows\n");
        return;
    }
    while (fgets(line, sizeof line, rows)) {
        char *field[5], *rest = line;
        int count = 0;
        line[strcspn(line, "\n")] = 0;
        while (count < 5 && rest)
            field[count++] = strsep(&rest, "\t");
        if (count == 5)
            measure(field[0], field[1], atoi(field[2]), field[3], field[4]);
    }
    fclose(rows);
    printf("real: complete\n");
    flush();
}

static void power_off(void)
{
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

int main(int count, char **arguments)
{
    const char *mode = getenv("real_mode");
    /* These limits decide where mappings are, so they must be the same everywhere. */
    struct rlimit stack = {8 << 20, RLIM_INFINITY}, files = {1024, 4096};
    setrlimit(RLIMIT_STACK, &stack);
    setrlimit(RLIMIT_NOFILE, &files);

    if (count == 2 && !strcmp(arguments[1], "--ready")) {
        FILE *console = fopen("/dev/console", "w");
        if (console) {
            fprintf(console, "\nreal: ready %lld\n", now());
            fflush(console);
            tcdrain(fileno(console));
        }
        power_off();
    }
    if (mode && !strcmp(mode, "systemd")) {
        printf("\nreal: init %lld\n", now());
        flush();
        char *systemd[] = {"/sbin/init", NULL};
        execve(systemd[0], systemd, environment);
        printf("real: cannot start %s: %s\n", systemd[0], strerror(errno));
        power_off();
    }
    umask(022);
    sethostname("guest", 5);
    int native = mode && !strcmp(mode, "native");
    if (!native)
        mount_all();
    if (chdir("/real/work"))
        printf("real: cannot enter /real/work\n");
    run_rows();
    if (!native)
        power_off();
    return 0;
}
