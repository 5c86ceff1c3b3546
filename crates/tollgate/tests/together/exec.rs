//! Tests `tollgate exec`: commands in a machine of their own, with their streams, files, signals
//! and exit codes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::exec::{Place, text};
use crate::support::guests::fetched;
use crate::support::terminal::Terminal;
use crate::support::{GUEST_PATIENCE, PATIENCE, ended, eventually, finish, signal, tollgate};
use tollgate_test_support::skip;

/// A sample of arbitrary bytes, including non-text ones.
fn sample(count: usize) -> Vec<u8> {
    let mut random = 1u32;
    let bytes = std::iter::repeat_with(|| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 24) as u8
    });
    bytes.take(count).collect()
}

fn piped(mut command: Command) -> Child {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the command prints this line, and expects nothing before it.
#[track_caller]
fn wait_for_line(child: &mut Child, expected: &str) {
    let mut line = vec![0; expected.len()];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(text(&line), expected);
}

#[test]
fn exit_codes_are_those_of_the_command() {
    let place = Place::new();
    let run = |command: &[&str]| finish(&mut place.exec(&[], command), GUEST_PATIENCE);
    let output = run(&["true"]);
    assert_eq!(text(&output.stderr), "");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    let output = run(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\n".into(), "err\n".into())
    );
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
}

#[test]
fn what_cannot_be_run_is_told_apart_as_env_does() {
    let place = Place::new();
    fs::write(place.here.join("data"), "x").unwrap();
    for (name, code, why) in [
        ("no-such-command", 127, "no such command"),
        ("./none", 127, "no such command"),
        ("./data", 126, "ermission denied"),
    ] {
        let output = finish(&mut place.exec(&[], &[name]), GUEST_PATIENCE);
        assert_eq!(output.status.code(), Some(code), "{name}");
        let errors = text(&output.stderr);
        assert!(
            errors.contains(why) && errors.lines().count() == 1,
            "{errors}"
        );
    }
}

#[test]
fn what_is_wrong_here_is_one_line_and_code_125() {
    let place = Place::new();
    let rows: [(&[&str], &str); 9] = [
        (&["--kernel", "none"], "cannot read 'none'"),
        (
            &["--cpus", "2"],
            "--cpus <N>: '2': a guest has one processor",
        ),
        (&["--net", "user,ipv6=off"], "unknown key 'ipv6'"),
        (&["-m", "48M"], "too little: the kernel"),
        (&["--boot-timeout", "0.001"], "(--boot-timeout)"),
        (&["--share", "none"], "--share: 'none'"),
        (&["--no-such-flag"], "unknown flag '--no-such-flag'"),
        (&["--timeout", "soon"], "expected seconds"),
        (&["--env", "=x"], "a variable needs a name"),
    ];
    for (flags, why) in rows {
        let output = finish(&mut place.exec(flags, &["true"]), PATIENCE);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {errors}");
        assert!(
            errors.contains(why) && errors.lines().count() == 1,
            "{errors}"
        );
    }
}

#[test]
fn a_guest_that_fails_shows_its_last_words() {
    let place = Place::new();
    let mut command = place.exec(&["--append", "rdinit=/none root=/dev/none"], &["true"]);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(125));
    let errors = text(&output.stderr);
    assert!(
        errors.starts_with("tollgate: the guest was reset"),
        "{errors}"
    );
    assert!(errors.contains("Kernel panic"), "{errors}");

    // A folder of modules without the drivers is refused after the guest has booted.
    let modules = place.folder.path("modules");
    fs::create_dir(&modules).unwrap();
    let modules = modules.to_str().unwrap();
    let mut command = place.exec(&["--modules", modules], &["true"]);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(125));
    let errors = text(&output.stderr);
    assert!(errors.contains("lacks the driver virtio_pci"), "{errors}");
}

#[test]
fn the_console_is_shown_and_a_signal_before_the_command_ends_it() {
    let place = Place::new();
    let mut child = piped(place.exec(&["--verbose"], &["cat"]));
    let mut console = child.stderr.take().unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 1024];
    while !text(&seen).contains("Linux version") {
        let count = console.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "{}", text(&seen));
        seen.extend(&buffer[..count]);
    }
    signal(child.id(), libc::SIGTERM);
    child.stderr = Some(console);
    assert_eq!(ended(child, PATIENCE).status.code(), Some(143));
}

