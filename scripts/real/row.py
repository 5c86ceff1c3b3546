"""The description of a program that compare-real measures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A measured program.

    kind: `program` is started directly, `shell` by bash; `rate` is a bash command that
          prints nanoseconds per operation; `series` is started `runs` times in a row
          and gives the rows NAME_10th and NAME_last; `twenties` is started 100 times and gives
          the rows NAME_first, NAME_second and NAME_fifth, each the mean of twenty starts;
          `boot` is the boot of systemd, a run of its own, and gives NAME_boot and
          NAME_from_start.
    runs: how often it runs in a machine; the first is kept apart.
    prepare: a bash command that runs before, untimed.
    same_output: False where the output differs from run to run by its nature.
    root: the root that has what the row needs: `base`, or `many` with compilers, databases and
          runtimes.
    also: further groups that the row belongs to.
    """

    name: str
    group: str
    kind: str
    command: str
    about: str
    runs: int = 3
    prepare: str = ""
    same_output: bool = True
    root: str = "base"
    also: tuple = ()
