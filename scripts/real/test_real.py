"""Facts about compare-real that need no machine: python3 -m unittest, in this folder."""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest

import host_code
import machines
import many
import programs
import report

HERE = os.path.dirname(os.path.realpath(__file__))


def machine(name, kind="tollgate"):
    return machines.Machine(name, kind, name)


def row(name):
    return programs.select([name])[0]


class Arms(unittest.TestCase):
    def test_each_value_of_user_code_is_an_arm(self):
        self.assertEqual(machines.tollgates_of(["t"], []), [("tollgate", "t")])
        self.assertEqual(machines.tollgates_of(["t", "u"], []), [("tollgate-a", "t"), ("tollgate-b", "u")])
        self.assertEqual(machines.tollgates_of(["t"], ["translated", "native"]),
                         [("tollgate-translated", "t --knob user-code=translated"),
                          ("tollgate-native", "t --knob user-code=native")])

    def test_headings_of_ratios_have_a_letter_for_each(self):
        self.assertEqual([report.initial(name) for name in ("tollgate-b", "tollgate-native")], ["b", "n"])


def samples(name, *times):
    return [machines.Sample(name, time, time / 2, 0, "0") for time in times]


class Clocks(unittest.TestCase):
    def sample(self, kind, line, now, cpu, begun):
        return machines.sample_of(machine("m", kind), machines.END.match(line), now, cpu, begun)

    def test_a_guest_clock_that_agrees_is_believed(self):
        begun = {"sort": (10.0, 500)}
        sample = self.sample("tollgate", "real: end sort 2000000000 0 0 12ab 0", 12.05, 1700, begun)
        self.assertEqual((sample.row, sample.time, sample.cpu), ("sort", 2000000000, 1200))
        self.assertEqual((sample.status, sample.output, begun), (0, "12ab", {}))

    def test_a_guest_clock_that_is_slow_is_refused(self):
        with self.assertRaises(machines.Failure):
            self.sample("tollgate", "real: end sort 1000000000 0 0 0 0", 12.0, 0, {"sort": (10.0, 0)})

    def test_processor_time_is_the_kernels_own_natively_and_unknown_of_user_mode_linux(self):
        for kind, cpu in (("native", 77), ("uml", None)):
            sample = self.sample(kind, "real: end sort 2000000000 77 0 0 0", 12.0, 9, {"sort": (10.0, 1)})
            self.assertEqual(sample.cpu, cpu)

    def test_a_rate_is_the_value_that_the_program_printed(self):
        sample = self.sample("tcg", "real: end rsa_sign 2000000000 0 0 0 250000", 12.0, 1000000000,
                             {"rsa_sign": (10.0, 0)})
        self.assertEqual((sample.time, sample.cpu), (250000, 125000))


class Figures(unittest.TestCase):
    def setUp(self):
        self.arms = [machine("native", "native"), machine("tcg-max", "tcg"), machine("tcg", "tcg"),
                     machine("tollgate-a"), machine("tollgate-b")]
        self.results = report.Results(self.arms, "time")

    def add(self, index, name, *times):
        self.results.add(self.arms[index], row(name), samples(name, *times))

    def test_the_first_run_is_kept_apart(self):
        self.add(3, "sort", 900.0, 100.0, 120.0)
        self.add(3, "sort", 700.0, 140.0, 160.0)
        self.assertEqual(self.results.median("sort", "tollgate-a"), 130)
        self.assertEqual(self.results.median("sort", "tollgate-a", "first"), 800)
        self.assertAlmostEqual(self.results.spread("sort", "tollgate-a"), 150 / 110)

    def test_the_faster_model_of_tcg_counts_row_by_row(self):
        for name, first, second in (("sort", 5.0, 7.0), ("gzip", 9.0, 3.0)):
            self.add(1, name, 1.0, first)
            self.add(2, name, 1.0, second)
            self.add(3, name, 1.0, 4.0)
        self.assertEqual(self.results.best("sort", "tcg"), 5)
        self.assertEqual(self.results.best("gzip", "tcg"), 3)
        self.assertEqual(report.lost(self.results)["tollgate-a", "tcg"], [(4 / 3, "gzip")])

    def test_a_program_that_fails_has_no_time(self):
        broken = samples("sort", 1.0, 2.0)
        broken[1].status = 3
        self.results.add(self.arms[3], row("sort"), broken)
        self.assertIsNone(self.results.median("sort", "tollgate-a"))
        self.assertEqual(self.results.failures[0]["why"], "exit code 3")

    def test_outputs_that_differ_are_named(self):
        self.add(0, "sort", 1.0, 1.0)
        other = samples("sort", 1.0, 1.0)
        other[1].output = "ff"
        self.results.add(self.arms[3], row("sort"), other)
        self.assertEqual(self.results.different_outputs(), {"sort": {"0": {"native"}, "ff": {"tollgate-a"}}})

    def test_the_table_compares_two_builds(self):
        self.add(0, "sort", 1e6, 1e6)
        self.add(3, "sort", 1e6, 4e6)
        self.add(4, "sort", 1e6, 2e6)
        text = io.StringIO()
        report.print_all(self.results, text)
        line = next(line for line in text.getvalue().splitlines() if line.startswith("sort"))
        self.assertEqual(line.split(), ["sort", "1", "ms", "-", "4.00", "2.00", "0.500", "1.00"])


