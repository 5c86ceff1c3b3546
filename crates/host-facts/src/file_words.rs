//! Messages that explain why a file cannot be used, in the same words for every kind of file.

use std::io::{Error, ErrorKind};

/// Explains why a file cannot be read.
pub fn reading(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file; check the path".into(),
        ErrorKind::PermissionDenied => "you may not read it; check its permissions".into(),
        ErrorKind::IsADirectory => "it is a folder; name a file".into(),
        _ => cause(error),
    }
}

/// Explains why a file cannot be created or written.
pub fn writing(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "its folder does not exist".into(),
        ErrorKind::PermissionDenied => "you may not write there".into(),
        ErrorKind::IsADirectory => "it is a folder; name a file in it".into(),
        ErrorKind::StorageFull => "the disk is full".into(),
        ErrorKind::FileTooLarge => {
            "the file may not become that large, by its file system or by 'ulimit -f'".into()
        }
        // The file is a pipe that was opened for writing without waiting for a reader.
        _ if error.raw_os_error() == Some(libc::ENXIO) => "no process reads this pipe".into(),
        _ => cause(error),
    }
}

/// Explains any other failure in the words of the host, without the error number.
pub fn cause(error: &Error) -> String {
    if error.raw_os_error() == Some(libc::EMFILE) {
        return "this process may have no more files and sockets open ('ulimit -n')".into();
    }
    let text = error.to_string();
    if text.contains("SUN_LEN") {
        return "the path is longer than a socket's may be, 107 bytes".into();
    }
    let end = text.find(" (os error ").unwrap_or(text.len());
    let mut characters = text[..end].chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_the_host_is_left() {
        let of = Error::from_raw_os_error;
        assert_eq!(reading(&of(libc::ENOENT)), "no such file; check the path");
        assert_eq!(reading(&of(libc::EIO)), "input/output error");
        assert_eq!(writing(&of(libc::ENOSPC)), "the disk is full");
        assert!(reading(&of(libc::EMFILE)).ends_with("('ulimit -n')"));
        assert!(writing(&of(libc::EFBIG)).ends_with("'ulimit -f'"));
        assert_eq!(writing(&of(libc::ENXIO)), "no process reads this pipe");
        assert_eq!(writing(&Error::other("The reason")), "the reason");
    }
}
