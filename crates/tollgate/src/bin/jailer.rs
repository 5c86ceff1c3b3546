//! The `jailer` command, which starts `tollgate-firecracker`. Everything is in the library `tollgate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate::jailer_main()
}
