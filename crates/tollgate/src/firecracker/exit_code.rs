//! The exit codes of `tollgate-firecracker`, which are Firecracker's.

/// The guest switched itself off or was reset.
pub const SUCCESS: u8 = 0;
/// Something else went wrong.
pub const GENERIC: u8 = 1;
/// A thread made a system call that it may not make.
pub const BAD_SYSTEM_CALL: u8 = 148;
/// The configuration file is wrong, or the machine in it cannot be started.
pub const BAD_CONFIGURATION: u8 = 152;
/// The command line is wrong.
pub const BAD_ARGUMENTS: u8 = 153;

/// The section of `--help` about exit codes.
pub const HELP: &str = "\
Exit codes:
  0      the guest switched itself off, or was reset
  1      something else ended the machine: the log says what
  148    a thread made a system call that it may not make
  152    the configuration file is wrong, or its machine cannot be started
  153    the command line is wrong
  128+n  ended by signal n, such as 143 for SIGTERM
";
