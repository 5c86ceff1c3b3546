//! Near ports and near device memory: which they are, and the accesses to them.

use super::{Bus, Claims, NearUse, PortWidth, WHOLE};
use crate::board::{Board, GuestClock};
use tollgate_platform::{Near, NearAccess, NearRun, RunAccess};
use tollgate_x86::PhysicalAddress;

impl Bus {
    /// Enters the near accesses to the ports of a device, whose claims have already been entered.
    pub(super) fn enter_near(&mut self, slot: u8, claims: &Claims) {
        for claim in &claims.ports {
            if let PortWidth::Exactly(size) = claim.width {
                // Accesses of this width go to this device, so these ports are not near, whatever
                // device claims them for other widths.
                for position in 0..size {
                    let port = claim.ports.start().wrapping_add(position.into());
                    self.near[usize::from(port)] = NearUse::empty();
                }
                continue;
            }
            for port in claim.ports.clone() {
                if self.ports[usize::from(port)] & !WHOLE == slot + 1 {
                    self.near[usize::from(port)] = NearUse::empty();
                }
            }
        }
        for (ports, uses) in &claims.near {
            for port in ports.clone() {
                let is_exact = self.exact_ports.iter().any(|claim| {
                    let bytes = claim.0..=claim.0.saturating_add(u16::from(claim.1) - 1);
                    bytes.contains(&port)
                });
                if self.ports[usize::from(port)] & !WHOLE == slot + 1 && !is_exact {
                    self.near[usize::from(port)] = *uses;
                }
            }
        }
    }

    /// Whether an access of this kind to all of these ports is near.
    #[inline]
    fn is_near(&self, port: u16, size: u8, uses: NearUse) -> bool {
        let mut ports = (0..size).map(|position| port.wrapping_add(position.into()));
        ports.all(|port| self.near[usize::from(port)].contains(uses))
    }

    /// Returns the slot of the device whose memory an access reaches, if the access is near.
    #[inline]
    fn near_memory(&self, address: PhysicalAddress, size: u8) -> Option<usize> {
        let slot = self.memory_slot(address)?;
        let last = PhysicalAddress(address.0 + u64::from(size) - 1);
        let device = &self.slots.get(slot)?.device;
        (matches!(size, 1..=8) && device.is_near(address) && device.is_near(last)).then_some(slot)
    }

    /// Makes an access to ports or device memory if it is near.
    #[inline]
    pub fn near(&mut self, access: NearAccess, board: &mut Board, clock: &GuestClock) -> Near {
        let deadline = self.deadline;
        let read = match access {
            NearAccess::PortRead { port, size } if self.is_near(port, size, NearUse::READ) => {
                self.port_read(port, size, board, clock).into()
            }
            NearAccess::PortWrite { port, size, value }
                if self.is_near(port, size, NearUse::WRITE) =>
            {
                self.port_write(port, size, value, board, clock);
                0
            }
            NearAccess::MemoryRead { address, size } => {
                let Some(slot) = self.near_memory(address, size) else {
                    return Near::No;
                };
                let mut data = [0; 8];
                let data_read = &mut data[..usize::from(size)];
                self.call(slot, board, clock, |device, context| {
                    device.memory_read(address, data_read, context);
                });
                u64::from_le_bytes(data)
            }
            NearAccess::MemoryWrite {
                address,
                size,
                value,
            } => {
                let Some(slot) = self.near_memory(address, size) else {
                    return Near::No;
                };
                let data = &value.to_le_bytes()[..usize::from(size)];
                self.call(slot, board, clock, |device, context| {
                    device.memory_write(address, data, context);
                });
                0
            }
            _ => return Near::No,
        };
        Near::done(read, deadline, self.deadline)
    }

    /// Makes the accesses of a run if they are near.
    pub fn near_run(&mut self, run: NearRun<'_>, board: &mut Board, clock: &GuestClock) -> Near {
        let deadline = self.deadline;
        let mut slots = run
            .places()
            .into_iter()
            .flatten()
            .map(|place| self.near_memory(place, run.size));
        // A page is near as a whole or not at all, and belongs to one device.
        let slot = match (slots.next(), slots.next()) {
            (Some(Some(slot)), None) => slot,
            (Some(Some(slot)), Some(Some(other))) if slot == other => slot,
            _ => return Near::No,
        };
        drop(slots);
        self.call(slot, board, clock, |device, context| {
            run.each(|access| match access {
                RunAccess::Load(address, data) => device.memory_read(address, data, context),
                RunAccess::Store(address, data) => device.memory_write(address, data, context),
            });
        });
        Near::done(0, deadline, self.deadline)
    }
}
