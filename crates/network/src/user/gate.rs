//! The gate between the guest and everything outside: it decides which packets and queries of the
//! guest pass, by the rules and the addresses of allowed names, and records what it refuses.
//!
//! ```text
//!   query for a name -- allowed? --> our own query --> answer --> its addresses are pinned
//!   packet to an address -- denied?  closed by default?  allowed, or pinned?
//! ```

use super::addresses;
use super::closed::{self, Closed};
use super::dns::{self, Failure};
use super::names::{self, Asked};
use super::pins::Pins;
use crate::options::UserOptions;
use crate::refusals::{Protocol, Refusals, Refused, Seen};
use crate::rules::{HostName, NamePattern, Rule, Rules, Target};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// The number of refused destinations that are shown as lines.
const MAX_LINES: usize = 100;

/// Shows a line to the user.
pub type Report = Box<dyn FnMut(String) + Send>;

/// Why something is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reason {
    /// The network has `restrict=on`.
    Restricted,
    /// A rule denies it.
    Denied(Rule),
    /// It is an address of a denied name.
    DeniedName,
    /// It is the host's loopback address.
    Loopback,
    /// It is an address of the link, or of a cloud's services.
    Link,
    /// There are permissions, and this is not one.
    NotAllowed,
    /// The name server is asked by UDP where rules are about names.
    ByTcp,
    /// The query asks for something else than one name of a host.
    NoPlainQuery,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restricted => write!(formatter, "restrict=on"),
            Self::Denied(rule) => write!(formatter, "deny={rule}"),
            Self::DeniedName => write!(formatter, "address of a denied name"),
            Self::Loopback => write!(formatter, "this host's loopback; allow=host opens it"),
            Self::Link => write!(formatter, "link-local or metadata; allow= with it opens it"),
            Self::NotAllowed => write!(formatter, "not in allow="),
            Self::ByTcp => write!(formatter, "names are asked by UDP when rules name hosts"),
            Self::NoPlainQuery => write!(formatter, "not a query for one name"),
        }
    }
}

/// What is open to the guest.
pub struct Gate {
    restrict: bool,
    rules: Rules,
    /// Whether queries are read, because not all names may be asked or some have meaning.
    reads_queries: bool,
    /// The addresses of denied names.
    denied: HashSet<IpAddr>,
    pins: RefCell<Pins>,
    refusals: Refusals,
    report: RefCell<Option<Report>>,
    lines: RefCell<usize>,
}

/// The part of a query that the gate has read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Screened {
    asked: Asked,
    /// The number of our own query.
    pub identification: [u8; 2],
}

/// What happens to a query of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryVerdict {
    /// It is passed on.
    AsItIs,
    /// Our own query takes its place.
    Ours(Screened),
    /// The guest may not ask for the name.
    Refused,
}

impl Screened {
    /// Returns the query that is sent in place of the guest's.
    pub fn query(&self) -> Vec<u8> {
        self.asked.query(self.identification)
    }
}

impl Gate {
    /// Makes the gate; `resolve` finds the addresses of denied names.
    ///
    /// # Errors
    /// A denied name's addresses cannot be found, and so cannot be denied.
    pub fn new(
        options: &UserOptions,
        resolve: impl Fn(&HostName) -> Result<Vec<IpAddr>, String>,
    ) -> Result<Self, String> {
        let rules = options.rules.clone();
        let mut denied = HashSet::new();
        if rules.allow_addresses() {
            for rule in &rules.deny {
                if let Target::Name(NamePattern::Exactly(name)) = &rule.target {
                    denied.extend(resolve(name)?);
                }
            }
        }
        let all_names = rules.allow.is_empty() || rules.allow.iter().any(opens_all_names);
        let is_name = |rule: &Rule| matches!(rule.target, Target::Name(_));
        let reads_queries = !all_names
            || rules.allow.iter().any(is_name)
            || rules
                .deny
                .iter()
                .any(|rule| is_name(rule) || closes_all_names(rule));
        Ok(Self {
            restrict: options.restrict,
            rules,
            reads_queries,
            denied,
            pins: RefCell::default(),
            refusals: Refusals::default(),
            report: RefCell::default(),
            lines: RefCell::default(),
        })
    }

