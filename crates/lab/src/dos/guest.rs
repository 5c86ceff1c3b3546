//! A DOS that runs: its boot, what is typed into it, and what came of it.

use super::disk::Disk;
use super::work::{Work, files};
use crate::experiment::{Arm, LabError, Stop};
use crate::running_guest::{ANSWER, PATIENCE, RunningGuest};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tollgate_exits::books::Books;
use tollgate_machine::boot::firmware;
use tollgate_machine::config::{
    DriveOptions, Format, IdeDrive, MIB, RtcBase, TripleFaultAction, VmConfig,
};
use tollgate_machine::devices::i8042::us_layout::presses;
use tollgate_machine::devices::vga::screen::{Screen, TextScreen, character};
use tollgate_machine::file_words::reading;
use tollgate_machine::marks::{MarkName, Span};
use tollgate_machine::vm_handle::Query;

/// Guest RAM: DOS uses the first of it.
const MEMORY: u64 = 16 * MIB;
const CODE_CACHE: u64 = 16 * MIB;
/// How often the screen is looked at while DOS boots.
const LOOK: Duration = Duration::from_millis(50);
/// Rounds of which nobody waits for the last: the machine is ended before.
const WITHOUT_END: u16 = u16::MAX;
/// Keys that are typed without looking whether they came: the BIOS keeps 15.
const AHEAD: usize = 8;
/// Where a user gets a DOS.
const WHERE: &str = "FreeDOS has images at www.freedos.org/download";

/// A DOS at its prompt.
pub struct DosGuest {
    guest: RunningGuest,
    disk: Disk,
}

/// What some work came to.
pub struct Done {
    /// Rounds, keys, and calls of the hooked vectors, by name.
    pub counters: BTreeMap<String, u64>,
    /// Between the first round's begin and the last one's end.
    pub books: Books,
    /// The characters on the screen afterwards, by lines.
    pub screen: Vec<String>,
}

impl Done {
    /// Seconds that the rounds took.
    pub fn seconds(&self) -> f64 {
        self.books.shares.wall as f64 / (self.books.tsc_khz.max(1) as f64 * 1000.0)
    }

    /// A counter.
    pub fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// Looks at the image that a user names.
///
/// # Errors
/// [`LabError::NotRun`]: it cannot be read, or there is no firmware to boot it.
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
    /// Boots the floppy disk on a machine with these knobs, to the prompt of C:. `prepare` is called on the
    /// machine's thread.
    ///
    /// # Errors
    /// The machine cannot be built, DOS does not come to its prompt, or the experiment is to end.
    pub fn boot(
        image: &Path,
        knobs: &VmConfig,
        stop: &Stop,
        prepare: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<Self, LabError> {
        let files = files();
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, it)| (*name, &**it)).collect();
        let disk = Disk::with(&files)
            .map_err(|error| LabError::Host(format!("a disk for DOS: {error}")))?;
        let config = config(image, &disk, knobs)?;
        let guest = RunningGuest::start(config, stop, prepare);
        let mut dos = Self { guest, disk };
        dos.prompt_of('A')?;
        dos.type_line("c:")?;
        dos.prompt_of('C')?;
        dos.rest();
        Ok(dos)
    }

    /// Turns the knobs of an arm.
    ///
    /// # Errors
    /// The machine does not answer.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        self.guest.turn(arm)
    }

    /// Has DOS work so many rounds, or without a script wait so many ticks of its clock, and checks what it did.
    ///
    /// # Errors
    /// It did something else, or nothing; or the experiment is to end.
    pub fn run(&mut self, work: &Work, rounds: u16, ticks: u16) -> Result<Done, LabError> {
        self.wake();
        let file = work.script_file.unwrap_or("-").to_ascii_lowercase();
        self.type_line(&format!("hooks {rounds} {ticks} {file}"))?;
        self.guest
            .wait_for(|text| text.find("done ").filter(|at| text[*at..].contains('\n')))?;
        let line = self.guest.take_text();
        let done = Done {
            counters: counters(&line),
            books: self.books()?,
            screen: lines(&self.screen()?),
        };
        self.rest();
        self.check(work, rounds, &done)?;
        Ok(done)
    }

    /// Has every character that DOS shows sent to the serial port from now on, for [`DosGuest::echo_of`].
    ///
    /// # Errors
    /// DOS does not take the command.
    pub fn begin_echo(&mut self) -> Result<(), LabError> {
        self.wake();
        self.type_line("hooks 0 0 -")?;
        self.echoed_prompt()?;
        self.rest();
        Ok(())
    }

    /// Presses the key of a character at the prompt: how long it takes until the character is shown.
    ///
    /// # Errors
    /// It does not come.
    pub fn echo_of(&mut self, character: char) -> Result<Duration, LabError> {
        self.guest.take_text();
        let typed = Instant::now();
        self.press(character)?;
        // The line feed behind it sends it at once.
        let shown = format!("{character}\n");
        let (_, when) = self
            .guest
            .wait_for(|text| text.find(&shown).map(|at| at + shown.len()))?;
        Ok(when.saturating_duration_since(typed))
    }

    /// Presses Enter while all is echoed, and waits for the next prompt.
    ///
    /// # Errors
    /// It does not come.
    pub fn enter_echoed(&mut self) -> Result<(), LabError> {
        self.press('\n')?;
        self.echoed_prompt()
    }

    fn echoed_prompt(&mut self) -> Result<(), LabError> {
        self.guest
            .wait_for(|text| text.ends_with(">\n").then_some(text.len()))
            .map(drop)
    }

    /// Has DOS work without an end.
    ///
    /// # Errors
    /// DOS does not take the command.
    pub fn begin_without_end(&mut self, work: &Work) -> Result<(), LabError> {
        self.wake();
        let file = work.script_file.unwrap_or("-").to_ascii_lowercase();
        self.type_line(&format!("hooks {WITHOUT_END} 0 {file}"))?;
        self.rest();
        Ok(())
    }

    /// The machine's books as they are.
    ///
    /// # Errors
    /// It has ended.
    pub fn all_books(&mut self) -> Result<Arc<Books>, LabError> {
        self.guest.books()
    }

    /// Has the machine run, which rests between two pieces of work.
    pub fn wake(&self) {
        self.guest.handle().resume();
    }

    /// Has it rest: at its prompt DOS polls without a pause.
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

    /// What happened between the marks that the resident program has set.
    fn books(&mut self) -> Result<Books, LabError> {
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
                let books = answer.books.unwrap_or_else(|| Err("no answer".into()));
                return books.map_err(LabError::WorkNotDone);
            }
            if Instant::now() > end {
                return Err(self.guest.silent("the machine does not answer"));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The text on the screen.
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
            // Firmware has set no mode yet.
            if Instant::now() > end {
                return Err(self.guest.silent("nothing is on the screen"));
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until the line with the cursor is as wanted. If DOS asks for the date or the time on the way, it is
    /// left as it is.
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
                    "DOS does not come to {what}; on its screen: {screen}"
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

    /// Types a line at the prompt, no more at a time than the BIOS keeps for a slow DOS.
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

/// The line with the cursor, up to there.
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
