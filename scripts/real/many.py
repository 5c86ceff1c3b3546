"""The rows of compare-real's group `many`: many processes, as builds, servers and runtimes have them.

They need a root of their own with compilers, databases and runtimes (prepare-many), amd64 only.
Input is in /real/work of that root. Servers listen on Unix sockets or on the loopback interface
of a network namespace of the machine's own, and are started by /real/work/servers.
"""

from row import Row


def row(name, kind, command, about, runs=3, prepare="", same_output=False):
    """Makes a row of this group and root. Outputs are compared only where a row says so."""
    return Row(name, "many", kind, command, about, runs, prepare, same_output, root="many")


def pgbench(name, options, about):
    """Makes a row of PostgreSQL under pgbench: nanoseconds per transaction."""
    command = (f"pgbench -n -h /tmp/postgres -U postgres {options} -T 4 postgres 2>&1 | "
               "awk '/^tps/ { printf \"%.0f\\n\", 1e9 / $3 }'")
    return row(name, "rate", command, f"{about}, ns a transaction", prepare="./servers postgres")


def started(name, command, about):
    """Makes a row of a runtime's start. Its first run in a machine is in the table of first runs."""
    return row(name, "program", command, about, runs=5, same_output=True)


ROWS = [
    row("gcc_small", "twenties", "gcc -O2 -c -o /tmp/small.o small.c",
        "gcc -c of a file of ten lines: the first, second and fifth twenty times"),
    row("configure", "shell", "rm -rf /tmp/greet && mkdir /tmp/greet && cd /tmp/greet && /real/work/greet/configure -q",
        "./configure of a small autotools package"),
    row("make", "shell", "cd /tmp/greet && make clean >/dev/null && make -s", "make of that package"),
    row("make_check", "shell", "cd /tmp/greet && make -s check", "make check of that package: ten tests"),
    row("cxx", "shell", "g++ -O1 -c -o /tmp/standard.o standard.cpp", "g++ of 40 lines with the standard library"),
    row("cargo_build", "shell",
        "cd crate && CARGO_HOME=/tmp/cargo CARGO_TARGET_DIR=/tmp/target$RANDOM$RANDOM cargo build -q --offline",
        "cargo build of a small crate"),
    row("pip_install", "shell",
        "rm -rf /tmp/pip && python3 -m pip install -q --no-index --no-cache-dir --break-system-packages "
        "--find-links /usr/share/python-wheels --target /tmp/pip pip setuptools wheel",
        "pip installs three wheels"),
    row("shell_script", "shell", "sh commands.sh | cksum", "2,000 short commands of a shell script", same_output=True),
    row("git_clone", "shell", "rm -rf /tmp/clone && git clone -q --no-hardlinks files /tmp/clone",
        "git clone of a local repository with 5,000 files"),
    row("sqlite_4", "shell", "./sqlite-writers 4", "SQLite, four processes that insert", same_output=True),
    started("node_start", "node start.js", "node prints a line"),
    started("node_loop", "node loop.js", "node, a loop that is compiled"),
    started("java_start", "java -Xmx512m -cp . Start", "java prints a line"),
    started("java_loop", "java -Xmx512m -cp . Loop", "java, a loop that is compiled"),
    started("ruby_start", "ruby start.rb", "ruby prints a line"),
    started("ruby_loop", "ruby loop.rb", "ruby, a loop"),
    started("php_start", "php start.php", "php prints a line"),
    started("php_loop", "php -d opcache.enable_cli=1 -d opcache.jit_buffer_size=32M loop.php", "php, a loop that is compiled"),
    started("luajit_start", "luajit -e print(\"started\")", "LuaJIT prints a line"),
    started("luajit_loop", "luajit loop.lua", "LuaJIT, a loop that is compiled"),
    started("pypy_start", "pypy3 -c print(\"started\")", "PyPy prints a line"),
    started("pypy_loop", "pypy3 loop.py", "PyPy, a loop that is compiled"),
    row("pg_initdb", "shell",
        "rm -rf /tmp/initdb && setpriv --reuid=postgres --regid=postgres --clear-groups "
        "/usr/lib/postgresql/15/bin/initdb -D /tmp/initdb --no-sync >/dev/null",
        "PostgreSQL's initdb", runs=2),
    pgbench("pg_select_1", "-S -c 1", "PostgreSQL, pgbench -S, one client"),
    pgbench("pg_select_4", "-S -c 4", "PostgreSQL, pgbench -S, four clients"),
    pgbench("pg_default_1", "-c 1", "PostgreSQL, pgbench, one client"),
    pgbench("pg_default_4", "-c 4", "PostgreSQL, pgbench, four clients"),
    row("redis_get", "rate",
        "redis-benchmark -s /tmp/redis.sock -t get -n 20000 -c 8 --csv | "
        "awk -F '\"' '$2 == \"GET\" { printf \"%.0f\\n\", 1e9 / $4 }'",
        "Redis under redis-benchmark, GET, ns a request", prepare="./servers redis"),
    row("redis_set", "rate",
        "redis-benchmark -s /tmp/redis.sock -t set -n 20000 -c 8 --csv | "
        "awk -F '\"' '$2 == \"SET\" { printf \"%.0f\\n\", 1e9 / $4 }'",
        "Redis under redis-benchmark, SET, ns a request", prepare="./servers redis"),
    row("nginx", "rate",
        "wrk -t 1 -c 8 -d 3s http://127.0.0.1:8080/ | awk '/^Requests.sec/ { printf \"%.0f\\n\", 1e9 / $2 }'",
        "nginx under wrk, a page of 1 KiB, ns a request", prepare="./servers nginx"),
]
