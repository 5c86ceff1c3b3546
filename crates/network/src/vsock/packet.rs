//! The header of a vsock packet (virtio 1.2, 5.10.6).

/// The size of a header in bytes.
pub const HEADER: usize = 44;
/// The host's context identifier.
pub const HOST_CID: u64 = 2;
/// The type of stream sockets; there are others.
pub const STREAM: u16 = 1;

/// The purpose of a packet (5.10.6).
pub mod operation {
    /// The sender requests a connection.
    pub const REQUEST: u16 = 1;
    /// The sender accepts the connection.
    pub const RESPONSE: u16 = 2;
    /// The connection does not exist, or has ended.
    pub const RESET: u16 = 3;
    /// The sender shuts down a direction: see [`super::shutdown`].
    pub const SHUTDOWN: u16 = 4;
    /// Data follows.
    pub const DATA: u16 = 5;
    /// The header reports how much room the sender has.
    pub const CREDIT_UPDATE: u16 = 6;
    /// The sender requests such a report.
    pub const CREDIT_REQUEST: u16 = 7;
}

/// Flags of [`operation::SHUTDOWN`].
pub mod shutdown {
    /// The sender receives no more.
    pub const RECEIVE: u32 = 1;
    /// The sender sends no more.
    pub const SEND: u32 = 2;
    /// Both directions.
    pub const BOTH: u32 = RECEIVE | SEND;
}

/// The header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The context identifier of the sender.
    pub from_cid: u64,
    /// The context identifier of the receiver.
    pub to_cid: u64,
    /// The port of the sender.
    pub from_port: u32,
    /// The port of the receiver.
    pub to_port: u32,
    /// The number of data bytes after the header.
    pub bytes: u32,
    /// The type of the socket.
    pub kind: u16,
    /// The purpose of the packet.
    pub operation: u16,
    /// Flags of the operation.
    pub flags: u32,
    /// The size of the sender's buffer in bytes.
    pub buffer: u32,
    /// The number of bytes that have left the sender's buffer since the connection began, modulo
    /// 2^32.
    pub forwarded: u32,
}

/// Reads a field of the header as a number.
macro_rules! field {
    ($type:ty, $bytes:expr, $offset:expr) => {{
        let field = $bytes[$offset..].first_chunk();
        field.map_or(0, |field| <$type>::from_le_bytes(*field))
    }};
}

impl Header {
    /// Reads the header of a packet, if it is long enough.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = packet.first_chunk()?;
        Some(Self {
            from_cid: field!(u64, bytes, 0),
            to_cid: field!(u64, bytes, 8),
            from_port: field!(u32, bytes, 16),
            to_port: field!(u32, bytes, 20),
            bytes: field!(u32, bytes, 24),
            kind: field!(u16, bytes, 28),
            operation: field!(u16, bytes, 30),
            flags: field!(u32, bytes, 32),
            buffer: field!(u32, bytes, 36),
            forwarded: field!(u32, bytes, 40),
        })
    }

    /// Returns the header's bytes.
    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.from_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.to_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.from_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.to_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.kind.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.operation.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buffer.to_le_bytes());
        bytes[40..].copy_from_slice(&self.forwarded.to_le_bytes());
        bytes
    }
}

/// Splits a packet for a receiver that has `room` bytes. Returns the first part, and the rest, if
/// there is any, as a packet of its own. Only data is ever split. Returns `None` if there is no
/// room for a header and one byte.
pub fn cut(mut packet: Vec<u8>, room: usize) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    if packet.len() <= room {
        return Some((packet, None));
    }
    let header = Header::read(&packet)?;
    if room <= HEADER {
        return None;
    }
    let with_bytes = |bytes: usize| {
        let bytes = bytes as u32;
        Header { bytes, ..header }.to_bytes()
    };
    let mut rest = with_bytes(packet.len() - room).to_vec();
    rest.extend_from_slice(&packet[room..]);
    packet.truncate(room);
    packet[..HEADER].copy_from_slice(&with_bytes(room - HEADER));
    Some((packet, Some(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: Header = Header {
        from_cid: 0x0102_0304_0506_0708,
        to_cid: HOST_CID,
        from_port: 0x1112_1314,
        to_port: 0x2122_2324,
        bytes: 10,
        kind: STREAM,
        operation: operation::DATA,
        flags: 0x3132_3334,
        buffer: 0x4142_4344,
        forwarded: 0x5152_5354,
    };

    #[test]
    fn headers_are_those_of_the_specification() {
        let bytes = EXAMPLE.to_bytes();
        assert_eq!(bytes[..9], [8, 7, 6, 5, 4, 3, 2, 1, 2]);
        assert_eq!(bytes[16..20], [0x14, 0x13, 0x12, 0x11]);
        assert_eq!(bytes[24..32], [10, 0, 0, 0, 1, 0, 5, 0]);
        assert_eq!(bytes[40..], [0x54, 0x53, 0x52, 0x51]);
        assert_eq!(Header::read(&bytes), Some(EXAMPLE));
        assert_eq!(Header::read(&bytes[1..]), None);
    }

    #[test]
    fn data_is_cut_and_nothing_is_lost() {
        let mut packet = EXAMPLE.to_bytes().to_vec();
        packet.extend(0..10u8);
        assert_eq!(cut(packet.clone(), 54), Some((packet.clone(), None)));
        let (first, rest) = cut(packet.clone(), 48).unwrap();
        assert_eq!(first[HEADER..], [0, 1, 2, 3]);
        assert_eq!(
            Header::read(&first),
            Some(Header {
                bytes: 4,
                ..EXAMPLE
            })
        );
        let rest = rest.unwrap();
        assert_eq!(rest[HEADER..], [4, 5, 6, 7, 8, 9]);
        assert_eq!(
            Header::read(&rest),
            Some(Header {
                bytes: 6,
                ..EXAMPLE
            })
        );
        assert_eq!(cut(packet.clone(), HEADER), None);
        assert_eq!(cut(packet, 0), None);
    }
}
