"""The programs that compare-real runs, one row each.

The numbers are chosen so that a run takes 0.05 to 0.3 s on a processor of today (gcc: 1 s, and fewer runs).
Input is in /real/work of the guest's root (prepare-root), where they are started.
"""

import many
from row import Row


def stress(name, arguments, about):
    """Makes a row of stress-ng: a fixed count of its operations, one worker."""
    command = f"stress-ng --quiet --temp-path /tmp --{name} 1 {arguments}"
    return Row(f"stress_{name}", "stress", "program", command, about, same_output=False)


def openssl(name, algorithm, about, field, scale):
    """Makes a row of openssl speed: nanoseconds per operation from its machine-readable result."""
    command = (f"openssl speed -mr -elapsed -seconds 1 {algorithm} 2>/dev/null | "
               f"awk -F: '/^\\+F/ {{ printf \"%.1f\\n\", {scale.format('$' + str(field))} }}'")
    return Row(name, "openssl", "rate", command, about, same_output=False)


ROWS = [
    Row("exec_true", "start", "series", "/bin/true", "one exec of /bin/true: the 10th, and the last of 1,000",
        runs=1000),
    Row("true_100", "start", "shell", "for ((i = 0; i < 100; i++)); do /bin/true; done",
        "/bin/true 100 times from bash"),
    Row("python_start", "start", "program", "python3 -c pass", "python3 -c pass", runs=9),
    Row("perl_start", "start", "program", "perl -e 1", "perl -e 1", runs=9),
    Row("dpkg_l", "start", "program", "dpkg -l", "dpkg -l", runs=9),
    Row("git_version", "start", "program", "git --version", "git --version", runs=9),
    Row("bash_loop", "script", "shell", "for ((i = 0; i < 100000; i++)); do ((s += i & 7)); done; echo $s",
        "bash counts to 100,000"),
    Row("python_loop", "script", "shell",
        "python3 -c $'s = 0\\nfor i in range(2000000): s += i & 7\\nprint(s)'",
        "python adds 2,000,000 numbers"),
    Row("perl_hash", "script", "shell",
        "perl -e 'for $i (1 .. 200000) { $h{$i % 5000} += $i } print scalar(keys %h), \" $h{77}\\n\"'",
        "perl fills a hash"),
    Row("awk_loop", "script", "shell",
        "awk 'BEGIN { for (i = 0; i < 1000000; i++) { s += i % 7; a[i % 1000] = s } print s }'",
        "mawk loops over an array"),
    Row("sort", "tool", "shell", "sort lines.txt | tail -n 1", "sort of 300,000 lines"),
    Row("sha256sum", "tool", "shell", "for i in 1 2 3 4 5 6 7 8; do cat eight-megabytes; done | sha256sum",
        "sha256sum of 64 MiB through a pipe"),
    Row("gzip", "tool", "shell", "gzip -nc four-megabytes | wc -c", "gzip of 4 MiB"),
    Row("xz", "tool", "shell", "xz -T1 -3 -c half-a-megabyte | wc -c", "xz -3 of 512 KiB"),
    Row("tar", "tool", "shell", "tar -cf - /usr/lib/python3.11 2>/dev/null | wc -c", "tar of Python's library"),
    Row("git_status", "git", "shell", "cd repository && git status --short", "git status, 400 files", runs=6),
    Row("git_log", "git", "shell", "cd repository && git log --stat | tail -n 1", "git log --stat, 300 commits"),
    Row("sqlite_insert", "sqlite", "shell", "rm -f /tmp/db && sqlite3 /tmp/db <insert.sql",
        "sqlite3 inserts 20,000 rows"),
    Row("sqlite_query", "sqlite", "shell", "for i in 1 2 3; do sqlite3 items.db <query.sql; done",
        "sqlite3 scans, groups, joins"),
    Row("gcc", "gcc", "shell", "gcc -O2 -S -o /tmp/generated.s generated.c && sha256sum </tmp/generated.s",
        "gcc -O2 of 2,500 lines", runs=2),
    openssl("rsa_sign", "rsa2048", "RSA-2048 signatures", 4, "1e9 / {}"),
    openssl("aes_gcm", "-bytes 16384 -evp aes-256-gcm", "AES-256-GCM, ns a KiB", 4, "1e9 / ({} / 1024)"),
    openssl("sha256", "-bytes 16384 -evp sha256", "SHA-256, ns a KiB", 4, "1e9 / ({} / 1024)"),
    stress("cpu", "--cpu-ops 100", "stress-ng cpu, all methods"),
    stress("vm", "--vm-bytes 16M --vm-ops 2000", "stress-ng vm"),
    stress("fork", "--fork-ops 200", "stress-ng fork"),
    stress("pipe", "--pipe-ops 50000", "stress-ng pipe"),
    stress("switch", "--switch-ops 20000", "stress-ng switch"),
    stress("mmap", "--mmap-bytes 16M --mmap-ops 1", "stress-ng mmap"),
    stress("qsort", "--qsort-ops 2", "stress-ng qsort"),
    Row("sysbench_cpu", "sysbench", "program", "sysbench cpu --events=300 --time=0 run", "sysbench cpu",
        same_output=False),
    Row("sysbench_memory", "sysbench", "program",
        "sysbench memory --memory-block-size=1K --memory-total-size=256M --time=0 run",
        "sysbench memory, blocks of 1 KiB", same_output=False),
    Row("sysbench_threads", "sysbench", "program", "sysbench threads --threads=4 --events=50 --time=0 run",
        "sysbench threads", same_output=False),
    Row("systemd", "boot", "boot", "", "systemd from its start to multi-user.target, and from the machine's start",
        runs=1, same_output=False, also=("many",)),
]

# The suffixes of the rows that one command yields.
PARTS = {"series": ("_10th", "_last"), "twenties": ("_first", "_second", "_fifth"), "boot": ("_boot", "_from_start")}


def names_of(row):
    """Returns the names in the results of a row."""
    return [row.name + part for part in PARTS.get(row.kind, ("",))]


def words_of(row):
    """Returns the words that select a row: its name and its groups."""
    return {row.name, row.group, *row.also}


def select(words):
    """The rows of the names or groups given; without any, all rows of the base root.

    ValueError names an unknown word.
    """
    rows = [*ROWS, *many.ROWS]
    for word in words:
        if not any(word in words_of(row) for row in rows):
            raise ValueError(word)
    if not words:
        return list(ROWS)
    return [row for row in rows if words_of(row) & set(words)]


def rows_file(rows):
    """Returns the text of /real/rows, as driver.c reads it."""
    return "".join(f"{row.name}\t{row.kind}\t{row.runs}\t{row.prepare}\t{row.command}\n"
                   for row in rows if row.kind != "boot")
