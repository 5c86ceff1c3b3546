//! The expected results of a run of the small system, computed without it: its text, its results,
//! and every counter that does not depend on a clock.

use super::{Event, Workload};

/// The counters of the `done` line that are the same in every run, and the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The output before the `event` and `done` lines.
    pub transcript: String,
    /// Number of calls of INT 21h.
    pub int21: u64,
    /// Number of sectors read and written.
    pub sectors: u64,
    /// Number of characters typed.
    pub typed: u64,
    /// Number of characters printed.
    pub printed: u64,
    /// Number of bytes read from and written to files.
    pub bytes: u64,
    /// Number of rounds completed.
    pub rounds: u64,
    /// CRC-16 of the results.
    pub checksum: u64,
    /// CRC-16 of the text page.
    pub screen: u64,
}

/// The lines that [`super::run`] types for `echo`.
pub fn echo_lines(lines: u16) -> impl Iterator<Item = String> {
    (1..=lines).map(|number| format!("line {number}"))
}

/// The expected results of a workload. `flags` prints its `events`, which therefore affect the
/// screen and the counters.
pub fn expected(workload: Workload, events: &[Event]) -> Expected {
    let mut system = System::new();
    match workload {
        Workload::Idle { .. } => {}
        Workload::CopyType { rounds } => {
            for _ in 0..rounds {
                for (from, to) in [("letter.txt", "first.txt"), ("report.txt", "second.txt")] {
                    system.command(&format!("copy {from} {to}"));
                    system.copy(from, to);
                    system.command(&format!("type {to}"));
                    system.show(to);
                }
                system.rounds += 1;
            }
        }
        Workload::Mix { rounds } => {
            for _ in 0..rounds {
                system.command("copy report.txt draft.txt");
                system.copy("report.txt", "draft.txt");
                system.command("calc");
                system.calculate();
                system.command("type draft.txt");
                system.show("draft.txt");
                system.rounds += 1;
            }
        }
        Workload::Compute { rounds } => {
            for _ in 0..rounds {
                system.command("compute");
                system.compute();
                system.rounds += 1;
            }
        }
        Workload::Flags { count } => {
            system.int21 += 1; // its vector
            for event in events {
                system.say(&format!("event {} ", event.name));
                system.number(event.cycles);
                system.say("\r\n");
            }
            system.rounds = u64::from(count);
        }
        Workload::Echo { lines } => {
            for line in echo_lines(lines) {
                system.say("> ");
                system.type_line(&line);
                system.say("\necho: ");
                system.print(&line);
                system.checksum = crc(system.checksum, line.as_bytes());
                system.int21 += 1; // the line goes to handle 1
                system.say("\r\n");
                system.rounds += 1;
            }
        }
    }
    if !matches!(workload, Workload::Flags { .. } | Workload::Echo { .. }) {
        system.command("exit");
    }
    system.outcome(matches!(workload, Workload::Flags { .. }))
}

/// A file with this number of numbered lines.
pub fn numbered_lines(lines: usize) -> String {
    (0..lines)
        .map(|line| format!("{line:02} {}", SENTENCES[line % SENTENCES.len()]))
        .collect()
}

/// The output of the command `calc` if it is the first command, and the checksum of its results.
pub fn calculation() -> (String, u16) {
    let mut system = System::new();
    system.calculate();
    (system.text, system.checksum)
}

/// The output of the command `compute` if it is the first command, and the checksum of its results.
pub fn computation() -> (String, u16) {
    let mut system = System::new();
    system.compute();
    (system.text, system.checksum)
}

/// The size of a sector in bytes, and the number of sectors of the disk.
const SECTOR: usize = 512;
const SECTORS: usize = 256;
/// The first sector after the allocation table and the directory.
const FIRST_DATA_SECTOR: usize = 2;
/// Number of bytes that commands read at a time.
const BUFFER: usize = 4096;
/// Numbers below this are sieved.
const SIEVE: usize = 8192;
/// Number of values that are sorted.
const NUMBERS: usize = 1024;
const SHEET_ROWS: usize = 32;
const SHEET_COLUMNS: usize = 16;
/// Totals are printed after each group of this number of rows.
const ROWS_PRINTED: usize = 4;

const SENTENCES: [&str; 4] = [
    "A handler that found another before it hands the call on.\r\n",
    "Who waits for a key asks again and again.\r\n",
    "The clock ticks eighteen times a second, and a little more.\r\n",
    "Nothing is lost while the flag is down; it comes later.\r\n",
];

/// A file: its content and its sectors.
struct File {
    name: String,
    contents: Vec<u8>,
    sectors: Vec<usize>,
}

