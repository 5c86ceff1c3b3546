//! The log of `tollgate-firecracker`: lines with a time, a level and the machine's name.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_firecracker::Logger;
use tollgate_host_facts::file_words::writing;

use crate::failure::one_line;

/// How important a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Nothing is written.
    Off,
    /// Something failed.
    Error,
    /// Something is not as asked for.
    Warning,
    /// Something has changed.
    Info,
    /// Everything else.
    Debug,
}

impl Level {
    /// The level of this name, which was checked.
    fn named(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "off" => Self::Off,
            "error" => Self::Error,
            "warning" | "warn" => Self::Warning,
            "info" => Self::Info,
            _ => Self::Debug,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Off => "OFF",
            Self::Error => "ERROR",
            Self::Warning => "WARN",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
        }
    }
}

/// Where lines go, and which.
pub struct Log {
    id: String,
    level: Level,
    shows_level: bool,
    file: Option<File>,
}

impl Log {
    /// A log on standard error.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            level: Level::Info,
            shows_level: false,
            file: None,
        }
    }

    /// Changes what the logger's fields name.
    ///
    /// # Errors
    /// One line says why the file cannot be written.
    pub fn set(&mut self, logger: &Logger) -> Result<(), String> {
        if let Some(path) = &logger.log_path {
            self.file = Some(open(path, "log_path")?);
        }
        if let Some(level) = &logger.level {
            self.level = Level::named(level);
        }
        self.shows_level = logger.show_level.unwrap_or(self.shows_level);
        Ok(())
    }

    /// Writes a line.
    pub fn write(&self, level: Level, text: &str) {
        if level > self.level {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = written_time(since.map_or(0, |since| since.as_millis() as u64));
        let id = &self.id;
        let name = match self.shows_level {
            true => format!(":{}", level.name()),
            false => String::new(),
        };
        let line = format!("{time} [{id}{name}] {}\n", one_line(text));
        // A log that cannot be written is no reason to end.
        let _ = match &self.file {
            Some(file) => (&*file).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }
}

/// Opens a file or a named pipe to write to its end, and never waits for its reader.
///
/// # Errors
/// One line that begins with the field's name.
pub fn open(path: &Path, field: &str) -> Result<File, String> {
    OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| {
            let why = writing(&error);
            format!("{field}: cannot write '{}': {why}", path.display())
        })
}

/// A time of UTC, from milliseconds since 1970: `2026-11-28T04:05:06.789`.
fn written_time(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    // Years begin in March here, so that the leap day is the last one; 719468 days from 0000-03-01.
    let days = seconds / 86400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..=9 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let rest = milliseconds % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest:03}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00.000"),
            (951_782_399, "2000-02-28T23:59:59.000"),
            (951_782_400, "2000-02-29T00:00:00.000"),
            (951_868_800, "2000-03-01T00:00:00.000"),
            (4_107_542_400, "2100-03-01T00:00:00.000"),
        ] {
            assert_eq!(written_time(seconds * 1000), date);
        }
    }
}