    /// Shows each destination that is refused for the first time as a line.
    pub fn report_to(&self, report: Report) {
        *self.report.borrow_mut() = Some(report);
    }

    /// Returns the record of what was refused.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// Whether the guest may send to a destination, which is recorded if not. Echo requests have
    /// port 0. Queries to the name server by UDP are a matter of [`Self::query`].
    pub fn admits(&self, protocol: Protocol, destination: SocketAddr, now: Instant) -> bool {
        match self.check(protocol, destination, now) {
            Ok(()) => true,
            Err(reason) => {
                let shown = match destination.port() {
                    0 => destination.ip().to_string(),
                    _ => destination.to_string(),
                };
                self.refuse(protocol, shown, &reason);
                false
            }
        }
    }

    fn check(
        &self,
        protocol: Protocol,
        destination: SocketAddr,
        now: Instant,
    ) -> Result<(), Reason> {
        let (address, port) = (destination.ip(), destination.port());
        if self.restrict {
            return Err(Reason::Restricted);
        }
        if addresses::is_dns(address) {
            let is_query = protocol == Protocol::Tcp && port == addresses::DNS_PORT;
            return match is_query && self.reads_queries {
                true => Err(Reason::ByTcp),
                false => Ok(()),
            };
        }
        let rules = &self.rules;
        let is_meant = |rule: &&Rule| rule.has_port(port) && covers(&rule.target, address);
        if let Some(rule) = rules.deny.iter().find(is_meant) {
            return Err(Reason::Denied(rule.clone()));
        }
        let contained = closed::contained(address).map(IpAddr::from);
        if self.denied.contains(&address)
            || contained.is_some_and(|contained| self.denied.contains(&contained))
        {
            return Err(Reason::DeniedName);
        }
        let mut allowed = rules.allow.iter().filter(|rule| rule.has_port(port));
        match closed::closed(address) {
            Some(Closed::Loopback) => match allowed.any(|rule| rule.target == Target::Host) {
                true => Ok(()),
                false => Err(Reason::Loopback),
            },
            // Only a rule that is about nothing but closed addresses opens them.
            Some(Closed::Link(closed)) => {
                let opens = |rule: &Rule| match &rule.target {
                    Target::Block(block) => closed.contains(block) && block.contains(&address),
                    _ => false,
                };
                match allowed.any(opens) {
                    true => Ok(()),
                    false => Err(Reason::Link),
                }
            }
            None => {
                let is_open = rules.allow.is_empty()
                    || allowed.any(|rule| permits(&rule.target, address))
                    || self.pins.borrow().has(address, port, now);
                match is_open {
                    true => Ok(()),
                    false => Err(Reason::NotAllowed),
                }
            }
        }
    }

    /// Decides about a query for a name.
    pub fn query(&self, message: &[u8]) -> QueryVerdict {
        if !self.restrict && !self.reads_queries {
            return QueryVerdict::AsItIs;
        }
        let asked = Asked::of(message);
        let checked = match &asked {
            _ if self.restrict => Err(Reason::Restricted),
            None => Err(Reason::NoPlainQuery),
            Some(asked) => self.check_name(&asked.name),
        };
        match (checked, asked) {
            (Ok(()), Some(asked)) => QueryVerdict::Ours(Screened {
                asked,
                identification: names::identification(),
            }),
            (checked, asked) => {
                let name = asked.map_or_else(|| "?".into(), |asked| asked.name.to_string());
                let reason = checked.err().unwrap_or(Reason::NoPlainQuery);
                self.refuse(Protocol::Name, name, &reason);
                QueryVerdict::Refused
            }
        }
    }

