//! Checks of the limits and settings that concern memory.

use rustix::process::{Resource, getrlimit};

use super::check::{Check, read_setting};
use tollgate_machine::config::{MAX_MEMORY_BYTES, Places};

/// The kernel's default of vm.max_map_count.
const USUAL_MAP_COUNT: u64 = 65_530;

/// The smallest accepted limit of the address space, in bytes: room for the tables of a kernel and
/// one program. With less, 64-bit guests make hardly any progress.
const LEAST_ADDRESSES: u64 = 64 << 30;
/// A limit of the address space, in bytes, from which on 64-bit guests have room for the tables of
/// everything that they use.
const ENOUGH_ADDRESSES: u64 = 128 << 30;

/// The checks of what nothing runs without.
pub fn required() -> Vec<Check> {
    let limit = soft_limit(Resource::As);
    vec![Check::required(
        "address space",
        limit.is_none_or(|bytes| bytes >= LEAST_ADDRESSES),
        limit.map_or("unlimited".into(), |bytes| {
            format!(
                "{} MiB, 'ulimit -v' with {} at least",
                bytes >> 20,
                LEAST_ADDRESSES >> 10
            )
        }),
        "guests' page tables are mirrored in reserved addresses, of which little memory is used",
    )]
}

/// A warning for people whose limit makes guests slow; `None` if the limit is high enough.
pub fn address_space_warning() -> Option<String> {
    let limit = soft_limit(Resource::As).filter(|bytes| *bytes < ENOUGH_ADDRESSES)?;
    Some(format!(
        "the address space is limited to {} MiB ('ulimit -v'): with less than {} MiB guests may run slowly",
        limit >> 20,
        ENOUGH_ADDRESSES >> 20
    ))
}

/// The checks of what costs something if it is missing.
pub fn optional() -> Vec<Check> {
    vec![
        map_count(),
        stack_limit(),
        file_size(),
        open_files(),
        address_space(),
        available(),
        overcommit(),
        huge_pages(),
        windows(),
        anchors(),
    ]
}

fn map_count() -> Check {
    let text = read_setting("/proc/sys/vm/max_map_count");
    let count = text.parse::<u64>().ok();
    Check::optional(
        "vm.max_map_count",
        count.is_some_and(|count| count >= USUAL_MAP_COUNT),
        count.map_or("unknown".into(), |count| count.to_string()),
        "fewer guest pages can be mapped directly at a time; checked access is not concerned",
    )
}

fn stack_limit() -> Check {
    let soft = soft_limit(Resource::Stack);
    let found = match soft {
        None => "unlimited".into(),
        Some(bytes) => format!("{} KiB", bytes / 1024),
    };
    Check::optional(
        "stack limit",
        soft.is_some(),
        found,
        "unlimited moves the kernel's mappings to where windows onto guest memory would be; \
         'ulimit -s 8192' sets a limit",
    )
}

fn file_size() -> Check {
    let limit = soft_limit(Resource::Fsize);
    Check::optional(
        "file size",
        limit.is_none_or(|bytes| bytes >= MAX_MEMORY_BYTES),
        limit.map_or("unlimited".into(), |bytes| format!("{} MiB", bytes >> 20)),
        "guest RAM is a file, so a guest has less than this limit ('ulimit -f'); what a guest writes \
         to disks, shares, ports and the serial port beyond it fails",
    )
}

fn open_files() -> Check {
    const USUAL: u64 = 4096;
    let limit = getrlimit(Resource::Nofile).maximum;
    Check::optional(
        "open files",
        limit.is_none_or(|count| count >= USUAL),
        limit.map_or("unlimited".into(), |count| count.to_string()),
        "shares and networks have fewer descriptors (the hard limit, 'ulimit -Hn'): with many files \
         or connections at a time the guest gets errors",
    )
}

fn windows() -> Check {
    let found = Places::of_process().windows;
    Check::optional(
        "place for shadow windows",
        found,
        place(found),
        "something is mapped where guest memory would be mapped as the guest sees it: each access \
         looks its page up, as with --knob memory-access=checked",
    )
}

fn anchors() -> Check {
    let found = Places::of_process().anchors;
    Check::optional(
        "place for their anchors",
        found,
        place(found),
        "loops of 64-bit programs run up to a quarter longer, as with --knob anchors=off; where the kernel \
         strews mappings more widely (vm.mmap_rnd_bits above 28), some processes have none",
    )
}

fn place(is_free: bool) -> &'static str {
    match is_free {
        true => "free",
        false => "taken",
    }
}

fn address_space() -> Check {
    let soft = soft_limit(Resource::As);
    let found = match soft {
        None => "unlimited".into(),
        Some(bytes) => format!("{} MiB", bytes >> 20),
    };
    Check::optional(
        "address space, in full",
        soft.is_none_or(|bytes| bytes >= ENOUGH_ADDRESSES),
        found,
        "a limit (ulimit -v) counts reserved addresses too: below 128 GiB guests may run slowly",
    )
}

fn available() -> Check {
    let text = read_setting("/proc/meminfo");
    let kilobytes = meminfo(&text, "MemAvailable");
    Check::optional(
        "memory available",
        kilobytes.is_some_and(|kilobytes| kilobytes >= 512 * 1024),
        kilobytes.map_or("unknown".into(), |kilobytes| {
            format!("{} MiB", kilobytes / 1024)
        }),
        "a guest that uses its RAM makes the host swap, or is killed",
    )
}

fn overcommit() -> Check {
    let mode = read_setting("/proc/sys/vm/overcommit_memory");
    let found = match mode.as_str() {
        "0" => "heuristic (0)",
        "1" => "always (1)",
        "2" => "never (2)",
        _ => "unknown",
    };
    Check::optional(
        "memory overcommit",
        mode != "2",
        found,
        "guest RAM counts in full from the start, even if the guest does not use it",
    )
}

fn huge_pages() -> Check {
    let private = selected(&read_setting("/sys/kernel/mm/transparent_hugepage/enabled"));
    let shared = selected(&read_setting(
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    ));
    let reserved = meminfo(&read_setting("/proc/meminfo"), "HugePages_Total").unwrap_or(0);
    Check::optional(
        "transparent huge pages",
        matches!(private.as_str(), "always" | "madvise"),
        format!("{private}; for shared memory {shared}; {reserved} reserved"),
        "guests that use much memory at random run 1.1 to 1.3 times slower",
    )
}

/// A soft resource limit in bytes; `None` if unlimited.
fn soft_limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).current
}

/// A number of /proc/meminfo.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The selected word of a setting such as `always [madvise] never`.
fn selected(setting: &str) -> String {
    setting
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("not offered", |(word, _)| word)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_word_is_the_one_in_brackets() {
        assert_eq!(selected("always [madvise] never"), "madvise");
        assert_eq!(selected(""), "not offered");
    }

    #[test]
    fn meminfo_values_are_found_by_name() {
        let text = "MemTotal:  100 kB\nMemAvailable:   42 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(42));
        assert_eq!(meminfo(text, "Mem"), None);
    }
}
