//! Tests FreeDOS from a floppy disk, and programs that take over the machine as DOS programs did.

use crate::support::dos::{Dos, get};
use crate::support::folder::Folder;
use crate::support::{GUEST_PATIENCE, within};

#[test]
fn a_resident_program_hooks_keyboard_and_dos_and_goes_on_behind_others() {
    for flags in [&[][..], &["--knob", "vif=off"], &["--guest-hooks", "dos"]] {
        let folder = Folder::new();
        let Some(dos) = Dos::with(&folder, &["tsr", "ask", "mode"], flags) else {
            return;
        };
        assert_eq!(dos.command("mode"), "real mode");
        dos.command("tsr");
        // Function 9 now prints a star first; keys are changed too.
        assert_eq!(dos.command("ask"), "*changed 0 keys");
        dos.pc.tell(&["type", "rem zzz"]);
        dos.pc.screen_with("rem qqq");
        dos.pc.tell(&["type", "\\n"]);
        assert!(dos.command("type config.sys").len() > 10);
        assert!(
            dos.command("copy command.com other.com")
                .contains("=> other.com")
        );
        assert!(dos.command("dir *.com").to_lowercase().contains("other"));
        assert_eq!(dos.command("ask"), "*changed 3 keys");
        assert_eq!(dos.command("mode"), "*real mode");
        dos.pc.quit();
    }
}

#[test]
fn dos_goes_on_as_a_task_of_a_monitor_in_virtual_8086_mode() {
    for flags in [&[][..], &["--knob", "vif=off"]] {
        let folder = Folder::new();
        let Some(dos) = Dos::with(&folder, &["v86", "mode", "tsr", "ask"], flags) else {
            return;
        };
        assert_eq!(dos.command("v86"), "DOS is a task now");
        let counted = |dos: &Dos| -> Vec<u64> {
            let line = dos.command("mode");
            let counts = line
                .strip_prefix("virtual-8086 mode:")
                .unwrap_or_else(|| panic!("{line}"));
            let numbers = counts.split_whitespace().filter_map(|it| it.parse().ok());
            numbers.collect()
        };
        let before = counted(&dos);
        assert_eq!(before.len(), 10);
        assert_eq!(dos.command("v86"), "not in real mode");
        // Files are read through the floppy drive's ports, its DMA and its interrupt.
        assert!(
            dos.command("copy command.com other.com")
                .contains("=> other.com")
        );
        assert!(dos.command("dir *.com").to_lowercase().contains("other"));
        let after = counted(&dos);
        dos.command("tsr");
        assert_eq!(dos.command("ask"), "*changed 0 keys");
        // CLI, STI, PUSHF, POPF, INT n, IRET, IN, OUT and interrupts all exited to the monitor.
        for (kind, name) in ["cli", "sti", "pushf", "popf", "int", "iret", "in", "out"]
            .into_iter()
            .enumerate()
        {
            assert!(after[kind] > before[kind], "{name}: {before:?}, {after:?}");
        }
        assert!(after[9] > before[9], "interrupts: {before:?}, {after:?}");
        dos.pc.quit();
        let files = ["COMMAND.COM", "OTHER.COM"];
        let [one, other] = files.map(|name| get(&folder, &dos.image, name));
        assert!(one == other, "the copy is another file");
    }
}

#[test]
fn a_program_in_protected_mode_calls_dos_and_comes_back() {
    for flags in [&[][..], &["--knob", "vif=off"]] {
        let folder = Folder::new();
        let Some(dos) = Dos::with(&folder, &["extender", "mode"], flags) else {
            return;
        };
        let expected = [
            "begins",
            "in protected mode",
            "the sum is right",
            "three ticks",
            "ends",
        ];
        for _ in 0..2 {
            let lines = expected.map(|line| format!("extender: {line}"));
            assert_eq!(dos.command("extender"), lines.join("\n"));
            assert_eq!(dos.command("mode"), "real mode");
        }
        assert_eq!(
            dos.command("type extended.txt"),
            "written from protected mode"
        );
        dos.pc.quit();
    }
}

#[test]
fn dos_waits_for_keys_in_hlt_if_it_has_our_handlers() {
    for (flags, halts) in [(&[][..], false), (&["--guest-hooks", "dos"], true)] {
        let folder = Folder::new();
        let Some(dos) = Dos::with(&folder, &[], flags) else {
            return;
        };
        let halted = || -> u64 {
            let stats = String::from_utf8(dos.pc.ask(&["stats"]).stdout).unwrap();
            let mut rows = stats.lines().map(str::split_whitespace);
            let row = rows.find_map(|mut words| (words.next() == Some("halt")).then_some(words));
            let count = row.and_then(|mut words| Some(words.next()?.replace(',', "")));
            count.map_or(0, |count| count.parse().unwrap())
        };
        // Firmware may halt while it boots. A tick of the clock ends each halt.
        let before = halted();
        if halts {
            within(GUEST_PATIENCE, "HLT", || {
                (halted() > before + 10).then_some(())
            });
        } else {
            std::thread::sleep(std::time::Duration::from_secs(1));
            assert_eq!(halted(), before);
        }
        // The handlers show the same text as the BIOS, which scrolls.
        let listing = dos.command("type autoexec.bat");
        assert!(listing.starts_with("ECHO OFF"), "{listing}");
        assert!(dos.command("dir").contains("bytes free"));
        dos.pc.quit();
    }
}
