//! Extended attributes: GETXATTR, SETXATTR, LISTXATTR, REMOVEXATTR.
//!
//! Attributes named `user.` are the host's. Those named `security.` and `trusted.` have a meaning
//! for kernels and need rights on the host. They are stored under the name [`HIDDEN`] followed by
//! the guest's name, so that they have a meaning only in the guest. Access control lists are not
//! offered.

use crate::answer::Answer;
use crate::inodes::{Inode, path_of};
use crate::protocol::{Header, Input, Output};
use crate::server::Server;
use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::sync::Arc;

/// Attributes with this prefix belong to the server and are hidden from the guest.
const OURS: &[u8] = b"user.tollgate.";
/// The prefix of the guest's name.
const HIDDEN: &[u8] = b"user.tollgate.xattr.";
/// The maximum size in bytes of a value, and of a list (limits.h).
const MAX_BYTES: usize = 65536;

/// Returns the host's name for an attribute.
fn host_name(name: &CStr) -> Result<CString, Errno> {
    let name = name.to_bytes();
    if name.len() > 255 {
        return Err(Errno::RANGE);
    }
    if name.starts_with(OURS) {
        return Err(Errno::PERM);
    }
    if name.starts_with(b"user.") {
        return CString::new(name).map_err(|_| Errno::INVAL);
    }
    if name.starts_with(b"security.") || name.starts_with(b"trusted.") {
        let name = [HIDDEN, name].concat();
        if name.len() > 255 {
            return Err(Errno::RANGE);
        }
        return CString::new(name).map_err(|_| Errno::INVAL);
    }
    Err(Errno::OPNOTSUPP)
}

/// Returns the guest's name for an attribute of the host, or `None` if the guest does not see it.
fn guest_name(name: &[u8]) -> Option<&[u8]> {
    match name.strip_prefix(HIDDEN) {
        Some(hidden) => Some(hidden),
        None if name.starts_with(OURS) => None,
        None if name.starts_with(b"user.") => Some(name),
        None => None,
    }
}

impl Server {
    /// Returns the file of a request if it can have attributes. On other files the host refuses
    /// those named `user.`.
    fn attributed(&self, header: &Header, otherwise: Errno) -> Result<Arc<Inode>, Errno> {
        let inode = self.inodes.get(header.node)?;
        match inode.kind {
            _ if inode.is_sealed => Err(otherwise),
            FileType::RegularFile | FileType::Directory => Ok(inode),
            _ => Err(otherwise),
        }
    }

    /// Answers with a value, or with its size if the guest has no room for any value.
    fn reply_value(size: usize, value: &[u8], output: &mut Output) -> Answer {
        if size == 0 {
            output.u32(value.len() as u32);
            output.u32(0);
            return Ok(());
        }
        if value.len() > size {
            return Err(Errno::RANGE);
        }
        output.bytes.extend(value);
        Ok(())
    }

    pub(crate) fn getxattr(
        &self,
        header: &Header,
        input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        self.getxattr_by(header, input, output, |inode, read| {
            self.owners.as_root(&self.inodes, inode, read)
        })
    }

    /// Answers with a value that `as_root` reads with the rights of the guest's root.
    pub(crate) fn getxattr_by(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
        as_root: impl FnOnce(&Inode, &mut dyn FnMut() -> Result<usize, Errno>) -> Result<usize, Errno>,
    ) -> Answer {
        let (size, _padding) = (input.u32()? as usize, input.u32()?);
        let name = host_name(input.text()?)?;
        let inode = self.attributed(header, Errno::NODATA)?;
        let path = path_of(&*self.inodes.fd(&inode)?);
        // A guest without room asks for the size.
        let room = if size == 0 { MAX_BYTES } else { size };
        let mut value = vec![0; room.min(MAX_BYTES)];
        let mut read = || rustix::fs::getxattr(&path, &name, &mut *value);
        let bytes = as_root(&inode, &mut read)?;
        if size == 0 {
            output.u32(bytes as u32);
            output.u32(0);
        } else {
            output.bytes.extend(value.get(..bytes).unwrap_or_default());
        }
        Ok(())
    }

    pub(crate) fn setxattr(&self, header: &Header, mut input: Input<'_>) -> Answer {
        self.check_writable()?;
        let (size, flags) = (input.u32()? as usize, input.u32()?);
        let name = host_name(input.text()?)?;
        let value = input.bytes(size)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let inode = self.attributed(header, Errno::PERM)?;
        let path = path_of(&*self.inodes.fd(&inode)?);
        self.owners.as_root(&self.inodes, &inode, || {
            rustix::fs::setxattr(&path, &name, value, flags)
        })
    }

    pub(crate) fn removexattr(&self, header: &Header, mut input: Input<'_>) -> Answer {
        self.check_writable()?;
        let name = host_name(input.text()?)?;
        let inode = self.attributed(header, Errno::PERM)?;
        let path = path_of(&*self.inodes.fd(&inode)?);
        self.owners.as_root(&self.inodes, &inode, || {
            rustix::fs::removexattr(&path, &name)
        })
    }

    pub(crate) fn listxattr(
        &self,
        header: &Header,
        mut input: Input<'_>,
        output: &mut Output,
    ) -> Answer {
        let (size, _padding) = (input.u32()? as usize, input.u32()?);
        let Ok(inode) = self.attributed(header, Errno::PERM) else {
            return Self::reply_value(size, &[], output);
        };
        let path = path_of(&*self.inodes.fd(&inode)?);
        let mut names = vec![0; MAX_BYTES];
        let bytes = rustix::fs::listxattr(&path, &mut *names)?;
        let mut list = Vec::new();
        for name in names[..bytes.min(MAX_BYTES)].split(|byte| *byte == 0) {
            if let Some(name) = guest_name(name).filter(|name| !name.is_empty()) {
                list.extend(name);
                list.push(0);
            }
        }
        Self::reply_value(size, &list, output)
    }
}
