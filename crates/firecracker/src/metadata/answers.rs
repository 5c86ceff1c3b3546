//! What a client in the guest gets from the metadata service: JSON, or text in the form of EC2's
//! instance metadata.

use std::fmt::Write;
use std::time::Instant;

use serde_json::Value;

use super::tokens::LIFETIME;
use super::{GuestAnswer, Store};
use crate::bodies::MetadataVersion;
use crate::http::{Connection, HttpRequest, Method, Received};

/// The maximum number of bytes of a request's body, which no request needs.
const MAX_BODY: usize = 4096;
/// Where a session begins.
const TOKEN_PATH: &str = "/latest/api/token";
/// The names of the header with the lifetime of a token. The second one is EC2's.
const LIFETIME_HEADERS: [&str; 2] = [
    "x-metadata-token-ttl-seconds",
    "x-aws-ec2-metadata-token-ttl-seconds",
];
/// The names of the header with a token.
const TOKEN_HEADERS: [&str; 2] = ["x-metadata-token", "x-aws-ec2-metadata-token"];
/// A header that proxies add, with which no session begins.
const FORWARDED: &str = "x-forwarded-for";

/// Takes the next request out of the bytes, and answers it.
pub fn answer(store: &mut Store, received: &mut Vec<u8>) -> GuestAnswer {
    let mut connection = Connection::with(std::mem::take(received), MAX_BODY);
    let next = connection.take_next();
    *received = connection.into_bytes();
    match next {
        Received::Nothing | Received::AsksToContinue => GuestAnswer::default(),
        Received::Request(request) => {
            let reply = store.reply(&request, Instant::now());
            GuestAnswer {
                bytes: reply.bytes(request.keeps_alive),
                is_last: !request.keeps_alive,
            }
        }
        Received::Broken(fault) => GuestAnswer {
            bytes: Reply::text("400 Bad Request", fault.message).bytes(false),
            is_last: true,
        },
    }
}

struct Reply {
    status: &'static str,
    content_type: &'static str,
    /// A further header line.
    header: Option<(String, String)>,
    body: String,
}

impl Reply {
    fn text(status: &'static str, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain",
            header: None,
            body: body.into(),
        }
    }

    fn bytes(&self, keeps_alive: bool) -> Vec<u8> {
        let connection = if keeps_alive { "keep-alive" } else { "close" };
        let mut text = format!(
            "HTTP/1.1 {}\r\nServer: Tollgate\r\nConnection: {connection}\r\nContent-Type: {}\r\n\
             Content-Length: {}\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        if let Some((name, value)) = &self.header {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        text.push_str("\r\n");
        text.push_str(&self.body);
        text.into_bytes()
    }
}

impl Store {
    fn reply(&mut self, request: &HttpRequest, now: Instant) -> Reply {
        match request.method {
            Some(Method::Get) => self.get(request, now),
            Some(Method::Put) => self.begin_session(request, now),
            _ => Reply {
                header: Some(("Allow".into(), "GET, PUT".into())),
                ..Reply::text("405 Method Not Allowed", "Not allowed HTTP method.")
            },
        }
    }

    fn get(&self, request: &HttpRequest, now: Instant) -> Reply {
        // The older version ignores tokens.
        if self.version == MetadataVersion::V2 {
            let Some((_, token)) = request.first_header(&TOKEN_HEADERS) else {
                let why = "No MMDS token provided. Use `X-metadata-token` or `X-aws-ec2-metadata-token` header to \
                           specify the session token.";
                return Reply::text("401 Unauthorized", why);
            };
            if !self.tokens.has(token, now) {
                return Reply::text("401 Unauthorized", "MMDS token not valid.");
            }
        }
        let path = json_pointer(&request.path);
        let value = self.value.as_ref().and_then(|value| value.pointer(&path));
        let Some(value) = value else {
            let why = format!("Resource not found: {}.", request.path);
            return Reply::text("404 Not Found", why);
        };
        if !self.imds_compat && accepts_json(request) {
            return Reply {
                content_type: "application/json",
                ..Reply::text("200 OK", value.to_string())
            };
        }
        match as_text(value) {
            Some(text) => Reply::text("200 OK", text),
            None => {
                let why = "Cannot retrieve value. The value has an unsupported type.";
                Reply::text("501 Not Implemented", why)
            }
        }
    }

