//! HTTP/1.1 over bytes, as far as the interface needs it: requests with a length, answers in their
//! order, connections that stay open.

use std::fmt::Write;

use crate::fault::Fault;

/// The maximum number of bytes before a request's body.
const MAX_HEAD: usize = 8 * 1024;
/// The maximum number of header lines.
const MAX_HEADERS: usize = 64;

/// A method that the interface knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Reads something.
    Get,
    /// Sets or orders something.
    Put,
    /// Changes a part of something.
    Patch,
}

impl Method {
    /// The method's name in a request.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
        }
    }
}

/// A whole request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpRequest {
    /// The method; `None` if the interface knows none of this name.
    pub method: Option<Method>,
    /// The method's name.
    pub method_name: String,
    /// The path, without a query.
    pub path: String,
    /// The headers; their names are in lower case.
    pub headers: Vec<(String, String)>,
    /// The bytes after the headers.
    pub body: Vec<u8>,
    /// Whether the connection stays open after the answer.
    pub keeps_alive: bool,
}

impl HttpRequest {
    /// The first header of one of these names, which are in lower case, with its value.
    pub(crate) fn first_header(&self, names: &[&str]) -> Option<(&str, &str)> {
        let header = self
            .headers
            .iter()
            .find(|(name, _)| names.contains(&&**name));
        header.map(|(name, value)| (&**name, &**value))
    }
}

/// The status of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The answer has a body.
    Ok,
    /// The request is carried out.
    NoContent,
    /// The request is refused.
    BadRequest,
    /// There is nothing of this name.
    NotFound,
    /// The request is larger than this server accepts.
    PayloadTooLarge,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::NoContent => "204 No Content",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::PayloadTooLarge => "413 Payload Too Large",
        }
    }
}

/// What a client gets back for a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// How the request went.
    pub status: Status,
    /// The body, which is JSON.
    pub body: Option<String>,
    /// A remark for people, which goes into the header `Tollgate-Note`.
    pub note: Option<String>,
}

impl Response {
    /// The answer to a request that is carried out and returns nothing.
    pub fn done() -> Self {
        Self {
            status: Status::NoContent,
            body: None,
            note: None,
        }
    }

    /// An answer with a body.
    pub fn with_body(status: Status, body: String) -> Self {
        Self {
            status,
            body: Some(body),
            note: None,
        }
    }

    /// Whether the request was carried out.
    pub fn is_good(&self) -> bool {
        matches!(self.status, Status::Ok | Status::NoContent)
    }

    /// The answer as it is sent.
    pub fn bytes(&self, keeps_alive: bool) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {}\r\nServer: Tollgate\r\n", self.status.line());
        let connection = if keeps_alive { "keep-alive" } else { "close" };
        let _ = write!(text, "Connection: {connection}\r\n");
        if let Some(note) = &self.note {
            let line = note.replace(|it: char| it.is_control() || !it.is_ascii(), " ");
            let _ = write!(text, "Tollgate-Note: {line}\r\n");
        }
        if let Some(body) = &self.body {
            let length = body.len();
            let _ = write!(
                text,
                "Content-Type: application/json\r\nContent-Length: {length}\r\n"
            );
        }
        text.push_str("\r\n");
        text.push_str(self.body.as_deref().unwrap_or_default());
        text.into_bytes()
    }
}

/// What the bytes of a connection contain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// No whole request yet.
    Nothing,
    /// The client waits for permission to send the body: the owner sends [`Connection::CONTINUE`].
    AsksToContinue,
    /// A request with its whole body.
    Request(HttpRequest),
    /// Something that is no request. The owner sends this answer and closes the connection.
    Broken(Fault),
}

/// The bytes of one client that are not a whole request yet.
#[derive(Debug)]
pub struct Connection {
    bytes: Vec<u8>,
    may_continue: bool,
    max_body: usize,
}

impl Connection {
    /// The answer to [`Received::AsksToContinue`].
    pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

    /// A connection whose requests may have bodies of at most `max_body` bytes.
    pub fn new(max_body: usize) -> Self {
        Self {
            bytes: Vec::new(),
            may_continue: false,
            max_body,
        }
    }

    /// A connection with these bytes.
    pub(crate) fn with(bytes: Vec<u8>, max_body: usize) -> Self {
        Self {
            bytes,
            ..Self::new(max_body)
        }
    }

