//! Keeps the monitor's work that stopped for an interrupt, so that it resumes after the guest's
//! handler.
//!
//! With `--knob interruptible=resume`, interruptible work that [stops](tollgate_engine::preemption)
//! leaves here what it was doing, and for which instruction. Then the interrupt is delivered. Guest
//! code is left wherever it lets interrupts in again, as while an interrupt waits, so the monitor
//! sees the handler's return. When the guest is back where the work stopped, in the same address
//! space and on the same stack, the work resumes before the instruction does:
//!
//! ```text
//! mov [rbx],rax   faults in its window      map-window maps the page, and 3 of its 15 neighbours
//!                 an interrupt              place and page are noted here
//! handler ... iretq                         exits: it lets interrupts in
//! mov [rbx],rax   comes next                map-window maps the other 12
//! ```
//!
//! Ito and Oikawa keep the frame of the interrupted section, and recognise the handler's IRET by
//! its fault. A frame of this monitor holds references into tables that the handler may change, so
//! only numbers are kept: addresses, and how far the work has come. Either a number is not derived
//! from the guest's page tables, or [`Comparing`] detects whether these were invalidated in the
//! meantime. Therefore resuming is correct at any time, and recognising the return only decides
//! whether it is useful: a guest that arrives there in another way, or never, does not compute a
//! wrong result.
//!
//! One piece of work is kept, in a place of fixed size. It is dropped if another one stops, or if
//! the guest has left for the monitor [`MOST_BOUNDARIES`] times without coming back, because its
//! scheduler may have switched to another task. The work for the instruction then begins again when
//! the instruction does, as with `restart`.
//!
//! [`Comparing`]: crate::memory::windows::Comparing

use crate::execution::running::Running;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use crate::translated::work_left::{Place, Work, WorkLeft};
use tollgate_engine::engine::{CodeAddress, ReachedBy};
use tollgate_engine::policy::breakpoints;
use tollgate_engine::preemption::Interruptible;
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;

/// The number of boundaries of guest instructions at which the monitor checks whether the guest has
/// come back.
const MOST_BOUNDARIES: u32 = 4096;

impl Translated {
    /// Drops the rest of the stopped work.
    pub(crate) fn forget_work(&mut self) {
        if self.work_left.take().is_some() {
            self.requests.checkpoints().drop_one();
        }
    }
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Resumes the work that stopped, if the guest has come back to that place. Returns whether
    /// work was resumed.
    pub(crate) fn go_on_with_work(&mut self) -> bool {
        let here = Place::of(&self.runner.context.cpu);
        let Some(left) = &mut self.runner.work_left else {
            return false;
        };
        if left.place != here {
            left.boundaries += 1;
            if left.boundaries > MOST_BOUNDARIES {
                self.runner.forget_work();
                self.due.events = true;
            }
            return false;
        }
        let work = left.work;
        self.runner.work_left = None;
        self.due.events = true;
        if self.due.mode {
            self.follow_control();
        }
        self.pending.checkpoints().resume(work.kind());
        let mut processor = self.processor();
        match work {
            Work::Translate { next } => processor.translate_on(next),
            Work::MapWindow { access, next } => {
                processor.map_window(access, Some(next));
            }
            Work::CompareWindow { linear, privilege } => {
                processor.take_windows_back(linear, privilege);
            }
            Work::FillWindows => processor.fill_windows(false),
        }
        true
    }
}

impl Processor<'_> {
    /// Notes that work for the instruction at CS:RIP has stopped.
    pub(crate) fn leave_work(&mut self, work: Work) {
        if self.runner.requests.checkpoints().interruptible() != Interruptible::Resume {
            return;
        }
        self.runner.forget_work();
        self.runner.work_left = Some(WorkLeft {
            place: Place::of(&self.runner.context.cpu),
            work,
            boundaries: 0,
        });
        // Guest code must be left when it comes back.
        self.due.events = true;
    }

    /// Translates the code at RIP `next`, in the same page; up to there the code from CS:RIP on is
    /// already translated.
    fn translate_on(&mut self, next: u64) {
        let cpu = &self.runner.context.cpu;
        let is_beyond = !cpu.is_64_bit() && next > u64::from(cpu.cs().limit);
        let rip = cpu.rip;
        let Ok(place) = self.view.place(cpu, rip, false) else {
            return;
        };
        let distance = next.wrapping_sub(rip);
        if is_beyond || distance >= PAGE_SIZE - place.linear % PAGE_SIZE {
            return;
        }
        let place = CodeAddress {
            physical: place.physical + distance,
            rip: next,
            linear: place.linear + distance,
            ..place
        };
        let mode = self.runner.mode;
        let link_address = self
            .runner
            .engine
            .link_address(&place, mode, ReachedBy::Other);
        let place = CodeAddress {
            link_address,
            ..place
        };
        let has_breakpoint = self
            .runner
            .engine
            .breakpoints()
            .may_be_at(breakpoints::Place {
                linear: place.linear,
                relocates: link_address.is_some(),
            });
        if !has_breakpoint && self.runner.engine.find(&place, mode).is_none() {
            self.revive_or_translate(&place, mode);
        }
    }
}
