//! Queries for names and their answers (RFC 1035, section 4.1), where rules are about names: which
//! name is asked for, and which addresses it has.
//!
//! A guest's query is not passed on as it is. A new one with its name and type takes its place, so
//! that nothing else of the guest reaches the name server, and with another number, which the guest
//! cannot tell to a forger of answers.

use crate::rules::HostName;
use smoltcp::wire::{DnsFlags, DnsPacket, DnsQuestion, DnsRecord, DnsRecordData};
use std::net::IpAddr;

/// The size of a message's header in bytes.
const HEADER: usize = 12;
/// The bits of the third byte that say what kind of query it is.
const OPERATION: u8 = 0x78;
const RECURSION_DESIRED: u8 = 1;
/// In the third byte: the answer was cut.
const TRUNCATED: u8 = 2;

/// A query of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    pub name: HostName,
    /// The question as it is in the message: name, type and class.
    question: Vec<u8>,
}

impl Asked {
    /// Returns what a message asks for; `None` if it is no plain query for one name of a host.
    pub fn of(message: &[u8]) -> Option<Self> {
        let packet = DnsPacket::new_checked(message).ok()?;
        let is_query = !packet.flags().contains(DnsFlags::RESPONSE) && message[2] & OPERATION == 0;
        if !is_query || packet.question_count() != 1 {
            return None;
        }
        let payload = packet.payload();
        let (rest, question) = DnsQuestion::parse(payload).ok()?;
        let bytes = &payload[..payload.len() - rest.len()];
        // A query contains nothing that a compressed name could refer to.
        if bytes.len() != question.name.len() + 4 || question.name.last() != Some(&0) {
            return None;
        }
        Some(Self {
            name: name(&packet, question.name)?,
            question: bytes.to_vec(),
        })
    }

    /// Makes a query for records of a type.
    pub fn for_records(name: &HostName, kind: u8) -> Self {
        let mut question = Vec::new();
        for label in name.as_str().split('.') {
            question.push(label.len() as u8);
            question.extend(label.bytes());
        }
        question.extend([0, 0, kind, 0, 1]);
        Self {
            name: name.clone(),
            question,
        }
    }

    /// Returns a new query for the name.
    pub fn query(&self, identification: [u8; 2]) -> Vec<u8> {
        let mut query = vec![0; HEADER];
        query[..2].copy_from_slice(&identification);
        query[2] = RECURSION_DESIRED;
        query[5] = 1;
        query.extend(&self.question);
        query
    }

    /// Returns the answer's contents; `None` if it is not one to this question.
    pub fn answer(&self, message: &[u8]) -> Option<Answer> {
        let packet = DnsPacket::new_checked(message).ok()?;
        let question = packet.payload().get(..self.question.len())?;
        if !packet.flags().contains(DnsFlags::RESPONSE)
            || packet.question_count() != 1
            || !question.eq_ignore_ascii_case(&self.question)
        {
            return None;
        }
        let mut rest = &packet.payload()[self.question.len()..];
        let mut answer = Answer {
            names: vec![self.name.clone()],
            addresses: Vec::new(),
        };
        for _ in 0..packet.answer_record_count() {
            // Records of other classes, and cut ones, end what is understood.
            let Ok((after, record)) = DnsRecord::parse(rest) else {
                break;
            };
            rest = after;
            // The names of an alias come before the addresses of what it stands for (RFC 1034,
            // section 4.3.2).
            let owner = name(&packet, record.name);
            if !owner.is_some_and(|owner| answer.names.contains(&owner)) {
                continue;
            }
            match record.data {
                DnsRecordData::A(address) => answer.addresses.push((address.into(), record.ttl)),
                DnsRecordData::Aaaa(address) => answer.addresses.push((address.into(), record.ttl)),
                DnsRecordData::Cname(alias) => answer.names.extend(name(&packet, alias)),
                DnsRecordData::Other(..) => {}
            }
        }
        Some(answer)
    }
}

/// What an answer says about a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The name, and those that it stands for.
    pub names: Vec<HostName>,
    /// The addresses, and for how many seconds they are valid.
    pub addresses: Vec<(IpAddr, u32)>,
}

