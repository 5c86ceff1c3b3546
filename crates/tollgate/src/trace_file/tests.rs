//! Facts about trace files.

use super::*;
use serde_json::Value;
use tollgate_exits::ExitKind;
use tollgate_exits::blame::Place;
use tollgate_exits::trace::Span;

use super::pages::tests::Checked;

/// A pipe or a file that a test writes to.
#[derive(Default)]
struct Disk {
    file: Checked,
    pipe: Vec<u8>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pipe.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Store for Disk {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn cut_out(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.file.cut_out(from, to)
    }
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.cut(length)
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
            is_kernel: false,
        };
        tracer.exit(Some(ExitKind::Halt), start, 50, place);
    }
    events
}

fn nameless() -> Arc<Reporter> {
    Arc::new(Reporter::PLAIN)
}

fn size(limit: u64) -> Size {
    Size {
        limit,
        is_ring: false,
    }
}

fn content(writer: &Writer<Disk>) -> &[u8] {
    match &writer.sink {
        Sink::Pages(pages) => &pages.store().file.content,
        Sink::Stream(disk, _) => &disk.pipe,
    }
}

fn parsed(writer: &Writer<Disk>) -> Value {
    serde_json::from_slice(content(writer)).unwrap()
}

fn complete(trace: &Value) -> Vec<&Value> {
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["ph"] == "X").collect()
}

#[test]
fn events_have_microseconds_from_the_first_on_and_nest() {
    for is_pipe in [false, true] {
        // At 3 MHz, three cycles are one microsecond.
        let mut writer =
            Writer::new(Disk::default(), !is_pipe, size(1 << 20), 3000, nameless()).unwrap();
        let summary = writer.run(&events(3)).unwrap();
        assert_eq!((summary.events, summary.full_after_ns), (6, None));
        let trace = parsed(&writer);
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
fn spaces_are_processes_and_kinds_are_threads_by_name() {
    let (mut tracer, events) = trace::channel();
    for (space, kind) in [
        (0x1000, ExitKind::Cli),
        (0x2000, ExitKind::Cli),
        (0x1000, ExitKind::Sti),
    ] {
        tracer.inside(Span::Device, 5, 1);
        tracer.exit(
            Some(kind),
            0,
            10,
            Place {
                linear: 1,
                space,
                is_kernel: false,
            },
        );
    }
    drop(tracer);
    let batch = events.next_batch().unwrap();
    for is_file in [false, true] {
        let mut writer =
            Writer::new(Disk::default(), is_file, size(1 << 20), 1000, nameless()).unwrap();
        writer.take(&batch, 0).unwrap();
        writer.run(&self::events(0)).unwrap();
        let trace = parsed(&writer);
        let all = trace["traceEvents"].as_array().unwrap();
        let name = |what: &str, pid: &Value, tid: &Value| {
            let named = all.iter().find(|event| {
                event["name"] == what && event["pid"] == *pid && event["tid"] == *tid
            });
            named.map(|event| event["args"]["name"].as_str().unwrap().to_owned())
        };
        let shown: Vec<_> = complete(&trace)
            .iter()
            .map(|event| {
                let space = name("process_name", &event["pid"], &Value::from(0)).unwrap();
                let kind = name("thread_name", &event["pid"], &event["tid"]).unwrap();
                (space, kind, event["name"].as_str().unwrap().to_owned())
            })
            .collect();
        let expected = [
            ("space 00001000", "cli", "cli"),
            ("space 00001000", "cli", "device"),
            ("space 00002000", "cli", "cli"),
            ("space 00002000", "cli", "device"),
            ("space 00001000", "sti", "sti"),
            ("space 00001000", "sti", "device"),
        ];
        assert_eq!(
            shown,
            expected.map(|(a, b, c)| (a.into(), b.into(), c.into()))
        );
    }
}

#[test]
fn a_full_trace_is_valid_keeps_its_limit_and_says_so() {
    const LIMIT: u64 = 64 << 10;
    for is_pipe in [false, true] {
        let mut writer =
            Writer::new(Disk::default(), !is_pipe, size(LIMIT), 1000, nameless()).unwrap();
        let summary = writer.run(&events(2000)).unwrap();
        assert!(summary.full_after_ns.is_some());
        let length = content(&writer).len() as u64;
        assert!((LIMIT - 3 * 4096..=LIMIT).contains(&length), "{length}");
        let trace = parsed(&writer);
        assert_eq!(complete(&trace).len() as u64, summary.events);
        assert_eq!(trace["otherData"]["full"], true);
        assert!(complaint(&summary).unwrap().contains("limit"));
    }
}

#[test]
fn the_file_is_valid_after_every_piece() {
    let mut writer = Writer::new(Disk::default(), true, size(1 << 20), 1000, nameless()).unwrap();
    assert!(complete(&parsed(&writer)).is_empty());
    let batch = events(10);
    // The vCPU's side has gone: one batch follows, then the end.
    let batch = batch.next_batch().unwrap();
    writer.take(&batch[..4], 0).unwrap();
    assert_eq!(complete(&parsed(&writer)).len(), 4);
    writer.take(&batch[4..], 0).unwrap();
    assert_eq!(complete(&parsed(&writer)).len(), 20);
    assert_eq!(parsed(&writer)["otherData"]["events"], 20);
}

#[test]
fn a_disk_without_the_room_is_known_at_the_start() {
    let mut disk = Disk::default();
    disk.file.room = Some(100_000);
    let error = Writer::new(disk, true, size(1 << 20), 1000, nameless())
        .err()
        .unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
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
