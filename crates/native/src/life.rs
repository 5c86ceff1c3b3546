//! Whether a process lives, why it is gone, and its end with its owner.

use crate::exit::Death;
use crate::keeper::Keeper;
use crate::kicker::KickState;
use std::sync::Arc;
use std::time::Duration;

/// A process as its monitor sees it. It is killed and reaped when this is dropped.
pub struct Life {
    process: Arc<KickState>,
    number: i32,
    keeper: Keeper,
    death: Option<Death>,
}

impl Life {
    pub const fn new(process: Arc<KickState>, number: i32, keeper: Keeper) -> Self {
        Self {
            process,
            number,
            keeper,
            death: None,
        }
    }

    /// Binds the process, whose tasks have these numbers, to a processor.
    pub fn bind(&self, mapper: i32, processor: usize) {
        self.keeper.bind([self.number, mapper], processor);
    }

    /// Why it is gone, if that is known.
    pub const fn death(&self) -> Option<Death> {
        self.death
    }

    /// Looks whether it still lives.
    pub fn look(&mut self) -> Result<(), Death> {
        if let Some(death) = self.death {
            return Err(death);
        }
        let Some(death) = self.keeper.death(&self.process.process, self.number) else {
            return Ok(());
        };
        self.death = Some(death);
        self.keeper.forget(self.number);
        Err(death)
    }

    /// Ends the process for this reason, unless it ended for one of its own.
    pub fn lose(&mut self, death: Death) -> Death {
        if let Err(death) = self.look() {
            return death;
        }
        if death == Death::Inconsistent {
            // When the pipe or a task is gone, the rest of the process follows shortly.
            std::thread::sleep(Duration::from_millis(1));
            if let Err(death) = self.look() {
                return death;
            }
        }
        self.death = Some(death);
        self.keeper.kill(&self.process.process, self.number);
        death
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.death.is_none() {
            self.keeper.kill(&self.process.process, self.number);
        }
    }
}