/// The state of the system that its work depends on.
struct System {
    text: String,
    int21: u64,
    sectors: u64,
    typed: u64,
    bytes: u64,
    rounds: u64,
    checksum: u16,
    seed: u16,
    files: Vec<File>,
    in_use: [bool; SECTORS],
    /// The sector in the buffer, and whether the buffer is newer than the disk.
    buffered: Option<usize>,
    buffer_changed: bool,
}

impl System {
    /// The state after the boot: the tables and two files are on the disk.
    fn new() -> Self {
        let mut in_use = [false; SECTORS];
        in_use[..FIRST_DATA_SECTOR].fill(true);
        let mut system = Self {
            text: String::new(),
            int21: 0,
            sectors: FIRST_DATA_SECTOR as u64,
            typed: 0,
            bytes: 0,
            rounds: 0,
            checksum: 0xffff,
            seed: 1,
            files: Vec::new(),
            in_use,
            buffered: None,
            buffer_changed: false,
        };
        for (name, lines) in [("letter.txt", 60), ("report.txt", 24)] {
            let file = system.create(name);
            for line in numbered_lines(lines).split_inclusive('\n') {
                system.write(file, line.as_bytes());
            }
            system.close(true);
        }
        system
    }

    fn outcome(self, events_are_apart: bool) -> Expected {
        Expected {
            int21: self.int21,
            sectors: self.sectors,
            typed: self.typed,
            printed: self.text.len() as u64,
            bytes: self.bytes,
            rounds: self.rounds,
            checksum: u64::from(self.checksum),
            screen: u64::from(crc(0xffff, &text_page(&self.text))),
            transcript: if events_are_apart {
                String::new()
            } else {
                self.text
            },
        }
    }

    // --- console -------------------------------------------------------------

    fn print(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Prints a text in one call.
    fn say(&mut self, text: &str) {
        self.int21 += 1;
        self.print(text);
    }

    /// Prints a number, digit by digit.
    fn number(&mut self, value: u64) {
        let digits = value.to_string();
        self.int21 += digits.len() as u64;
        self.print(&digits);
    }

    /// Types a line into the call that reads lines.
    fn type_line(&mut self, line: &str) {
        self.int21 += 1;
        self.typed += line.len() as u64 + 1;
        self.print(line);
        self.print("\r");
    }

    fn command(&mut self, line: &str) {
        self.say("A>");
        self.type_line(line);
        self.say("\n");
    }

    // --- files ----------------------------------------------------------------

    fn find(&self, name: &str) -> usize {
        let found = self.files.iter().position(|file| file.name == name);
        found.expect("the script names files that exist")
    }

    fn create(&mut self, name: &str) -> usize {
        self.int21 += 1;
        if let Some(old) = self.files.iter().position(|file| file.name == name) {
            let file = &mut self.files[old];
            for sector in file.sectors.drain(..) {
                self.in_use[sector] = false;
            }
            file.contents.clear();
            return old;
        }
        self.files.push(File {
            name: name.to_owned(),
            contents: Vec::new(),
            sectors: Vec::new(),
        });
        self.files.len() - 1
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.buffer_changed) {
            self.sectors += 1;
        }
    }

    fn hold(&mut self, sector: usize) {
        if self.buffered != Some(sector) {
            self.flush();
            self.sectors += 1;
            self.buffered = Some(sector);
        }
    }

    fn write(&mut self, file: usize, mut data: &[u8]) {
        self.int21 += 1;
        while !data.is_empty() {
            let within = self.files[file].contents.len() % SECTOR;
            if within == 0 {
                let free = self.in_use.iter().position(|used| !used);
                let sector = free.expect("the disk is large enough");
                self.in_use[sector] = true;
                self.files[file].sectors.push(sector);
                self.flush();
                self.buffered = Some(sector);
            }
            let sector = *self.files[file].sectors.last().expect("pushed");
            let (part, rest) = data.split_at(data.len().min(SECTOR - within));
            self.hold(sector);
            self.buffer_changed = true;
            self.files[file].contents.extend_from_slice(part);
            self.bytes += part.len() as u64;
            data = rest;
        }
    }

    /// Reads at most the size of the buffer from `position` on.
    fn read(&mut self, file: usize, position: usize) -> Vec<u8> {
        self.int21 += 1;
        let end = self.files[file].contents.len().min(position + BUFFER);
        let mut at = position;
        while at < end {
            let sector = self.files[file].sectors[at / SECTOR];
            self.hold(sector);
            at = end.min((at / SECTOR + 1) * SECTOR);
        }
        self.bytes += (end - position) as u64;
        self.files[file].contents[position..end].to_vec()
    }

