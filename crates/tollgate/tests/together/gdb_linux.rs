//! Tests that a debugger stops Linux's first program, seconds after the start of its kernel, and that
//! the guest runs at its own speed up to there.

use std::fs;

use crate::gdb::Gdb;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;

#[test]
fn the_first_program_of_a_boot_stops_where_it_begins_and_when_it_writes() {
    let program = fs::read(fetched("busybox-amd64/busybox")).unwrap();
    // The entry point of an ELF file, which is linked for a fixed address.
    let entry = u64::from_le_bytes(program[24..32].try_into().unwrap());
    let folder = Folder::new();
    let socket = folder.path("gdb");
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "512M", "--gdb-wait", "--gdb"]);
    command.arg(format!("unix:{}", socket.display()));
    let mut guest = Session::over_pipes(command);
    let mut gdb = Gdb::connect(&socket);
    // Both kinds of breakpoint are alike. One is in a page to which the guest never comes.
    assert_eq!(gdb.ask(&format!("Z0,{entry:x},1")), "OK");
    assert_eq!(gdb.ask("Z1,ffffffffc0000123,1"), "OK");
    assert_eq!(gdb.ask("c"), "S05");
    assert_eq!(gdb.pointer(), entry);
    if gdb.memory(entry, 4) == "E0e" {
        // The breakpoint is met before the fault that brings the page, and again after it.
        assert_eq!(gdb.ask("c"), "S05");
        assert_eq!(gdb.pointer(), entry);
    }
    // The program has its own bytes there, and its arguments on the stack.
    assert_eq!(gdb.memory(entry, 4), "31ed4989");
    let stack = gdb.stack_pointer();
    assert_eq!(gdb.memory(stack + 4, 4), "00000000");
    assert_eq!(gdb.ask(&format!("z0,{entry:x},1")), "OK");
    // _start takes the count of arguments from the stack, aligns the stack and pushes two registers.
    let pushed = ((stack + 8) & !15) - 8;
    assert_eq!(gdb.ask(&format!("Z2,{pushed:x},8")), "OK");
    assert!(gdb.ask("c").contains(&format!("watch:{pushed:x};")));
    assert_eq!(gdb.stack_pointer(), pushed);
    assert_eq!(gdb.ask(&format!("z2,{pushed:x},8")), "OK");
    assert_eq!(gdb.ask("D"), "OK");
    drop(gdb);
    linux::wait_for_shell(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}
