//! System calls that the standard library does not offer, each as a safe function.
//!
//! The `libc` crate is not used; the standard library itself links the C library.

use std::ffi::{CString, OsStr, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

// Linux's number of finit_module on x86-64 and on i386.
#[cfg(target_pointer_width = "64")]
const SYS_FINIT_MODULE: c_long = 313;
#[cfg(target_pointer_width = "32")]
const SYS_FINIT_MODULE: c_long = 350;
// Linux's number of statx.
#[cfg(target_pointer_width = "64")]
const SYS_STATX: c_long = 332;
#[cfg(target_pointer_width = "32")]
const SYS_STATX: c_long = 383;
// Linux's number of clock_settime with 64-bit times.
#[cfg(target_pointer_width = "64")]
const SYS_CLOCK_SETTIME: c_long = 227;
#[cfg(target_pointer_width = "32")]
const SYS_CLOCK_SETTIME: c_long = 404;
const REBOOT_POWER_OFF: c_int = 0x4321_fedc;
const TIOCSCTTY: c_ulong = 0x540e;
const TIOCSWINSZ: c_ulong = 0x5414;
const TIOCSPTLCK: c_ulong = 0x4004_5431;
const TIOCGPTN: c_ulong = 0x8004_5430;
/// The mount is read-only.
pub const MS_RDONLY: c_ulong = 1;
/// Set-user-ID programs have no effect.
pub const MS_NOSUID: c_ulong = 2;
/// Device nodes have no effect.
pub const MS_NODEV: c_ulong = 4;
/// No program of the file system is run.
pub const MS_NOEXEC: c_ulong = 8;
/// Change the flags of a mount.
pub const MS_REMOUNT: c_ulong = 32;
/// Show a directory at another path too.
pub const MS_BIND: c_ulong = 4096;
/// Move a mount to another path.
pub const MS_MOVE: c_ulong = 8192;
/// Remove a mount from its path even if it is in use.
const MNT_DETACH: c_int = 2;
/// There is something to read.
const POLLIN: i16 = 1;

/// The events to wait for (poll(2)).
#[repr(C)]
pub struct PollFd {
    fd: c_int,
    events: i16,
    /// The events that have occurred.
    pub revents: i16,
}

impl PollFd {
    /// Waits until something can be read.
    pub fn input(fd: BorrowedFd<'_>) -> Self {
        Self {
            fd: fd.as_raw_fd(),
            events: POLLIN,
            revents: 0,
        }
    }
}

unsafe extern "C" {
    fn mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        data: *const c_void,
    ) -> c_int;
    fn umount2(target: *const c_char, flags: c_int) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn poll(fds: *mut PollFd, count: c_ulong, timeout: c_int) -> c_int;
    fn reboot(command: c_int) -> c_int;
    fn sync();
    fn chroot(path: *const c_char) -> c_int;
    fn sethostname(name: *const c_char, length: usize) -> c_int;
    fn setsid() -> c_int;
    fn setgroups(count: usize, groups: *const u32) -> c_int;
    fn setgid(group: u32) -> c_int;
    fn setuid(user: u32) -> c_int;
    fn umask(mask: u32) -> u32;
    fn kill(process: c_int, signal: c_int) -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn waitid(kind: c_int, process: c_int, information: *mut c_int, options: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
}

/// A time as the kernel has it, in 32-bit processes too.
#[repr(C)]
struct TimeSpec {
    seconds: i64,
    nanoseconds: i64,
}

/// Sets the time of day, in nanoseconds since 1970.
pub fn set_time(time_ns: u64) -> io::Result<()> {
    const CLOCK_REALTIME: c_int = 0;
    let time = TimeSpec {
        seconds: (time_ns / 1_000_000_000) as i64,
        nanoseconds: (time_ns % 1_000_000_000) as i64,
    };
    // SAFETY: the pointer leads to a time that lives until the call returns.
    let result = unsafe { syscall(SYS_CLOCK_SETTIME, CLOCK_REALTIME, &raw const time) };
    check(result as c_int)?;
    Ok(())
}

/// Feeds the kernel's random number generator with secret bytes, and makes it use
/// them at once (random(4)).
pub fn add_entropy(bytes: &[u8]) -> io::Result<()> {
    const RNDADDENTROPY: c_ulong = 0x4008_5203;
    const RNDRESEEDCRNG: c_ulong = 0x5207;
    let device = File::options().write(true).open("/dev/urandom")?;
    // struct rand_pool_info: the bits, the bytes, and then these.
    let mut pool = Vec::from((8 * bytes.len() as u32).to_ne_bytes());
    pool.extend((bytes.len() as u32).to_ne_bytes());
    pool.extend(bytes);
    // SAFETY: the kernel reads the structure, whose size it has, while the call lasts.
    check(unsafe { ioctl(device.as_raw_fd(), RNDADDENTROPY, pool.as_ptr()) })?;
    // SAFETY: the request takes no argument.
    check(unsafe { ioctl(device.as_raw_fd(), RNDRESEEDCRNG, 0 as c_int) })?;
    Ok(())
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(io::Error::other)
}

/// Mounts a file system.
pub fn mount_at(
    source: impl AsRef<OsStr>,
    target: impl AsRef<OsStr>,
    kind: &str,
    flags: c_ulong,
    data: &str,
) -> io::Result<()> {
    let source = c_string(source.as_ref())?;
    let target = c_string(target.as_ref())?;
    let kind = c_string(kind.as_ref())?;
    let data = c_string(data.as_ref())?;
    // SAFETY: the four strings end with zero and live until the call returns.
    check(unsafe {
        mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr().cast(),
        )
    })?;
    Ok(())
}

