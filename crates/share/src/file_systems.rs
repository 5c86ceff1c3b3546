//! Kinds of file systems: those that a guest must not see, and those that answer without a wait.

use rustix::fd::AsFd;

/// File systems in which a guest must find nothing, because their files represent the host's kernel
/// or its processes. They are identified by `f_type` of statfs(2).
const KERNEL_FILE_SYSTEMS: [u64; 20] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x1cd1,      // devpts
    0x4249_4e4d, // binfmt_misc
    0x6265_6570, // configfs
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x1980_0202, // mqueue
    0x6e73_6673, // nsfs
    0x0765_5821, // resctrl
    0x6573_5543, // fusectl
    0x6c6f_6f70, // binderfs
];

/// File systems that need no other machine and no other process of the host to answer, by `f_type`
/// of statfs(2).
const LOCAL_FILE_SYSTEMS: [u64; 11] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // zfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // erofs
];

/// The relevant properties of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileSystem {
    /// Whether its files represent the host's kernel.
    pub is_of_kernel: bool,
    /// Whether it answers without another machine or process.
    pub is_local: bool,
}

impl FileSystem {
    /// Returns the properties of a file's file system.
    pub fn of(fd: impl AsFd) -> Self {
        rustix::fs::fstatfs(fd).map_or_else(
            |_| Self::default(),
            |stat| Self::by_kind(stat.f_type as u64),
        )
    }

    fn by_kind(kind: u64) -> Self {
        let kind = kind & 0xffff_ffff;
        Self {
            is_of_kernel: KERNEL_FILE_SYSTEMS.contains(&kind),
            is_local: LOCAL_FILE_SYSTEMS.contains(&kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_the_kernel_and_nfs_needs_others() {
        let kinds = [0x9fa0, 0x6969, 0xef53, 0x6573_5546].map(|kind| {
            let file_system = FileSystem::by_kind(kind);
            (file_system.is_of_kernel, file_system.is_local)
        });
        let expected = [(true, false), (false, false), (false, true), (false, false)];
        assert_eq!(kinds, expected);
    }
}
