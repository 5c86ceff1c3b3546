"""Runs Python code that nobody has read: python3 run_untrusted.py FILE"""

import sys
from tollgate import Sandbox, TollgateError

code = open(sys.argv[1]).read() if len(sys.argv) > 1 else "print(sum(range(10)))"

try:
    # No network, no file of this host can be changed, and 512 MiB of memory.
    with Sandbox(memory="512M", user="nobody") as box:
        box.write_file("/tmp/code.py", code)
        result = box.run(["python3", "-I", "/tmp/code.py"], timeout=10, cwd="/tmp")
except TollgateError as error:
    sys.exit(f"no machine: {error}")

print(result.stdout, end="")
print(result.stderr, end="", file=sys.stderr)
if result.timed_out:
    print("it took longer than ten seconds", file=sys.stderr)
sys.exit(result.exit_code)
