//! A running DOS: its boot, typing into it, and the results.

use super::disk::Disk;
use super::programs::Media;
use super::work::Work;
use crate::experiment::{Arm, LabError, Stop};
use crate::running_guest::{ANSWER, PATIENCE, RunningGuest};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tollgate_exits::reading::Reading;
use tollgate_host_facts::file_words::reading;
use tollgate_machine::boot::firmware;
use tollgate_machine::config::{
    DriveOptions, Format, IdeDrive, MIB, RtcBase, TripleFaultAction, VmConfig,
};
use tollgate_machine::devices::i8042::us_layout::presses;
use tollgate_machine::devices::vga::screen::{Screen, TextScreen, character};
use tollgate_machine::marks::{MarkName, Span};
use tollgate_machine::vm_handle::Query;

/// Size of guest RAM; DOS uses the first part of it.
const MEMORY: u64 = 16 * MIB;
const CODE_CACHE: u64 = 16 * MIB;
/// How often the screen is checked while DOS boots.
const LOOK: Duration = Duration::from_millis(50);
/// More rounds than ever finish: the machine is ended before.
const WITHOUT_END: u16 = u16::MAX;
/// Number of keys that are typed without checking whether they arrived: the BIOS buffers 15.
const AHEAD: usize = 8;
/// Tells the user where to get a DOS.
const WHERE: &str = "FreeDOS has images at www.freedos.org/download";

/// A DOS that shows its prompt.
pub struct DosGuest {
    guest: RunningGuest,
    disk: Disk,
}

/// The result of some work.
pub struct Done {
    /// Rounds, keys, and calls of the hooked vectors, by name.
    pub counters: BTreeMap<String, u64>,
    /// The ledger between the start of the first round and the end of the last one.
    pub reading: Reading,
    /// The text on the screen afterwards, line by line.
    pub screen: Vec<String>,
}

impl Done {
    /// The time in seconds that the rounds took.
    pub fn seconds(&self) -> f64 {
        self.reading.shares.wall as f64 / (self.reading.tsc_khz.max(1) as f64 * 1000.0)
    }

    /// The value of a counter.
    pub fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// Checks the image that a user names.
///
/// # Errors
///
/// [`LabError::NotRun`] if it cannot be read, or if there is no firmware to boot it.
pub fn check_image(path: &Path) -> Result<(), LabError> {
    firmware::find().map_err(LabError::NotRun)?;
    std::fs::File::open(path).map(drop).map_err(|error| {
        let (path, why) = (path.display(), reading(&error));
        LabError::NotRun(format!(
            "--guest-image dos: cannot read '{path}': {why}; {WHERE}"
        ))
    })
}

impl DosGuest {
    /// Boots DOS on a machine with these knobs, until the prompt of C: appears. `prepare` is called
    /// on the machine's thread.
    ///
    /// # Errors
    ///
    /// The machine cannot be built, DOS does not show its prompt, or the experiment should stop.
    pub fn boot(
        media: &Media,
        knobs: &VmConfig,
        stop: &Stop,
        prepare: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<Self, LabError> {
        let files = media.files.iter();
        let files: Vec<(&str, &[u8])> = files.map(|(name, it)| (&**name, &**it)).collect();
        let disk = Disk::with(&files)
            .map_err(|error| LabError::Host(format!("a disk for DOS: {error}")))?;
        let config = config(&media.floppy, &disk, knobs)?;
        let guest = RunningGuest::start(config, stop, prepare);
        let mut dos = Self { guest, disk };
        dos.prompt_of('A')?;
        dos.type_line("c:")?;
        dos.prompt_of('C')?;
        dos.rest();
        Ok(dos)
    }

    /// Sets the knobs to those of an arm.
    ///
    /// # Errors
    ///
    /// The machine does not respond.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        self.guest.turn(arm)
    }

    /// Makes DOS work this number of rounds, or without a script wait this number of clock ticks,
    /// and checks the result.
    ///
    /// # Errors
    ///
    /// DOS did something else, or nothing; or the experiment should stop.
    pub fn run(&mut self, work: &Work, rounds: u16, ticks: u16) -> Result<Done, LabError> {
        self.wake();
        let file = work.script_file.unwrap_or("-").to_ascii_lowercase();
        self.type_line(&format!("hooks {rounds} {ticks} {file}"))?;
        self.guest
            .wait_for(|text| text.find("done ").filter(|at| text[*at..].contains('\n')))?;
        let line = self.guest.take_text();
        let done = Done {
            counters: counters(&line),
            reading: self.reading()?,
            screen: lines(&self.screen()?),
        };
        self.rest();
        self.check(work, rounds, &done)?;
        Ok(done)
    }

