//! A control group of this process alone (cgroup v2), where the user was given a part of the tree.
//!
//! ```text
//! /sys/fs/cgroup/user.slice/.../app.slice      delegated: this user makes groups here
//!                               |-- run-1.scope        where this process was started
//!                               '-- tollgate-4711      where it moves: cpu.max, memory.max
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::HostLimits;

/// The beginning of a group's name, before the number of its process.
const NAME: &str = "tollgate-";
/// The time in microseconds in which the processor time is given out: the kernel's default.
const PERIOD: u64 = 100_000;
/// The least that the kernel accepts for that.
const LEAST_QUOTA: u64 = 1000;
/// Where the tree is mounted.
const TREE: &str = "/sys/fs/cgroup";

/// The group. Dropping it moves the process back and removes the group.
#[derive(Debug)]
pub struct ControlGroup {
    group: PathBuf,
    /// Where the process was before.
    before: PathBuf,
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        if move_to(&self.before).is_ok() {
            let _ = fs::remove_dir(&self.group);
        }
    }
}

impl ControlGroup {
    /// Moves this process into a group with these limits on processors and memory; `None` if it has
    /// none, or can have no such group.
    pub fn enter(limits: HostLimits) -> Option<Self> {
        let wanted = controllers(limits);
        if wanted.is_empty() {
            return None;
        }
        let before = own()?;
        let place = place(&before, Path::new(TREE), &wanted)?;
        remove_empty(&place);
        let group = place.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let entered = set(&group, limits).and_then(|()| move_to(&group));
        if entered.is_err() {
            let _ = fs::remove_dir(&group);
            return None;
        }
        Some(Self { group, before })
    }
}

/// Whether this process can have a group with both limits.
pub fn is_usable() -> bool {
    own().is_some_and(|own| place(&own, Path::new(TREE), &["cpu", "memory"]).is_some())
}

/// The kernel's names for what has a limit.
fn controllers(limits: HostLimits) -> Vec<&'static str> {
    let cpu = limits.processors.map(|_| "cpu");
    let memory = limits.memory.map(|_| "memory");
    cpu.into_iter().chain(memory).collect()
}

/// The group of this process in the tree.
fn own() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(TREE).join(path))
}

/// The nearest group above `own` whose new groups have these controllers, in which this user may make
/// groups and move processes.
fn place(own: &Path, tree: &Path, controllers: &[&str]) -> Option<PathBuf> {
    let mut above = own
        .ancestors()
        .skip(1)
        .take_while(|path| path.starts_with(tree));
    // A process at the root of the tree finds its groups there.
    let here = (own == tree).then(|| own.to_owned());
    let fits = |path: &Path| {
        let given = fs::read_to_string(path.join("cgroup.subtree_control")).unwrap_or_default();
        let given: Vec<&str> = given.split_ascii_whitespace().collect();
        let is_writable = |path: &Path| {
            use rustix::fs::Access;
            rustix::fs::access(path, Access::WRITE_OK).is_ok()
        };
        controllers.iter().all(|name| given.contains(name))
            && is_writable(path)
            && is_writable(&path.join("cgroup.procs"))
    };
    let found = here.filter(|path| fits(path));
    found.or_else(|| above.find(|path| fits(path)).map(Path::to_owned))
}

fn set(group: &Path, limits: HostLimits) -> io::Result<()> {
    if let Some(processors) = limits.processors {
        let quota = ((processors * PERIOD as f64) as u64).max(LEAST_QUOTA);
        fs::write(group.join("cpu.max"), format!("{quota} {PERIOD}"))?;
    }
    if let Some(bytes) = limits.memory {
        fs::write(group.join("memory.max"), bytes.to_string())?;
        // Hosts without swap space have no such file.
        let _ = fs::write(group.join("memory.swap.max"), "0");
    }
    Ok(())
}

fn move_to(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Removes the groups of processes that were killed: groups with processes cannot be removed.
fn remove_empty(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(NAME.as_bytes())
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_group_with_the_controllers_is_the_place() {
        let name = format!("tollgate-groups-{}", std::process::id());
        let tree = std::env::temp_dir().join(name);
        let own = tree.join("user/app/scope");
        fs::create_dir_all(&own).unwrap();
        for (path, controllers) in [
            ("", "cpu memory"),
            ("user", "cpu memory pids"),
            ("user/app", "memory"),
            ("user/app/scope", "cpu memory"),
        ] {
            let path = tree.join(path);
            fs::write(path.join("cgroup.subtree_control"), controllers).unwrap();
            fs::write(path.join("cgroup.procs"), "").unwrap();
        }
        let place = |controllers: &[&str]| place(&own, &tree, controllers);
        assert_eq!(place(&["memory"]), Some(tree.join("user/app")));
        assert_eq!(place(&["cpu", "memory"]), Some(tree.join("user")));
        assert_eq!(place(&["io"]), None);
        let limits = HostLimits::parse("cpu=50%,memory=1G").unwrap();
        set(&own, limits).unwrap();
        let written = |name: &str| fs::read_to_string(own.join(name)).unwrap();
        assert_eq!(written("cpu.max"), "50000 100000");
        assert_eq!(written("memory.max"), (1_u64 << 30).to_string());
        fs::remove_dir_all(&tree).unwrap();
    }
}
