//! The process around the machine, its screen, its clock, and objects.

use crate::build::Builder;
use crate::configuration::{Display, Restore, RtcBase};
use crate::key_values::KeyValues;
use crate::refusal::Refusal;

impl Builder {
    /// `-name`.
    pub fn name(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        self.config.name = list.take("guest");
        list.ignore(&["process", "debug-threads"]);
        list.end()
    }

    /// `-uuid`.
    pub fn uuid(&mut self, text: &str) -> Result<(), Refusal> {
        let lengths = text.split('-').map(str::len);
        let is_hexadecimal = text.bytes().all(|it| it == b'-' || it.is_ascii_hexdigit());
        if !(lengths.eq([8, 4, 4, 4, 12]) && is_hexadecimal) {
            return Err("Failed to parse UUID".into());
        }
        self.config.uuid = Some(text.into());
        Ok(())
    }

    /// `-display`.
    pub fn display(&mut self, word: &str) -> Result<(), Refusal> {
        let kind = word.split(',').next().unwrap_or_default();
        match kind {
            "none" => self.config.display = Display::None,
            "curses" => self.config.display = Display::Curses,
            "gtk" | "sdl" | "cocoa" | "dbus" | "egl-headless" | "spice-app" | "default" => {
                self.warn(format!(
                    "-display {kind}: there is no window; -display curses and -vnc unix:PATH show the screen"
                ));
            }
            kind => match word.strip_prefix("vnc=") {
                Some(place) => return self.vnc(place),
                None => {
                    return Err(format!("Parameter 'type' does not accept value '{kind}'").into());
                }
            },
        }
        Ok(())
    }

    /// `-vnc`.
    pub fn vnc(&mut self, place: &str) -> Result<(), Refusal> {
        if place == "none" {
            return Ok(());
        }
        if !place.starts_with("unix:") {
            return Err("a TCP port would be open to others: give unix:PATH".into());
        }
        let mut list = KeyValues::parse(place, Some("place"))?;
        let place = list.required("place")?;
        list.ignore(&[
            "share",
            "lossy",
            "non-adaptive",
            "key-delay-ms",
            "power-control",
            "to",
        ]);
        list.ignore_where(|_, value| value == "off");
        list.end()?;
        self.config.display = Display::Vnc(place);
        Ok(())
    }

    /// `-vga`.
    pub fn vga(&mut self, kind: &str) -> Result<(), Refusal> {
        match kind {
            "std" | "none" => Ok(()),
            "cirrus" | "vmware" | "qxl" | "virtio" => {
                self.warn(format!("-vga {kind}: the adapter is std"));
                Ok(())
            }
            _ => Err(format!("Unknown vga type: {kind}").into()),
        }
    }

    /// `-audio`.
    pub fn audio(&mut self, list: KeyValues) -> Result<(), Refusal> {
        match (list.peek("driver"), list.peek("model")) {
            (Some("none"), None) => Ok(()),
            _ => Err("there is no sound".into()),
        }
    }

    /// `-d`.
    pub fn log_items(&mut self, items: &str) -> Result<(), Refusal> {
        let accepted = ["guest_errors", "unimp", "none", "strace", "page", "tid"];
        match items
            .split(',')
            .find(|item| !accepted.contains(item) && !item.is_empty())
        {
            Some(item) => {
                Err(format!("'{item}' is not logged here; see 'tollgate run --stats'").into())
            }
            None => Ok(()),
        }
    }

    /// `-incoming`.
    pub fn incoming(&mut self, place: &str) -> Result<(), Refusal> {
        let path = place.strip_prefix("file:");
        let path = path.filter(|path| !path.is_empty() && !path.contains(",offset="));
        let path = path.ok_or("a machine is read from a file: file:PATH")?;
        self.config.restore = Some(Restore::File(path.into()));
        Ok(())
    }

    /// `-action`.
    pub fn action(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let wrong = |event: &str, action: &str| Refusal(format!("{event}={action} is not there"));
        if let Some(action) = list.take("reboot") {
            self.config.no_reboot = match action.as_str() {
                "reset" => false,
                "shutdown" => true,
                _ => return Err(wrong("reboot", &action)),
            };
        }
        if let Some(action) = list.take("shutdown") {
            self.config.no_shutdown = match action.as_str() {
                "poweroff" => false,
                "pause" => true,
                _ => return Err(wrong("shutdown", &action)),
            };
        }
        if let Some(action) = list.take("panic") {
            match action.as_str() {
                "exit-failure" => self.config.panic_fails = true,
                "shutdown" => {}
                "none" => self.config.panic_device = false,
                _ => return Err(wrong("panic", &action)),
            }
        }
        if let Some(action) = list.take("watchdog") {
            self.watchdog_action(&action)?;
        }
        list.end()
    }

    /// `-watchdog-action`.
    pub fn watchdog_action(&mut self, action: &str) -> Result<(), Refusal> {
        match action {
            "reset" => Ok(()),
            _ => Err("the action is reset".into()),
        }
    }

    /// `-rtc`.
    pub fn rtc(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        match list.take("base").as_deref() {
            None | Some("utc") => self.config.rtc = RtcBase::Utc,
            Some("localtime") => self.config.rtc = RtcBase::Local,
            Some(_) => {
                return Err(
                    "base: the clock begins with the present time, utc or localtime".into(),
                );
            }
        }
        match list.take("clock").as_deref() {
            None | Some("host" | "rt") => {}
            Some(_) => return Err("clock: the clock is the host's".into()),
        }
        list.ignore(&["driftfix"]);
        list.end()
    }

    /// `-object`.
    pub fn object(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        let kind = list.required("qom-type")?;
        let id = list.take("id");
        match kind.as_str() {
            "rng-random" | "rng-builtin" => {
                if !matches!(
                    list.take("filename").as_deref(),
                    None | Some("/dev/urandom" | "/dev/random")
                ) {
                    return Err("filename: random bytes are the host's".into());
                }
            }
            "memory-backend-ram"
            | "memory-backend-memfd"
            | "memory-backend-file"
            | "memory-backend-shm"
            | "iothread"
            | "secret"
            | "authz-list-file" => {
                list.ignore_where(|_, _| true);
            }
            "monitor-hmp" | "monitor-qmp" => self.monitor_object(&kind, &mut list)?,
            _ => return Err(format!("there are no objects of type '{kind}'").into()),
        }
        list.end()?;
        self.objects.extend(id);
        Ok(())
    }

    /// `-balloon`.
    pub fn balloon(&mut self, mut list: KeyValues) -> Result<(), Refusal> {
        match list.take("kind").as_deref() {
            Some("none") => Ok(()),
            Some("virtio") => {
                self.config.balloon = true;
                Ok(())
            }
            _ => Err("expected virtio or none".into()),
        }
    }
}
