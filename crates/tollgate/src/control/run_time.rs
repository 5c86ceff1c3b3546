//! The folder in which running machines are found without their paths: one socket for each machine.
//!
//! It also holds the entries of machines (see [`crate::machines`]).
//! The folder is `$XDG_RUNTIME_DIR/tollgate`, or without that variable `/tmp/tollgate-UID`. For
//! each machine it holds `PID.sock`: the machine's control socket, or a link to the one that
//! `--control` names. The folder belongs to the user alone (mode 0700); if it does not, nothing is
//! put there.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use rustix::process::geteuid;

use super::identity::Identity;
use super::server::Server;
use crate::failure::Failure;
use crate::files::is_private;
use crate::statistics::Reporter;

/// The path of the folder, which may not exist.
pub fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => Path::new(&folder).join("tollgate"),
        _ => PathBuf::from(format!("/tmp/tollgate-{}", geteuid().as_raw())),
    }
}

/// Whether the folder belongs to this user alone.
pub fn is_ours(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|metadata| metadata.is_dir() && is_private(&metadata))
}

/// The folder, which is made if it does not exist; `None` if it cannot be used.
pub fn made() -> Option<PathBuf> {
    let folder = folder();
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    let exists = made.is_ok() || made.is_err_and(|it| it.kind() == io::ErrorKind::AlreadyExists);
    (exists && is_ours(&folder)).then_some(folder)
}

/// The path for the socket or link of this process in the folder.
pub fn socket_in(folder: &Path) -> PathBuf {
    folder.join(format!("{}.sock", std::process::id()))
}

/// The path for the socket or link of this process; `None` if the folder cannot be used.
fn place() -> Option<PathBuf> {
    made().map(|folder| socket_in(&folder))
}

/// Opens the control socket: at `path` if that is given, with a link to it in the folder that
/// 'tollgate top' searches, otherwise in this folder.
///
/// # Errors
///
/// One line says why no socket can be made at `path`.
pub fn open(
    path: Option<&Path>,
    reporter: &Arc<Reporter>,
    identity: &Identity,
) -> Result<(Option<Server>, Option<Link>), Failure> {
    let bind = |path: &Path| Server::bind(path, Arc::clone(reporter), identity.clone());
    if let Some(path) = path {
        let server = bind(path)?;
        return Ok((Some(server), Link::to(path)));
    }
    // The user has not asked for this socket, so a failure is not reported.
    let server = place().and_then(|place| bind(&place).ok());
    Ok((server, None))
}

/// A link to this process's control socket; dropping it removes the link.
pub struct Link(PathBuf);

impl Link {
    /// Makes the link. If that is impossible there is no link, and the machine is found only by its
    /// path.
    pub fn to(socket: &Path) -> Option<Self> {
        let (place, socket) = (place()?, absolute(socket).ok()?);
        // An earlier process with the same number may have left its link.
        let _ = fs::remove_file(&place);
        symlink(socket, &place).ok()?;
        Some(Self(place))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The sockets that accept a connection, in the order of their machines' process numbers.
pub fn sockets() -> Vec<PathBuf> {
    let folder = folder();
    if !is_ours(&folder) {
        return Vec::new();
    }
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.path();
            if path.extension()? != "sock" {
                return None;
            }
            let number = path.file_stem()?.to_str()?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    found.retain(|(_, path)| match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => {
            // The machine was killed and has left its socket.
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) {
                let _ = fs::remove_file(path);
            }
            false
        }
    });
    found.sort();
    found.into_iter().map(|it| it.1).collect()
}
