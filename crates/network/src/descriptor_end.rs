//! The end of an adapter's cable at a descriptor of the host that carries frames: a loop that moves
//! them between the two, and waits when it can move none.

use crate::link::Wire;
use crate::poller::Poller;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

const WIRE: u64 = 0;
const DESCRIPTOR: u64 = 1;

/// A descriptor that does not block, with the form in which it carries frames.
pub trait FrameCarrier: AsFd {
    /// What waits to be written.
    type Output;
    /// The beginning of the line that reports that the other side has gone.
    const GONE: &'static str;

    /// Adds a frame to what waits to be written, or drops it if too much waits: the other side does
    /// not read.
    fn add(&self, frame: Vec<u8>, output: &mut VecDeque<Self::Output>);

    /// Performs a round of work: writes and reads as much as is possible without waiting, up to a
    /// limit, because frames of the guest are handled between two rounds.
    ///
    /// # Errors
    /// The other side has gone, for this reason.
    fn work(
        &mut self,
        wire: &Wire,
        output: &mut VecDeque<Self::Output>,
        possible: &mut Possible,
    ) -> Result<(), String>;
}

/// What may be possible at the descriptor. It becomes impossible when a call would wait, and
/// possible with the next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Possible {
    pub reading: bool,
    pub writing: bool,
}

/// A descriptor that carries frames, and the cable that it is connected to.
pub struct DescriptorEnd<C: FrameCarrier> {
    carrier: C,
    wire: Wire,
    poller: Poller,
    output: VecDeque<C::Output>,
    possible: Possible,
    report: Box<dyn FnMut(String) + Send>,
}

impl<C: FrameCarrier> DescriptorEnd<C> {
    /// Connects a cable to a descriptor. `report` gets one line when the other side has gone.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new(carrier: C, wire: Wire, report: Box<dyn FnMut(String) + Send>) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(wire.wake_descriptor(), WIRE)?;
        poller.add(&carrier, DESCRIPTOR)?;
        Ok(Self {
            carrier,
            wire,
            poller,
            output: VecDeque::new(),
            possible: Possible {
                reading: true,
                writing: true,
            },
            report,
        })
    }

    /// Works until the adapter is gone.
    pub fn run(mut self) {
        let mut is_open = true;
        while !self.wire.is_stopped() {
            // The rest of the last round is continued immediately if there is room.
            let has_more = is_open && self.has_more();
            for event in self.poller.wait(has_more.then_some(Duration::ZERO)) {
                if event.token == DESCRIPTOR {
                    self.possible.reading |= event.readable;
                    self.possible.writing |= event.writable;
                }
            }
            for frame in self.wire.receive() {
                if is_open {
                    self.carrier.add(frame, &mut self.output);
                }
            }
            if is_open && let Err(why) = self.work() {
                is_open = false;
                self.output.clear();
                (self.report)(format!("{}: {why}", C::GONE));
            }
        }
    }

    /// Whether work can continue without an event.
    fn has_more(&self) -> bool {
        let Possible { reading, writing } = self.possible;
        writing && !self.output.is_empty() || reading && self.wire.has_room()
    }

    fn work(&mut self) -> Result<(), String> {
        self.carrier
            .work(&self.wire, &mut self.output, &mut self.possible)
    }
}