#[test]
fn streams_pass_bytes_unchanged_and_apart() {
    let place = Place::new();
    let mut child = piped(place.exec(&[], &["sh", "-c", "echo begin >&2; cat; echo end >&2"]));
    let bytes = sample(1 << 20);
    let mut input = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let output = ended(child, GUEST_PATIENCE);
    writer.join().unwrap();
    assert!(output.stdout == bytes);
    assert_eq!(text(&output.stderr), "begin\nend\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_command_whose_reader_has_gone_is_told_so() {
    let place = Place::new();
    let mut child = piped(place.exec(&[], &["yes"]));
    let mut beginning = [0; 64];
    child
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut beginning)
        .unwrap();
    assert_eq!(&beginning[..4], b"y\ny\n");
    // The command ended by SIGPIPE.
    assert_eq!(ended(child, GUEST_PATIENCE).status.code(), Some(141));
}

#[test]
fn signals_reach_the_command() {
    let place = Place::new();
    let mut child = piped(place.exec(&[], &["sh", "-c", "echo ready; exec cat"]));
    wait_for_line(&mut child, "ready\n");
    signal(child.id(), libc::SIGTERM);
    assert_eq!(ended(child, GUEST_PATIENCE).status.code(), Some(143));

    let script = "trap 'echo one' USR1; trap 'echo two; exit 5' INT; echo ready; \
        sleep 1000 & while true; do wait; done";
    let mut child = piped(place.exec(&[], &["sh", "-c", script]));
    wait_for_line(&mut child, "ready\n");
    signal(child.id(), libc::SIGUSR1);
    wait_for_line(&mut child, "one\n");
    signal(child.id(), libc::SIGINT);
    let output = ended(child, GUEST_PATIENCE);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(5), "two\n".into())
    );
}

#[test]
fn a_signal_that_is_insisted_on_ends_the_machine() {
    let place = Place::new();
    let script = "trap 'echo no' TERM; echo ready; sleep 1000 & while true; do wait; done";
    let mut child = piped(place.exec(&[], &["sh", "-c", script]));
    wait_for_line(&mut child, "ready\n");
    for _ in 0..2 {
        signal(child.id(), libc::SIGTERM);
        wait_for_line(&mut child, "no\n");
    }
    signal(child.id(), libc::SIGTERM);
    assert_eq!(ended(child, GUEST_PATIENCE).status.code(), Some(143));
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    let place = Place::new();
    let output = finish(
        &mut place.exec(&["--timeout", "0.01"], &["cat"]),
        GUEST_PATIENCE,
    );
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(124), String::new())
    );
    // This command runs and ignores the request to end.
    let script = "trap '' TERM; echo ready; while true; do sleep 1; done";
    let mut child = piped(place.exec(&["--timeout", "20"], &["sh", "-c", script]));
    let mut line = Vec::new();
    let mut output = child.stdout.take().unwrap();
    output.read_to_end(&mut line).unwrap();
    // On a machine so busy that the command did not begin, the code is the same.
    assert!(line.is_empty() || line == b"ready\n");
    assert_eq!(ended(child, GUEST_PATIENCE).status.code(), Some(124));
}

#[test]
fn a_command_without_input_leaves_the_host_s_alone() {
    let place = Place::new();
    fs::write(place.here.join("lines"), "one\ntwo\n").unwrap();
    let file = fs::File::open(place.here.join("lines")).unwrap();
    let mut command = place.exec(&["-n"], &["wc", "-c"]);
    command.stdin(file.try_clone().unwrap());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ended(child.spawn().unwrap(), GUEST_PATIENCE);
    assert_eq!(
        (text(&output.stdout).trim(), output.status.code()),
        ("0", Some(0))
    );
    let mut rest = String::new();
    (&file).read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "one\ntwo\n");
}

#[test]
fn a_guest_without_memory_left_says_so() {
    let place = Place::new();
    // The output is one line without an end.
    let output = place.script(&[], "busybox tr '\\000' x </dev/zero | busybox sort");
    let errors = text(&output.stderr);
    assert!(
        errors.contains("tollgate: the guest's memory was full (--memory gives it more)"),
        "{errors}"
    );
    assert_ne!(output.status.code(), Some(125), "{errors}");
}