    fn begin_session(&mut self, request: &HttpRequest, now: Instant) -> Reply {
        let refused = |why: String| Reply::text("400 Bad Request", why);
        if request.first_header(&[FORWARDED]).is_some() {
            return refused(
                "Invalid header. Reason: Unsupported header name: X-Forwarded-For.".into(),
            );
        }
        if single_slashes(&request.path) != TOKEN_PATH {
            let why = format!("Resource not found: {}.", request.path);
            return Reply::text("404 Not Found", why);
        }
        let Some((name, value)) = request.first_header(&LIFETIME_HEADERS) else {
            return refused(
                "Token time to live value not found. Use `X-metadata-token-ttl-seconds` or \
                 `X-aws-ec2-metadata-token-ttl-seconds` header to specify the token's lifetime."
                    .into(),
            );
        };
        let seconds = value.parse().ok().filter(|it| LIFETIME.contains(it));
        let Some(seconds) = seconds else {
            let (least, most) = (LIFETIME.start(), LIFETIME.end());
            return refused(format!(
                "Invalid time to live value provided for token: {value}. Please provide a value between {least} and \
                 {most}."
            ));
        };
        match self.tokens.issue(seconds, now) {
            Some(token) => Reply {
                header: Some((name.to_owned(), seconds.to_string())),
                ..Reply::text("200 OK", token)
            },
            None => Reply::text(
                "500 Internal Server Error",
                "The host has no random numbers.",
            ),
        }
    }
}

