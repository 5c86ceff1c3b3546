//! The control groups of a jailed machine: one in the tree of each controller, or one in the only tree.

use std::fs;
use std::path::{Path, PathBuf};

use super::arguments::JailerArguments;

/// Makes the groups, writes the values, and moves this process there.
///
/// # Errors
/// One line says which step failed.
pub fn enter(arguments: &JailerArguments, program: &str) -> Result<(), String> {
    let mounts = fs::read_to_string("/proc/mounts").map_err(|error| error.to_string())?;
    let parent = arguments
        .parent_cgroup
        .clone()
        .unwrap_or_else(|| PathBuf::from(program));
    let is_one_tree = arguments.cgroup_version == "2";
    let failed = |path: &Path, error: std::io::Error| format!("'{}': {error}", path.display());
    let mut groups: Vec<PathBuf> = Vec::new();
    for (file, value) in &arguments.cgroup {
        let controller = file.split('.').next().unwrap_or_default();
        let tree = tree(&mounts, controller, is_one_tree)
            .ok_or_else(|| format!("no tree of control groups has '{controller}'"))?;
        let group = tree.join(&parent).join(&arguments.id);
        fs::create_dir_all(&group).map_err(|error| failed(&group, error))?;
        if is_one_tree {
            give(&tree, &group, controller)?;
        }
        if controller == "cpuset" && !is_one_tree {
            inherit(&tree, &group)?;
        }
        let path = group.join(file);
        fs::write(&path, value).map_err(|error| failed(&path, error))?;
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for group in groups {
        let path = group.join("cgroup.procs");
        fs::write(&path, std::process::id().to_string()).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Where the tree with a controller is mounted.
fn tree(mounts: &str, controller: &str, is_one_tree: bool) -> Option<PathBuf> {
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mut found = fields.filter_map(|fields| match fields[..] {
        [_, place, "cgroup2", ..] if is_one_tree => Some(place.to_owned()),
        [_, place, "cgroup", options, ..] if !is_one_tree => {
            let has_it = options.split(',').any(|option| option == controller);
            has_it.then(|| place.to_owned())
        }
        _ => None,
    });
    found.next().map(PathBuf::from)
}

/// The groups between a tree and a group, the highest first, without the group itself.
fn between(tree: &Path, group: &Path) -> Vec<PathBuf> {
    let above = group
        .ancestors()
        .skip(1)
        .take_while(|path| path.starts_with(tree));
    let mut above: Vec<PathBuf> = above.map(Path::to_owned).collect();
    above.reverse();
    above
}

/// Gives a controller to the groups that lead to a group.
fn give(tree: &Path, group: &Path, controller: &str) -> Result<(), String> {
    for above in between(tree, group) {
        let path = above.join("cgroup.subtree_control");
        fs::write(&path, format!("+{controller}"))
            .map_err(|error| format!("'{}': {error}", path.display()))?;
    }
    Ok(())
}

/// Gives new groups the processors and memory of the group above, without which they take no process.
fn inherit(tree: &Path, group: &Path) -> Result<(), String> {
    let mut path = between(tree, group);
    path.push(group.to_owned());
    for pair in path.windows(2) {
        for name in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (pair[0].join(name), pair[1].join(name));
            let has_some = fs::read_to_string(&to).is_ok_and(|text| !text.trim().is_empty());
            if !has_some {
                fs::read(&from)
                    .and_then(|value| fs::write(&to, value))
                    .map_err(|error| format!("'{}': {error}", to.display()))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_a_controller_is_found() {
        let mounts = "\
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
";
        let found = |controller, version| tree(mounts, controller, version);
        let cpu = Some(PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(found("cpu", false), cpu);
        assert_eq!(found("memory", false), None);
        assert_eq!(
            found("cpu", true),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        let above = between(Path::new("/t"), Path::new("/t/a/b"));
        assert_eq!(above, [PathBuf::from("/t"), PathBuf::from("/t/a")]);
    }
}
