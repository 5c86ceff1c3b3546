//! The destinations that a network has refused to the guest: how often, and the last ones.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of different destinations that are kept. For one more, the one that was refused
/// longest ago is dropped.
const MAX_KEPT: usize = 64;

/// How the guest tried to reach a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// It opened a connection.
    Tcp,
    /// It sent a datagram.
    Udp,
    /// It sent an echo request.
    Ping,
    /// It asked the name server for a name.
    Name,
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Ping => "ping",
            Self::Name => "name",
        })
    }
}

/// A destination that was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// How the guest tried to reach it.
    pub protocol: Protocol,
    /// The address and port as the guest gave them, or the name.
    pub destination: String,
    /// Why it was refused, and what would open it.
    pub reason: String,
    /// How often it was refused.
    pub count: u64,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, destination, reason) = (self.protocol, &self.destination, &self.reason);
        write!(formatter, "{protocol} {destination}: {reason}")
    }
}

/// All refusals of one network.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RefusedList {
    /// The number of refused packets and queries. A repeated one counts again.
    pub total: u64,
    /// The different destinations that were refused last, the latest at the end.
    pub last: Vec<Refused>,
}

impl RefusedList {
    /// Returns the refusals of several networks together.
    pub fn of_all(refusals: &[Refusals]) -> Self {
        let mut all = Self::default();
        for one in refusals.iter().map(Refusals::list) {
            all.total += one.total;
            all.last.extend(one.last);
        }
        all
    }
}

/// The shared record, which the network's thread writes.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    total: u64,
    last: VecDeque<Refused>,
}

/// Whether a refusal is the first one of its destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It was not in the record.
    First,
    /// The record has it already.
    Again,
}

impl Refusals {
    /// Records a refusal.
    pub fn add(&self, refused: &Refused) -> Seen {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record.total += refused.count;
        let same = |other: &Refused| {
            other.protocol == refused.protocol
                && other.destination == refused.destination
                && other.reason == refused.reason
        };
        let known = record.last.iter().position(same);
        let known = known.and_then(|index| record.last.remove(index));
        let seen = match known {
            Some(_) => Seen::Again,
            None => Seen::First,
        };
        let mut refused = refused.clone();
        refused.count += known.map_or(0, |known| known.count);
        if record.last.len() >= MAX_KEPT {
            record.last.pop_front();
        }
        record.last.push_back(refused);
        seen
    }

    /// Returns what was refused so far.
    pub fn list(&self) -> RefusedList {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        RefusedList {
            total: record.total,
            last: record.last.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(port: usize) -> Refused {
        Refused {
            protocol: Protocol::Tcp,
            destination: format!("192.0.2.1:{port}"),
            reason: "not in allow=".into(),
            count: 1,
        }
    }

    #[test]
    fn repeated_refusals_are_counted_and_the_last_ones_are_kept() {
        let refusals = Refusals::default();
        for port in 0..100 {
            assert_eq!(refusals.add(&refused(port)), Seen::First);
        }
        assert_eq!(refusals.add(&refused(50)), Seen::Again);
        let list = refusals.list();
        assert_eq!((list.total, list.last.len()), (101, MAX_KEPT));
        let latest = list.last.last().unwrap();
        assert_eq!((&*latest.destination, latest.count), ("192.0.2.1:50", 2));
        assert_eq!(list.last[0].destination, "192.0.2.1:36");
    }
}
