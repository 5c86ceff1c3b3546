//! The `tollgate-qemu` command: QEMU's command line in front of Tollgate's machines.
//! Everything is in the library `tollgate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate::qemu_main()
}
