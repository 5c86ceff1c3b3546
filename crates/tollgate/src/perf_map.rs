//! `--perf-map`: writes the addresses of translated code for perf(1).
//!
//! perf reads `/tmp/perf-PID.map` when it reports, after the process has ended. It has a line
//! `START SIZE NAME` for each piece of code, with hexadecimal numbers.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use tollgate_exits::snapshot::SymbolAt;
use tollgate_machine::vm::{TranslatedBlock, Vm};

use crate::failure::say;
use crate::statistics::Reporter;

/// Writes the map of the blocks that exist now, without those that were dropped before. If the map
/// cannot be written, this reports it and returns false.
pub fn write(vm: &Vm, reporter: &Reporter) -> bool {
    let path = PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()));
    let names = reporter.names(vm.reading().system_call_entry);
    let lines = vm.translated_blocks().map(|block| {
        // A block belongs to no address space: its guest code may be mapped in several.
        let symbol = names.in_any_space(block.linear);
        line(&block, symbol)
    });
    let written = write_lines(&path, lines);
    if let Err(error) = &written {
        say(&format!(
            "--perf-map: cannot write '{}': {}",
            path.display(),
            tollgate_host_facts::file_words::writing(error)
        ));
    }
    written.is_ok()
}

fn line(block: &TranslatedBlock, symbol: Option<SymbolAt<'_>>) -> String {
    let symbol = symbol.map_or_else(String::new, |at| format!(" {}+{:#x}", at.name, at.distance));
    format!(
        "{:x} {:x} guest_{:08x}{symbol}\n",
        block.host, block.bytes, block.linear
    )
}

fn write_lines(path: &PathBuf, lines: impl Iterator<Item = String>) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // The name can be guessed, so a link that another user has put there must not be followed.
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let mut file = BufWriter::new(file);
    for line in lines {
        file.write_all(line.as_bytes())?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_start_size_and_name() {
        let block = TranslatedBlock {
            host: 0x7f00_0000_1230,
            bytes: 0x45,
            linear: 0xc100_0012,
        };
        assert_eq!(line(&block, None), "7f0000001230 45 guest_c1000012\n");
        let symbol = SymbolAt {
            name: "_stext",
            distance: 0x12,
        };
        assert_eq!(
            line(&block, Some(symbol)),
            "7f0000001230 45 guest_c1000012 _stext+0x12\n"
        );
    }
}
