"""The results of compare-real: medians, ratios, the table and the JSON file."""

import math
import statistics

RUNS = ("steady", "first")
# The number of runs of a series that are timed together, as in driver.c.
SERIES_PART = 20


class Results:
    """The times by row, machine and kind of run, in nanoseconds."""

    def __init__(self, machines, clock):
        self.machines = machines
        self.clock = clock
        self.times = {}
        self.outputs = {}
        self.failures = []
        self.order = []

    def add(self, machine, row, samples):
        """The samples of one row in one run of a machine; the first is kept apart from the rest.

        Raises nothing: a row that failed is remembered, and has no time.
        """
        name = samples[0].row
        if name not in self.order:
            self.order.append(name)
        for sample in samples:
            if sample.status != 0:
                self.fail(machine, name, f"exit code {sample.status}")
                return
        times = [getattr(sample, self.clock) for sample in samples]
        if None in times:
            return
        if row.kind in ("series", "twenties"):
            times = [time / SERIES_PART for time in times]
        # A series yields one number, which is not a first run.
        runs = {"first": times[:1], "steady": times[1:]} if len(times) > 1 else {"steady": times}
        for run, values in runs.items():
            self.times.setdefault((name, machine.name, run), []).append(values)
        if row.same_output:
            self.outputs.setdefault(name, {}).setdefault(samples[-1].output, set()).add(machine.name)

    def fail(self, machine, name, why):
        self.failures.append({"machine": machine.name, "row": name, "why": why})

    def median(self, name, machine, run="steady"):
        """Returns the median of the rounds' medians, or None."""
        rounds = self.times.get((name, machine, run))
        return statistics.median(statistics.median(values) for values in rounds) if rounds else None

    def spread(self, name, machine, run="steady"):
        """Returns the largest of the rounds' medians divided by the smallest."""
        medians = [statistics.median(values) for values in self.times.get((name, machine, run), [])]
        return max(medians) / min(medians) if medians and min(medians) > 0 else None

    def of_kind(self, kind):
        return [machine for machine in self.machines if machine.kind == kind]

    def best(self, name, kind, run="steady"):
        """Returns the fastest machine of a kind: TCG has two."""
        times = [time for machine in self.of_kind(kind)
                 if (time := self.median(name, machine.name, run)) is not None]
        return min(times, default=None)

    def different_outputs(self):
        """Returns the rows whose output is not the same everywhere."""
        return {name: outputs for name, outputs in self.outputs.items() if len(outputs) > 1}

    def columns(self):
        """Returns (heading, function from row and run to its time): one for each machine, but only one for
        all of TCG."""
        found, seen = [], set()
        for machine in self.machines:
            if machine.kind == "tcg":
                if "tcg" not in seen:
                    found.append(("tcg", lambda name, run: self.best(name, "tcg", run)))
                seen.add("tcg")
            else:
                found.append((machine.name, lambda name, run, m=machine.name: self.median(name, m, run)))
        return found


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else None


def with_unit(time):
    """Formats nanoseconds with a readable unit."""
    if time is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time >= size:
            return f"{time / size:.3g} {unit}" if time < 100 * size else f"{time / size:.0f} {unit}"
    return f"{time:.3g} ns"


def ratio(time, base):
    return time / base if time is not None and base else None


def shown(value):
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def initial(name):
    """Returns the letter that stands for a Tollgate in the headings of ratios: the b of tollgate-b."""
    return name.rsplit("-", 1)[-1][0]


