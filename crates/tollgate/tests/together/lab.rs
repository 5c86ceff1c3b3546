//! Tests `tollgate lab`: its list, its outputs, its errors, and an early end.

use std::fs;
use std::process::{Output, Stdio};

use crate::support::dos::freedos;
use crate::support::folder::Folder;
use crate::support::guests::guests_folder;
use crate::support::system::database;
use crate::support::{self, GUEST_PATIENCE, PATIENCE, ended, finish, tollgate};
use serde_json::Value;
use tollgate_test_support::skip;

fn lab(words: &[&str]) -> Output {
    finish(tollgate().arg("lab").args(words), GUEST_PATIENCE)
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_list_tells_arms_workloads_guests_and_knobs() {
    let output = lab(&["list"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for part in [
        "vif: ",
        "vif=off+trap  ",
        "copy-type ",
        "v86-iopl3 ",
        "transition=call|trap|task",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn help_teaches_the_experiment() {
    let text = stdout(&lab(&["vif", "--help"]));
    for part in [
        "How much time goes into that",
        "Arms:",
        "Workloads:",
        "--guest-image",
        "Examples:",
        "Exit codes:",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn a_quick_run_writes_table_samples_and_plot() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (csv, json, svg, png) = (path("a.csv"), path("a.json"), path("a.svg"), path("a.png"));
    let words = [
        "vif",
        "--quick",
        "--full",
        "--workload",
        "compute",
        "--guest",
        "real",
        "--guest",
        "dos",
    ];
    let outputs = ["--csv", &csv, "--json", &json, "--plot", &svg];
    let output = lab(&[&words[..], &outputs].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains("3 repetitions, fewer than the 9"), "{text}");
    assert!(
        text.contains(
            "dos, compute: computation alone, with the timer ticking\n  not run: no image"
        )
    );
    assert!(stderr(&output).starts_with("tollgate: [1/"));

    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let samples = value["cells"][0]["outcome"]["measured"]["samples"]
        .as_array()
        .unwrap();
    let arms: Vec<&str> = samples
        .iter()
        .map(|sample| sample["arm"].as_str().unwrap())
        .collect();
    let turn = [
        "vif=off",
        "vif=off+trap",
        "vif=off+task",
        "vif=on+vir=off",
        "vif=on",
    ];
    // Each round begins with the next arm.
    let rounds: Vec<&str> = (0..3)
        .flat_map(|round| [&turn[round..], &turn[..round]].concat())
        .collect();
    assert_eq!(arms, rounds);
    for sample in samples {
        assert_eq!(sample["work"]["checksum"], samples[0]["work"]["checksum"]);
        assert_eq!(
            sample["ledger"]["knobs"]["vif"] == "on",
            sample["arm"].as_str().unwrap().starts_with("vif=on")
        );
    }
    // There are at least as many executed instructions as exits.
    let counted = &value["cells"][0]["outcome"]["measured"]["counted"];
    let executed = counted["executed"]["sti"].as_u64().unwrap();
    assert!(executed > 0 && counted["instructions"].as_u64().unwrap() > executed);

    // The file shows the same tables and draws the same plot without a run.
    let drawn = path("b.svg");
    let again = lab(&[&json, "--plot", &drawn]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert_eq!(stdout(&again), text);
    assert_eq!(fs::read(&drawn).unwrap(), fs::read(&svg).unwrap());
    let short = stdout(&lab(&["show", &json, "--short"]));
    assert!(short.contains("What is compared:\n  vif=off: "), "{short}");

    let samples = fs::read_to_string(&csv).unwrap();
    assert_eq!(
        samples
            .lines()
            .filter(|line| line.contains(",time,seconds,"))
            .count(),
        15
    );
    assert!(fs::read_to_string(&svg).unwrap().contains("real, compute"));
    let again = [
        "vif",
        "--quick",
        "--workload",
        "compute",
        "--guest",
        "real",
        "--arm",
        "vif=on",
        "--plot",
        &png,
    ];
    assert_eq!(lab(&again).status.code(), Some(0));
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn dos_works_with_every_arm_and_with_vif_the_six_are_no_more_than_the_interrupts() {
    let folder = Folder::new();
    let Some(image) = freedos(&folder) else {
        return;
    };
    let before = fs::read(&image).unwrap();
    let image_argument = format!("dos={}", image.display());
    let json = folder.path("a.json");
    let works = ["copy-type", "mix", "editor", "spreadsheet"];
    let files = works.map(|work| ["--workload", work]).concat();
    // In the other arms each exit is a signal, and these two have many exits.
    let quick_arms = ["vif=on+vir=off", "vif=on", "vif=off+hooks", "vif=on+hooks"];
    let quick_arms = quick_arms.map(|arm| ["--arm", arm]).concat();
    for (words, cells, arms) in [
        ([&files[..], &quick_arms].concat(), works.len(), 5),
        (vec!["--workload", "compute"], 1, 7),
    ] {
        let mut command = tollgate();
        command.args(["lab", "vif", "--quick", "--guest", "dos", "--guest-image"]);
        command.arg(&image_argument).args(words);
        let output = finish(command.arg("--json").arg(&json), GUEST_PATIENCE * 3);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        assert_eq!(value["cells"].as_array().unwrap().len(), cells);
        for cell in value["cells"].as_array().unwrap() {
            let measured = &cell["outcome"]["measured"];
            let samples = measured["samples"].as_array().unwrap();
            assert_eq!(samples.len(), 3 * arms);
            for sample in samples {
                has_few_exits_of_the_six_with_vif(sample);
            }
            assert!(measured["counted"]["instructions"].as_u64().unwrap() > 100_000);
        }
    }
    assert!(fs::read(&image).unwrap() == before, "the image was changed");
}

#[test]
fn a_compiler_an_assembler_and_a_linker_work_inside_dos() {
    let folder = Folder::new();
    let Some(image) = freedos(&folder) else {
        return;
    };
    if !guests_folder().join("dos-programs/version").is_file() {
        skip::impossible("scripts/get-dos-programs has not been run");
        return;
    }
    let image = format!("dos={}", image.display());
    let json = folder.path("a.json");
    let mut command = tollgate();
    command.args([
        "lab",
        "vif",
        "--quick",
        "--guest",
        "dos",
        "--guest-image",
        &image,
    ]);
    command.args(["--workload", "build", "--arm", "vif=on"]);
    let output = finish(command.arg("--json").arg(&json), GUEST_PATIENCE * 3);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let measured = &value["cells"][0]["outcome"]["measured"];
    let samples = measured["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 6);
    for sample in samples {
        has_few_exits_of_the_six_with_vif(sample);
    }
}

fn has_few_exits_of_the_six_with_vif(sample: &Value) {
    let rows = sample["ledger"]["exits"].as_array().unwrap();
    let count = |kinds: &[&str]| -> u64 {
        let rows = rows.iter();
        let rows = rows.filter(|row| kinds.contains(&row["kind"].as_str().unwrap()));
        rows.map(|row| row["count"].as_u64().unwrap()).sum()
    };
    let six = count(&["cli", "sti", "pushf", "popf", "software-interrupt", "iret"]);
    let delivered = count(&["interrupt-delivered"]);
    let typed = sample["work"]["typed"].as_u64().unwrap();
    assert!(
        typed > 0 && delivered >= typed,
        "{typed} keys by {delivered} interrupts"
    );
    match sample["arm"].as_str().unwrap() {
        "vif=on" | "vif=on+hooks" => {
            assert!(six <= delivered, "{six} exits, {delivered} interrupts");
        }
        arm => assert!(
            six > delivered,
            "{arm}: {six} exits, {delivered} interrupts"
        ),
    }
}

#[test]
fn an_image_that_is_no_dos_is_one_line() {
    let folder = Folder::new();
    let odd = folder.file("odd.img", &[0; 1000]);
    for (image, code, expected) in [
        ("/nonexistent".to_owned(), 2, "cannot read '/nonexistent'"),
        (
            odd.display().to_string(),
            1,
            "1000 bytes is not the size of a floppy disk",
        ),
    ] {
        let image = format!("dos={image}");
        let words = ["vif", "--quick", "--guest", "dos", "--workload", "compute"];
        let output = lab(&[&words[..], &["--guest-image", &image]].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let all = stdout(&output) + &stderr(&output);
        assert!(all.contains(expected), "{all}");
    }
}

#[test]
fn an_experiment_that_measures_nothing_says_so() {
    let folder = Folder::new();
    let plot = folder.path("a.svg");
    let words = ["lab", "interruptible", "--quick", "--plot"];
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", folder.path("nothing"));
    command.args(words).arg(&plot);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = stderr(&output);
    assert!(errors.contains("nothing was measured"), "{errors}");
    assert!(stdout(&output).contains("Not run:"), "{output:?}");
    assert!(!plot.exists(), "an empty file stays behind");
}

#[test]
fn shadow_tables_are_compared_on_our_kernels_and_on_linux() {
    let shell = support::guests::fetched("initrd-amd64.img");
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (json, svg) = (path("a.json"), path("a.svg"));
    let workloads = ["--workload", "switch", "--workload", "processes"];
    let arms = ["--arm", "tables=6", "--arm", "direct=6"];
    let outputs = ["--json", &json, "--plot", &svg];
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", shell.parent().unwrap());
    command.args(["lab", "shadow", "--quick", "--full"]);
    command.args(workloads).args(arms).args(outputs);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    for part in [
        "64-bit, switch",
        "linux-686, processes",
        "units of one entry",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let cells = value["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for cell in cells {
        let samples = cell["outcome"]["measured"]["samples"].as_array();
        let samples = samples.unwrap_or_else(|| panic!("{cell}"));
        assert_eq!(samples.len(), 9);
        // With identifiers, six kept tables keep what a single one forgets at each switch.
        if cell["guest"] == "64-bit" {
            let stolen = |arm: &str| {
                let of_arm = samples.iter().filter(|sample| sample["arm"] == arm);
                let each = of_arm.map(|it| it["values"]["stolen"].as_f64().unwrap_or(0.0));
                each.sum::<f64>()
            };
            assert!(stolen("tables=1") > 100.0 && stolen("tables=6") == 0.0);
        }
    }
    assert!(
        fs::read_to_string(&svg)
            .unwrap()
            .contains("by the number of tables")
    );
}

#[test]
fn a_database_writes_its_rows_in_a_guest_that_pages() {
    let shell = support::guests::fetched("initrd-amd64.img");
    if database("amd64").is_none() {
        return;
    }
    let folder = Folder::new();
    let json = folder.path("a.json");
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", shell.parent().unwrap());
    command
        .args(["lab", "shadow", "--quick", "--full", "--json"])
        .arg(&json);
    command.args(["--guest", "database-amd64", "--workload", "sqlite-jobs"]);
    command.args(["--arm", "conventional=3"]);
    let output = finish(&mut command, GUEST_PATIENCE * 4);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    for part in [
        "where the monitor's time goes",
        "the original study beside ours",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let measured = &value["cells"][0]["outcome"]["measured"];
    let samples = measured["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 6);
    for sample in samples {
        assert_eq!(sample["work"]["rows"], samples[0]["work"]["rows"]);
        let count = |name: &str| sample["values"][name].as_f64().unwrap_or(0.0);
        assert!(count("swapped-in") + count("swapped-out") > 0.0, "{sample}");
        assert!(count("disk-requests") > 0.0, "{sample}");
    }
    assert!(measured["counted"]["instructions"].as_u64().unwrap() > 1_000_000);
}

#[test]
fn finding_instructions_is_compared_on_our_kernel_and_on_linux() {
    let shell = support::guests::fetched("initrd-amd64.img");
    let folder = Folder::new();
    let json = folder.path("a.json");
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", shell.parent().unwrap());
    command
        .args(["lab", "icache", "--quick", "--full", "--json"])
        .arg(&json);
    command.args(["--workload", "apic", "--workload", "getuid"]);
    command.args(["--workload", "compile"]);
    command.args(["--guest", "64-bit", "--guest", "linux-amd64"]);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).contains("cycles of each step of finding an instruction"));
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let cells = value["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3);
    for cell in cells {
        let samples = cell["outcome"]["measured"]["samples"].as_array();
        let samples = samples.unwrap_or_else(|| panic!("{cell}"));
        let sum = |arm: &str, name: &str| {
            let of_arm = samples.iter().filter(|sample| sample["arm"] == arm);
            let values = of_arm.map(|it| it["values"][name].as_f64().unwrap_or(0.0));
            values.sum::<f64>()
        };
        assert!(sum("off", "walked") > 0.0 && sum("off", "hits") == 0.0);
        assert!(sum("on", "hits") > 0.0 && sum("on", "walked") == 0.0);
        assert_eq!(sum("site", "found-anew"), 0.0);
    }
}

#[test]
fn a_kernel_module_accesses_the_local_apic_and_each_access_is_an_exit() {
    let folder = support::guests::fetched("initrd-amd64.img");
    let folder = folder.parent().unwrap();
    for modules in ["modules-amd64", "modules-i386"] {
        if !folder.join(modules).join("apic_loop.ko").is_file() {
            return skip::missing("there are no kernel modules (scripts/get-modules)");
        }
    }
    let scratch = Folder::new();
    let json = scratch.path("a.json");
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", folder);
    command
        .args(["lab", "icache", "--quick", "--workload", "apic-module"])
        .arg("--json")
        .arg(&json);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let cells = value["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2);
    for cell in cells {
        let samples = cell["outcome"]["measured"]["samples"].as_array();
        for sample in samples.unwrap_or_else(|| panic!("{cell}")) {
            let accesses = sample["work"]["accesses"].as_f64().unwrap();
            let value = |name: &str| sample["values"][name].as_f64().unwrap_or(0.0);
            match sample["arm"].as_str().unwrap() {
                "off" => assert!(value("walked") >= accesses, "{sample}"),
                "on" | "physical" => assert!(value("hits") > 0.9 * accesses, "{sample}"),
                "fast-path" => assert!(value("fast-paths") >= accesses, "{sample}"),
                _ => assert_eq!(value("found-anew"), 0.0, "{sample}"),
            }
        }
    }
}

#[test]
fn make_builds_a_program_in_the_guest_and_two_processors_are_said_to_be_missing() {
    let shell = support::guests::fetched("initrd-amd64.img");
    let folder = shell.parent().unwrap();
    if !folder.join("build-amd64/root.cpio").is_file() {
        return skip::impossible("no system with make (scripts/get-build-tree amd64 makes it)");
    }
    let scratch = Folder::new();
    let json = scratch.path("a.json");
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", folder);
    command.args(["lab", "icache", "--quick", "--full", "--arm", "on"]);
    command.args(["--workload", "make", "--workload", "make-smp"]);
    command
        .args(["--guest", "linux-amd64", "--json"])
        .arg(&json);
    let output = finish(&mut command, GUEST_PATIENCE * 3);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    assert!(
        text.contains("not run: the machine has one processor"),
        "{text}"
    );
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let measured = &value["cells"][0]["outcome"]["measured"];
    let samples = measured["samples"].as_array();
    let samples = samples.unwrap_or_else(|| panic!("{value}"));
    assert_eq!(samples.len(), 6);
    for sample in samples {
        assert_eq!(sample["work"]["objects"], 2, "{sample}");
    }
}

#[test]
fn how_long_interrupts_wait_is_compared_on_linux() {
    let shell = support::guests::fetched("initrd-amd64.img");
    let folder = Folder::new();
    let json = folder.path("a.json");
    let mut command = tollgate();
    command.env("TOLLGATE_GUESTS", shell.parent().unwrap());
    command
        .args(["lab", "interruptible", "--quick", "--full", "--json"])
        .arg(&json);
    command.args(["--workload", "exec", "--workload", "two-machines-one-core"]);
    command.args(["--workload", "disk-flood", "--workload", "network-flood"]);
    command.args(["--guest", "linux-amd64"]);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for table in [
        "the study beside ours",
        "for whom interrupts waited until their handler",
        "what in the monitor interrupts waited for",
        "two machines",
    ] {
        assert!(stdout(&output).contains(table), "{table}");
    }
    let value: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let cells = value["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for cell in cells {
        let samples = cell["outcome"]["measured"]["samples"].as_array();
        for sample in samples.unwrap_or_else(|| panic!("{cell}")) {
            let value = |name: &str| sample["values"][name].as_f64().unwrap_or(0.0);
            assert!(
                value("waits") > 0.0 && value("process-p50") > 0.0,
                "{sample}"
            );
            assert!(value("to-handler-count") > 0.0, "{sample}");
            if cell["workload"] != "disk-flood" {
                // The host runs the program too; not every file system lets blocks past the cache.
                assert!(value("native-p50") > 0.0, "{sample}");
            }
            // Something in the monitor was waited for each time, if only the way out of guest code.
            let values = sample["values"].as_object().unwrap();
            assert!(
                values.keys().any(|name| name.starts_with("behind-")),
                "{sample}"
            );
            if cell["workload"] == "two-machines-one-core" {
                assert!(value("alone-p50") > 0.0, "{sample}");
                assert!(value("canaries") > 1.0, "{sample}");
            }
            let stops = value("stops-translate");
            assert!(sample["arm"] != "off" || stops == 0.0, "{sample}");
        }
    }
}

#[test]
fn names_that_are_not_known_are_refused_with_those_that_are() {
    for (words, message) in [
        (
            &["vif", "--workload", "dance"][..],
            "--workload: no workload is called 'dance'; there are: idle, copy-type, mix, spreadsheet, editor, word-processor, vi, build, compute, four-machines",
        ),
        (
            &["vif", "--arm", "vif"],
            "--arm: no arm is called 'vif'; there are: vif=off, vif=off+trap, vif=off+task, vif=on+vir=off, vif=on, vif=off+hooks, vif=on+hooks",
        ),
        (
            &["vif", "--guest-image", "os2=x"],
            "--guest-image: no guest is called 'os2'; there are: real, v86, v86-iopl3, v86-vme, dos",
        ),
        (
            &["vif", "--plot", "x.pdf"],
            "--plot: 'x.pdf' must end in .svg or .png",
        ),
        (
            &["dance"],
            "unknown command 'dance': expected list, show, all, report, vif, shadow, icache, interruptible or native; try 'tollgate lab --help'",
        ),
    ] {
        let output = lab(words);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(stderr(&output), format!("tollgate: {message}\n"));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn an_interrupted_experiment_shows_and_writes_what_is_finished() {
    let folder = Folder::new();
    let csv = folder.path("a.csv");
    let mut child = tollgate()
        .args([
            "lab",
            "vif",
            "--full",
            "--workload",
            "idle",
            "--guest",
            "real",
            "--repetitions",
            "1000",
        ])
        .arg("--csv")
        .arg(&csv)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The third line of progress comes while samples are taken.
    let mut progress = std::io::BufReader::new(child.stderr.take().unwrap());
    loop {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut progress, &mut line).unwrap();
        assert!(!line.is_empty(), "it ended by itself");
        if ["3", "4"]
            .iter()
            .any(|it| line.starts_with(&format!("tollgate: [{it}/5000, ")))
        {
            break;
        }
    }
    let process = child.id().to_string();
    let killed = finish(
        std::process::Command::new("kill").args(["-INT", &process]),
        PATIENCE,
    );
    assert!(killed.status.success());
    let output = ended(child, PATIENCE);
    assert_eq!(output.status.code(), Some(130));
    let text = stdout(&output);
    let last = text.lines().last().unwrap();
    let finished: usize = last
        .strip_prefix("interrupted: ")
        .and_then(|rest| rest.strip_suffix(" of 5000 samples"))
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{last}"));
    assert!(finished >= 2);
    let samples = fs::read_to_string(&csv).unwrap();
    let written = samples
        .lines()
        .filter(|line| line.contains(",time,seconds,"));
    assert_eq!(written.count(), finished);
}

#[test]
fn an_interrupted_run_is_continued_in_its_folder_with_its_options() {
    let folder = Folder::new();
    let output = folder.path("results");
    let output = output.to_str().unwrap();
    let arms = ["--arm", "vif=on"];
    let cell = ["--workload", "compute", "--guest", "real"];
    let first = ["vif", "--quick", "--output", output];
    let first = [&first[..], &cell, &arms].concat();
    assert_eq!(lab(&first).status.code(), Some(0));
    let path = |ending: &str| format!("{output}/vif.{ending}");
    let samples = fs::read_to_string(path("samples.jsonl")).unwrap();
    let plot = fs::read_to_string(path("svg")).unwrap();
    assert!(plot.contains("real, compute"), "{plot}");

    // The file of a run that ended in the middle of the last sample.
    let lines: Vec<&str> = samples.lines().collect();
    let (last, kept) = lines.split_last().unwrap();
    let begun = format!("{}\n{}", kept.join("\n"), &last[..last.len() / 2]);
    fs::write(path("samples.jsonl"), begun).unwrap();
    let again = lab(&["vif", "--output", output]);
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(
        stderr(&again),
        format!(
            "tollgate: --output: '{output}' holds a run of 'vif' already: --resume continues it, or name \
             another folder\n"
        )
    );
    let resumed = ["vif", "--output", output, "--resume"];
    let other = lab(&[&resumed[..], &["--repetitions", "5"]].concat());
    assert_eq!(other.status.code(), Some(2));
    let why = "because --repetitions is '5' now and was '3'; measure again into another folder";
    assert!(stderr(&other).contains(why), "{other:?}");
    let resumed = lab(&resumed);
    assert_eq!(resumed.status.code(), Some(0), "{resumed:?}");
    let text = fs::read(path("json")).unwrap();
    let value: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        (&value["finished"], &value["planned"]),
        (&6.into(), &6.into())
    );
    // The first two rounds are those of the first run.
    let samples = value["cells"][0]["outcome"]["measured"]["samples"].clone();
    let arms: Vec<&str> = samples
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["arm"].as_str().unwrap())
        .collect();
    let turns = [
        ["vif=off", "vif=on"],
        ["vif=on", "vif=off"],
        ["vif=off", "vif=on"],
    ];
    assert_eq!(arms, turns.concat());
    for (index, line) in kept
        .iter()
        .filter(|line| line.contains("\"sample\""))
        .take(4)
        .enumerate()
    {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            line["sample"]["sample"]["seconds"],
            samples[index]["seconds"]
        );
    }

    let nothing = lab(&["icache", "--output", output, "--resume"]);
    let why = "holds no run of 'icache' to continue; without --resume, one begins";
    assert!(stderr(&nothing).contains(why), "{nothing:?}");
    let no_folder = lab(&["icache", "--resume"]);
    assert_eq!(no_folder.status.code(), Some(2));
}

#[test]
fn a_folder_with_nothing_but_costs_of_exits_is_compared_with_an_earlier_one() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (first, second) = (path("first"), path("second"));
    for folder in [&first, &second] {
        fs::create_dir(folder).unwrap();
        let json = format!("{folder}/cost.json");
        let mut command = tollgate();
        command.args(["cost", "--quick", "--kind", "cli", "--json", &json]);
        assert!(finish(&mut command, GUEST_PATIENCE).status.success());
    }
    let output = lab(&["report", &second, "--compare", &first]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = fs::read_to_string(format!("{second}/report.md")).unwrap();
    for part in ["cost, then and now", "| cli | real | yes |", "p99 then"] {
        assert!(report.contains(part), "{part} is missing in\n{report}");
    }
}

#[test]
fn all_studies_go_into_one_folder_with_one_report_that_is_compared_with_an_earlier_one() {
    let folder = Folder::new();
    let path = |name: &str| folder.path(name).to_str().unwrap().to_owned();
    let (first, second) = (path("first"), path("second"));
    let study = ["--study", "icache"];
    let all = |words: &[&str]| {
        let mut command = tollgate();
        // Without Linux guests the run is short, and has rows that are not run.
        command.env("TOLLGATE_GUESTS", folder.path("nothing"));
        finish(command.args(["lab", "all"]).args(words), GUEST_PATIENCE)
    };
    let quick = [&["--quick", "--output", &first][..], &study].concat();
    let output = all(&quick);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).starts_with("Report: "), "{output:?}");
    assert!(
        stderr(&output).contains("[study 1 of 1: icache, 1/"),
        "{output:?}"
    );
    let read = |folder: &str, name: &str| fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let page = read(&first, "report.html");
    for part in [
        "Cached instructions for emulated exits",
        "What was done then",
        "35 to 40 % faster",
        "What was not measured",
        "not run: ",
        "<svg",
        "quick, little work, 3 repetitions",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    let markdown = read(&first, "report.md");
    assert!(markdown.contains("](icache-cells.svg)"), "{markdown}");
    for name in [
        "icache-cells.svg",
        "overview.svg",
        "icache.csv",
        "icache.txt",
    ] {
        assert!(!read(&first, name).is_empty());
    }

    assert_eq!(all(&quick).status.code(), Some(2));
    // The options are those of the run that is continued; only the missing guests are tried again.
    let samples = read(&first, "icache.samples.jsonl");
    let resumed = [&["--resume", "--output", &first][..], &study].concat();
    assert_eq!(all(&resumed).status.code(), Some(0));
    assert_eq!(read(&first, "icache.samples.jsonl"), samples);

    let compared = ["--quick", "--output", &second, "--compare", &first];
    let output = all(&[&compared[..], &study].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(read(&second, "report.md").contains("## Next to the run in first"));
    let again = lab(&["report", &second]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(!read(&second, "report.md").contains("## Next to the run in first"));

    for (words, why) in [
        (
            vec!["report", "/nonexistent"],
            "FOLDER: there is no folder '/nonexistent'",
        ),
        (
            vec!["report", "/proc"],
            "'/proc' holds no results of 'tollgate lab --output'",
        ),
        (
            vec!["all", "--output", &first, "--resume", "--compare", "/proc"],
            "--compare: '/proc': it holds no results of 'tollgate lab --output'",
        ),
        (
            vec![
                "all",
                "--output",
                &first,
                "--resume",
                "--guest-image",
                "os2=x",
            ],
            "--guest-image: no guest is called 'os2'; there are: ",
        ),
        (
            vec!["all", "--output", "/proc/x", "--quick"],
            "--output: cannot make the folder '/proc/x': ",
        ),
    ] {
        let output = lab(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(stderr(&output).contains(why), "{words:?}: {output:?}");
    }
}
