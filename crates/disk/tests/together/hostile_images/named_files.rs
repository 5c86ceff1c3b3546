//! Tests of the files that an image names: backing files and external data files.

use super::{CLUSTER, copied, create_by_qemu, refusal, ways};
use crate::support::{Folder, qemu_img};
use std::fs;
use std::path::Path;
use tollgate_disk::{
    Backing, DriveOptions, Format, Repair, check, create, create_over, info, open,
};

/// Makes an image of 1 MiB whose data are in an external file.
#[track_caller]
fn create_with_data_file(path: &Path, data: &Path) {
    create_by_qemu(path, &format!("data_file={}", data.display()), "1M");
}

#[test]
fn which_files_an_image_may_name_is_the_users_choice() {
    let folder = Folder::new();
    let inner = folder.path("inner");
    fs::create_dir(&inner).unwrap();
    let secret = folder.path("secret.img");
    fs::write(&secret, vec![7; 1 << 20]).unwrap();
    fs::write(inner.join("near.img"), vec![8; 1 << 20]).unwrap();
    std::os::unix::fs::symlink(&secret, inner.join("link.img")).unwrap();
    std::os::unix::fs::symlink("near.img", inner.join("near-link.img")).unwrap();
    let over = |name: &str, backing: &str, format| {
        let path = inner.join(name);
        create_over(&path, 1 << 20, backing, format).unwrap();
        path
    };
    let near = over("near.qcow2", "near.img", Format::Raw);
    let near_link = over("near-link.qcow2", "near-link.img", Format::Raw);
    let above = over("above.qcow2", "../secret.img", Format::Raw);
    let link = over("link.qcow2", "link.img", Format::Raw);
    let absolute = over("absolute.qcow2", secret.to_str().unwrap(), Format::Raw);
    // The second image in this chain names the file.
    let deep = over("deep.qcow2", "above.qcow2", Format::Qcow2);
    let data = inner.join("data.qcow2");
    create_with_data_file(&data, &folder.path("data.raw"));
    for (path, is_near) in [
        (&near, true),
        (&near_link, true),
        (&above, false),
        (&link, false),
        (&absolute, false),
        (&deep, false),
        (&data, false),
    ] {
        for mut options in ways(path) {
            open(&options).unwrap();
            options.backing = Backing::SameDir;
            if is_near {
                open(&options).unwrap();
            } else {
                let line = refusal(&options);
                assert!(line.contains("backing=same-dir"), "{line}");
            }
            options.backing = Backing::None;
            let line = refusal(&options);
            assert!(line.contains("backing=none"), "{line}");
        }
        assert_eq!(copied(path, Backing::SameDir).is_ok(), is_near);
        assert!(copied(path, Backing::None).is_err());
    }
    // An image that names no files is not affected.
    let mut options = DriveOptions::new(inner.join("alone.qcow2"));
    create(&options.path, Format::Qcow2, 1 << 20).unwrap();
    options.backing = Backing::None;
    open(&options).unwrap();
}

#[test]
fn an_external_data_file_is_written_and_checked() {
    let folder = Folder::new();
    let path = folder.path("image.qcow2");
    let data = folder.path("data.raw");
    create_with_data_file(&path, &data);
    let image = open(&DriveOptions::new(&path)).unwrap();
    image.write(CLUSTER, &[9; 4096]).unwrap();
    image.write(0, &[3; 512]).unwrap();
    image.close().unwrap();
    let report = check(&path, Repair::Nothing, |line| panic!("{line}")).unwrap();
    assert_eq!((report.damage, report.leaks, report.allocated), (0, 0, 2));
    let info = info(&path, None, false).unwrap().qcow2.unwrap();
    assert_eq!(info.data_file.as_deref(), data.to_str());
    let (is_clean, text) = qemu_img(&[&"check", &path]);
    assert!(is_clean, "{text}");
    let copy = copied(&path, Backing::Any).unwrap();
    assert_eq!(copy[..512], [3; 512]);
    assert_eq!(copy[CLUSTER as usize..][..4096], [9; 4096]);
}
