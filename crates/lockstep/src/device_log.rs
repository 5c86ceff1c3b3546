//! The bytes that devices sent and received, as QEMU logs them between the records of two
//! instructions.
//!
//! ```text
//! memory_region_ops_read cpu 0 mr 0x55d0 addr 0x71 value 0x26 size 1 name 'rtc'
//! ```
//!
//! Addresses of 16 bits are ports. A device that accepts only bytes has one line for each byte.

use std::collections::VecDeque;

/// The trace events that make QEMU log these lines.
pub const TRACE_EVENTS: [&str; 2] = ["memory_region_ops_read", "memory_region_ops_write"];

/// A byte between the processor and a device, and its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceByte {
    /// A port, or the physical address of device memory.
    pub address: u64,
    /// The byte that was read or written.
    pub value: u8,
}

/// The bytes between the processor and devices during one instruction, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceLog {
    /// The bytes that the processor read from devices.
    pub read: VecDeque<DeviceByte>,
    /// The bytes that the processor wrote to devices.
    pub written: Vec<DeviceByte>,
}

impl DeviceLog {
    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.read.clear();
        self.written.clear();
    }

    /// Parses a line of QEMU's log. Returns false if it is another line, or if it was not the
    /// processor's access.
    pub fn take_line(&mut self, line: &[u8]) -> bool {
        let Some(rest) = line.strip_prefix(b"memory_region_ops_") else {
            return false;
        };
        self.take_access(rest).is_some()
    }

    fn take_access(&mut self, rest: &[u8]) -> Option<()> {
        let mut words = std::str::from_utf8(rest).ok()?.split(' ');
        let is_read = words.next()? == "read";
        let mut after = |name: &str| words.by_ref().skip_while(|word| *word != name).nth(1);
        if after("cpu")? != "0" {
            return None;
        }
        let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let address = number(after("addr")?)?;
        let value = number(after("value")?)?;
        let size: usize = after("size")?.parse().ok()?;
        let bytes = value.to_le_bytes();
        let bytes = (address..).zip(bytes.get(..size)?);
        let bytes = bytes.map(|(address, &value)| DeviceByte { address, value });
        if is_read {
            self.read.extend(bytes);
        } else {
            self.written.extend(bytes);
        }
        Some(())
    }

    /// Copies the bytes that devices sent at `address` and the following addresses, if these come
    /// next in the log. Returns whether they do.
    pub fn next_read(&mut self, address: u64, data: &mut [u8]) -> bool {
        let is_next = self.read.len() >= data.len()
            && (address..)
                .zip(self.read.iter())
                .take(data.len())
                .all(|(address, byte)| byte.address == address);
        if is_next {
            let count = data.len();
            for (to, from) in data.iter_mut().zip(self.read.drain(..count)) {
                *to = from.value;
            }
        }
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> DeviceLog {
        let mut log = DeviceLog::default();
        for line in lines {
            assert!(log.take_line(line.as_bytes()), "{line}");
        }
        log
    }

    #[test]
    fn an_access_is_its_bytes_whatever_their_number_of_lines() {
        let whole = "memory_region_ops_read cpu 0 mr 0x1 addr 0x1f0 value 0x1234 size 2 name 'ide'";
        let halves = [
            "memory_region_ops_read cpu 0 mr 0x1 addr 0x1f0 value 0x34 size 1 name 'ide'",
            "memory_region_ops_read cpu 0 mr 0x1 addr 0x1f1 value 0x12 size 1 name 'ide'",
        ];
        for lines in [&[whole][..], &halves] {
            let mut log = log(lines);
            let mut data = [0; 2];
            assert!(!log.next_read(0x1f1, &mut data));
            assert!(log.next_read(0x1f0, &mut data));
            assert_eq!(data, [0x34, 0x12]);
            assert!(!log.next_read(0x1f0, &mut data));
        }
    }

    #[test]
    fn a_string_of_reads_is_taken_piece_by_piece() {
        let line = "memory_region_ops_read cpu 0 mr 0x1 addr 0x511 value 0x7 size 1 name 'fwcfg'";
        let mut log = log(&[line, &line.replace("0x7", "0x8")]);
        let mut data = [0];
        assert!(log.next_read(0x511, &mut data) && data == [7]);
        assert!(log.next_read(0x511, &mut data) && data == [8]);
    }

    #[test]
    fn writes_are_kept_apart_and_other_threads_left_out() {
        let line =
            "memory_region_ops_write cpu 0 mr 0x1 addr 0xb8000 value 0x741 size 2 name 'vga'";
        let log = log(&[line]);
        assert!(log.read.is_empty());
        let bytes: Vec<_> = log
            .written
            .iter()
            .map(|byte| (byte.address, byte.value))
            .collect();
        assert_eq!(bytes, [(0xb8000, 0x41), (0xb8001, 7)]);
        let mut log = DeviceLog::default();
        assert!(!log.take_line(line.replace("cpu 0", "cpu -1").as_bytes()));
        assert!(!log.take_line(b"EAX=00000000"));
        assert_eq!(log, DeviceLog::default());
    }
}