/// Makes a message of the server one for the guest: with the guest's number, and complete if it has
/// addresses, because the guest cannot ask for more of them by TCP.
pub fn returned(message: &mut [u8], identification: [u8; 2], answer: &Answer) {
    message[..2].copy_from_slice(&identification);
    if !answer.addresses.is_empty() {
        message[2] &= !TRUNCATED;
    }
}

/// Returns a number for a query that neither the guest nor a forger of answers can foresee.
pub fn identification() -> [u8; 2] {
    use std::hash::{BuildHasher, RandomState};
    // Each state has other keys, which the host's random numbers are the source of.
    let number = RandomState::new().hash_one(0u8);
    [number as u8, (number >> 8) as u8]
}

fn name(packet: &DnsPacket<&[u8]>, bytes: &[u8]) -> Option<HostName> {
    let labels: Result<Vec<&[u8]>, _> = packet.parse_name(bytes).collect();
    HostName::of_labels(labels.ok()?.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_test_support::Random;

    /// A query for the addresses of `A.example`, with an option record at its end.
    const QUERY: &[u8] = b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\x01\
        \x01A\x07example\0\0\x01\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0";
    /// The answer to it, cut: an alias `b.example` with two addresses, and an address of a name that
    /// was not asked for.
    const ANSWER: &[u8] = b"\x56\x78\x83\x80\0\x01\0\x04\0\0\0\0\
        \x01a\x07example\0\0\x01\0\x01\
        \xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01b\xc0\x0e\
        \xc0\x27\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01\
        \xc0\x27\0\x01\0\x01\0\0\0\x3d\0\x04\xc0\0\x02\x02\
        \x01c\xc0\x0e\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x03";

    #[test]
    fn only_name_and_type_of_a_query_are_asked() {
        let asked = Asked::of(QUERY).unwrap();
        assert_eq!(asked.name.as_str(), "a.example");
        let query = b"\x56\x78\x01\0\0\x01\0\0\0\0\0\0\x01A\x07example\0\0\x01\0\x01";
        assert_eq!(asked.query([0x56, 0x78]), query);
    }

    #[test]
    fn addresses_are_those_of_the_name_and_of_its_aliases() {
        let asked = Asked::of(QUERY).unwrap();
        let answer = asked.answer(ANSWER).unwrap();
        let names: Vec<&str> = answer.names.iter().map(HostName::as_str).collect();
        assert_eq!(names, ["a.example", "b.example"]);
        let expected = [([192, 0, 2, 1].into(), 60), ([192, 0, 2, 2].into(), 61)];
        assert_eq!(answer.addresses, expected);
        let mut message = ANSWER.to_vec();
        returned(&mut message, [0x12, 0x34], &answer);
        assert_eq!(message[..4], [0x12, 0x34, 0x81, 0x80]);
    }

    #[test]
    fn other_messages_are_neither_queries_nor_answers() {
        let changed = |from: &[u8], at: usize, byte: u8| {
            let mut message = from.to_vec();
            message[at] = byte;
            message
        };
        for message in [
            changed(QUERY, 2, 0x81),
            changed(QUERY, 2, 0x29),
            changed(QUERY, 5, 2),
            changed(QUERY, 12, 0xc0),
            changed(QUERY, 13, b'.'),
            changed(QUERY, 13, 0),
            changed(QUERY, 25, 3),
            QUERY[..20].to_vec(),
        ] {
            assert_eq!(Asked::of(&message), None, "{message:?}");
        }
        let asked = Asked::of(QUERY).unwrap();
        for message in [
            changed(ANSWER, 2, 0x01),
            changed(ANSWER, 5, 0),
            changed(ANSWER, 13, b'b'),
            changed(ANSWER, 24, 28),
        ] {
            assert_eq!(asked.answer(&message), None, "{message:?}");
        }
    }

    #[test]
    fn no_message_makes_the_parser_fail() {
        let mut random = Random::new(3);
        let asked = Asked::of(QUERY).unwrap();
        for _ in 0..100_000 {
            let mut message = [QUERY, ANSWER][random.below(2)].to_vec();
            for _ in 0..random.below(5) {
                let place = random.below(message.len());
                message[place] = random.byte();
            }
            message.truncate(message.len() - random.below(3) * random.below(20));
            let _ = Asked::of(&message);
            if let Some(answer) = asked.answer(&message) {
                assert!(answer.addresses.len() <= message.len() / 12);
                returned(&mut message, [0, 0], &answer);
            }
        }
    }
}
