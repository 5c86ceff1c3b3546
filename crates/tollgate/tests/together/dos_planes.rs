//! Tests a program for DOS that draws in the planes of a VGA: the picture is right and no store
//! costs an exit, both when DOS runs in real mode and when it is the task of a monitor of its own,
//! with paging.

use crate::support::dos::Dos;
use crate::support::folder::Folder;
use crate::support::picture::Picture;
use crate::support::{GUEST_PATIENCE, within};

/// A colour of the BIOS's 16 colours.
fn colour(number: usize) -> [u8; 3] {
    let bright = if number & 8 != 0 { 0x55 } else { 0 };
    let part = |bit: usize| bright + if number >> bit & 1 != 0 { 0xaa } else { 0 };
    match number {
        6 => [0xaa, 0x55, 0],
        _ => [part(2), part(1), part(0)],
    }
}

/// The picture that PLANES.COM draws.
fn expected() -> Picture {
    const PATTERN: [u8; 8] = [0xaa, 0x55, 0xf0, 0x0f, 0xff, 0x00, 0x81, 0x3c];
    let mut picture = Picture::black(640, 480);
    for y in 0..480 {
        let line = if y < 380 { y } else { y - 380 };
        for x in 0..640 {
            picture.set(x, y, colour(line / 30));
        }
        picture.set(y, y, colour(15));
    }
    for y in 200..216 {
        for x in 0..64 {
            let is_set = PATTERN[x / 8] << (x % 8) & 0x80 != 0;
            picture.set(320 + x, y, colour(if is_set { 15 } else { 0 }));
        }
    }
    picture
}

/// The number of exits so far by accesses to device memory and by string instructions.
fn exits(dos: &Dos) -> u64 {
    // The request is refused as long as the host leaves the vCPU no time to answer.
    let table = within(GUEST_PATIENCE, "a table of exits", || {
        let stats = String::from_utf8(dos.pc.ask(&["stats"]).stdout).unwrap();
        let (_, table) = stats.split_once("exits by kind")?;
        Some(table.to_owned())
    });
    let count_of = |kind: &str| {
        let mut rows = table.lines().map(str::split_whitespace);
        let row = rows.find_map(|mut words| (words.next() == Some(kind)).then_some(words));
        row.and_then(|mut words| words.next()?.replace(',', "").parse().ok())
            .unwrap_or(0_u64)
    };
    ["mmio-read", "mmio-write", "string"]
        .map(count_of)
        .iter()
        .sum()
}

#[test]
fn a_program_that_draws_in_planes_takes_no_exit_for_each_store() {
    for is_task in [false, true] {
        let folder = Folder::new();
        let Some(dos) = Dos::with(&folder, &["v86", "planes"], &[]) else {
            return;
        };
        if is_task {
            assert_eq!(dos.command("v86"), "DOS is a task now");
        }
        let before = exits(&dos);
        dos.pc.tell(&["type", "planes\\n"]);
        let png = folder.path("screen.png");
        let expected = expected();
        within(GUEST_PATIENCE, "the picture", || {
            // The request is refused while the adapter is between two modes.
            dos.pc.ask(&["screen", "--png", png.to_str().unwrap()]);
            let picture = Picture::read(&png)?;
            std::thread::sleep(std::time::Duration::from_millis(100));
            expected.difference(&picture).is_none().then_some(())
        });
        // An intermediate picture may look like the last one.
        dos.pc.tell(&["type", "x"]);
        dos.pc.screen_with("planes: drawn");
        let more = exits(&dos) - before;
        // The program makes two million accesses. The file is read, and text is written and
        // cleared.
        assert!(more < 5_000, "{is_task}: {more}");
        dos.pc.quit();
    }
}
