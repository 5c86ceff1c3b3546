//! The flags of `tollgate run` about statistics.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::{Format, Sort, SymbolSource};
use crate::size;
use tollgate_machine::marks::{MarkName, Span};

/// The least size of a trace: room for its frame and some exits.
const LEAST_TRACE: u64 = 64 << 10;

/// Flags about statistics.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Statistics")]
pub struct StatisticsArguments {
    /// Show at the end where time went, which exits there were, and where they came from
    ///
    /// The table goes to standard error.
    #[arg(long)]
    pub stats: bool,

    /// Show them in another format (implies --stats)
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub stats_format: Option<Format>,

    /// Write them to this file instead (implies --stats)
    #[arg(long, value_name = "PATH")]
    pub stats_file: Option<PathBuf>,

    /// Draw them into this file too, .svg or .png (implies --stats)
    #[arg(long, value_name = "PATH")]
    pub stats_plot: Option<PathBuf>,

    /// What comes first in the table
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    pub stats_sort: Sort,

    /// Show so many lines of each list in the table
    #[arg(long, value_name = "N", value_parser = top)]
    pub stats_top: Option<usize>,

    /// Show what happened from this mark on (implies --stats)
    ///
    /// Marks are set by 'tollgate mark' or by the guest (docs/reference/hypercalls.md). One that is set
    /// again counts from then.
    #[arg(long, value_name = "MARK")]
    pub stats_from: Option<MarkName>,

    /// Show what happened up to this mark (implies --stats)
    #[arg(long, value_name = "MARK")]
    pub stats_to: Option<MarkName>,

    /// Names for guest addresses: System.map, a saved /proc/kallsyms, or an ELF file
    ///
    /// A Linux kernel that runs elsewhere than its System.map says (KASLR) is found by
    /// its entry point for system calls; FILE@0x1000000 says by how much it lies higher. The
    /// guest's own /proc/kallsyms is right as it is, for that run: with nokaslr on the
    /// kernel's command line, for every run.
    ///
    /// May be given several times, for programs too: the first file that knows an address names
    /// it. FILE,space=1234000 is only for that address space, as statistics show it.
    #[arg(
        long,
        value_name = "FILE",
        value_parser = OsStringValueParser::new().try_map(SymbolSource::parse)
    )]
    pub symbols: Vec<SymbolSource>,

    /// Estimate what the run would take at another machine's exit costs
    ///
    /// Examples of such tables, and their format, are in docs/reference/price-tables.
    #[arg(long, value_name = "FILE")]
    pub price_table: Option<PathBuf>,

    /// Count guest instructions too, and the host instructions that stand for them (slows the guest)
    #[arg(long)]
    pub count_instructions: bool,

    /// Record every exit with its time, for Perfetto's viewer
    ///
    /// The file is JSON; open it at https://ui.perfetto.dev. Recording slows the guest.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Most that --trace writes; what comes later is not recorded (but see --trace-ring)
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = trace_limit)]
    pub trace_limit: u64,

    /// Have the file keep the last exits that fit, not the first
    #[arg(long, requires = "trace")]
    pub trace_ring: bool,

    /// Record from this mark on ('tollgate mark', or the guest's)
    #[arg(long, value_name = "MARK", requires = "trace")]
    pub trace_from: Option<MarkName>,

    /// Record up to this mark; where both are set again, the trace goes on
    #[arg(long, value_name = "MARK", requires = "trace")]
    pub trace_to: Option<MarkName>,

    /// Write /tmp/perf-PID.map at the end, so that perf names translated code
    #[arg(long)]
    pub perf_map: bool,
}

impl StatisticsArguments {
    /// A report at the end was asked for, in one way or another.
    pub fn wants_report(&self) -> bool {
        self.stats
            || self.stats_format.is_some()
            || self.stats_file.is_some()
            || self.stats_plot.is_some()
            || self.span() != Span::default()
    }

    /// Between which marks they tell.
    pub fn span(&self) -> Span {
        Span {
            since: self.stats_from,
            until: self.stats_to,
        }
    }
}

/// A number of lines.
///
/// # Errors
/// It is none.
pub fn top(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(lines) if lines > 0 => Ok(lines),
        _ => Err("expected a number of lines, such as 10".into()),
    }
}

fn trace_limit(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < LEAST_TRACE => Err("a trace needs at least 64K".into()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_or_a_file_asks_for_statistics_too() {
        assert!(!StatisticsArguments::default().wants_report());
        let with_format = StatisticsArguments {
            stats_format: Some(Format::Json),
            ..Default::default()
        };
        assert!(with_format.wants_report());
        let with_file = StatisticsArguments {
            stats_file: Some("x".into()),
            ..Default::default()
        };
        assert!(with_file.wants_report());
    }

    #[test]
    fn a_trace_has_room_for_something() {
        assert_eq!(trace_limit("64K"), Ok(64 << 10));
        assert!(trace_limit("63K").is_err());
        assert!(trace_limit("much").is_err());
    }
}
