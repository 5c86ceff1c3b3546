//! Finds users and groups by name, in the guest's own files.

use crate::protocol::User;
use crate::refusal::Refusal;

/// The numbers and names of a user.
#[derive(PartialEq, Eq, Debug)]
pub struct Identity {
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
    /// The numbers of further groups.
    pub others: Vec<u32>,
    /// The home directory, if it is known.
    pub home: Option<String>,
    /// The name, if it is known.
    pub name: Option<String>,
}

/// Finds a user in /etc/passwd and /etc/group.
pub fn find(user: &User) -> Result<Identity, Refusal> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let groups = match user {
        User::Named(_) => read("/etc/group"),
        // Numbers are complete.
        User::Numbers(..) => String::new(),
    };
    identity(user, &read("/etc/passwd"), &groups)
}

/// An entry of /etc/passwd.
struct Entry<'a> {
    name: &'a str,
    user: u32,
    group: u32,
    home: &'a str,
}

fn entries(passwd: &str) -> impl Iterator<Item = Entry<'_>> {
    passwd.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let [name, _, user, group, _, home, ..] = fields[..] else {
            return None;
        };
        Some(Entry {
            name,
            user: user.parse().ok()?,
            group: group.parse().ok()?,
            home,
        })
    })
}

fn identity(user: &User, passwd: &str, groups: &str) -> Result<Identity, Refusal> {
    let (user, group) = match user {
        User::Numbers(user, group, others) => {
            let entry = entries(passwd).find(|entry| entry.user == *user);
            return Ok(Identity {
                user: *user,
                group: *group,
                others: others.clone(),
                home: entry.as_ref().map(|entry| entry.home.into()),
                name: entry.map(|entry| entry.name.into()),
            });
        }
        User::Named(text) => match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text.as_str(), None),
        },
    };
    let number = user.parse::<u32>().ok();
    let entry = entries(passwd).find(|entry| match number {
        Some(number) => entry.user == number,
        None => entry.name == user,
    });
    let root = (user == "root").then_some(0);
    let Some(own) = number.or(entry.as_ref().map(|entry| entry.user)).or(root) else {
        return Err(Refusal::own(format!("--user: there is no user '{user}'")));
    };
    let named_groups = || {
        groups.lines().filter_map(|line| {
            let fields: Vec<_> = line.split(':').collect();
            let [name, _, number, members] = fields[..] else {
                return None;
            };
            Some((name, number.parse::<u32>().ok()?, members))
        })
    };
    let (group, others) = match group {
        Some(text) => {
            let named = || named_groups().find(|(name, ..)| *name == text);
            let number = text.parse().ok().or_else(|| Some(named()?.1));
            let number = number
                .ok_or_else(|| Refusal::own(format!("--user: there is no group '{text}'")))?;
            (number, Vec::new())
        }
        None => {
            let name = entry.as_ref().map(|entry| entry.name);
            let is_member = |members: &str| members.split(',').any(|member| Some(member) == name);
            let others = named_groups().filter(|(_, _, members)| is_member(members));
            let group = entry.as_ref().map_or(own, |entry| entry.group);
            (group, others.map(|(_, number, _)| number).collect())
        }
    };
    Ok(Identity {
        user: own,
        group,
        others,
        home: entry.as_ref().map(|entry| entry.home.into()),
        name: entry.map(|entry| entry.name.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_or_numbers() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:7:8:Ann:/home/ann:/bin/sh\nbroken\n";
        let groups = "root:x:0:\nstaff:x:50:bob,ann\naudio:x:29:ann\n";
        let find = |text: &str| {
            let found = identity(&User::Named(text.into()), passwd, groups);
            found.map_err(|refusal| refusal.why)
        };
        let expected = |user, group, others: &[u32], name: Option<&str>, home: Option<&str>| {
            Ok(Identity {
                user,
                group,
                others: others.to_vec(),
                home: home.map(Into::into),
                name: name.map(Into::into),
            })
        };
        let ann = (Some("ann"), Some("/home/ann"));
        assert_eq!(find("ann"), expected(7, 8, &[50, 29], ann.0, ann.1));
        assert_eq!(find("7"), expected(7, 8, &[50, 29], ann.0, ann.1));
        assert_eq!(find("ann:staff"), expected(7, 50, &[], ann.0, ann.1));
        assert_eq!(find("1234:5"), expected(1234, 5, &[], None, None));
        assert_eq!(find("1234"), expected(1234, 1234, &[], None, None));
        assert!(find("bob").unwrap_err().contains("no user 'bob'"));
        assert!(find("ann:x").unwrap_err().contains("no group 'x'"));
        let root = identity(&User::Named("root".into()), "", "").map_err(|refusal| refusal.why);
        assert_eq!(root, expected(0, 0, &[], None, None));
    }
}