    /// Returns the bytes that are not a whole request yet.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Adds bytes that the client has sent.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next request out of the bytes. The owner calls this until it returns
    /// [`Received::Nothing`], and again after the next bytes.
    pub fn take_next(&mut self) -> Received {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let start = match head.parse(&self.bytes) {
            Ok(httparse::Status::Complete(start)) if start <= MAX_HEAD => start,
            Ok(httparse::Status::Partial) if self.bytes.len() <= MAX_HEAD => {
                return Received::Nothing;
            }
            Ok(_) => return Received::Broken(too_large("the headers", MAX_HEAD)),
            Err(error) => {
                return Received::Broken(Fault::new(format!("Not an HTTP request: {error}.")));
            }
        };
        let (mut length, mut expects, mut keeps_alive) = (0, false, head.version == Some(1));
        let mut kept = Vec::new();
        for header in head.headers.iter() {
            let value = String::from_utf8_lossy(header.value);
            let value = value.trim();
            let name = header.name.to_ascii_lowercase();
            kept.push((name.clone(), value.to_owned()));
            match name.as_str() {
                "content-length" => match value.parse::<usize>() {
                    Ok(bytes) => length = bytes,
                    Err(_) => {
                        return Received::Broken(Fault::new("Content-Length is not a number."));
                    }
                },
                "transfer-encoding" => {
                    let why = "Transfer-Encoding is not supported; give a Content-Length.";
                    return Received::Broken(Fault::new(why));
                }
                "connection" if value.eq_ignore_ascii_case("close") => keeps_alive = false,
                "connection" if value.eq_ignore_ascii_case("keep-alive") => keeps_alive = true,
                "expect" => expects = value.eq_ignore_ascii_case("100-continue"),
                _ => {}
            }
        }
        if length > self.max_body {
            return Received::Broken(too_large("the body", self.max_body));
        }
        let end = start + length;
        if self.bytes.len() < end {
            return match expects && !std::mem::replace(&mut self.may_continue, true) {
                true => Received::AsksToContinue,
                false => Received::Nothing,
            };
        }
        let method_name = head.method.unwrap_or_default().to_owned();
        let methods = [Method::Get, Method::Put, Method::Patch];
        let path = head.path.unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        // A client may name the host too.
        let path = match path.strip_prefix("http://") {
            Some(rest) => rest.find('/').map_or("", |start| &rest[start..]),
            None => path,
        };
        let request = HttpRequest {
            method: methods.into_iter().find(|it| it.name() == method_name),
            method_name,
            path: path.to_owned(),
            headers: kept,
            body: self.bytes[start..end].to_vec(),
            keeps_alive,
        };
        self.bytes.drain(..end);
        self.may_continue = false;
        Received::Request(request)
    }
}

fn too_large(what: &str, bytes: usize) -> Fault {
    Fault {
        message: format!("The request is too large: {what} may have {bytes} bytes."),
        status: Status::PayloadTooLarge,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(text: &str) -> (Connection, Received) {
        let mut connection = Connection::new(100);
        connection.add(text.as_bytes());
        let first = connection.take_next();
        (connection, first)
    }

    fn request(received: Received) -> HttpRequest {
        match received {
            Received::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_come_in_any_pieces_and_several_at_once() {
        let text = "PUT /vm?x=1 HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}GET / HTTP/1.0\r\n\r\n";
        let mut connection = Connection::new(100);
        let mut requests = Vec::new();
        for byte in text.bytes() {
            connection.add(&[byte]);
            match connection.take_next() {
                Received::Nothing => {}
                other => requests.push(request(other)),
            }
        }
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[0].method, Some(Method::Put));
        assert_eq!(
            (&*requests[0].path, &*requests[0].body),
            ("/vm", &b"{}"[..])
        );
        assert!(requests[0].keeps_alive);
        assert!(!requests[1].keeps_alive);
        let (mut connection, first) = received(text);
        request(first);
        request(connection.take_next());
        assert_eq!(connection.take_next(), Received::Nothing);
    }

    #[test]
    fn a_client_that_asks_gets_permission_once() {
        let head = "PUT /mmds HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
        let (mut connection, first) = received(head);
        assert_eq!(first, Received::AsksToContinue);
        assert_eq!(connection.take_next(), Received::Nothing);
        connection.add(b"{}");
        request(connection.take_next());
    }

    #[test]
    fn what_is_too_large_or_no_request_is_refused() {
        let big = "PUT / HTTP/1.1\r\nContent-Length: 101\r\n\r\n".to_owned();
        let long = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(MAX_HEAD));
        for text in [&big, &long] {
            match received(text).1 {
                Received::Broken(fault) => assert_eq!(fault.status, Status::PayloadTooLarge),
                other => panic!("{other:?}"),
            }
        }
        for text in [
            "\u{1}\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(matches!(received(text).1, Received::Broken(_)), "{text}");
        }
    }

    #[test]
    fn an_answer_without_a_body_has_no_length() {
        let mut response = Response::done();
        response.note = Some("a\r\nB: c".into());
        let text = String::from_utf8(response.bytes(true)).unwrap();
        assert_eq!(
            text,
            "HTTP/1.1 204 No Content\r\nServer: Tollgate\r\nConnection: keep-alive\r\n\
             Tollgate-Note: a  B: c\r\n\r\n"
        );
        let body = Response::with_body(Status::Ok, "{}".into()).bytes(false);
        assert!(
            String::from_utf8(body)
                .unwrap()
                .ends_with("Content-Length: 2\r\n\r\n{}")
        );
    }
}
