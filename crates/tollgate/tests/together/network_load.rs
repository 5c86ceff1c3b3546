//! Tests the network under load, and with the programs that people use: a guest on this host's own
//! root connects to servers on this machine.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use crate::support::exec::text;
use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::repository;
use crate::support::{GUEST_PATIENCE, ended, eventually, finish, tollgate};

/// The number of connections at one time.
const CONNECTIONS: usize = 1000;

/// `tollgate exec` with a network in this folder, on this host's root.
fn exec(folder: &Folder, flags: &[&str], script: &str) -> Command {
    let mut command = tollgate();
    command.current_dir(folder.as_path());
    let guests = fetched("debian-amd64/vmlinuz");
    command.env("TOLLGATE_GUESTS", guests.ancestors().nth(2).unwrap());
    command.args(["exec"]).args(flags);
    command.args(["--", "sh", "-ec", script]);
    command
}

#[track_caller]
fn assert_said(output: &Output, expected: &str) {
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
    assert!(said.contains(expected), "{said}\n{errors}");
}

/// Raises this process's limit of descriptors to what its ends of the connections need. Other tests
/// of the process are not affected: `tollgate` raises its own limit where it needs more, and tests
/// that want a small limit set it.
fn raise_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls read and write this one structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A port on which no program listens, as far as that can be known.
fn free_port() -> u16 {
    listener().1
}

/// The text that connection `number` carries each way.
fn words(number: usize) -> String {
    format!("connection {number} of many\n").repeat(50)
}

/// Sends back what a connection receives.
fn echo(mut stream: TcpStream) {
    let mut data = Vec::new();
    stream.set_read_timeout(Some(GUEST_PATIENCE)).unwrap();
    stream.read_to_end(&mut data).unwrap();
    stream.write_all(&data).unwrap();
}

#[test]
fn a_thousand_connections_out_of_the_guest_at_a_time() {
    raise_limit();
    let folder = Folder::new();
    let (listener, port) = listener();
    let server = thread::spawn(move || {
        let accepted = listener.incoming().take(CONNECTIONS);
        let streams: Vec<_> = accepted.map(Result::unwrap).collect();
        // All connections exist before the first is answered.
        streams.into_iter().for_each(echo);
    });
    folder.file(
        "client",
        format!(
            "use strict; use IO::Socket::INET; my @sockets;\n\
             for my $n (0..{CONNECTIONS}-1) {{\n\
               push @sockets, IO::Socket::INET->new(PeerAddr => '10.0.2.2', PeerPort => {port}) || die \"$n: $!\";\n\
             }}\n\
             for my $n (0..$#sockets) {{\n\
               $sockets[$n]->autoflush(1);\n\
               print {{$sockets[$n]}} \"connection $n of many\\n\" x 50;\n\
               shutdown $sockets[$n], 1;\n\
             }}\n\
             for my $n (0..$#sockets) {{\n\
               local $/; my $answer = readline $sockets[$n];\n\
               $answer eq \"connection $n of many\\n\" x 50 or die \"$n: $answer\";\n\
             }}\n\
             print 'all ', scalar @sockets, \"\\n\";\n"
        )
        .as_bytes(),
    );
    let script = "ulimit -n 4096; exec perl client";
    let output = finish(
        &mut exec(&folder, &["--net=user,allow=host"], script),
        GUEST_PATIENCE,
    );
    assert_said(&output, "all 1000");
    server.join().unwrap();
}

#[test]
fn a_thousand_connections_into_the_guest_at_a_time() {
    raise_limit();
    let folder = Folder::new();
    folder.file(
        "server",
        format!(
            "use strict; use IO::Socket::INET; my @sockets;\n\
             my $listener = IO::Socket::INET->new(LocalPort => 7, Listen => 4096) || die $!;\n\
             $| = 1; print \"ready\\n\";\n\
             push @sockets, scalar $listener->accept for 1..{CONNECTIONS};\n\
             for my $socket (@sockets) {{\n\
               local $/; my $data = readline $socket;\n\
               print $socket $data; close $socket;\n\
             }}\n"
        )
        .as_bytes(),
    );
    let port = free_port();
    let network = format!("--net=user,hostfwd=tcp:127.0.0.1:{port}-:7");
    let script = "ulimit -n 4096; exec perl server";
    let mut child = exec(&folder, &[&network], script)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line == "ready\n" {
        let connect = |number| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stream.set_read_timeout(Some(GUEST_PATIENCE)).unwrap();
            stream.write_all(words(number).as_bytes()).unwrap();
            stream
        };
        let streams: Vec<_> = (0..CONNECTIONS).map(connect).collect();
        // The guest may have accepted them in another order.
        for stream in &streams {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        for (number, mut stream) in streams.into_iter().enumerate() {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, words(number), "{number}");
        }
    }
    assert_said(&ended(child, GUEST_PATIENCE), "");
    assert_eq!(line, "ready\n");
}

