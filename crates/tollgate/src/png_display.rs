//! `--display png:DIR`: pictures of the guest's screen as files, one for each that differs from the one before.
//!
//! The event loop asks the vCPU's thread for the screen some times a second. The files are
//! `000001.png` and so on, behind those that are there; each appears complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_machine::devices::vga::screen::Picture;
use tollgate_machine::vm_handle::{ScreenRequest, VmHandle};

use crate::control::screen::write_png;
use crate::failure::{Failure, say};
use crate::lost_output::LostOutput;

/// From one picture to the next.
const PERIOD: Duration = Duration::from_millis(250);
/// Pictures of one run at most: a screen that changes all the time must not fill the disk.
const MOST_PICTURES: u32 = 10_000;

/// A folder as a display.
pub struct PngDisplay {
    folder: PathBuf,
    /// The number of the last file, and how many were written.
    number: u32,
    written: u32,
    /// What the last file shows.
    last: Option<Arc<Picture>>,
    /// The screen was asked for.
    awaited: Option<ScreenRequest>,
    /// When to ask again; `None`: no more.
    next: Option<Instant>,
    lost: Arc<LostOutput>,
}

impl PngDisplay {
    /// Makes the folder, if it is not there, and looks what it holds.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn begin(folder: &Path) -> Result<Self, Failure> {
        let number = fs::create_dir_all(folder).and_then(|()| last_number(folder));
        let number = number.map_err(|error| {
            Failure::usage(format!("--display png:{}: {error}", folder.display()))
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            number,
            written: 0,
            last: None,
            awaited: None,
            next: Some(Instant::now()),
            lost: LostOutput::new("--display png", format!("'{}'", folder.display())),
        })
    }

    /// Tells afterwards whether a picture could not be written.
    pub fn losses(&self) -> Arc<LostOutput> {
        Arc::clone(&self.lost)
    }

    /// When [`PngDisplay::go_on`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.awaited.is_none())
    }

    /// Asks for the screen if it is time, and writes it if it is there and another one.
    pub fn go_on(&mut self, handle: &VmHandle) {
        let Some(next) = self.next else { return };
        let now = Instant::now();
        match self.awaited {
            Some(request) => {
                if let Some(shown) = handle.screen_after(request) {
                    self.awaited = None;
                    self.next = Some(now + PERIOD);
                    if let Some(picture) = &shown.picture {
                        self.show(picture);
                    }
                }
            }
            None if now >= next => self.awaited = Some(handle.request_screen(true)),
            None => {}
        }
    }

    fn show(&mut self, picture: &Arc<Picture>) {
        let is_same = |last: &Arc<Picture>| Arc::ptr_eq(last, picture) || last == picture;
        if self.last.as_ref().is_some_and(is_same) {
            return;
        }
        self.last = Some(Arc::clone(picture));
        if self.written == MOST_PICTURES {
            say(&format!(
                "--display png:{}: no more pictures: {MOST_PICTURES} were written",
                self.folder.display()
            ));
            self.next = None;
        } else if let Err(error) = self.write(picture) {
            self.lost.note(&error);
            self.next = None;
        }
    }

    fn write(&mut self, picture: &Picture) -> io::Result<()> {
        self.number = self.number.saturating_add(1);
        let path = self.folder.join(format!("{:06}.png", self.number));
        write_png(&path, picture)?;
        self.written += 1;
        Ok(())
    }
}

/// The highest number of a picture in a folder; 0: there is none.
fn last_number(folder: &Path) -> io::Result<u32> {
    let mut last = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".png"));
        last = last.max(number.and_then(|number| number.parse().ok()).unwrap_or(0));
    }
    Ok(last)
}