def table(results, run, out):
    """Prints one line a row: the time of the first column, the others as multiples of it, then B over A."""
    columns = results.columns()
    (base_name, base), others = columns[0], columns[1:]
    tollgates = [machine.name for machine in results.of_kind("tollgate")]
    pairs = [(tollgates[0], other) for other in tollgates[1:]] if len(tollgates) > 1 else []
    width = max([18, *(len(name) for name in results.order)])
    clock = "processor time" if results.clock == "cpu" else "time"
    print(f"\n{'steady state' if run == 'steady' else 'first run in a machine'}: "
          f"{clock} of {base_name}" + (f", the others over it" if others else ""), file=out)
    # A name may be as long as tollgate-translated.
    base_width = max(14, len(base_name) + 2)
    widths = {name: max(12, len(name) + 2) for name, _ in others}
    print(f"{'row':{width}}{base_name:>{base_width}}" + "".join(f"{name:>{widths[name]}}" for name, _ in others) +
          "".join(f"{initial(b) + '/' + initial(a):>8}{'noise':>8}" for a, b in pairs), file=out)
    ratios = {name: [] for name, _ in others}
    changes = {pair: [] for pair in pairs}
    for name in results.order:
        times = [column(name, run) for _, column in columns]
        if all(time is None for time in times):
            continue
        line = f"{name:{width}}{with_unit(times[0]):>{base_width}}"
        for (other, _), time in zip(others, times[1:]):
            value = ratio(time, times[0])
            # A row without a native time shows its times themselves.
            line += f"{with_unit(time) if times[0] is None else shown(value):>{widths[other]}}"
            if value:
                ratios[other].append(value)
        for a, b in pairs:
            value = ratio(results.median(name, b, run), results.median(name, a, run))
            noise = max(filter(None, (results.spread(name, m, run) for m in (a, b))), default=None)
            line += f"{'-' if value is None else f'{value:.3f}':>8}{'-' if noise is None else f'{noise:.2f}':>8}"
            if value:
                changes[a, b].append(value)
        print(line, file=out)
    line = f"{'geometric mean':{width}}{'':>{base_width}}" + "".join(
        f"{shown(geometric_mean(values)):>{widths[name]}}" for name, values in ratios.items())
    line += "".join(f"{geometric_mean(values) or 0:>8.3f}{'':>8}" for values in changes.values())
    print(line, file=out)


def lost(results, run="steady"):
    """Returns the rows in which a Tollgate is slower than TCG's better model, or than User-mode Linux."""
    found = {}
    for machine in results.of_kind("tollgate"):
        for kind in ("tcg", "uml"):
            if not results.of_kind(kind):
                continue
            rows = [(value, name) for name in results.order
                    if (value := ratio(results.median(name, machine.name, run),
                                       results.best(name, kind, run))) and value > 1]
            found[machine.name, kind] = sorted(rows, reverse=True)
    return found


def print_all(results, out):
    for run in RUNS:
        table(results, run, out)
    print(file=out)
    for (machine, kind), rows in lost(results).items():
        names = ", ".join(f"{name} {value:.2f}" for value, name in rows)
        print(f"{machine} loses {len(rows)} rows to {kind}{': ' if rows else ''}{names}", file=out)
    for name, outputs in results.different_outputs().items():
        print(f"{name}: outputs differ: " + " | ".join(
            f"{output} of {', '.join(sorted(names))}" for output, names in outputs.items()), file=out)
    for failure in results.failures:
        print(f"{failure['machine']}: {failure['row']}: failed, {failure['why']}", file=out)


def to_json(results, about):
    """Returns everything: what was measured where, every time in nanoseconds, and the summary."""
    return {
        **about,
        "machines": {machine.name: {"kind": machine.kind, "about": machine.about} for machine in results.machines},
        "rows": {name: {
            machine.name: {
                run: {"median": results.median(name, machine.name, run),
                      "rounds": results.times[name, machine.name, run]}
                for run in RUNS if (name, machine.name, run) in results.times}
            for machine in results.machines} for name in results.order},
        "over_native": {
            heading: geometric_mean([value for name in results.order if (value := ratio(
                column(name, "steady"), results.best(name, "native")))])
            for heading, column in results.columns()} if results.of_kind("native") else {},
        "lost": {f"{machine} to {kind}": {name: value for value, name in rows}
                 for (machine, kind), rows in lost(results).items()},
        "different_outputs": {name: {output: sorted(names) for output, names in outputs.items()}
                              for name, outputs in results.different_outputs().items()},
        "failures": results.failures,
    }