    /// Makes the guest send every character that DOS displays to the serial port, for
    /// [`DosGuest::echo_of`].
    ///
    /// # Errors
    ///
    /// DOS does not accept the command.
    pub fn begin_echo(&mut self) -> Result<(), LabError> {
        self.wake();
        self.type_line("hooks 0 0 -")?;
        self.echoed_prompt()?;
        self.rest();
        Ok(())
    }

    /// Presses the key of a character at the prompt, and measures the time until the character is
    /// displayed.
    ///
    /// # Errors
    ///
    /// The character does not appear.
    pub fn echo_of(&mut self, character: char) -> Result<Duration, LabError> {
        self.guest.take_text();
        let typed = Instant::now();
        self.press(character)?;
        // The line feed after it makes the guest send it immediately.
        let shown = format!("{character}\n");
        let (_, when) = self
            .guest
            .wait_for(|text| text.find(&shown).map(|at| at + shown.len()))?;
        Ok(when.saturating_duration_since(typed))
    }

    /// Presses Enter in echo mode, and waits for the next prompt.
    ///
    /// # Errors
    ///
    /// The prompt does not appear.
    pub fn enter_echoed(&mut self) -> Result<(), LabError> {
        self.press('\n')?;
        self.echoed_prompt()
    }

    fn echoed_prompt(&mut self) -> Result<(), LabError> {
        self.guest
            .wait_for(|text| text.ends_with(">\n").then_some(text.len()))
            .map(drop)
    }

    /// Makes DOS work until the machine is ended.
    ///
    /// # Errors
    ///
    /// DOS does not accept the command.
    pub fn begin_without_end(&mut self, work: &Work) -> Result<(), LabError> {
        self.wake();
        let file = work.script_file.unwrap_or("-").to_ascii_lowercase();
        self.type_line(&format!("hooks {WITHOUT_END} 0 {file}"))?;
        self.rest();
        Ok(())
    }

    /// The present content of the machine's ledger.
    ///
    /// # Errors
    ///
    /// The machine has ended.
    pub fn all_readings(&mut self) -> Result<Arc<Reading>, LabError> {
        self.guest.reading()
    }

    /// Resumes the machine, which is paused between two pieces of work.
    pub fn wake(&self) {
        self.guest.handle().resume();
    }

    /// Pauses the machine: at its prompt, DOS polls continuously.
    pub fn rest(&self) {
        self.guest.handle().pause();
    }

    fn check(&self, work: &Work, rounds: u16, done: &Done) -> Result<(), LabError> {
        let wrong = |why: String| Err(LabError::WorkNotDone(format!("{}: {why}", work.name)));
        let keys = u64::from(rounds) * work.scancodes().len() as u64;
        for (name, expected) in [("rounds", u64::from(rounds)), ("typed", keys)] {
            let found = done.count(name);
            if found != expected {
                return wrong(format!("{name} {found} instead of {expected}"));
            }
        }
        for (name, expected) in &work.files {
            match self.disk.read(name) {
                Ok(content) if content == expected.as_bytes() => {}
                Ok(content) => {
                    return wrong(format!(
                        "the file {name} has other content: {} bytes instead of {}",
                        content.len(),
                        expected.len()
                    ));
                }
                Err(error) => return wrong(format!("the file {name}: {error}")),
            }
        }
        for expected in &work.shown {
            if !done.screen.iter().any(|line| line == expected) {
                let screen = done.screen.join(" | ");
                return wrong(format!("'{expected}' is not on the screen: {screen}"));
            }
        }
        Ok(())
    }