    fn check_name(&self, name: &HostName) -> Result<(), Reason> {
        if let Some(rule) = self.rules.deny.iter().find(|rule| denies_name(rule, name)) {
            return Err(Reason::Denied(rule.clone()));
        }
        let allow = &self.rules.allow;
        let is_open = allow.is_empty()
            || allow
                .iter()
                .any(|rule| opens_all_names(rule) || names(rule, name));
        match is_open {
            true => Ok(()),
            false => Err(Reason::NotAllowed),
        }
    }

    /// Whether queries are read, so that only an answer to one of them is passed on.
    pub const fn reads_queries(&self) -> bool {
        self.reads_queries
    }

    /// Handles the answer of a name server: the addresses of an allowed name may be reached from
    /// now on. Returns the answer for the guest's query; `None` if it does not belong to it.
    pub fn answer(
        &self,
        query: &[u8],
        screened: &Screened,
        message: &[u8],
        now: Instant,
    ) -> Option<Vec<u8>> {
        let answer = screened.asked.answer(message)?;
        let is_denied = |rule: &&Rule| answer.names.iter().any(|name| denies_name(rule, name));
        if let Some(rule) = self.rules.deny.iter().find(is_denied) {
            let name = screened.asked.name.as_str();
            self.refuse(Protocol::Name, name.into(), &Reason::Denied(rule.clone()));
            return dns::failure(query, Failure::Refused);
        }
        let mut pins = self.pins.borrow_mut();
        let name = &screened.asked.name;
        for rule in self.rules.allow.iter().filter(|rule| names(rule, name)) {
            for (address, seconds) in &answer.addresses {
                pins.add(*address, rule.port, *seconds, now);
            }
        }
        let mut returned = message.to_vec();
        names::returned(&mut returned, dns::identification(query)?, &answer);
        Some(returned)
    }

    fn refuse(&self, protocol: Protocol, destination: String, reason: &Reason) {
        let refused = Refused {
            protocol,
            destination,
            reason: reason.to_string(),
            count: 1,
        };
        let seen = self.refusals.add(&refused);
        let mut lines = self.lines.borrow_mut();
        if seen == Seen::First
            && let Some(report) = &mut *self.report.borrow_mut()
            && *lines <= MAX_LINES
        {
            *lines += 1;
            report(match *lines > MAX_LINES {
                false => format!("refused {refused}"),
                true => "refused more; further ones are not shown here".into(),
            });
        }
    }
}

/// Whether a denial is about an address.
fn covers(target: &Target, address: IpAddr) -> bool {
    match target {
        Target::Any => true,
        Target::Host => addresses::is_gateway(address),
        Target::Block(block) => {
            let contained = closed::contained(address).map(IpAddr::from);
            !addresses::is_gateway(address)
                && [Some(address), contained]
                    .into_iter()
                    .flatten()
                    .any(|address| block.contains(&address))
        }
        Target::NameServer | Target::Name(_) => false,
    }
}

/// Whether a permission is about an address that is not closed by default.
fn permits(target: &Target, address: IpAddr) -> bool {
    match target {
        Target::Any => true,
        Target::Block(block) => block.contains(&address),
        Target::Host | Target::NameServer | Target::Name(_) => false,
    }
}

/// Whether a rule is about the addresses of a name.
fn names(rule: &Rule, name: &HostName) -> bool {
    matches!(&rule.target, Target::Name(pattern) if pattern.matches(name))
}

/// Whether a denial is about queries for a name.
fn denies_name(rule: &Rule, name: &HostName) -> bool {
    names(rule, name) || closes_all_names(rule)
}

/// Whether a denial is about queries for every name.
fn closes_all_names(rule: &Rule) -> bool {
    opens_all_names(rule) && rule.has_port(addresses::DNS_PORT)
}

/// Whether a permission is one to ask for every name.
fn opens_all_names(rule: &Rule) -> bool {
    matches!(rule.target, Target::Any | Target::NameServer)
}
