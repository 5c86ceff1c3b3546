/* The work of people in a shell: BusyBox's programs on a small tree of files. */
#include "bench.h"
#include <stdlib.h>

static uint64_t shell(const char *command) {
    static int is_prepared;
    if (!is_prepared) {
        is_prepared = 1;
        if (system("cd /tmp && for d in 1 2 3 4 5 6 7 8; do mkdir -p t/$d;"
                   " for f in 1 2 3 4 5 6 7 8; do seq $d$f 977 99999 > t/$d/$f; done; done;"
                   " seq 1 20000 > n; tar cf t.tar t n; gzip -c t.tar > t.tar.gz"))
            die("sh");
    }
    return system(command) ? UNAVAILABLE : 0;
}

#define JOB(name, command)                                                                         \
    static uint64_t name(void) { return shell("cd /tmp && " command); }
JOB(gentree, "rm -rf g && for d in 1 2 3 4; do mkdir -p g/$d; for f in 1 2 3 4 5 6 7 8; do"
             " seq 1 300 > g/$d/$f; done; done")
JOB(tar, "tar cf g.tar t n")
JOB(gzip, "gzip -c t.tar > g.gz")
JOB(gunzip, "gunzip -c t.tar.gz > g.tar")
JOB(sha256sum, "sha256sum t.tar > g.sum")
JOB(find_wc, "find t -type f | xargs cat | wc > g.wc")
JOB(grep_r, "grep -r 77 t > g.grep")
JOB(sort_numbers, "sort -r n > g.sorted")
JOB(sh_loop, "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done")
JOB(sh_fork100, "i=0; while [ $i -lt 100 ]; do (exit 0); i=$((i+1)); done")

const struct row job_rows[] = {
    {"job", "gentree", 1, gentree},
    {"job", "tar", 1, tar},
    {"job", "gzip", 1, gzip},
    {"job", "gunzip", 1, gunzip},
    {"job", "sha256sum", 1, sha256sum},
    {"job", "find_wc", 1, find_wc},
    {"job", "grep_r", 1, grep_r},
    {"job", "sort", 1, sort_numbers},
    {"job", "sh_loop", 1, sh_loop},
    {"job", "sh_fork100", 1, sh_fork100},
    {0},
};
