//! Places for characters: `-chardev`, and the short words of `-serial`, `-monitor` and others.

use crate::build::Builder;
use crate::configuration::{Backend, Character, Place};
use crate::key_values::KeyValues;
use crate::numbers;
use crate::refusal::Refusal;

/// The size of a ring buffer if none is given.
const RING_BYTES: u64 = 64 << 10;

/// Whether a text is an identifier.
fn is_identifier(text: &str) -> bool {
    let is_of_it = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.starts_with(|it: char| it.is_ascii_alphabetic()) && text.bytes().all(is_of_it)
}

/// The place of a socket, from its keys.
fn socket(list: &mut KeyValues) -> Result<Backend, Refusal> {
    let take = |list: &mut KeyValues, key: &str| {
        let dotted = list.take(&format!("addr.{key}"));
        list.take(key).or(dotted)
    };
    let path = take(list, "path");
    let host = take(list, "host").unwrap_or_else(|| "localhost".into());
    let port = take(list, "port");
    let fd = take(list, "fd");
    let place = match (path, fd, port) {
        (Some(path), ..) => Place::Unix(path.into()),
        (_, Some(number), _) => {
            let number = number.parse().ok().filter(|number: &i32| *number >= 0);
            Place::Descriptor(number.ok_or("fd: a descriptor is a number")?)
        }
        (.., Some(port)) => {
            let host = if host.is_empty() {
                "0.0.0.0".into()
            } else {
                host
            };
            let port = port.parse().map_err(|_| "port: a number from 0 to 65535")?;
            Place::Tcp(host, port)
        }
        _ => return Err("socket: give path=, or host= and port=".into()),
    };
    if list.switch("abstract")? == Some(true) {
        return Err("abstract: sockets have paths here".into());
    }
    for key in ["tls-creds", "websocket", "tn3270"] {
        if list.take(key).is_some_and(|value| value != "off") {
            return Err(format!("{key}: it is not there").into());
        }
    }
    let server = list.switch("server")?.unwrap_or(false);
    let wait = list.switch("wait")?.unwrap_or(true) && server;
    let reconnect = list.number("reconnect")?;
    let milliseconds = list.number("reconnect-ms")?;
    let reconnect = reconnect.or(milliseconds.map(|it| it.div_ceil(1000)));
    let telnet = list.switch("telnet")?.unwrap_or(false);
    list.ignore(&[
        "delay",
        "nodelay",
        "ipv4",
        "ipv6",
        "to",
        "addr.type",
        "keep-alive",
        "tight",
    ]);
    Ok(Backend::Socket {
        place,
        server,
        wait,
        reconnect: reconnect.filter(|seconds| *seconds > 0),
        telnet,
    })
}

/// Reads the place of a `-chardev`.
fn backend(name: &str, list: &mut KeyValues) -> Result<Backend, Refusal> {
    Ok(match name {
        "null" | "vc" => {
            list.ignore(&["width", "height", "cols", "rows"]);
            Backend::Null
        }
        "stdio" => Backend::Stdio {
            signals: list.switch("signal")?.unwrap_or(true),
        },
        "file" => Backend::File {
            path: list.required("path")?.into(),
            append: list.switch("append")?.unwrap_or(false),
            input: list.take("input-path").map(Into::into),
        },
        "pipe" => Backend::Pipe(list.required("path")?.into()),
        "pty" => match list.take("path") {
            None => Backend::Pty,
            Some(_) => return Err("path: links to pseudo-terminals are not made".into()),
        },
        "serial" | "tty" | "parallel" | "parport" => Backend::Device(list.required("path")?.into()),
        "ringbuf" | "memory" => {
            let size = list.take("size");
            let size = size
                .map(|text| numbers::size("size", &text, 1))
                .transpose()?;
            let size = size.unwrap_or(RING_BYTES);
            if !size.is_power_of_two() || size > 1 << 30 {
                return Err("size of ringbuf chardev must be power of two".into());
            }
            Backend::Ring(usize::try_from(size).unwrap_or(usize::MAX))
        }
        "socket" => socket(list)?,
        "udp" | "msmouse" | "braille" | "spicevmc" | "spiceport" | "wctablet" | "testdev"
        | "dbus" | "qemu-vdagent" | "hub" | "mux" | "console" => {
            return Err(format!("{name}: this place for characters is not there").into());
        }
        _ => return Err(format!("'{name}' is not a valid char driver").into()),
    })
}