    /// The ledger between the marks that the resident program has set.
    fn reading(&mut self) -> Result<Reading, LabError> {
        let name = |text: &str| text.parse::<MarkName>().ok();
        let span = Span {
            since: name("begin"),
            until: name("end"),
        };
        let query = Query {
            span: Some(span),
            mark: None,
        };
        let number = self.guest.handle().query(query);
        let end = Instant::now() + ANSWER;
        loop {
            if let Some(answer) = self.guest.handle().fetch(number) {
                let reading = answer.reading.unwrap_or_else(|| Err("no answer".into()));
                return reading.map_err(LabError::WorkNotDone);
            }
            if Instant::now() > end {
                return Err(self.guest.silent("the machine does not answer"));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Reads the text on the screen.
    fn screen(&mut self) -> Result<TextScreen, LabError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let request = self.guest.handle().request_screen(false);
            let answer = Instant::now() + ANSWER;
            while Instant::now() < answer {
                if let Some(shown) = self.guest.handle().screen_after(request) {
                    if let Screen::Text(text) = &shown.screen {
                        return Ok(text.clone());
                    }
                    break;
                }
                if self.guest.is_to_end() {
                    return Err(LabError::Interrupted);
                }
                self.guest.check_running()?;
                thread::sleep(Duration::from_millis(2));
            }
            // The firmware has not set a display mode yet.
            if Instant::now() > end {
                return Err(self.guest.silent("nothing is on the screen"));
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until the line with the cursor is as wanted. If DOS asks for the date or the time
    /// before that, they are left unchanged.
    fn line_that(&mut self, what: &str, is_wanted: impl Fn(&str) -> bool) -> Result<(), LabError> {
        let end = Instant::now() + PATIENCE;
        let mut answered = String::new();
        loop {
            let screen = self.screen()?;
            let line = line_of_cursor(&screen);
            if is_wanted(&line) {
                return Ok(());
            }
            let asks = ["date", "time"].iter().any(|word| {
                let line = line.to_ascii_lowercase();
                line.contains(word) && line.trim_end().ends_with(':')
            });
            if asks && line != answered {
                self.press('\n')?;
                answered = line;
            }
            if self.guest.is_to_end() {
                return Err(LabError::Interrupted);
            }
            if Instant::now() > end {
                let screen = lines(&screen).join(" | ");
                return Err(LabError::WorkNotDone(format!(
                    "DOS does not show {what}; on its screen: {screen}"
                )));
            }
            thread::sleep(LOOK);
        }
    }

    fn prompt_of(&mut self, drive: char) -> Result<(), LabError> {
        self.line_that(&format!("the prompt of drive {drive}:"), |line| {
            line.starts_with(drive) && line.trim_end().ends_with('>')
        })
    }

    /// Types a line at the prompt, at most as many keys at a time as the BIOS buffers for a slow
    /// DOS.
    fn type_line(&mut self, line: &str) -> Result<(), LabError> {
        let mut typed = String::new();
        for character in line.chars() {
            self.press(character)?;
            typed.push(character);
            if typed.len().is_multiple_of(AHEAD) || typed.len() == line.len() {
                self.line_that(&format!("'{typed}'"), |shown| shown.ends_with(&typed))?;
            }
        }
        self.press('\n')
    }

    fn press(&mut self, character: char) -> Result<(), LabError> {
        let keys = presses(character).unwrap_or_default();
        let end = Instant::now() + ANSWER;
        while !self.guest.handle().keys(&keys) {
            if Instant::now() > end {
                return Err(self.guest.silent("DOS does not read what is typed"));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

fn config(image: &Path, disk: &Disk, knobs: &VmConfig) -> Result<VmConfig, LabError> {
    let floppy = DriveOptions {
        format: Some(Format::Raw),
        snapshot: true,
        ..DriveOptions::new(image)
    };
    let disk = DriveOptions {
        format: Some(Format::Raw),
        ..DriveOptions::new(disk.path())
    };
    let mut fw_cfg_files = knobs.fw_cfg_files.clone();
    fw_cfg_files.extend(firmware::find_video());
    Ok(VmConfig {
        memory_bytes: MEMORY,
        code_cache_bytes: CODE_CACHE,
        firmware: Some(firmware::find().map_err(LabError::NotRun)?),
        triple_fault: TripleFaultAction::Reset,
        rtc_base: RtcBase::Local,
        floppies: vec![Some(floppy)],
        ide_drives: IdeDrive::place(vec![IdeDrive::Disk(disk, None)], None)
            .map_err(|error| LabError::Host(error.to_string()))?,
        fw_cfg_files,
        ..knobs.clone()
    })
}

/// The counters in the line that the resident program sends: `done NAME=HEX...`.
fn counters(line: &str) -> BTreeMap<String, u64> {
    let words = line.split_whitespace();
    let pairs = words.filter_map(|word| word.split_once('='));
    pairs
        .filter_map(|(name, value)| {
            let value = u64::from_str_radix(value, 16).ok()?;
            Some((name.to_owned(), value))
        })
        .collect()
}

fn lines(screen: &TextScreen) -> Vec<String> {
    screen.lines().collect()
}

/// The line with the cursor, up to the cursor.
fn line_of_cursor(screen: &TextScreen) -> String {
    let Some((column, row)) = screen.cursor else {
        return String::new();
    };
    let line = screen.characters.chunks(screen.columns.max(1)).nth(row);
    let before = line.unwrap_or_default().iter().take(column);
    before.copied().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_their_line() {
        let counted = counters(" done rounds=00000003 typed=0000001A int16=000FFFFF\r\n");
        assert_eq!(counted["rounds"], 3);
        assert_eq!(counted["typed"], 26);
        assert_eq!(counted["int16"], 0xf_ffff);
        assert_eq!(counted.len(), 3);
    }
}
