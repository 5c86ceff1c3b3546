//! What results depend on in addition to arms, workloads and guests: the host, this build of
//! tollgate, and the options. An interrupted run is continued only where all of them are the same.

use super::{GuestImages, Options};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_host_facts::processors::HostDescription;

/// Where results come from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The experiment's name.
    pub experiment: String,
    /// This build of tollgate.
    pub build: String,
    /// When the run was begun, in seconds since 1970; 0 if it is not known.
    #[serde(default)]
    pub began_at: u64,
    /// The host that measures.
    pub host: HostDescription,
    /// Repetitions of each arm in each cell.
    pub repetitions: u32,
    /// Whether the run does the minimum of work.
    pub quick: bool,
    /// The workloads that were requested; if empty, all.
    pub workloads: Vec<String>,
    /// The guests that were requested; if empty, all.
    pub guests: Vec<String>,
    /// The arms that were requested; if empty, all.
    pub arms: Vec<String>,
    /// The files of guests that the user supplies.
    pub images: BTreeMap<String, PathBuf>,
}

impl Origin {
    /// The origin of results that this process measures with these options.
    pub fn here(experiment: &str, options: &Options) -> Self {
        let images = options.images.all();
        Self {
            experiment: experiment.to_owned(),
            build: build(),
            began_at: seconds_since_1970(),
            host: HostDescription::here(0),
            repetitions: options.repetitions,
            quick: options.quick,
            workloads: options.workloads.clone(),
            guests: options.guests.clone(),
            arms: options.arms.clone(),
            images: images
                .map(|(name, path)| (name.to_owned(), path.to_owned()))
                .collect(),
        }
    }

    /// The options with which the results were measured.
    pub fn options(&self) -> Options {
        Options {
            repetitions: self.repetitions,
            quick: self.quick,
            workloads: self.workloads.clone(),
            guests: self.guests.clone(),
            arms: self.arms.clone(),
            images: GuestImages::of(self.images.clone()),
            time: None,
        }
    }

    /// What differs between the origin of stored results and this one, in one line; `None` if
    /// nothing differs that matters. Images for further guests may be added.
    pub fn difference(&self, now: &Self) -> Option<String> {
        let differs = |what: &str, stored: &str, now: &str| {
            (stored != now).then(|| format!("{what} is '{now}' now and was '{stored}'"))
        };
        let list = |names: &[String]| match names {
            [] => "all".to_owned(),
            names => names.join(", "),
        };
        let option = |flag: &str, stored: &[String], now: &[String]| {
            differs(flag, &list(stored), &list(now))
        };
        let yes_or_no = |value: bool| if value { "on" } else { "off" };
        let (host, here) = (&self.host, &now.host);
        let processors = |host: &HostDescription| host.processors_in_words();
        differs("the experiment", &self.experiment, &now.experiment)
            .or_else(|| differs("the host's processor", &host.processor, &here.processor))
            .or_else(|| {
                differs(
                    "the number of its processors",
                    &processors(host),
                    &processors(here),
                )
            })
            .or_else(|| differs("the host's kernel", &host.kernel, &here.kernel))
            .or_else(|| differs("the build of tollgate", &self.build, &now.build))
            .or_else(|| differs("--quick", yes_or_no(self.quick), yes_or_no(now.quick)))
            .or_else(|| {
                let [stored, now] = [self, now].map(|it| it.repetitions.to_string());
                differs("--repetitions", &stored, &now)
            })
            .or_else(|| option("--workload", &self.workloads, &now.workloads))
            .or_else(|| option("--guest", &self.guests, &now.guests))
            .or_else(|| option("--arm", &self.arms, &now.arms))
            .or_else(|| {
                self.images.iter().find_map(|(name, path)| {
                    let now = now.images.get(name);
                    let now = now.map_or("none".into(), |path| path.display().to_string());
                    let what = format!("--guest-image {name}");
                    differs(&what, &path.display().to_string(), &now)
                })
            })
    }
}

/// The present time.
pub(super) fn seconds_since_1970() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// This build of tollgate: its version, and a checksum of the executable, because builds of one
/// version can differ.
pub fn build() -> String {
    static BUILD: OnceLock<String> = OnceLock::new();
    let read = || {
        let version = env!("CARGO_PKG_VERSION");
        let Ok(executable) = std::fs::read("/proc/self/exe") else {
            return version.to_owned();
        };
        let mut checksum = DefaultHasher::new();
        checksum.write(&executable);
        format!("{version}, executable {:016x}", checksum.finish())
    };
    BUILD.get_or_init(read).clone()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An origin for tests.
    pub(crate) fn origin() -> Origin {
        Origin::here("made-up", &Options::quick())
    }

    #[test]
    fn one_line_says_what_differs() {
        let stored = origin();
        assert_eq!(stored.difference(&origin()), None);
        let difference = |change: fn(&mut Origin)| {
            let mut now = origin();
            now.build = "2".into();
            change(&mut now);
            let stored = Origin {
                build: "1".into(),
                ..origin()
            };
            stored.difference(&now).unwrap()
        };
        assert_eq!(
            difference(|_| ()),
            "the build of tollgate is '2' now and was '1'"
        );
        let host = difference(|now| now.host.processor = "Z80".into());
        assert!(
            host.starts_with("the host's processor is 'Z80' now and was '"),
            "{host}"
        );
        let arms = difference(|now| {
            now.build = "1".into();
            now.arms = vec!["b".into()];
        });
        assert_eq!(arms, "--arm is 'b' now and was 'all'");
    }

    #[test]
    fn an_image_may_be_added_but_not_replaced() {
        let with = |path: Option<&str>| {
            let images = path.map(|path| ("dos".to_owned(), PathBuf::from(path)));
            Origin {
                images: images.into_iter().collect(),
                ..origin()
            }
        };
        assert_eq!(with(None).difference(&with(Some("a.img"))), None);
        assert_eq!(
            with(Some("a.img")).difference(&with(Some("b.img"))),
            Some("--guest-image dos is 'b.img' now and was 'a.img'".into())
        );
    }

    #[test]
    fn options_survive() {
        let options = Options {
            guests: vec!["ours".into()],
            images: GuestImages::of([("theirs".into(), "x.img".into())]),
            ..Options::quick()
        };
        assert_eq!(Origin::here("made-up", &options).options(), options);
    }
}