/// Makes the kernel ask a file system of another machine for the attributes of a directory again.
pub fn forget_attributes(path: impl AsRef<OsStr>) {
    const AT_FDCWD: c_int = -100;
    const AT_STATX_FORCE_SYNC: c_int = 0x2000;
    const STATX_BASIC_STATS: c_int = 0x7ff;
    let Ok(path) = c_string(path.as_ref()) else {
        return;
    };
    // struct statx has 256 bytes.
    let mut answer = [0_u64; 32];
    // SAFETY: the path ends with a zero byte, and the kernel writes no more than the structure.
    unsafe {
        syscall(
            SYS_STATX,
            AT_FDCWD,
            path.as_ptr(),
            AT_STATX_FORCE_SYNC,
            STATX_BASIC_STATS,
            answer.as_mut_ptr(),
        );
    }
}

/// Removes a file system from its path. It is unmounted when no process uses it any more.
pub fn unmount(target: impl AsRef<OsStr>) -> io::Result<()> {
    let target = c_string(target.as_ref())?;
    // SAFETY: the string ends with zero and lives until the call returns.
    check(unsafe { umount2(target.as_ptr(), MNT_DETACH) })?;
    Ok(())
}

/// Loads a kernel module.
pub fn load_module(file: &File) -> io::Result<()> {
    let no_parameters = c"";
    // SAFETY: the arguments are an open descriptor, a string that ends with zero, and flags.
    let result = unsafe {
        syscall(
            SYS_FINIT_MODULE,
            file.as_raw_fd(),
            no_parameters.as_ptr(),
            0 as c_int,
        )
    };
    match check(result as c_int) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map(|_| ()),
    }
}

/// Checks which of the events have occurred. With `waits` it waits until one has.
pub fn wait_for(fds: &mut [PollFd], waits: bool) {
    let timeout = if waits { -1 } else { 0 };
    // SAFETY: the count is the number of elements, which are laid out as in C. After a failure,
    // such as by a signal, all elements are unchanged.
    unsafe { poll(fds.as_mut_ptr(), fds.len() as c_ulong, timeout) };
}

/// Writes all data to the disks and switches the machine off.
pub fn power_off() {
    write_out();
    // SAFETY: the argument is an integer.
    unsafe { reboot(REBOOT_POWER_OFF) };
}

/// Writes all data to the disks.
pub fn write_out() {
    // SAFETY: the call has no arguments.
    unsafe { sync() };
}

/// Makes a directory the root.
pub fn change_root(path: &str) -> io::Result<()> {
    let path = c_string(path.as_ref())?;
    // SAFETY: the string ends with zero.
    check(unsafe { chroot(path.as_ptr()) })?;
    Ok(())
}

/// Sets the machine's name.
pub fn set_host_name(name: &str) {
    // SAFETY: the length is that of the string. A name that is too long is refused.
    unsafe { sethostname(name.as_ptr().cast(), name.len()) };
}

/// Starts a new session for the process, and gives it a terminal if standard input is one. May be
/// called between fork and exec.
pub fn begin_session(has_terminal: bool) -> io::Result<()> {
    // SAFETY: the call has no arguments.
    check(unsafe { setsid() })?;
    if has_terminal {
        // SAFETY: the arguments are integers.
        check(unsafe { ioctl(0, TIOCSCTTY, 0 as c_int) })?;
    }
    Ok(())
}

