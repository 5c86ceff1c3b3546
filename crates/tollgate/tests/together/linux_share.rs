//! Tests Linux with directories of the host: both see the same changes of files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_686, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::{PATIENCE, finish, tollgate};

/// `tollgate run` with the kernel, its modules, and these shares.
fn command(folder: &Folder, kernel: &str, shares: &[String]) -> Command {
    let mut command = linux::run_with_modules(folder, kernel);
    for share in shares {
        command.args(["--share", share]);
    }
    command
}

/// Boots a guest, loads its modules, and mounts the share `share0` at /s.
fn boot(command: Command) -> Session {
    let mut guest = linux::boot(command);
    linux::load_modules(&mut guest);
    let answer = guest.shell("mkdir /s && mount -t virtiofs share0 /s && cd /s && echo mounted");
    assert_eq!(answer, "mounted");
    guest
}

fn power_off(mut guest: Session) {
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

/// A folder that contains an empty folder to share.
fn shared() -> (Folder, std::path::PathBuf) {
    let folder = Folder::new();
    let path = folder.path("shared");
    fs::create_dir(&path).unwrap();
    (folder, path)
}

#[test]
fn guest_and_host_see_the_same_files() {
    for kernel in [DEBIAN_AMD64, DEBIAN_686] {
        let (folder, path) = shared();
        let numbers: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
        fs::write(path.join("from-host"), &numbers).unwrap();
        let share = format!("{},cache=0", path.display());
        let mut guest = boot(command(&folder, kernel, &[share]));

        let same = "seq 1 200000 > /tmp/n; cmp /tmp/n from-host && echo same";
        assert_eq!(guest.shell(same), "same");
        guest.shell("cp /tmp/n from-guest; sync");
        assert_eq!(
            fs::read_to_string(path.join("from-guest")).unwrap(),
            numbers
        );
        // The writes bypass the page cache, and one goes to the middle of the file.
        guest.shell("dd if=/tmp/n of=direct bs=64k oflag=direct,append conv=notrunc 2>/dev/null");
        guest.shell("echo middle | dd of=direct bs=1 seek=1000 conv=notrunc 2>/dev/null");
        let mut direct = numbers.clone().into_bytes();
        direct[1000..1007].copy_from_slice(b"middle\n");
        assert!(fs::read(path.join("direct")).unwrap() == direct);
        let read = guest.shell("dd if=direct bs=4k iflag=direct 2>/dev/null | wc -c");
        assert_eq!(read, numbers.len().to_string());

        guest.shell("mkdir d && mv from-guest d/moved && ln d/moved hard && ln -s d/moved soft");
        assert_eq!(
            fs::read_link(path.join("soft")).unwrap().to_str(),
            Some("d/moved")
        );
        assert_eq!(path.join("hard").metadata().unwrap().nlink(), 2);
        assert_eq!(guest.shell("stat -c %h soft d/moved"), "1\n2");
        assert_eq!(
            guest.shell("cmp soft hard && rm d/moved && cat soft 2>&1"),
            "cat: can't open 'soft': No such file or directory"
        );
        // Programs can be executed and mapped.
        guest.shell("cp /bin/busybox d/busybox");
        assert_eq!(guest.shell("d/busybox echo ran"), "ran");
        let refused =
            guest.shell("cat ../../etc/hostname /s/../../outside 2>&1 | grep -c 'No such'");
        assert_eq!(refused, "2");

        // The host changes files and folders.
        fs::write(path.join("from-host"), "changed\n").unwrap();
        fs::write(path.join("new"), "new\n").unwrap();
        assert_eq!(guest.shell("cat from-host new"), "changed\nnew");
        fs::remove_file(path.join("new")).unwrap();
        assert_eq!(
            guest.shell("ls new 2>&1"),
            "ls: new: No such file or directory"
        );
        power_off(guest);
    }
}

#[test]
fn a_large_directory_is_complete_whichever_way_it_is_made() {
    let (folder, path) = shared();
    fs::create_dir(path.join("host")).unwrap();
    for number in 0..10_000 {
        fs::write(path.join(format!("host/{number}")), number.to_string()).unwrap();
    }
    let share = path.display().to_string();
    let mut guest = boot(command(&folder, DEBIAN_AMD64, &[share]));
    assert_eq!(
        guest.shell("ls host | wc -l; ls -l host | wc -l"),
        "10000\n10001"
    );
    assert_eq!(guest.shell("cat host/* | wc -c"), "38890");
    guest.shell("mkdir guest; cd guest; seq 1 2000 | while read n; do echo $n > $n; done; cd ..");
    assert_eq!(guest.shell("ls guest | wc -l"), "2000");
    assert_eq!(fs::read_dir(path.join("guest")).unwrap().count(), 2000);
    assert_eq!(
        fs::read_to_string(path.join("guest/1234")).unwrap(),
        "1234\n"
    );
    assert_eq!(guest.shell("rm -r guest host; ls | wc -l"), "0");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    power_off(guest);
}

#[test]
fn owners_and_modes_are_the_guests() {
    let (folder, path) = shared();
    fs::write(path.join("a"), "1").unwrap();
    fs::set_permissions(path.join("a"), fs::Permissions::from_mode(0o640)).unwrap();
    let share = path.display().to_string();
    let mut guest = boot(command(&folder, DEBIAN_AMD64, &[share]));
    assert_eq!(guest.shell("stat -c '%a %u %g' a"), "640 0 0");
    guest.shell("chown 1000:100 a; chmod 4751 a; mkdir d; chmod 1777 d; chown 5 d");
    assert_eq!(
        guest.shell("stat -c '%a %u %g' a d"),
        "4751 1000 100\n1777 5 0"
    );
    let host = path.join("a").metadata().unwrap();
    let own = path.metadata().unwrap();
    assert_eq!((host.uid(), host.mode() & 0o7777), (own.uid(), 0o751));
    // A user of the guest writes to the file, which clears set-user-ID.
    guest.shell("chmod 777 . && chmod 4777 a");
    guest.shell("echo u:x:77:77::/:/bin/sh > /etc/passwd; su u -c 'echo 2 > a; echo 3 > d/own'");
    assert_eq!(guest.shell("stat -c '%a %u' a d/own"), "777 1000\n644 77");
    let refused = guest.shell("chmod 600 a; su u -c 'cat a' 2>&1");
    assert_eq!(refused, "cat: can't open 'a': Permission denied");
    power_off(guest);
}

#[test]
fn a_read_only_share_refuses_to_be_changed_and_tags_tell_shares_apart() {
    let (folder, path) = shared();
    fs::write(path.join("a"), "content\n").unwrap();
    let other = folder.path("other");
    fs::create_dir(&other).unwrap();
    let shares = [
        format!("{},ro", path.display()),
        format!("{}:second", other.display()),
    ];
    let mut command = command(&folder, DEBIAN_AMD64, &shares);
    command.args(["--pci", "off"]);
    let mut guest = boot(command);
    for change in [
        "echo x > a",
        "echo x > b",
        "mkdir d",
        "rm a",
        "chmod 777 a",
        "mv a b",
    ] {
        let answer = guest.shell(&format!(
            "({change}) 2>&1 | grep -c 'Read-only file system'"
        ));
        assert_eq!(answer, "1", "{change}");
    }
    assert_eq!(guest.shell("cat a"), "content");
    guest.shell("mkdir /t && mount -t virtiofs second /t && cp a /t/b");
    // A share may be mounted twice.
    guest.shell("umount /t && mount -t virtiofs second /t");
    assert_eq!(guest.shell("cat /t/b"), "content");
    power_off(guest);
    assert_eq!(fs::read_to_string(other.join("b")).unwrap(), "content\n");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
}

#[test]
fn what_cannot_be_shared_is_refused_with_one_line() {
    let (folder, path) = shared();
    let file = folder.file("file", b"");
    let twice = path.display().to_string();
    for (shares, why) in [
        (
            vec![folder.path("none").display().to_string()],
            "no such directory",
        ),
        (vec![file.display().to_string()], "not a directory"),
        (vec!["/proc".into()], "kernel"),
        (
            vec![format!("{twice}:x"), format!("{twice}:x")],
            "two shares have the tag 'x'",
        ),
    ] {
        let mut command = tollgate();
        command.args(["run", "--kernel"]);
        command.arg(fetched("debian-amd64/vmlinuz"));
        for share in &shares {
            command.args(["--share", share]);
        }
        let output = finish(&mut command, PATIENCE);
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(why), "{errors}");
    }
}
