//! Tests of images of both formats: written data can be read, files are locked, and an image that
//! cannot be used is refused with one line.

use crate::support::Folder;
use std::fs;
use std::sync::mpsc::channel;
use tollgate_disk::{
    DiskThread, DriveOptions, Format, Operation, Outcome, Request, create, create_over, open,
};

const SIZE: u64 = 8 << 20;

impl Folder {
    fn image(&self, name: &str, format: Format) -> DriveOptions {
        let path = self.path(name);
        create(&path, format, SIZE).unwrap();
        let mut options = DriveOptions::new(path);
        options.format = Some(format);
        options
    }
}

fn why(options: &DriveOptions) -> String {
    let Err(error) = open(options) else {
        panic!("{options:?} was opened");
    };
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn what_is_written_is_there_after_closing() {
    let folder = Folder::new();
    for format in [Format::Raw, Format::Qcow2] {
        let options = folder.image(&format!("disk.{}", format.name()), format);
        let mut image = open(&options).unwrap();
        assert_eq!(image.size(), SIZE);
        let mut data = vec![0xff; 100_000];
        image.read(SIZE - 100_000, &mut data).unwrap();
        assert_eq!(data, vec![0; 100_000]);
        image.write(65_000, &[1; 2000]).unwrap();
        image.write(SIZE - 512, &[2; 512]).unwrap();
        image.write_zeroes(66_000, 100, false).unwrap();
        image.discard(0, SIZE).unwrap();
        image.flush().unwrap();
        assert!(image.read(SIZE, &mut [0]).is_err());
        assert!(image.write(SIZE - 1, &[0; 2]).is_err());
        assert!(image.write_zeroes(u64::MAX, 2, true).is_err());
        image.close().unwrap();
        let image = open(&options).unwrap();
        let mut data = vec![0xff; 3000];
        image.read(64_500, &mut data).unwrap();
        let expected = [
            vec![0; 500],
            vec![1; 1000],
            vec![0; 100],
            vec![1; 900],
            vec![0; 500],
        ];
        assert_eq!(data, expected.concat());
        image.read(SIZE - 512, &mut data[..512]).unwrap();
        assert_eq!(data[..512], [2; 512]);
    }
}

#[test]
fn an_image_that_is_written_belongs_to_one() {
    let folder = Folder::new();
    let options = folder.image("disk.qcow2", Format::Qcow2);
    let mut shared = options.clone();
    shared.readonly = true;
    let mut temporary = options.clone();
    temporary.snapshot = true;
    let first = open(&options).unwrap();
    assert!(why(&options).contains("another virtual machine uses it"));
    assert!(why(&shared).contains("another virtual machine writes it"));
    drop(first);
    let readers = [
        open(&shared).unwrap(),
        open(&shared).unwrap(),
        open(&temporary).unwrap(),
    ];
    assert!(why(&options).contains("another virtual machine uses it"));
    drop(readers);
    open(&options).unwrap();
}

#[test]
fn a_backing_file_is_shared_and_not_written() {
    let folder = Folder::new();
    let base = folder.image("base.img", Format::Raw);
    fs::write(&base.path, vec![7; SIZE as usize]).unwrap();
    let overlay = |name: &str| {
        let path = folder.path(name);
        create_over(&path, SIZE, "base.img", Format::Raw).unwrap();
        DriveOptions::new(path)
    };
    let (one, two) = (overlay("one.qcow2"), overlay("two.qcow2"));
    let (first, second) = (open(&one).unwrap(), open(&two).unwrap());
    first.write(0, &[1; 512]).unwrap();
    let mut data = [0; 512];
    second.read(0, &mut data).unwrap();
    assert_eq!(data, [7; 512]);
    first.read(0, &mut data).unwrap();
    assert_eq!(data, [1; 512]);
    assert!(why(&base).contains("another virtual machine uses it"));
    drop((first, second));
    assert_eq!(fs::read(&base.path).unwrap(), vec![7; SIZE as usize]);
    fs::remove_file(&base.path).unwrap();
    let line = why(&one);
    assert!(
        line.contains("base.img") && line.contains("no such file"),
        "{line}"
    );
}

#[test]
fn an_image_below_itself_is_refused() {
    let folder = Folder::new();
    let path = folder.path("loop.qcow2");
    create_over(&path, SIZE, "loop.qcow2", Format::Qcow2).unwrap();
    let mut options = DriveOptions::new(path);
    assert!(why(&options).contains("another virtual machine writes it"));
    options.readonly = true;
    assert!(why(&options).contains("too many backing files"));
}

#[test]
fn content_alone_makes_no_image_qcow2() {
    let folder = Folder::new();
    let mut options = folder.image("disk.img", Format::Qcow2);
    options.format = None;
    assert!(why(&options).contains("add format=qcow2, or format=raw"));
    options.format = Some(Format::Raw);
    assert!(open(&options).unwrap().size() < SIZE);
    let mut raw = folder.image("raw.qcow2", Format::Raw);
    raw.format = None;
    assert!(why(&raw).contains("cannot use disk image"));
}

#[test]
fn what_cannot_be_used_is_refused() {
    let folder = Folder::new();
    let missing = DriveOptions::new(folder.path("none.img"));
    assert!(why(&missing).contains("no such file"));
    let directory = DriveOptions::new(&folder.0);
    assert!(why(&directory).contains("it is a folder"));
    let device = DriveOptions::new("/dev/null");
    assert!(why(&device).contains("neither a file nor a block device"));
    let existing = folder.image("disk.img", Format::Raw);
    let again = create(&existing.path, Format::Qcow2, SIZE).unwrap_err();
    assert!(again.to_string().contains("it exists"));
    let odd = create(&folder.path("odd"), Format::Raw, 100).unwrap_err();
    assert!(odd.to_string().contains("multiple of 512"));
}

#[test]
fn the_thread_answers_in_order_and_finishes_before_it_ends() {
    let folder = Folder::new();
    let options = folder.image("disk.img", Format::Raw);
    let (sender, receiver) = channel();
    let image = open(&options).unwrap();
    let thread = DiskThread::start(
        image,
        move || sender.send(()).unwrap(),
        |line| panic!("{line}"),
    );
    let thread = thread.unwrap();
    for tag in 0..100 {
        let operation = Operation::Write {
            offset: tag * 512,
            data: vec![tag as u8; 512].into(),
            through: false,
        };
        thread.send(Request { tag, operation });
    }
    let operation = Operation::Read {
        offset: 99 * 512,
        bytes: 512,
    };
    thread.send(Request {
        tag: 100,
        operation,
    });
    let mut outcomes: Vec<Outcome> = Vec::new();
    while outcomes.len() < 101 {
        receiver.recv().unwrap();
        outcomes.extend(thread.take());
    }
    assert!(outcomes.iter().map(|outcome| outcome.tag).eq(0..=100));
    assert_eq!(outcomes[100].result, Ok(vec![99; 512].into()));
    assert!(!thread.has_pending_work());
    thread.send(Request {
        tag: 0,
        operation: Operation::Write {
            offset: 0,
            data: vec![0xaa; 4096].into(),
            through: false,
        },
    });
    drop(thread);
    assert_eq!(fs::read(&options.path).unwrap()[..4096], [0xaa; 4096]);
}

#[test]
fn a_failure_is_reported_once_for_each_operation() {
    let folder = Folder::new();
    let options = folder.image("disk.img", Format::Raw);
    let (sender, receiver) = channel();
    let image = open(&options).unwrap();
    let thread = DiskThread::start(image, || (), move |line| sender.send(line).unwrap()).unwrap();
    for tag in 0..3 {
        let operation = Operation::Read {
            offset: SIZE,
            bytes: 512,
        };
        thread.send(Request { tag, operation });
    }
    thread.send(Request {
        tag: 3,
        operation: Operation::Discard {
            offset: SIZE,
            bytes: 512,
        },
    });
    drop(thread);
    let lines: Vec<String> = receiver.iter().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("reading fails: "), "{lines:?}");
}
