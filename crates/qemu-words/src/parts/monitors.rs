//! Serial ports, monitors and their defaults.

use crate::build::Builder;
use crate::configuration::{Monitor, MonitorMode, Place};
use crate::key_values::KeyValues;
use crate::numbers;
use crate::refusal::Refusal;

impl Builder {
    /// `-monitor`, `-qmp` and `-qmp-pretty`.
    pub fn monitor(&mut self, option: &str, word: &str) -> Result<(), Refusal> {
        self.has_monitor = true;
        let number = self.config.monitors.len();
        let place = self.short(word, &format!("compat_monitor{number}"))?;
        if let Some((character, _)) = place {
            let mode = match option {
                "monitor" => MonitorMode::Readline,
                option => MonitorMode::Control(option == "qmp-pretty"),
            };
            self.config.monitors.push(Monitor { character, mode });
        }
        Ok(())
    }

    /// `-mon`.
    pub fn mon(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        self.has_monitor = true;
        let id = list.required("chardev")?;
        let character = id.strip_prefix("chardev:").unwrap_or(&id).to_owned();
        if self.character(&character).is_none() {
            return Err(format!("chardev \"{character}\" not found").into());
        }
        let pretty = list.switch("pretty")?.unwrap_or(false);
        let mode = match list.take("mode").as_deref() {
            None | Some("readline") => MonitorMode::Readline,
            Some("control") => MonitorMode::Control(pretty),
            Some(mode) => return Err(format!("unknown monitor mode '{mode}'").into()),
        };
        list.ignore(&["id", "default"]);
        list.end()?;
        self.config.monitors.push(Monitor { character, mode });
        Ok(())
    }

    /// `-object monitor-hmp` and `-object monitor-qmp`.
    pub fn monitor_object(&mut self, kind: &str, list: &mut KeyValues) -> Result<(), Refusal> {
        let id = list.required("chardev")?;
        let mode = if kind == "monitor-hmp" {
            "readline"
        } else {
            "control"
        };
        let mut list_of_mon = KeyValues::default();
        list_of_mon.push("chardev", &id);
        list_of_mon.push("mode", mode);
        if let Some(pretty) = list.take("pretty") {
            list_of_mon.push("pretty", &pretty);
        }
        list.ignore(&["readline"]);
        self.mon(list_of_mon)
    }

    /// `-debugcon`.
    pub fn debugcon(&mut self, word: &str) -> Result<(), Refusal> {
        match self.short(word, "debugcon")? {
            Some((character, _)) => self.add_debug_console(0xe9, character),
            None => Ok(()),
        }
    }

    /// `-gdb`.
    pub fn debugger(&mut self, word: &str) -> Result<(), Refusal> {
        self.config.debugger = match word.split_once(':') {
            _ if matches!(word, "none" | "null") => None,
            Some(("tcp" | "unix", _)) => {
                let crate::Backend::Socket { place, .. } = self.socket_of(word)? else {
                    return Err("expected tcp:[HOST]:PORT or unix:PATH".into());
                };
                Some(match place {
                    // QEMU would listen on all addresses: each of them could read the whole guest.
                    Place::Tcp(host, port) if host == "0.0.0.0" && word.starts_with("tcp::") => {
                        Place::Tcp("127.0.0.1".into(), port)
                    }
                    place => place,
                })
            }
            _ => return Err("expected tcp:[HOST]:PORT or unix:PATH".into()),
        };
        Ok(())
    }

    /// `-parallel`.
    pub fn parallel(&mut self, word: &str) -> Result<(), Refusal> {
        match word {
            "none" | "null" | "vc" => Ok(()),
            word if word.starts_with("vc:") => Ok(()),
            _ if self.config.parallel.is_some() => Err("the machine has one parallel port".into()),
            word => {
                let place = self.short(word, "parallel0")?;
                self.config.parallel = place.map(|(character, _)| character);
                Ok(())
            }
        }
    }

    /// `-echr`.
    pub fn escape(&mut self, text: &str) -> Result<(), Refusal> {
        let number = numbers::number("echr", text)?;
        self.config.escape =
            u8::try_from(number).map_err(|_| "expected the number of a character")?;
        Ok(())
    }

    /// Gives the serial port and the monitor their places: those that were named, or QEMU's
    /// defaults.
    pub fn consoles(&mut self) -> Result<(), Refusal> {
        let serial = std::mem::take(&mut self.serial);
        let is_default = serial.is_empty() && !self.no_defaults;
        let monitor_is_default = !self.has_monitor && !self.no_defaults;
        for (number, word) in serial.iter().enumerate() {
            let option = format!("-serial {word}");
            let place = self.short(word, &format!("serial{number}"));
            self.add_serial(place.map_err(|why| why.of(&option))?);
        }
        if self.no_graphic && is_default {
            let word = if monitor_is_default {
                "mon:stdio"
            } else {
                "stdio"
            };
            let place = self.short(word, "serial0")?;
            if let Some(crate::Backend::Stdio { signals }) =
                self.config.characters.last_mut().map(|it| &mut it.backend)
            {
                // -nographic passes the keys of signals to the guest.
                *signals = false;
            }
            self.add_serial(place);
        } else if self.no_graphic && monitor_is_default {
            let uses_stdio =
                |it: &crate::Character| matches!(it.backend, crate::Backend::Stdio { .. });
            if !self.config.characters.iter().any(uses_stdio) {
                self.monitor("monitor", "stdio")?;
            }
        }
        let ports = self.config.serial.iter().skip(2).flatten();
        let goes_somewhere = |id: &&String| {
            !matches!(
                self.character(id).map(|it| &it.backend),
                Some(crate::Backend::Null)
            )
        };
        match ports.clone().any(|id| goes_somewhere(&id)) {
            true => Err("-serial: the machine has two serial ports".into()),
            false => Ok(()),
        }
    }

    /// Adds a serial port, and the monitor that shares its place.
    fn add_serial(&mut self, place: Option<(String, bool)>) {
        if let Some((character, true)) = &place {
            self.config.monitors.push(Monitor {
                character: character.clone(),
                mode: MonitorMode::Readline,
            });
        }
        self.config
            .serial
            .push(place.map(|(character, _)| character));
    }
}
