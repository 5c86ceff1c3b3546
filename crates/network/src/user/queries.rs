//! Queries to the host's name servers that were not answered yet. When the host finds out that a
//! server is unreachable, or when the guest repeats a query, the next server is asked, as the
//! host's own resolver would do (resolv.conf(5)).

use super::dns;
use super::gate::Screened;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The maximum number of queries of one port of the guest that are remembered. For one more, the
/// oldest is forgotten.
const MAX_QUERIES: usize = 8;
/// The maximum size in bytes of a query that is remembered. Queries by UDP are shorter (RFC 1035,
/// 4.2.1).
const MAX_BYTES: usize = 512;

/// A query of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// The address by which the guest knows the name server.
    pub inside: SocketAddr,
    pub data: Vec<u8>,
    /// Our own query in its place, where the network reads queries.
    pub screened: Option<Screened>,
    /// How many of the host's servers were asked.
    pub asked: usize,
}

impl Query {
    /// Returns the message for a name server.
    pub fn message(&self) -> Cow<'_, [u8]> {
        match &self.screened {
            Some(screened) => screened.query().into(),
            None => (&*self.data).into(),
        }
    }

    /// Returns the number of the message.
    fn identification(&self) -> Option<[u8; 2]> {
        match &self.screened {
            Some(screened) => Some(screened.identification),
            None => dns::identification(&self.data),
        }
    }
}

/// The queries of one port of the guest, each with the server that was asked last.
#[derive(Default)]
pub struct Queries {
    waiting: VecDeque<(SocketAddr, Query)>,
}

impl Queries {
    /// Records that `server` was asked.
    pub fn push(&mut self, server: SocketAddr, query: Query) {
        if query.data.len() > MAX_BYTES {
            return;
        }
        if self.waiting.len() >= MAX_QUERIES {
            self.waiting.pop_front();
        }
        self.waiting.push_back((server, query));
    }

    /// Removes the query that a server has answered, and returns it.
    pub fn answered(&mut self, server: SocketAddr, response: &[u8]) -> Option<Query> {
        let identification = dns::identification(response);
        let waiting = std::mem::take(&mut self.waiting);
        let (answered, others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(asked, query)| {
                *asked == server && query.identification() == identification
            });
        self.waiting = others.into();
        answered.into_iter().next().map(|(_, query)| query)
    }

    /// Takes the queries to a server that is unreachable.
    pub fn take_failed(&mut self, server: SocketAddr) -> Vec<Query> {
        let waiting = std::mem::take(&mut self.waiting);
        let (failed, others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(asked, _)| *asked == server);
        self.waiting = others.into();
        failed.into_iter().map(|(_, query)| query).collect()
    }

    /// Takes the query with the same data when the guest sends it again.
    pub fn take_repeated(&mut self, inside: SocketAddr, data: &[u8]) -> Option<Query> {
        let is_same = |query: &Query| query.inside == inside && query.data == data;
        let index = self.waiting.iter().position(|(_, query)| is_same(query))?;
        self.waiting.remove(index).map(|(_, query)| query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(number: u8) -> Query {
        Query {
            inside: "10.0.2.3:53".parse().unwrap(),
            data: vec![0, number, 1, 0],
            screened: None,
            asked: 1,
        }
    }

    fn server(number: u8) -> SocketAddr {
        ([192, 0, 2, number], 53).into()
    }

    #[test]
    fn answered_queries_are_forgotten_and_failed_ones_are_returned() {
        let mut queries = Queries::default();
        for number in 1..=4 {
            queries.push(server(number / 4), query(number));
        }
        // An answer of another server, or to another query, does not count.
        queries.answered(server(1), &[0, 2, 0x81, 0]);
        queries.answered(server(0), &[0, 9, 0x81, 0]);
        queries.answered(server(0), &[0, 2, 0x81, 0]);
        assert_eq!(queries.take_failed(server(0)), [query(1), query(3)]);
        assert_eq!(queries.take_failed(server(0)), []);
        let again = queries.take_repeated(query(4).inside, &query(4).data);
        assert_eq!(again, Some(query(4)));
        assert_eq!(queries.take_failed(server(1)), []);
    }

    #[test]
    fn only_some_queries_of_some_length_are_remembered() {
        let mut queries = Queries::default();
        for number in 0..100 {
            queries.push(server(1), query(number));
        }
        let long = Query {
            data: vec![0; MAX_BYTES + 1],
            ..query(0)
        };
        queries.push(server(1), long);
        let kept = queries.take_failed(server(1));
        assert_eq!(kept.len(), MAX_QUERIES);
        assert_eq!(kept.last(), Some(&query(99)));
    }
}
