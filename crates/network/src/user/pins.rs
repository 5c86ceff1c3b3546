//! The addresses that our resolver has given for allowed names, and until when each may be reached.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

/// How long an address may be reached at least, even if the answer is valid for less time: programs
/// keep addresses, and begin several connections with one answer.
const LEAST: Duration = Duration::from_secs(300);
/// How long it may be reached at most without another answer.
const MOST: Duration = Duration::from_secs(86_400);
/// The maximum number of addresses. For one more, the one that ends first is dropped.
const MAX_ADDRESSES: usize = 4096;
/// The maximum number of ports that rules open of one address.
const MAX_PORTS: usize = 64;

/// A permission for an address.
struct Pin {
    /// The only port, or `None` for all and for echo requests.
    port: Option<NonZeroU16>,
    until: Instant,
}

/// The addresses of allowed names.
#[derive(Default)]
pub struct Pins {
    addresses: HashMap<IpAddr, Vec<Pin>>,
}

impl Pins {
    /// Permits an address for the time that its name's answer is valid.
    pub fn add(&mut self, address: IpAddr, port: Option<NonZeroU16>, seconds: u32, now: Instant) {
        let valid = Duration::from_secs(seconds.into()).clamp(LEAST, MOST);
        let until = now + valid;
        if !self.addresses.contains_key(&address) && self.addresses.len() >= MAX_ADDRESSES {
            self.make_room(now);
        }
        let pins = self.addresses.entry(address).or_default();
        if let Some(pin) = pins.iter_mut().find(|pin| pin.port == port) {
            pin.until = pin.until.max(until);
        } else if pins.len() < MAX_PORTS {
            pins.push(Pin { port, until });
        }
    }

    /// Whether the guest may reach a port of an address. Echo requests have port 0.
    pub fn has(&self, address: IpAddr, port: u16, now: Instant) -> bool {
        let pins = self.addresses.get(&address);
        pins.is_some_and(|pins| {
            pins.iter().any(|pin| {
                let is_port = pin.port.is_none_or(|own| own.get() == port);
                is_port && now < pin.until
            })
        })
    }

    fn make_room(&mut self, now: Instant) {
        self.addresses
            .retain(|_, pins| pins.iter().any(|pin| now < pin.until));
        if self.addresses.len() >= MAX_ADDRESSES {
            let end = |pins: &[Pin]| pins.iter().map(|pin| pin.until).max();
            let first = self.addresses.iter().min_by_key(|(_, pins)| end(pins));
            if let Some(first) = first.map(|(address, _)| *address) {
                self.addresses.remove(&first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(number).into()
    }

    #[test]
    fn an_address_may_be_reached_until_its_answer_ends_but_not_for_less_than_the_least_time() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        pins.add(address(1), None, 1, now);
        pins.add(address(2), None, 3600, now);
        pins.add(address(3), None, u32::MAX, now);
        let after = |seconds| now + Duration::from_secs(seconds);
        for (number, last) in [(1, 299), (2, 3599), (3, 86_399)] {
            assert!(pins.has(address(number), 80, after(last)), "{number}");
            assert!(!pins.has(address(number), 80, after(last + 1)), "{number}");
        }
        // A later, shorter answer takes nothing away.
        pins.add(address(2), None, 1, after(10));
        assert!(pins.has(address(2), 80, after(3599)));
        assert!(!pins.has(address(4), 80, now));
    }

    #[test]
    fn a_permission_for_a_port_is_for_no_other_and_no_echo_request() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        pins.add(address(1), NonZeroU16::new(443), 60, now);
        assert!(pins.has(address(1), 443, now));
        assert!(!pins.has(address(1), 80, now));
        assert!(!pins.has(address(1), 0, now));
        pins.add(address(1), None, 60, now);
        assert!(pins.has(address(1), 0, now));
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        for number in 0..3 * MAX_ADDRESSES as u32 {
            pins.add(address(number), None, number + 1000, now);
        }
        assert_eq!(pins.addresses.len(), MAX_ADDRESSES);
        assert!(!pins.has(address(0), 80, now));
        assert!(pins.has(address(3 * MAX_ADDRESSES as u32 - 1), 80, now));
        for port in 1..1000 {
            pins.add(address(7), NonZeroU16::new(port), 60, now);
        }
        assert_eq!(pins.addresses[&address(7)].len(), MAX_PORTS);
    }
}
