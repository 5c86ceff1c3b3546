//! Statistics and traces: flags that `tollgate run` and `tollgate exec` share.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::symbols::SymbolSource;
use super::view::{Format, Sort};
use crate::size;
use tollgate_machine::marks::{MarkName, Span};

/// The smallest limit of a trace's size: room for its frame and some exits.
const LEAST_TRACE: u64 = 64 << 10;

/// Flags about statistics.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Statistics")]
pub struct StatisticsArguments {
    /// Show at the end where the time went, which exits there were, and where they came from
    ///
    /// The table goes to standard error.
    #[arg(long)]
    pub stats: bool,

    /// Format of the statistics (implies --stats)
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub stats_format: Option<Format>,

    /// Write the statistics to this file instead (implies --stats)
    #[arg(long, value_name = "PATH")]
    pub stats_file: Option<PathBuf>,

    /// Draw the statistics into this file too, .svg or .png (implies --stats)
    #[arg(long, value_name = "PATH")]
    pub stats_plot: Option<PathBuf>,

    /// Order of the lists in the table
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    pub stats_sort: Sort,

    /// Number of lines that each list in the table has at most
    #[arg(long, value_name = "N", value_parser = top)]
    pub stats_top: Option<usize>,

    /// Show what happened since this mark (implies --stats)
    ///
    /// 'tollgate mark' or the guest sets marks (docs/reference/hypercalls.md). If a mark is set
    /// several times, the last time counts.
    #[arg(long, value_name = "MARK", alias = "stats-from")]
    pub stats_since: Option<MarkName>,

    /// Show what happened until this mark (implies --stats)
    #[arg(long, value_name = "MARK", alias = "stats-to")]
    pub stats_until: Option<MarkName>,

    /// Names for guest addresses: System.map, a saved /proc/kallsyms, or an ELF file
    ///
    /// If a Linux kernel runs at other addresses than its System.map says (KASLR), the difference is
    /// derived from the kernel's entry point for system calls; FILE@0x1000000 states the difference.
    /// The guest's own /proc/kallsyms has the addresses of that run; with nokaslr on the kernel's
    /// command line they hold for every run.
    ///
    /// May be given several times, for programs too: the first file that knows an address names
    /// it. FILE,space=1234000 applies to that address space only, as statistics show it.
    #[arg(
        long,
        value_name = "FILE",
        value_parser = OsStringValueParser::new().try_map(SymbolSource::parse)
    )]
    pub symbols: Vec<SymbolSource>,

    /// Estimate how long the run would take at another machine's exit costs
    ///
    /// docs/reference/price-tables has examples of such tables, and describes their format.
    #[arg(long, value_name = "FILE")]
    pub price_table: Option<PathBuf>,

    /// Count guest instructions, and the host instructions that replace them (slows the guest)
    #[arg(long)]
    pub count_instructions: bool,

    /// Record every exit with its time, for Perfetto's viewer
    ///
    /// The file is JSON; open it at https://ui.perfetto.dev. Recording slows the guest.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Maximum size of the trace; later exits are not recorded (but see --trace-ring)
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = trace_limit)]
    pub trace_limit: u64,

    /// Keep the last exits that fit into the trace, not the first
    #[arg(long, requires = "trace")]
    pub trace_ring: bool,

    /// Record since this mark, which 'tollgate mark' or the guest sets
    #[arg(long, value_name = "MARK", requires = "trace", alias = "trace-from")]
    pub trace_since: Option<MarkName>,

    /// Record until this mark; if both marks are set again, recording continues
    #[arg(long, value_name = "MARK", requires = "trace", alias = "trace-to")]
    pub trace_until: Option<MarkName>,

    /// Write /tmp/perf-PID.map at the end, so that perf names translated code
    #[arg(long)]
    pub perf_map: bool,
}

impl StatisticsArguments {
    /// Whether any flag asks for a report at the end.
    pub fn wants_report(&self) -> bool {
        self.stats
            || self.stats_format.is_some()
            || self.stats_file.is_some()
            || self.stats_plot.is_some()
            || self.span() != Span::default()
    }

    /// The marks between which statistics are shown.
    pub fn span(&self) -> Span {
        Span {
            since: self.stats_since,
            until: self.stats_until,
        }
    }
}

/// Parses a number of lines.
///
/// # Errors
/// The text is not a number, or is zero.
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