impl Builder {
    /// `-chardev`.
    pub fn chardev(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let name = list.required("backend")?;
        let id = list.required("id")?;
        if !is_identifier(&id) {
            return Err("Parameter 'id' expects an identifier".into());
        }
        let backend = backend(&name, &mut list)?;
        let mux = list.switch("mux")?.unwrap_or(false);
        let append = list.switch("logappend")?.unwrap_or(false);
        let log = list.take("logfile").map(|path| (path.into(), append));
        list.end()?;
        self.add_character(Character {
            id,
            backend,
            mux,
            log,
        })
    }

    /// Adds a place for characters.
    pub fn add_character(&mut self, character: Character) -> Result<(), Refusal> {
        if self.character(&character.id).is_some() {
            return Err(format!("Duplicate ID '{}' for chardev", character.id).into());
        }
        self.config.characters.push(character);
        Ok(())
    }

    /// Reads the short words for a place, such as `stdio` and `unix:PATH,server,nowait`, and adds
    /// the place under this name. Returns its name and whether a monitor shares it; `None` stands
    /// for none at all.
    pub fn short(&mut self, word: &str, name: &str) -> Result<Option<(String, bool)>, Refusal> {
        if word == "none" {
            return Ok(None);
        }
        if let Some(id) = word.strip_prefix("chardev:") {
            let id = id.split(',').next().unwrap_or_default();
            return match self.character(id) {
                Some(_) => Ok(Some((id.to_owned(), false))),
                None => Err(format!("'{id}' is not a valid char driver").into()),
            };
        }
        let (mux, word) = match word.strip_prefix("mon:") {
            Some(rest) => (true, rest),
            None => (false, word),
        };
        let (kind, rest) = word.split_once(':').unwrap_or((word, ""));
        let path = || match rest {
            "" => Err(Refusal(format!("{kind}: the path is missing"))),
            path => Ok(path.to_owned()),
        };
        let backend = match kind {
            "null" | "vc" => Backend::Null,
            // With a monitor, a shared terminal passes its keys on.
            "stdio" => Backend::Stdio { signals: !mux },
            "pty" => Backend::Pty,
            "file" => Backend::File {
                path: path()?.into(),
                append: false,
                input: None,
            },
            "pipe" => Backend::Pipe(path()?.into()),
            "ringbuf" => Backend::Ring(RING_BYTES as usize),
            "unix" | "tcp" | "telnet" => self.socket_of(word)?,
            _ if word.starts_with('/') => Backend::Device(word.into()),
            "udp" | "braille" | "msmouse" | "websocket" | "con" | "COM" => {
                return Err(format!("{kind}: this place for characters is not there").into());
            }
            _ => return Err(format!("'{word}' is not a valid char driver").into()),
        };
        self.add_character(Character {
            id: name.to_owned(),
            backend,
            mux,
            log: None,
        })?;
        Ok(Some((name.to_owned(), mux)))
    }

    /// Reads the words for a socket, such as `unix:PATH,server,nowait` and `tcp:HOST:PORT`.
    pub fn socket_of(&self, word: &str) -> Result<Backend, Refusal> {
        let (kind, rest) = word.split_once(':').unwrap_or((word, ""));
        let mut list = KeyValues::parse(rest, Some("address"))?;
        let address = list.required("address")?;
        if kind == "unix" {
            list.push("path", &address);
        } else {
            let (host, port) = address.rsplit_once(':').ok_or("expected HOST:PORT")?;
            list.push("host", host);
            list.push("port", port);
        }
        if kind == "telnet" {
            list.push("telnet", "on");
        }
        let backend = socket(&mut list)?;
        list.end()?;
        Ok(backend)
    }

    /// Checks that each place that is named is there, and has one user unless it is shared.
    pub fn check_characters(&mut self) -> Result<(), Refusal> {
        let config = &self.config;
        let serial = config.serial.iter().flatten();
        let ports = config
            .ports
            .iter()
            .filter_map(|port| port.character.as_ref());
        let monitors = config.monitors.iter().map(|monitor| &monitor.character);
        let debug = config
            .debug_console
            .iter()
            .map(|console| &console.character);
        let printer = config.parallel.iter();
        let consoles = serial.chain(printer).chain(debug);
        let users: Vec<&String> = consoles.chain(ports).chain(monitors).collect();
        for id in &users {
            let character = self.character(id);
            let character = character
                .ok_or_else(|| Refusal(format!("Property 'chardev' can't find value '{id}'")))?;
            let count = users.iter().filter(|other| other == &id).count();
            if count > 1 && !character.mux {
                return Err(
                    format!("chardev '{id}' is in use: mux=on lets several share it").into(),
                );
            }
        }
        let is_stdio = |it: &&Character| matches!(it.backend, Backend::Stdio { .. });
        if config.characters.iter().filter(is_stdio).count() > 1 {
            return Err("cannot use stdio by multiple character devices".into());
        }
        Ok(())
    }
}
