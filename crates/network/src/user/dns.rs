//! The messages of name servers (RFC 1035, section 4.1) that the network sends in place of a name
//! server: that a query failed. A guest's resolver then gives up immediately, and does not wait for
//! a server that the host cannot reach.

/// The size of a message's header in bytes.
const HEADER: usize = 12;
/// The bit in the third byte that makes a message a response.
const IS_RESPONSE: u8 = 0x80;
/// The bits of the third byte that a response repeats: operation, and "recursion desired".
const REPEATED: u8 = 0x79;
/// "Recursion available", in the fourth byte.
const RECURSION_AVAILABLE: u8 = 0x80;
/// The number of bytes of a question after its name: type and class.
const QUESTION_END: usize = 4;

/// Why a query was not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// SERVFAIL: the host can reach no name server.
    Server = 2,
    /// REFUSED: the guest may ask no name server.
    Refused = 5,
}

/// Returns the message's transaction ID, by which responses are matched to queries.
pub fn identification(message: &[u8]) -> Option<[u8; 2]> {
    message.first_chunk().copied()
}

/// Returns the response that reports a failure, or `None` if the message is no query.
pub fn failure(query: &[u8], failure: Failure) -> Option<Vec<u8>> {
    let header: &[u8; HEADER] = query.first_chunk()?;
    if header[2] & IS_RESPONSE != 0 {
        return None;
    }
    let question = match header[4..6] {
        [0, 1] => question(&query[HEADER..])?,
        _ => &[],
    };
    let mut response = vec![0; HEADER];
    response[..2].copy_from_slice(&header[..2]);
    response[2] = IS_RESPONSE | header[2] & REPEATED;
    response[3] = RECURSION_AVAILABLE | failure as u8;
    response[5] = u8::from(!question.is_empty());
    response.extend(question);
    Some(response)
}

/// Returns the first question, at the start of `bytes`.
fn question(bytes: &[u8]) -> Option<&[u8]> {
    let mut end = 0;
    loop {
        match *bytes.get(end)? {
            0 => return bytes.get(..end + 1 + QUESTION_END),
            label @ 1..=63 => end += 1 + usize::from(label),
            // A query contains nothing that a compressed name could refer to.
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query for the addresses of `a.example`, with an option record at its end.
    const QUERY: &[u8] = b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\x01\
        \x01a\x07example\0\0\x01\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0";

    #[test]
    fn a_failure_repeats_identification_and_question() {
        let response = failure(QUERY, Failure::Server).unwrap();
        let expected = b"\x12\x34\x81\x82\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01";
        assert_eq!(response, expected);
        assert_eq!(failure(QUERY, Failure::Refused).unwrap()[3], 0x85);
        assert_eq!(identification(&response), identification(QUERY));
    }

    #[test]
    fn responses_and_broken_queries_are_not_answered() {
        assert_eq!(
            failure(&failure(QUERY, Failure::Server).unwrap(), Failure::Server),
            None
        );
        for bytes in 0..HEADER + 15 {
            assert_eq!(failure(&QUERY[..bytes], Failure::Server), None, "{bytes}");
        }
        let mut compressed = QUERY.to_vec();
        compressed[HEADER] = 0xc0;
        assert_eq!(failure(&compressed, Failure::Server), None);
    }
}
