//! `--display vnc=`: parses the place of a VNC server and its password.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tollgate_host_facts::file_words::reading;
use tollgate_machine::comma_list;
use tollgate_rfb::Password;

use crate::failure::Failure;

/// The port that viewers try if none is named.
const DEFAULT_PORT: u16 = 5900;
/// The number of displays: QEMU's users write the number of a display instead of a port.
const MOST_DISPLAYS: u16 = 100;

/// The place where the server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A TCP port, for viewers that know the password.
    Port(SocketAddr),
    /// A Unix socket, for this user.
    Socket(PathBuf),
}

/// The options of a VNC server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VncOptions {
    /// The place where it listens.
    pub place: Place,
    /// The file that holds the password.
    pub password: Option<PathBuf>,
}

impl VncOptions {
    /// Parses `ADDR[:PORT],password=FILE` and `unix:PATH[,password=FILE]`. A doubled comma is one
    /// of the path.
    ///
    /// # Errors
    ///
    /// The reason, for a line that names the flag and the value.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        const FORM: &str = "vnc=ADDR[:PORT],password=FILE or vnc=unix:PATH";
        let text = text.to_str().ok_or("vnc: a path is not UTF-8")?;
        let parts = comma_list::split(text);
        let (place, settings) = parts
            .split_first()
            .ok_or_else(|| format!("expected {FORM}"))?;
        let place = match place.strip_prefix("unix:") {
            Some("") => return Err(format!("expected {FORM}")),
            Some(path) => Place::Socket(path.into()),
            None => Place::Port(address(place)?),
        };
        let mut password = None;
        for setting in settings {
            match setting.split_once('=') {
                Some(("password", file)) if !matches!(file, "" | "on" | "off") => {
                    if password.replace(PathBuf::from(file)).is_some() {
                        return Err("vnc: 'password' is given twice".into());
                    }
                }
                // QEMU's word `password` takes the password from elsewhere.
                _ if setting.starts_with("password") => {
                    return Err("vnc: password=FILE names a file with the password".into());
                }
                _ => return Err(format!("vnc: unknown part '{setting}'; expected {FORM}")),
            }
        }
        if matches!(place, Place::Port(_)) && password.is_none() {
            return Err(
                "vnc: a port needs password=FILE, since everybody on this host can reach it; \
                 vnc=unix:PATH needs none"
                    .into(),
            );
        }
        Ok(Self { place, password })
    }

    /// Reads the password: the first line of its file.
    ///
    /// # Errors
    ///
    /// One line says that the file cannot be read, or has no password.
    pub fn read_password(&self) -> Result<Option<Password>, Failure> {
        let Some(path) = &self.password else {
            return Ok(None);
        };
        let refuse = |why: &str| {
            let path = path.display();
            Failure::usage(format!("--display vnc: password: '{path}': {why}"))
        };
        let bytes = fs::read(path).map_err(|error| refuse(&reading(&error)))?;
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match Password::new(line) {
            Some(password) => Ok(Some(password)),
            None if line.is_empty() => Err(refuse("its first line is empty")),
            None => Err(refuse("VNC's passwords have 8 characters at most")),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port(address) => write!(formatter, "{address}"),
            Self::Socket(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Parses `ADDR` or `ADDR:PORT`.
fn address(text: &str) -> Result<SocketAddr, String> {
    if text.is_empty() || (text.starts_with(':') && !text.starts_with("::")) {
        return Err(format!(
            "vnc: '{text}' names no address; 127.0.0.1 is this host alone"
        ));
    }
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address without a port contains colons too.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host = host
        .strip_prefix('[')
        .map_or(host, |inner| inner.trim_end_matches(']'));
    let address = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => host
            .parse()
            .map_err(|_| format!("vnc: '{host}' is no IP address, such as 127.0.0.1"))?,
    };
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port
            .parse()
            .map_err(|_| format!("vnc: '{port}' is no port"))?,
    };
    if port < MOST_DISPLAYS {
        let meant = DEFAULT_PORT + port;
        return Err(format!(
            "vnc: {port} is a port here, not a display's number; did you mean {host}:{meant}?"
        ));
    }
    Ok(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<VncOptions, String> {
        VncOptions::parse(OsStr::new(text))
    }

    fn port(text: &str) -> Place {
        Place::Port(text.parse().unwrap())
    }

    #[test]
    fn a_server_is_at_a_port_with_a_password_or_at_a_socket() {
        for (text, place) in [
            ("127.0.0.1,password=f", port("127.0.0.1:5900")),
            ("localhost:5901,password=f", port("127.0.0.1:5901")),
            ("0.0.0.0:7000,password=f", port("0.0.0.0:7000")),
            ("::1,password=f", port("[::1]:5900")),
            ("[::1]:5902,password=f", port("[::1]:5902")),
            ("unix:a,,b,password=f", Place::Socket("a,b".into())),
        ] {
            let password = Some("f".into());
            assert_eq!(parse(text), Ok(VncOptions { place, password }), "{text}");
        }
        let place = Place::Socket("/run/v".into());
        let password = None;
        assert_eq!(parse("unix:/run/v"), Ok(VncOptions { place, password }));
    }

    #[test]
    fn everything_else_is_refused_in_words() {
        for (text, why) in [
            ("", "expected vnc=ADDR"),
            ("unix:", "expected vnc=ADDR"),
            ("127.0.0.1", "a port needs password=FILE"),
            ("127.0.0.1:5900", "a port needs password=FILE"),
            ("127.0.0.1:1,password=f", "did you mean 127.0.0.1:5901?"),
            (":1", "names no address"),
            ("example.org,password=f", "'example.org' is no IP address"),
            ("127.0.0.1:x,password=f", "'x' is no port"),
            ("127.0.0.1:70000,password=f", "'70000' is no port"),
            ("127.0.0.1,password=on", "password=FILE names a file"),
            ("unix:a,password=f,password=g", "given twice"),
            ("unix:a,websocket=on", "unknown part 'websocket=on'"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
