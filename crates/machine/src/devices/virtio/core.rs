//! The parts of a virtio device that do not depend on the transport: status, features, queues (2.1
//! to 2.4, 3.1).

use super::device::{Queues, VirtioDevice};
use super::drive_change::DriveChange;
use super::queue::{Queue, QueueError};
use super::{feature, status};
use crate::bus::completion::Completer;
use crate::bus::{SavedState, StateError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_memory::GuestMemory;

/// What the driver must be notified of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct News {
    /// A bit for each queue that has used chains.
    pub queues: u64,
    /// Whether the device needs a reset, or its configuration has changed.
    pub config: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct State {
    status: u8,
    device_features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
    queue_select: u16,
    queues: Vec<Queue>,
    news: News,
}

/// A device with its status, features and queues.
pub struct Core {
    device: Box<dyn VirtioDevice>,
    state: State,
    /// The number of changes of the configuration. A driver that reads a field in two halves compares
    /// it before and after.
    config_generation: u32,
}

impl Core {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 2;

    /// Makes the core of a device.
    pub fn new(device: Box<dyn VirtioDevice>) -> Self {
        let sizes = device.queue_sizes();
        let state = State {
            status: 0,
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            queues: sizes.iter().map(|size| Queue::new(*size)).collect(),
            news: News::default(),
        };
        Self {
            device,
            state,
            config_generation: 0,
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &dyn VirtioDevice {
        &*self.device
    }

    fn offered(&self) -> u64 {
        self.device.features()
            | feature::VERSION_1
            | feature::INDIRECT_DESCRIPTORS
            | feature::EVENT_INDEX
    }

    /// Selects the 32 feature bits that [`Core::device_features`] returns.
    pub const fn select_device_features(&mut self, select: u32) {
        self.state.device_features_select = select;
    }

    /// Returns the selection.
    pub const fn device_features_select(&self) -> u32 {
        self.state.device_features_select
    }

    /// Returns the selected 32 bits of the offered features.
    pub fn device_features(&self) -> u32 {
        half(self.offered(), self.state.device_features_select)
    }

    /// Selects the 32 feature bits that [`Core::set_driver_features`] sets.
    pub const fn select_driver_features(&mut self, select: u32) {
        self.state.driver_features_select = select;
    }

    /// Returns the selection.
    pub const fn driver_features_select(&self) -> u32 {
        self.state.driver_features_select
    }

    /// Returns the selected 32 bits of the features that the driver accepts.
    pub fn driver_features(&self) -> u32 {
        half(
            self.state.driver_features,
            self.state.driver_features_select,
        )
    }

    /// Sets the features that the driver accepts. They are fixed after FEATURES_OK.
    pub fn set_driver_features(&mut self, bits: u32) {
        if self.state.status & status::FEATURES_OK != 0 {
            return;
        }
        let features = &mut self.state.driver_features;
        match self.state.driver_features_select {
            0 => *features = *features & !0xffff_ffff | u64::from(bits),
            1 => *features = *features & 0xffff_ffff | u64::from(bits) << 32,
            _ => {}
        }
    }

    /// Returns the device status.
    pub const fn status(&self) -> u8 {
        self.state.status
    }

    /// Handles a write of the device status by the driver. Bits that are set stay set until a
    /// reset, which is a write of zero. FEATURES_OK is not set if the driver has accepted features
    /// that were not offered.
    pub fn set_status(&mut self, value: u8) {
        if value == 0 {
            return self.reset();
        }
        let mut value = value & !status::NEEDS_RESET;
        let accepted = self.state.driver_features;
        let are_possible = accepted & !self.offered() == 0 && accepted & feature::VERSION_1 != 0;
        if !are_possible {
            value &= !(status::FEATURES_OK | status::DRIVER_OK);
        }
        if (value | self.state.status) & status::FEATURES_OK == 0 {
            value &= !status::DRIVER_OK;
        }
        self.state.status |= value;
    }

    /// Resets the device to its state after power-up.
    pub fn reset(&mut self) {
        self.device.reset();
        self.state.queues.iter_mut().for_each(Queue::reset);
        self.state = State {
            status: 0,
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            queues: std::mem::take(&mut self.state.queues),
            news: News::default(),
        };
    }

    /// Returns the number of queues.
    pub const fn queue_count(&self) -> u16 {
        self.state.queues.len() as u16
    }

    /// Selects the queue of the transport's queue registers.
    pub const fn select_queue(&mut self, index: u16) {
        self.state.queue_select = index;
    }

    /// Returns the number of the selected queue.
    pub const fn selected(&self) -> u16 {
        self.state.queue_select
    }

    /// Returns the selected queue if it exists.
    pub fn queue(&self) -> Option<&Queue> {
        self.state.queues.get(usize::from(self.state.queue_select))
    }

    /// Changes size or addresses of the selected queue, unless it is enabled.
    pub fn change_queue(&mut self, change: impl FnOnce(&mut Queue)) {
        let selected = usize::from(self.state.queue_select);
        if let Some(queue) = self.state.queues.get_mut(selected)
            && !queue.is_enabled()
        {
            change(queue);
        }
    }

    /// Enables the selected queue.
    pub fn enable_queue(&mut self) {
        let mut result = Ok(());
        self.change_queue(|queue| result = queue.enable());
        self.judge(result);
    }

    /// Whether the driver is ready and has broken no rule.
    pub const fn is_running(&self) -> bool {
        self.state.status & (status::DRIVER_OK | status::NEEDS_RESET) == status::DRIVER_OK
    }

    /// Handles a notification by the driver that chains are available.
    pub fn notify(&mut self, queue: u16, memory: &mut GuestMemory) {
        let queue = usize::from(queue);
        if self.is_running() && queue < self.state.queues.len() {
            self.call(memory, |device, queues| device.notify(queue, queues));
        }
    }

    /// Handles a notification for all queues, after which the device checks all of them again.
    pub fn notify_all(&mut self, memory: &mut GuestMemory) {
        for queue in 0..self.queue_count() {
            self.notify(queue, memory);
        }
    }

    /// Handles work that a thread of the device has finished. The device is called even if its
    /// driver has gone; it then finds no queue enabled.
    pub fn complete(&mut self, token: u64, memory: &mut GuestMemory) {
        self.call(memory, |device, queues| device.complete(token, queues));
    }

    /// Changes a drive if the device has it; see [`VirtioDevice::change_drive`].
    pub fn change_drive(
        &mut self,
        change: &DriveChange,
        memory: &mut GuestMemory,
    ) -> Option<Result<(), String>> {
        let mut changed = None;
        self.call(memory, |device, queues| {
            changed = device.change_drive(change, queues);
            Ok(())
        });
        changed
    }

    fn call(
        &mut self,
        memory: &mut GuestMemory,
        call: impl FnOnce(&mut dyn VirtioDevice, &mut Queues<'_>) -> Result<(), QueueError>,
    ) {
        let is_running = self.is_running();
        let mut queues = Queues {
            queues: &mut self.state.queues,
            memory,
            features: self.state.driver_features,
            is_running,
            config_changed: false,
        };
        let mut result = call(&mut *self.device, &mut queues);
        if queues.config_changed {
            self.config_generation = self.config_generation.wrapping_add(1);
            self.state.news.config |= self.state.status & status::DRIVER_OK != 0;
        }
        let event_index = self.state.driver_features & feature::EVENT_INDEX != 0;
        for (index, queue) in self.state.queues.iter_mut().enumerate() {
            if event_index && is_running && result.is_ok() {
                result = queue.ask_for_notification(memory);
            }
            match queue.take_news(memory, event_index) {
                Ok(wanted) => self.state.news.queues |= u64::from(wanted) << (index & 63),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.judge(result);
    }

    /// Sets the status for a device that needs a reset after an error, and notifies the driver once
    /// (2.1.2).
    fn judge(&mut self, result: Result<(), QueueError>) {
        if result.is_err() && self.state.status & status::NEEDS_RESET == 0 {
            self.state.status |= status::NEEDS_RESET;
            self.state.news.config = self.state.status & status::DRIVER_OK != 0;
        }
    }

    /// Takes what the driver must be notified of.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.state.news)
    }

    /// Reads the device-specific configuration, and zeros after its end.
    pub fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.device.config();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, byte) in data.iter_mut().enumerate() {
            let place = start.saturating_add(index);
            *byte = config.get(place).copied().unwrap_or(0);
        }
    }

    /// Writes the device-specific configuration.
    pub fn write_config(&mut self, offset: u64, data: &[u8]) {
        self.device.write_config(offset, data);
    }

    /// Returns the number of changes of the configuration.
    pub const fn config_generation(&self) -> u32 {
        self.config_generation
    }

    /// Connects the device's threads to the bus.
    pub fn connect(&mut self, completer: Completer) {
        self.device.connect(completer);
    }

    /// Whether threads have unfinished work.
    pub fn has_pending_work(&self) -> bool {
        self.device.has_pending_work()
    }

    /// Returns the state.
    pub fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, &(&self.state, self.device.save()))
    }

    /// Restores a saved state.
    ///
    /// # Errors
    /// The state has another layout, or is that of another device. Nothing has changed then.
    pub fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let (state, device): (State, Value) = saved.read(Self::STATE_VERSION)?;
        let fits = state.queues.len() == self.state.queues.len()
            && state
                .queues
                .iter()
                .zip(&self.state.queues)
                .all(|(saved, queue)| queue.fits(saved));
        if !fits {
            return Err(StateError::Unreadable {
                part: String::new(),
                why: "its queues are not those of this device".into(),
            });
        }
        self.device.reset();
        if !self.device.restore(&device) {
            return Err(StateError::Unreadable {
                part: String::new(),
                why: "what it keeps in addition to its queues has another form".into(),
            });
        }
        self.state = state;
        Ok(())
    }
}

/// Returns 32 bits of the features.
const fn half(features: u64, select: u32) -> u32 {
    match select {
        0 => features as u32,
        1 => (features >> 32) as u32,
        _ => 0,
    }
}
