//! `--display png:DIR`: writes pictures of the guest's screen to files, one for each change.
//!
//! The event loop asks the vCPU thread for the screen a few times a second. The files are
//! `000001.png` and so on, numbered after those that exist; each appears complete.

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

/// The time between two pictures.
const PERIOD: Duration = Duration::from_millis(250);
/// The maximum number of pictures of one run, so that a screen that changes all the time cannot
/// fill the disk.
const MOST_PICTURES: u32 = 10_000;

/// A folder that pictures of the screen go to.
pub struct PngDisplay {
    folder: PathBuf,
    /// The number of the last file, and how many were written.
    number: u32,
    written: u32,
    /// The picture in the last file.
    last: Option<Arc<Picture>>,
    /// The request for the screen that is not answered yet.
    awaited: Option<ScreenRequest>,
    /// The time of the next request; `None` if no more pictures are written.
    next: Option<Instant>,
    lost: Arc<LostOutput>,
}

impl PngDisplay {
    /// Makes the folder if it is missing, and finds the number of its last picture.
    ///
    /// # Errors
    ///
    /// The folder cannot be used.
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

    /// The note that says at the end whether a picture could not be written.
    pub fn losses(&self) -> Arc<LostOutput> {
        Arc::clone(&self.lost)
    }

    /// The time at which [`PngDisplay::go_on`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.awaited.is_none())
    }

    /// Requests the screen if it is time, and writes it if it has arrived and has changed.
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

/// The highest number of a picture in a folder; 0 if there is none.
fn last_number(folder: &Path) -> io::Result<u32> {
    let mut last = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".png"));
        last = last.max(number.and_then(|number| number.parse().ok()).unwrap_or(0));
    }
    Ok(last)
}
