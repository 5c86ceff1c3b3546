//! The exit codes of the `tollgate` command. This is the only list; `--help` is made from it.

/// The guest was switched off, was reset without `--reboot`, or was ended by the user.
pub const SUCCESS: u8 = 0;
/// The host cannot run virtual machines, or a control command failed.
pub const HOST: u8 = 1;
/// The command line or an input file is wrong.
pub const USAGE: u8 = 2;
/// The guest shut its processor down with a triple fault.
pub const TRIPLE_FAULT: u8 = 3;
/// The guest needs something that Tollgate cannot do or has taken more memory than `--limit` allows, or
/// Tollgate itself failed.
pub const STOPPED: u8 = 4;
/// The guest's kernel reported a panic.
pub const PANIC: u8 = 5;
/// The guest was reset, if `--exit-on reset` asks for a code.
pub const RESET: u8 = 6;
/// The guest ended well, but output that was asked for could not be written.
pub const OUTPUT_LOST: u8 = 8;

/// `tollgate exec` failed, whatever the reason.
pub const EXEC_FAILED: u8 = tollgate_agent::protocol::code::FAILED;

/// Rows of the exit-code table: code and meaning.
const TABLE: &[(&str, &str)] = &[
    (
        "0",
        "the guest switched off, was reset (without --reboot), or you quit",
    ),
    (
        "1",
        "this host cannot run tollgate (see tollgate doctor), or a control command failed",
    ),
    ("2", "a wrong flag, value, path or input file"),
    (
        "3",
        "triple fault (unless --triple-fault reset); the registers are on standard error",
    ),
    (
        "4",
        "stopped: something is unsupported, tollgate failed, or --limit memory= was exceeded",
    ),
    (
        "5",
        "the guest's kernel reported a panic (by pvpanic, port 505h)",
    ),
    ("6", "the guest was reset, with --exit-on reset"),
    (
        "8",
        "instead of 0: output, statistics or a trace could not be written in full",
    ),
    (
        "2n+1",
        "the guest wrote n to isa-debug-exit, port F4h (n = 0, 1, 2 look like 1, 3, 5)",
    ),
    ("128+n", "ended by signal n, such as 143 for SIGTERM"),
];

/// The exit code that isa-debug-exit makes of the byte that the guest wrote, as QEMU does: the low
/// eight bits of `(value << 1) | 1`.
pub const fn debug_exit(value: u8) -> u8 {
    (value << 1) | 1
}

/// The exit code for an end by a signal, as shells count it.
pub fn for_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

/// The section of `--help` about exit codes.
pub fn help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (code, meaning) in TABLE {
        text.push_str(&format!("  {code:<6} {meaning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_exit_makes_every_code_odd() {
        assert_eq!(debug_exit(0), 1);
        assert_eq!(debug_exit(0x10), 0x21);
        assert_eq!(debug_exit(0xff), 0xff);
    }

    #[test]
    fn signals_count_from_128() {
        assert_eq!(for_signal(15), 143);
        assert_eq!(for_signal(-1), 255);
    }
}