#[test]
fn the_machine_has_a_control_socket() {
    let place = Place::new();
    let path = place.folder.path("vm.sock");
    let flags = ["--control", path.to_str().unwrap(), "--knob", "vif=off"];
    let mut child = piped(place.exec(&flags, &["sh", "-c", "echo ready; exec cat"]));
    wait_for_line(&mut child, "ready\n");
    let ask = |words: &[&str]| {
        let mut command = tollgate();
        let output = finish(command.args(words), PATIENCE);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let path = path.to_str().unwrap();
    // As soon as cat waits for input, the guest is idle.
    let status = ask(&["control", path, "status"]);
    let state = status.lines().next().unwrap_or_default();
    assert!(
        state.ends_with("running") || state.ends_with("halted"),
        "{status}"
    );
    let knobs = ask(&["set", path]);
    let mut rows = knobs.lines().map(|line| line.split_whitespace());
    let vif = rows.find_map(|mut row| (row.next() == Some("vif")).then(|| row.next()));
    assert_eq!(vif, Some(Some("off")), "{knobs}");
    ask(&["control", path, "quit"]);
    let output = ended(child, PATIENCE);
    assert_eq!(output.status.code(), Some(125));
    let errors = text(&output.stderr);
    assert!(errors.contains("through its control socket"), "{errors}");
    assert!(!PathBuf::from(path).exists());
}

#[test]
fn the_current_directory_is_shared_and_the_rest_forgotten() {
    let place = Place::new();
    fs::write(place.here.join("in"), "from the host\n").unwrap();
    let answer = place.answer(
        &[],
        "cat in; pwd; echo new > out; echo new > /etc/new; cat /etc/new",
    );
    assert_eq!(
        answer,
        format!("from the host\n{}\nnew\n", place.here.display())
    );
    let out = place.here.join("out");
    assert_eq!(fs::read_to_string(&out).unwrap(), "new\n");
    assert_eq!(
        out.metadata().unwrap().uid(),
        place.here.metadata().unwrap().uid()
    );
    assert!(!place.root.join("etc/new").exists());

    let other = place.folder.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("a"), "a\n").unwrap();
    let rw = ["--rw", other.to_str().unwrap()];
    place.answer(&rw, &format!("echo changed > {}/a", other.display()));
    assert_eq!(fs::read_to_string(other.join("a")).unwrap(), "changed\n");
    let share = format!("{}:/data/x,ro", other.display());
    let flags = ["--share", &share, "--workdir", "/data"];
    let script = "pwd; cat x/a; (echo no > x/a) 2>/dev/null || echo refused";
    assert_eq!(place.answer(&flags, script), "/data\nchanged\nrefused\n");
}

#[test]
fn directories_of_the_root_are_complete_each_time_they_are_read() {
    let place = Place::new();
    let many = place.root.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..700 {
        fs::write(many.join(format!("entry-{number}")), number.to_string()).unwrap();
    }
    let script = "cd /many; for n in 1 2; do ls | wc -l; ls -l | wc -l; cat * | wc -c; done; \
                  rm entry-3; echo new > new; echo more > newer; ls | wc -l; ls /many | wc -l";
    let expected = "700\n701\n1990\n700\n701\n1990\n701\n701\n";
    assert_eq!(place.answer(&[], script), expected);
    assert_eq!(fs::read_dir(&many).unwrap().count(), 700);
}

#[test]
fn the_host_s_root_is_there_and_the_user_is_the_same() {
    let place = Place::new();
    let mut command = tollgate();
    command.current_dir(&place.here);
    command.env(
        "TOLLGATE_GUESTS",
        fetched("debian-amd64/vmlinuz").ancestors().nth(2).unwrap(),
    );
    command
        .env("NOT_PASSED", "x")
        .env("PASSED", "a b")
        .env("HOME", "/a home");
    // The busybox of the tests is used, because a host may lack any other program.
    let busybox = place.root.join("bin/busybox");
    let script = format!(
        "b={}; $b id -u; $b id -g; $b echo \"$HOME $PASSED $NOT_PASSED $SET\"; $b touch made; \
         $b stat -c %u made; $b test ! -w / || $b touch /made",
        busybox.display()
    );
    command.args(["exec", "-m", "256M", "--env", "PASSED", "--env", "SET=s"]);
    command.arg("--").arg(&busybox).args(["sh", "-c", &script]);
    let output = finish(&mut command, GUEST_PATIENCE);
    assert_eq!(text(&output.stderr), "");
    let here = place.here.metadata().unwrap();
    let (user, group) = (here.uid(), here.gid());
    let expected = format!("{user}\n{group}\n/a home a b  s\n{user}\n");
    assert_eq!(text(&output.stdout), expected);
    assert_eq!(place.here.join("made").metadata().unwrap().uid(), user);
    assert!(!PathBuf::from("/made").exists());
}