    fn close(&mut self, changed: bool) {
        self.int21 += 1;
        if changed {
            self.flush();
            self.sectors += FIRST_DATA_SECTOR as u64;
        }
    }

    // --- commands --------------------------------------------------------------

    fn copy(&mut self, from: &str, to: &str) {
        self.int21 += 1; // open
        let source = self.find(from);
        let target = self.create(to);
        let mut position = 0;
        loop {
            let data = self.read(source, position);
            if data.is_empty() {
                break;
            }
            position += data.len();
            self.write(target, &data);
        }
        self.close(false);
        self.close(true);
        self.say("        1 file(s) copied\r\n");
    }

    fn show(&mut self, name: &str) {
        self.int21 += 1; // open
        let file = self.find(name);
        let mut position = 0;
        loop {
            let data = self.read(file, position);
            if data.is_empty() {
                break;
            }
            position += data.len();
            self.checksum = crc(self.checksum, &data);
            self.say(&String::from_utf8_lossy(&data));
        }
        self.close(false);
    }

    fn random(&mut self) -> u16 {
        self.seed = self.seed.wrapping_mul(25173).wrapping_add(13849);
        self.seed
    }

    fn calculate(&mut self) {
        let cells: Vec<u16> = (0..SHEET_ROWS * SHEET_COLUMNS)
            .map(|_| (self.random() & 0xfff) + 1)
            .collect();
        for (number, row) in cells.chunks_exact(SHEET_COLUMNS).enumerate() {
            let total: u32 = row.iter().copied().map(u32::from).sum();
            for &cell in row {
                let share = (u32::from(cell) * 1000 / total) as u16;
                self.checksum = crc(self.checksum, &share.to_le_bytes());
            }
            if number % ROWS_PRINTED == 0 {
                self.number(u64::from(total));
                self.say(" ");
            }
        }
        self.say("\r\n");
    }

    fn compute(&mut self) {
        let is_prime = |n: usize| {
            n >= 2
                && (2..n)
                    .take_while(|d| d * d <= n)
                    .all(|d| !n.is_multiple_of(d))
        };
        let sieve: Vec<u8> = (0..SIEVE).map(|n| u8::from(is_prime(n))).collect();
        let primes = sieve.iter().map(|&prime| u64::from(prime)).sum();
        let mut numbers: Vec<u16> = (0..NUMBERS).map(|_| self.random()).collect();
        numbers.sort_unstable();
        let divisors = numbers.windows(2).fold(0u16, |sum, pair| {
            sum.wrapping_add(common_divisor(pair[0], pair[1]))
        });
        self.say("primes ");
        self.number(primes);
        self.say(", divisors ");
        self.number(u64::from(divisors));
        self.say("\r\n");
        let bytes: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.checksum = crc(crc(self.checksum, &bytes), &sieve);
    }
}

fn common_divisor(mut a: u16, mut b: u16) -> u16 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// CRC-16 with the polynomial 1021h, continued from `start`.
fn crc(start: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(start, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

/// The text page after printing all of `text`: characters and attributes alternate.
fn text_page(text: &str) -> Vec<u8> {
    const COLUMNS: usize = 80;
    const ROWS: usize = 25;
    const ATTRIBUTE: u8 = 7;
    let blank_row = || [b' ', ATTRIBUTE].repeat(COLUMNS);
    let mut page: Vec<Vec<u8>> = (0..ROWS).map(|_| blank_row()).collect();
    let (mut row, mut column) = (0, 0);
    for byte in text.bytes() {
        match byte {
            b'\r' => column = 0,
            b'\n' => row += 1,
            _ => {
                page[row][2 * column] = byte;
                column += 1;
                if column == COLUMNS {
                    (row, column) = (row + 1, 0);
                }
            }
        }
        if row == ROWS {
            row -= 1;
            page.remove(0);
            page.push(blank_row());
        }
    }
    page.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(crc(0xffff, b"123456789"), 0x29b1);
    }

    #[test]
    fn the_page_scrolls_at_its_end() {
        let text: String = (0..26).map(|line| format!("{line}\r\n")).collect();
        let page = text_page(&text);
        assert_eq!(page.len(), 4000);
        assert_eq!(&page[..4], b"2\x07 \x07");
        assert_eq!(&page[160 * 23..160 * 23 + 4], b"2\x075\x07");
    }

    #[test]
    fn rounds_add_up() {
        let one = expected(Workload::CopyType { rounds: 1 }, &[]);
        let three = expected(Workload::CopyType { rounds: 3 }, &[]);
        assert_eq!((one.rounds, three.rounds), (1, 3));
        assert!(three.typed > 2 * one.typed && three.bytes > one.bytes);
        assert_ne!(one.checksum, three.checksum);
    }
}