class Rows(unittest.TestCase):
    def test_each_is_one_line_of_five_fields(self):
        lines = programs.rows_file(programs.ROWS).splitlines()
        self.assertEqual(len(lines), sum(row.kind != "boot" for row in programs.ROWS))
        self.assertTrue(all(line.count("\t") == 4 for line in lines))

    def test_the_group_many_has_a_root_of_its_own_and_is_run_only_if_it_is_named(self):
        self.assertTrue(all(row.root == "base" for row in programs.select([])))
        selected = programs.select(["many"])
        self.assertEqual({row.name for row in selected}, {"systemd", *(row.name for row in many.ROWS)})
        self.assertEqual({row.root for row in selected if row.name != "systemd"}, {"many"})

    def test_a_row_of_twenties_gives_three_names(self):
        names = programs.names_of(row("gcc_small"))
        self.assertEqual(names, ["gcc_small_first", "gcc_small_second", "gcc_small_fifth"])

    def test_names_are_unique(self):
        names = [name for row in [*programs.ROWS, *many.ROWS] for name in programs.names_of(row)]
        self.assertEqual(len(names), len(set(names)))


class Initramfs(unittest.TestCase):
    def test_hard_links_share_an_inode_and_only_the_first_has_content(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "root.tar"), os.path.join(folder, "root.cpio")
            with tarfile.open(source, "w") as tar:
                file = tarfile.TarInfo("./a")
                file.size = 3
                tar.addfile(file, io.BytesIO(b"abc"))
                link = tarfile.TarInfo("./b")
                link.type, link.linkname = tarfile.LNKTYPE, "./a"
                tar.addfile(link)
            subprocess.run([sys.executable, os.path.join(HERE, "tar-to-cpio"), source, target], check=True)
            with open(target, "rb") as file:
                data = file.read()
        entries, offset = {}, 0
        while offset < len(data):
            field = [int(data[offset + 6 + 8 * i:offset + 14 + 8 * i], 16) for i in range(13)]
            name = data[offset + 110:offset + 110 + field[11] - 1].decode()
            begin = (offset + 110 + field[11] + 3) // 4 * 4
            entries[name] = field[0], field[4], data[begin:begin + field[6]]
            offset = (begin + field[6] + 3) // 4 * 4
        inode = entries["a"][0]
        self.assertEqual(entries["a"], (inode, 2, b"abc"))
        self.assertEqual(entries["b"], (inode, 2, b""))
        self.assertIn("TRAILER!!!", entries)


class HostCode(unittest.TestCase):
    def test_a_row_is_what_was_counted_between_its_ends(self):
        now = iter([(100, 700, 3000), (300, 1500, 7000), (300, 1500, 7000), (310, 1530, 7100)])
        counter = host_code.Counter(lambda: next(now))
        for _ in range(2):
            counter.begin("sort")
            counter.end("sort")
        self.assertEqual(counter.rows, [("sort", [210, 830, 4100])])

    def test_an_end_without_a_beginning_counts_nothing(self):
        counter = host_code.Counter(lambda: self.fail("must not be called"))
        counter.end("sort")
        self.assertEqual(counter.rows, [])

    def test_the_table_has_all_rows_together(self):
        text = host_code.table([("sort", [100, 400, 2000]), ("gzip", [300, 1200, 4000])])
        self.assertEqual(text.split("\n")[-1].split(), ["all", "400", "4.00", "15.0"])


if __name__ == "__main__":
    unittest.main()