#[test]
fn a_peer_that_does_not_read_holds_up_nobody_else() {
    let folder = Folder::new();
    let ((stalled, stalled_port), (working, working_port)) = (listener(), listener());
    let server = thread::spawn(move || working.accept().map(|(stream, _)| echo(stream)));
    // The first process is blocked in its write, the second works, and nothing is left of the
    // first.
    let script = format!(
        "perl -MIO::Socket::INET -e '\n\
           my $s = IO::Socket::INET->new(PeerAddr => \"10.0.2.2\", PeerPort => {stalled_port}) || die;\n\
           $| = 1; print \"connected\\n\"; print $s \"x\" x (64 << 20); print \"too much\\n\"' \
           >/tmp/told &\n\
         until [ -s /tmp/told ]; do sleep 0.1; done; cat /tmp/told\n\
         perl -MIO::Socket::INET -e '\n\
           my $s = IO::Socket::INET->new(PeerAddr => \"10.0.2.2\", PeerPort => {working_port}) || die;\n\
           my $data = \"data\" x 500_000; print $s $data; shutdown $s, 1; local $/;\n\
           print readline($s) eq $data ? \"same\\n\" : \"other\\n\"'\n\
         date -d @0 +%s; kill $!"
    );
    let output = finish(
        &mut exec(&folder, &["--net=user,allow=host"], &script),
        GUEST_PATIENCE,
    );
    assert_said(&output, "connected\nsame\n0\n");
    server.join().unwrap().unwrap();
    drop(stalled);
}

/// A process that is killed at the end of the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program of this host and returns its output.
#[track_caller]
fn host(folder: &Path, program: &str, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.current_dir(folder).args(words);
    // The program uses none of this user's settings and asks nothing.
    let nobody = folder.join("no-such-file");
    command.env("HOME", folder).env("GIT_CONFIG_GLOBAL", nobody);
    let output = command.output().unwrap_or_else(|error| {
        panic!("{program}: {error}; scripts/install-dependencies installs it")
    });
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

#[test]
fn git_clones_from_a_daemon_of_this_machine() {
    const PIECES: usize = 300;
    let folder = Folder::new();
    let source = folder.path("source");
    fs::create_dir(&source).unwrap();
    let mut random = 1u32;
    for number in 0..PIECES {
        // Some of the content can be compressed, some cannot.
        let content: Vec<u8> = (0..10_000)
            .map(|place| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if number % 2 == 0 {
                    (random >> 24) as u8
                } else {
                    place as u8
                }
            })
            .collect();
        fs::write(source.join(format!("file-{number}")), content).unwrap();
    }
    let git = |words: &[&str]| host(&source, "git", words);
    git(&["init", "-q"]);
    git(&["add", "."]);
    let who = ["-c", "user.name=test", "-c", "user.email=test@example.org"];
    git(&[&who[..], &["commit", "-q", "-m", "files"]].concat());
    let head = git(&["rev-parse", "HEAD"]);
    let port = free_port();
    let daemon = PathBuf::from(git(&["--exec-path"])).join("git-daemon");
    let _daemon = Server(
        Command::new(daemon)
            .args(["--listen=127.0.0.1", "--export-all", "--reuseaddr"])
            .arg(format!("--port={port}"))
            .arg(format!("--base-path={}", folder.as_path().display()))
            .stdin(Stdio::null())
            // It complains about the connection that only checks whether it listens.
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    eventually("the daemon listens", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
    });
    let script = format!(
        "git clone -q git://10.0.2.2:{port}/source copy; cd copy; git fsck --strict; git rev-parse HEAD"
    );
    let output = finish(
        &mut exec(&folder, &["--net=user,allow=host"], &script),
        GUEST_PATIENCE,
    );
    assert_said(&output, &head);
    let last = format!("file-{}", PIECES - 1);
    let copy = fs::read(folder.path("copy").join(&last)).unwrap();
    assert!(copy == fs::read(source.join(last)).unwrap());
}

#[test]
fn apt_get_installs_from_a_repository_of_this_machine() {
    let folder = Folder::new();
    let port = repository::serve(&folder);
    // apt uses none of this host's settings and lists.
    folder.file(
        "sources.list",
        format!("deb [trusted=yes] http://10.0.2.2:{port} ./\n").as_bytes(),
    );
    let here = folder.as_path().display();
    let script = format!(
        "mkdir -p /run/lists/partial /run/archives/partial\n\
         set -- -q -o Dir::Etc::SourceList={here}/sources.list -o Dir::Etc::SourceParts=/nowhere \
           -o Dir::State::Lists=/run/lists -o Dir::Cache::Archives=/run/archives \
           -o APT::Sandbox::User=root -o Acquire::http::Proxy=false -o Acquire::Languages=none\n\
         apt-get \"$@\" update; apt-get \"$@\" -y --no-install-recommends install tollgate-test-package\n\
         wc -l </usr/share/tollgate-test-package/file; dpkg -s tollgate-test-package"
    );
    let flags = ["--net=user,allow=host", "--user", "root"];
    let output = finish(&mut exec(&folder, &flags, &script), GUEST_PATIENCE);
    assert_said(&output, "200000\n");
    assert_said(&output, "Status: install ok installed");
    assert!(!Path::new("/usr/share/tollgate-test-package").exists());
}
