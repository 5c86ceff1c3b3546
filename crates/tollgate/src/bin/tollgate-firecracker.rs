//! The `tollgate-firecracker` command: Firecracker's REST interface in front of Tollgate's machines.
//! Everything is in the library `tollgate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate::firecracker_main()
}
