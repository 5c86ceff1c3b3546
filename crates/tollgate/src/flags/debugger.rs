//! Flags about a debugger that controls the guest.

use clap::Args;

use crate::gdb::{self, GdbOptions};

/// Flags of `tollgate run` about a debugger.
#[derive(Args, Debug)]
#[command(next_help_heading = "Debugger")]
pub struct DebuggerArguments {
    /// Let gdb debug the guest: tcp:[HOST]:PORT or unix:PATH
    ///
    /// In gdb: target remote :PORT, or target remote PATH. The guest stops while gdb is connected,
    /// unless it lets the guest continue; 'monitor help' shows further commands. Without HOST the
    /// port is that of 127.0.0.1. Breakpoints and watched memory are not visible to the guest, and
    /// make it slow. Add ,i386 for a 32-bit guest, whose gdb wants 32-bit registers.
    #[arg(long, value_name = "WHERE", value_parser = gdb::parse, verbatim_doc_comment)]
    pub gdb: Option<GdbOptions>,

    /// With --gdb: do not start the guest before gdb lets it continue
    #[arg(long, requires = "gdb")]
    pub gdb_wait: bool,
}