/// Whether the client asks for JSON; without a wish, answers are text.
fn accepts_json(request: &HttpRequest) -> bool {
    let Some((_, accepted)) = request.first_header(&["accept"]) else {
        return false;
    };
    let kinds = accepted
        .split(',')
        .filter_map(|kind| kind.split(';').next());
    kinds
        .into_iter()
        .any(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// A path without repeated slashes.
fn single_slashes(path: &str) -> String {
    let mut result = String::with_capacity(path.len());
    for letter in path.chars() {
        if letter != '/' || !result.ends_with('/') {
            result.push(letter);
        }
    }
    result
}

/// The JSON pointer (RFC 6901) that a path is.
fn json_pointer(path: &str) -> String {
    let path = single_slashes(path);
    path.strip_suffix('/').unwrap_or(&path).to_owned()
}

/// A value in the form of EC2's instance metadata: the names in an object, one a line, or the text
/// of a string.
fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(map) => {
            let names = map.iter().map(|(name, value)| {
                let end = if value.is_object() { "/" } else { "" };
                format!("{name}{end}")
            });
            Some(names.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Metadata;
    use super::*;
    use crate::bodies::MetadataConfig;

    fn metadata(version: MetadataVersion, imds_compat: bool) -> Metadata {
        let metadata = Metadata::new(1000);
        metadata.configure(&MetadataConfig {
            version,
            network_interfaces: vec!["eth0".into()],
            ipv4_address: [169, 254, 169, 254].into(),
            imds_compat,
        });
        let value = json!({"latest": {"meta-data": {"ami-id": "ami-1", "n": {}, "z": [1]}}});
        metadata.put(value).unwrap();
        metadata
    }

    /// The status, the headers and the body that a request gets.
    fn ask(metadata: &Metadata, request: &str) -> (u32, String, String) {
        let mut bytes = format!("{request}\r\n\r\n").into_bytes();
        let answer = metadata.answer(&mut bytes);
        let text = String::from_utf8(answer.bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    #[test]
    fn the_first_version_needs_no_token_and_answers_in_two_forms() {
        let store = metadata(MetadataVersion::V1, false);
        for (path, accept, status, expected) in [
            ("/latest", "*/*", 200, "meta-data/"),
            ("/latest/meta-data/", "plain/text", 200, "ami-id\nn/\nz"),
            ("//latest//meta-data/ami-id", "*/*", 200, "ami-1"),
            (
                "http://169.254.169.254/latest/meta-data/ami-id",
                "text/html, application/json;q=0.9",
                200,
                "\"ami-1\"",
            ),
            ("/latest/meta-data/z/0/", "application/json", 200, "1"),
            (
                "/latest/meta-data/z",
                "*/*",
                501,
                "Cannot retrieve value. The value has an unsupported type.",
            ),
            ("/none", "*/*", 404, "Resource not found: /none."),
            ("/", "*/*", 200, "latest/"),
        ] {
            let request = format!("GET {path} HTTP/1.1\r\nAccept: {accept}\r\nX-metadata-token: x");
            let (number, head, body) = ask(&store, &request);
            assert_eq!((number, &*body), (status, expected), "{path}");
            let is_json = number == 200 && accept.contains("json");
            assert_eq!(head.contains("Content-Type: application/json"), is_json);
        }
        let (status, head, _) = ask(&store, "DELETE / HTTP/1.1");
        assert_eq!(status, 405);
        assert!(head.contains("Allow: GET, PUT"), "{head}");
        let empty = Metadata::new(1000);
        assert_eq!(ask(&empty, "GET / HTTP/1.1").0, 404);
    }

    #[test]
    fn the_second_version_needs_the_token_of_a_session() {
        let store = metadata(MetadataVersion::V2, false);
        let (status, _, why) = ask(&store, "GET /latest HTTP/1.1");
        assert_eq!(status, 401);
        assert!(why.starts_with("No MMDS token provided."));
        let (status, _, why) = ask(&store, "GET /latest HTTP/1.1\r\nX-metadata-token: 12");
        assert_eq!((status, &*why), (401, "MMDS token not valid."));
        for header in ["X-Metadata-Token", "X-aws-ec2-metadata-token"] {
            let put = format!("PUT /latest/api/token HTTP/1.1\r\n{header}-ttl-seconds: 60");
            let (status, head, token) = ask(&store, &put);
            assert_eq!(status, 200, "{token}");
            assert!(head.contains("token-ttl-seconds: 60"), "{head}");
            let get = format!("GET /latest HTTP/1.1\r\n{header}: {token}");
            let (status, _, body) = ask(&store, &get);
            assert_eq!((status, &*body), (200, "meta-data/"));
        }
        for (rest, status, why) in [
            (
                "/latest/api/token HTTP/1.1",
                400,
                "Token time to live value not found.",
            ),
            (
                "/latest/api/token HTTP/1.1\r\nX-metadata-token-ttl-seconds: 21601",
                400,
                "Invalid time to live value provided for token: 21601.",
            ),
            (
                "/latest/api/token HTTP/1.1\r\nX-Forwarded-For: a\r\nX-metadata-token-ttl-seconds: 1",
                400,
                "Invalid header.",
            ),
            (
                "/latest HTTP/1.1\r\nX-metadata-token-ttl-seconds: 1",
                404,
                "Resource not found: /latest.",
            ),
        ] {
            let (number, _, body) = ask(&store, &format!("PUT {rest}"));
            assert_eq!(number, status, "{rest}");
            assert!(body.starts_with(why), "{body}");
        }
    }

    #[test]
    fn compatible_answers_are_always_text() {
        let store = metadata(MetadataVersion::V1, true);
        let request = "GET /latest/meta-data/ami-id HTTP/1.1\r\nAccept: application/json";
        let (status, head, body) = ask(&store, request);
        assert_eq!((status, &*body), (200, "ami-1"));
        assert!(head.contains("Content-Type: text/plain"));
    }

    #[test]
    fn requests_come_in_pieces_and_what_is_none_ends_the_connection() {
        let store = metadata(MetadataVersion::V1, false);
        let mut bytes = b"GET /latest HTTP/1.1\r\n".to_vec();
        assert_eq!(store.answer(&mut bytes), GuestAnswer::default());
        bytes.extend(b"\r\nGET / HTTP/1.0\r\n\r\n");
        assert!(!store.answer(&mut bytes).is_last);
        assert!(store.answer(&mut bytes).is_last);
        assert!(bytes.is_empty());
        for broken in [
            "\u{1}\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n",
        ] {
            let answer = store.answer(&mut broken.as_bytes().to_vec());
            assert!(answer.is_last && answer.bytes.starts_with(b"HTTP/1.1 400 "));
        }
    }
}
