//! Checks of the host's kernel and of what it permits this process.

use std::io;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::system::uname;
use tollgate_confine::{Part, host_offers};
use tollgate_machine::config::secret_memory_is_offered;

use super::check::{Check, read_setting};
use crate::{host, limits};

/// The oldest kernel that Tollgate supports.
const OLDEST: (u32, u32) = (5, 13);
/// UFFD_USER_MODE_ONLY: userfaultfd reports only faults of user mode, which needs no privilege.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;

/// The checks of what Tollgate cannot do without.
pub fn required() -> Vec<Check> {
    let release = release();
    let new_enough = version(&release).is_some_and(|version| version >= OLDEST);
    vec![
        Check::required(
            "Linux 5.13",
            new_enough,
            release,
            "tollgate does not start; older kernels are not tested",
        ),
        memfd(),
    ]
}

/// The checks of what costs something if it is missing.
pub fn optional() -> Vec<Check> {
    vec![
        userfaultfd(),
        secret_memory(),
        seccomp(),
        own_filters(),
        file_rules(),
        control_groups(),
    ]
}

/// The kernel's release, such as `6.1.0-13-amd64`.
fn release() -> String {
    uname().release().to_string_lossy().into_owned()
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(str::parse);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next()?.ok()?;
    Some((major, minor))
}

fn memfd() -> Check {
    let result = memfd_create("tollgate", MemfdFlags::CLOEXEC).map_err(io::Error::from);
    let found = match &result {
        Ok(_) => "usable".into(),
        Err(error) => format!("not usable: {error}"),
    };
    Check::required(
        "memfd_create",
        result.is_ok(),
        found,
        "tollgate does not start; guest RAM is such a file",
    )
}

fn userfaultfd() -> Check {
    let restricted = open_userfaultfd(UFFD_USER_MODE_ONLY);
    let full = open_userfaultfd(0);
    let found = match (&full, &restricted) {
        (Ok(()), _) => "usable".into(),
        (_, Ok(())) => "usable for this process's own faults (unprivileged mode)".into(),
        (_, Err(error)) => format!("not usable: {error}"),
    };
    Check::optional(
        "userfaultfd",
        full.is_ok() || restricted.is_ok(),
        found,
        "writes to guest page tables are noticed by mprotect, which is slower",
    )
}

fn secret_memory() -> Check {
    let result = secret_memory_is_offered();
    let found = match &result {
        Ok(()) => "usable, as far as memory may be locked ('ulimit -l')".into(),
        Err(error) => format!("not usable: {error}"),
    };
    Check::optional(
        "memfd_secret",
        result.is_ok(),
        found,
        "--secret-memory is refused",
    )
}

fn open_userfaultfd(mode: libc::c_int) -> io::Result<()> {
    // SAFETY: userfaultfd takes and returns integers only.
    let result = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | mode) };
    host::owned(result as libc::c_int).map(drop)
}

/// Shows whether a seccomp filter is installed. A filter is no defect, but explains why another
/// check fails.
fn seccomp() -> Check {
    let status = read_setting("/proc/self/status");
    let mode = field(&status, "Seccomp");
    let filters = field(&status, "Seccomp_filters").unwrap_or("some");
    let (ok, found) = match mode {
        Some("0") => (true, "no filter".into()),
        Some("2") => (
            false,
            format!("{filters} filter(s) in force, as in a container"),
        ),
        Some(other) => (false, format!("mode {other}")),
        None => (true, "the kernel has no seccomp".into()),
    };
    Check::optional(
        "system calls unfiltered",
        ok,
        found,
        "a filter may be why something else here is refused; nothing by itself",
    )
}

/// Whether Tollgate can filter the system calls of its own threads.
fn own_filters() -> Check {
    let offered = host_offers(Part::SystemCalls);
    Check::optional(
        "filters of own system calls",
        offered,
        if offered { "usable" } else { "not usable" },
        "a guest that breaks out of its machine may ask the host for anything; --confine strict refuses",
    )
}

/// Whether Tollgate can hold its threads to the files that they serve.
fn file_rules() -> Check {
    let offered = host_offers(Part::Files);
    Check::optional(
        "Landlock",
        offered,
        if offered {
            "usable"
        } else {
            "not usable (Linux 5.19 with Landlock among its security modules)"
        },
        "a guest that breaks out of its machine may open any file that you may; --confine strict refuses",
    )
}

/// Whether Tollgate can make control groups for `--limit`.
fn control_groups() -> Check {
    let usable = limits::control_groups_are_usable();
    Check::optional(
        "control groups",
        usable,
        match usable {
            true => "this process can make one with cpu and memory (cgroup v2)",
            false => "none of this process's own (cgroup v2 with cpu and memory, delegated)",
        },
        "--limit is kept inside the process, which counts twenty times a second",
    )
}

/// The value of a line `name:<space>value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(version("5.13-rc1"), Some((5, 13)));
        assert!(version("5.4.0") < Some(OLDEST));
        assert!(version("10.0") > Some(OLDEST));
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Seccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field(text, "Seccomp"), Some("2"));
        assert_eq!(field(text, "Seccomp_filters"), Some("1"));
        assert_eq!(field(text, "Sec"), None);
    }
}