#[test]
fn the_user_is_one_of_the_guest() {
    let place = Place::new();
    fs::set_permissions(&place.here, fs::Permissions::from_mode(0o777)).unwrap();
    let script = "id -u; id -g; echo $HOME $USER; touch own && stat -c %u own";
    let answer = place.answer(&["--user", "ann"], script);
    assert_eq!(answer, "7\n8\n/home/ann ann\n7\n");
    assert_eq!(
        place.answer(&["--user", "12:34"], "id -u; id -g"),
        "12\n34\n"
    );
    let output = place.script(&["--user", "bob"], "true");
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("no user 'bob'"));
}

#[test]
fn a_terminal_has_its_size_and_follows_it() {
    let place = Place::new();
    let terminal = Terminal::new();
    let before = terminal.settings();
    let resize = |rows, columns| {
        let size = libc::winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the request reads a winsize.
        unsafe { libc::ioctl(terminal.person.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    };
    resize(33, 77);
    let script = "tty; stty size; echo ready; read line; stty size; echo got $line; exit 4";
    let mut child = terminal.start(place.exec(&[], &["sh", "-c", script]));
    let mut seen = Vec::new();
    let mut person = terminal.person.try_clone().unwrap();
    let mut wait_for = |what: &str| {
        let mut buffer = [0; 256];
        while !text(&seen).contains(what) {
            let count = person.read(&mut buffer).unwrap();
            seen.extend(&buffer[..count]);
        }
    };
    wait_for("/dev/pts/0\r\n33 77\r\nready\r\n");
    resize(20, 50);
    // The guest must know the size before it gets what is typed later. The terminal's owner is
    // notified immediately but on another way, so the test asks repeatedly until the size is right.
    signal(child.id(), libc::SIGWINCH);
    (&terminal.person).write_all(b"typed\r").unwrap();
    wait_for("got typed\r\n");
    let status = eventually("the end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(4));
    assert_eq!(terminal.settings(), before);
    assert!(text(&seen).contains("typed\r\n"), "{}", text(&seen));
}

#[test]
fn a_terminal_s_keys_are_the_guest_s() {
    let place = Place::new();
    let terminal = Terminal::new();
    let script = "trap 'echo interrupted; exit 6' INT; echo ready; while true; do sleep 1; done";
    let mut child = terminal.start(place.exec(&[], &["sh", "-c", script]));
    let mut seen = Vec::new();
    let mut person = terminal.person.try_clone().unwrap();
    let mut buffer = [0; 256];
    while !text(&seen).contains("ready\r\n") {
        let count = person.read(&mut buffer).unwrap();
        seen.extend(&buffer[..count]);
    }
    (&terminal.person).write_all(b"\x03").unwrap();
    let status = eventually("the end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(6));
}

#[test]
fn the_network_reaches_this_machine() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"hello\n").unwrap();
    });
    let script = format!("nc 10.0.2.2 {port} </dev/null; cat /etc/resolv.conf");
    assert_eq!(
        place.answer(&["--net", "user,allow=any,host"], &script),
        "hello\nnameserver 10.0.2.3\n"
    );
    server.join().unwrap();
    assert!(!place.root.join("etc/resolv.conf").exists());
}

#[test]
fn what_the_network_refuses_is_refused_at_once_and_listed() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "nc 10.0.2.2 {port} </dev/null 2>&1; nc 169.254.169.254 80 </dev/null 2>&1; \
         busybox nslookup host.invalid 2>&1 | busybox grep -c REFUSED"
    );
    let flags = ["--stats", "--net", "user,allow=192.0.2.0/24,log=refused"];
    let output = finish(
        &mut place.exec(&flags, &["sh", "-c", &script]),
        GUEST_PATIENCE,
    );
    let said = text(&output.stdout);
    assert_eq!(said.matches("Connection refused").count(), 2, "{said}");
    assert!(!said.ends_with("\n0\n"), "{said}");
    let errors = text(&output.stderr);
    for line in [
        format!(
            "virtio-net0: refused tcp 10.0.2.2:{port}: this host's loopback; allow=host opens it"
        ),
        "refused tcp 169.254.169.254:80: link-local or metadata".into(),
        "refused name host.invalid: not in allow=".into(),
        "refused by the network's rules: ".into(),
        format!("      1  tcp 10.0.2.2:{port}: this host's loopback"),
    ] {
        assert!(errors.contains(&line), "{line}: {errors}");
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

/// The command in a network of its own with only the loopback interface; `None` if the host does
/// not allow its users to make one.
fn without_network(command: &Command) -> Option<Command> {
    let alone = |script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--net", "sh", "-c", script, "sh"]);
        unshare
    };
    let is_possible = alone("ip link set lo up").output();
    if !is_possible.is_ok_and(|output| output.status.success()) {
        skip::impossible("the host gives its users no network namespace (unshare, ip)");
        return None;
    }
    let mut unshare = alone("ip link set lo up && exec \"$@\"");
    unshare.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        unshare.env(name, value.unwrap_or_default());
    }
    if let Some(folder) = command.get_current_dir() {
        unshare.current_dir(folder);
    }
    Some(unshare)
}