/// Changes the process's user and groups. May be called between fork and exec.
pub fn become_user(user: u32, group: u32, others: &[u32]) -> io::Result<()> {
    // SAFETY: the count is the number of groups.
    check(unsafe { setgroups(others.len(), others.as_ptr()) })?;
    // SAFETY: the argument is an integer.
    check(unsafe { setgid(group) })?;
    // SAFETY: the argument is an integer.
    check(unsafe { setuid(user) })?;
    Ok(())
}

/// Sets the mode bits that are cleared in new files. May be called between fork and exec.
pub fn set_umask(mask: u32) {
    // SAFETY: the argument is an integer; the call cannot fail.
    unsafe { umask(mask) };
}

/// Sends a signal to a process, or to a process group by its negative number.
pub fn send_signal(process: i32, signal: i32) {
    // SAFETY: the arguments are integers. A process that has gone needs no signal.
    unsafe { kill(process, signal) };
}

/// The number of a child that has ended and was not waited for.
pub fn ended_child() -> Option<i32> {
    const P_ALL: c_int = 0;
    const WNOHANG: c_int = 1;
    const WEXITED: c_int = 4;
    const WNOWAIT: c_int = 0x0100_0000;
    // siginfo_t has 128 bytes. The child's number is after three integers, and on x86-64 after what
    // aligns the rest to eight bytes.
    const PLACE: usize = if cfg!(target_pointer_width = "64") {
        4
    } else {
        3
    };
    let mut information = [0; 32];
    let options = WEXITED | WNOHANG | WNOWAIT;
    // SAFETY: the kernel writes no more than the structure.
    unsafe { waitid(P_ALL, 0, information.as_mut_ptr(), options) };
    (information[PLACE] > 0).then_some(information[PLACE])
}

/// Waits for the end of any child. Returns its number and its exit code as in a shell.
pub fn wait_for_child() -> Option<(i32, u8)> {
    wait(ANY_CHILD)
}

/// Any child.
const ANY_CHILD: i32 = -1;

/// Waits for the end of one child. Returns its exit code as in a shell.
pub fn wait_for_end(process: i32) -> Option<u8> {
    wait(process).map(|(_, code)| code)
}

fn wait(process: i32) -> Option<(i32, u8)> {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    let process = unsafe { waitpid(process, &mut status, 0) };
    let code = match status & 0x7f {
        0 => (status >> 8) as u8,
        signal => 128 + signal as u8,
    };
    (process > 0).then_some((process, code))
}

/// Unlocks the other side of a new terminal and returns its number.
pub fn other_side(master: &File) -> io::Result<u32> {
    let unlocked: c_int = 0;
    let mut number: u32 = 0;
    // SAFETY: the request reads an integer.
    check(unsafe { ioctl(master.as_raw_fd(), TIOCSPTLCK, &unlocked) })?;
    // SAFETY: the request writes an integer.
    check(unsafe { ioctl(master.as_raw_fd(), TIOCGPTN, &mut number) })?;
    Ok(number)
}

/// Sets a terminal's size.
pub fn set_window_size(terminal: &File, rows: u16, columns: u16) {
    let size = [rows, columns, 0, 0];
    // SAFETY: the request reads four short integers. It has no effect on anything but a terminal.
    unsafe { ioctl(terminal.as_raw_fd(), TIOCSWINSZ, size.as_ptr()) };
}

/// Makes a socket for requests about network interfaces (netdevice(7)).
pub fn interface_socket() -> io::Result<File> {
    const AF_INET: c_int = 2;
    const SOCK_DGRAM: c_int = 2;
    const SOCK_CLOEXEC: c_int = 0o2_000_000;
    use std::os::fd::FromRawFd;
    // SAFETY: the arguments are integers.
    let fd = check(unsafe { socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor has just been made.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The maximum size in bytes of the argument of the requests below (struct rtentry).
pub const REQUEST_BYTES: usize = 128;

/// Makes a request about network interfaces whose argument contains no pointers, or only null ones.
pub fn interface_request(
    socket: &File,
    request: u32,
    argument: &mut [u8; REQUEST_BYTES],
) -> io::Result<()> {
    // SAFETY: requests of netdevice(7) read and write at most a struct rtentry (120 bytes) or
    // ifreq (40), and the argument is larger.
    check(unsafe {
        ioctl(
            socket.as_fd().as_raw_fd(),
            c_ulong::from(request),
            argument.as_mut_ptr(),
        )
    })?;
    Ok(())
}
