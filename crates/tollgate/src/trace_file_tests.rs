//! Facts about trace files.

use super::*;
use serde_json::Value;
use std::io::Cursor;
use tollgate_exits::ExitKind;
use tollgate_exits::blame::Place;

/// A disk with room for this many bytes, or a pipe.
struct Disk {
    content: Cursor<Vec<u8>>,
    room: usize,
    is_pipe: bool,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.room.saturating_sub(self.content.position() as usize);
        if left == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.content.write(&bytes[..bytes.len().min(left)])
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.is_pipe {
            return Err(io::Error::from_raw_os_error(libc::ESPIPE));
        }
        self.content.seek(to)
    }
}

impl Truncate for Disk {
    fn can_truncate(&self) -> bool {
        !self.is_pipe
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.content.get_mut().truncate(length as usize);
        Ok(())
    }
}

fn disk(room: usize, is_pipe: bool) -> Disk {
    Disk {
        content: Cursor::default(),
        room,
        is_pipe,
    }
}

/// A tracer that has seen `exits` exits, each with sleep inside.
fn events(exits: u64) -> TraceEvents {
    let (mut tracer, events) = trace::channel();
    for number in 0..exits {
        let start = 5_000 + number * 100;
        tracer.inside(Span::Asleep, start + 10, 33);
        let place = Place {
            linear: 0xc100_0000 + number,
            space: 0x1000,
        };
        tracer.exit(Some(ExitKind::Halt), start, 50, place);
    }
    events
}

fn parsed(disk: &Disk) -> Value {
    serde_json::from_slice(disk.content.get_ref()).unwrap()
}

fn complete(trace: &Value) -> Vec<&Value> {
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["ph"] == "X").collect()
}

#[test]
fn events_have_microseconds_from_the_first_on_and_nest() {
    for is_pipe in [false, true] {
        // 3 MHz: three cycles are one microsecond.
        let mut writer = Writer::new(disk(usize::MAX, is_pipe), 1 << 20, 3000).unwrap();
        let summary = writer.run(&events(3)).unwrap();
        assert_eq!((summary.events, summary.full_after_ns), (6, None));
        let trace = parsed(&writer.file);
        let events = complete(&trace);
        assert_eq!(events.len(), 6);
        assert_eq!(events[0]["name"], "halt");
        assert_eq!(events[0]["ts"], 0.0);
        assert_eq!(events[0]["dur"], 16.666);
        assert_eq!(events[0]["args"]["address"], "c1000000");
        assert_eq!(events[2]["ts"], 33.333);
        for pair in events.chunks(2) {
            let end =
                |event: &Value| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap();
            assert_eq!(pair[1]["name"], "asleep");
            assert!(pair[0]["ts"].as_f64() <= pair[1]["ts"].as_f64());
            assert!(end(pair[1]) <= end(pair[0]) + 1e-9);
        }
    }
}

#[test]
fn a_full_trace_is_valid_keeps_its_limit_and_says_so() {
    const LIMIT: u64 = 64 << 10;
    let mut writer = Writer::new(disk(usize::MAX, false), LIMIT, 1000).unwrap();
    let summary = writer.run(&events(2000)).unwrap();
    assert!(summary.full_after_ns.is_some());
    let length = writer.file.content.get_ref().len() as u64;
    assert!((LIMIT - 1024..=LIMIT).contains(&length), "{length}");
    let trace = parsed(&writer.file);
    assert_eq!(complete(&trace).len() as u64, summary.events);
    assert_eq!(trace["otherData"]["full"], true);
    assert!(complaint(&summary).unwrap().contains("limit"));
}

#[test]
fn the_file_is_valid_after_every_piece() {
    let mut writer = Writer::new(disk(usize::MAX, false), 1 << 20, 1000).unwrap();
    assert!(complete(&parsed(&writer.file)).is_empty());
    let batch = events(10);
    // The vCPU's side is gone: one batch, then the end.
    let batch = batch.next_batch().unwrap();
    writer.take(&batch[..4]).unwrap();
    assert_eq!(complete(&parsed(&writer.file)).len(), 4);
    writer.take(&batch[4..]).unwrap();
    assert_eq!(complete(&parsed(&writer.file)).len(), 20);
}

#[test]
fn a_disk_that_fills_up_leaves_a_valid_file() {
    let mut writer = Writer::new(disk(100_000, false), 1 << 20, 1000).unwrap();
    // 8192 events are two batches, of which the first does not fit either.
    let error = writer.run(&events(4096)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(complete(&parsed(&writer.file)).len(), 0);
}

#[test]
fn events_that_were_dropped_are_told() {
    let summary = Summary {
        events: 1,
        dropped: 7,
        full_after_ns: None,
    };
    assert!(complaint(&summary).unwrap().contains("lacks 7 events"));
    assert_eq!(complaint(&Summary::default()), None);
}