#[test]
fn what_the_host_does_not_reach_fails_in_the_guest_too() {
    let place = Place::new();
    // Each connection would take minutes if no answer came.
    let script = "for host in 192.0.2.1 240.0.0.1; do nc $host 80 2>&1; done; \
                  busybox nslookup host.invalid 2>&1 | grep -c SERVFAIL";
    let command = place.exec(&["--net"], &["sh", "-c", script]);
    let Some(mut command) = without_network(&command) else {
        return;
    };
    let output = finish(&mut command, GUEST_PATIENCE);
    let said = text(&output.stdout);
    let unreachable = "Network is unreachable\n";
    assert_eq!(said.matches(unreachable).count(), 2, "{said}");
    let failed = said.lines().last().and_then(|line| line.parse().ok());
    assert!(failed.unwrap_or(0) > 0, "{said}{}", text(&output.stderr));
}

/// Whether the agent for 32-bit kernels is built in; if not, each such kernel is refused.
fn has_32_bit_agent(place: &Place) -> bool {
    let kernel = fetched("debian-686/vmlinuz");
    // The module folder does not exist, so nothing boots.
    let flags = ["--kernel", kernel.to_str().unwrap(), "--modules", "none"];
    let output = finish(&mut place.exec(&flags, &["true"]), PATIENCE);
    assert_eq!(output.status.code(), Some(125));
    let errors = text(&output.stderr);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let is_refused = errors.contains("is a kernel of 32 bits, and this tollgate was built without");
    if is_refused {
        eprintln!("ran: the refusal alone; rustup target add i686-unknown-linux-musl for the rest");
    } else {
        assert!(errors.contains("--modules: cannot use 'none'"), "{errors}");
        eprintln!("ran: commands on kernels of 32 bits");
    }
    !is_refused
}

#[test]
fn kernels_of_32_bits_run_commands_of_32_bits() {
    let place = Place::of_32_bits();
    if !has_32_bit_agent(&place) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut client, _) = listener.accept().unwrap();
            client.write_all(b"from the host\n").unwrap();
        }
    });
    let sent = sample(100_000);
    fs::write(place.here.join("sent"), &sent).unwrap();
    for kernel in ["debian-686", "debian-686-pae"] {
        let image = fetched(&format!("{kernel}/vmlinuz"));
        let network = "--net=user,allow=host";
        let flags = ["--kernel", image.to_str().unwrap(), network];
        let script = format!(
            "uname -m; nc 10.0.2.2 {port} </dev/null; cat sent; cat >got; echo err >&2; exit 5"
        );
        let mut child = piped(place.exec(&flags, &["sh", "-c", &script]));
        let (mut input, bytes) = (child.stdin.take().unwrap(), sent.clone());
        let writer = std::thread::spawn(move || input.write_all(&bytes));
        let output = ended(child, GUEST_PATIENCE);
        assert_eq!(text(&output.stderr), "err\n", "{kernel}");
        assert_eq!(output.status.code(), Some(5), "{kernel}");
        let expected = [b"i686\nfrom the host\n".as_slice(), &sent].concat();
        assert!(output.stdout == expected, "{kernel}: other bytes");
        writer.join().unwrap().unwrap();
        assert!(
            fs::read(place.here.join("got")).unwrap() == sent,
            "{kernel}: other bytes"
        );
    }
    server.join().unwrap();
}

#[test]
fn a_kernel_of_32_bits_refuses_a_program_of_64_bits() {
    let place = Place::new();
    if !has_32_bit_agent(&place) {
        return;
    }
    let kernel = fetched("debian-686/vmlinuz");
    let flags = ["--kernel", kernel.to_str().unwrap()];
    let output = finish(&mut place.exec(&flags, &["true"]), GUEST_PATIENCE);
    assert_eq!(output.status.code(), Some(126));
    let errors = text(&output.stderr);
    assert!(errors.contains("for another processor"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
