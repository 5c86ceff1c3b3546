//! The thread that serves the interface while the machine runs, and the wait before that.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tollgate_confine::ThreadKind;
use tollgate_firecracker::{Api, InstanceState, Machine};

use super::host::{Built, Host};
use super::log::Level;
use super::server::Server;
use crate::host;
use crate::signals::{Asked, Signals};

/// How often measurements are written without a request.
const METRICS_INTERVAL: Duration = Duration::from_secs(60);

/// The interface, what its requests are carried out with, and its socket.
pub struct Front {
    /// What was configured, and what is possible now.
    pub api: Api,
    /// What requests are carried out with.
    pub host: Host,
    /// The socket, unless there is none.
    pub server: Option<Server>,
}

impl Front {
    /// Serves requests until one has started a machine. Returns `Err` with the number of a signal
    /// that comes before that.
    ///
    /// # Errors
    /// The host's error, or a signal.
    pub fn wait_for_machine(&mut self, signals: &Signals) -> io::Result<Result<Built, i32>> {
        let mut fds = Vec::new();
        loop {
            fds.clear();
            if let Some(server) = &self.server {
                server.add_interests(&mut fds);
            }
            signals.poll(&mut fds, None)?;
            while let Some(asked) = signals.next() {
                if let Asked::Signal(signal) = asked {
                    return Ok(Err(signal));
                }
            }
            if let Some(built) = self.serve(&fds) {
                return Ok(Ok(built));
            }
        }
    }

    /// Serves requests on a thread until [`Running::stop`].
    ///
    /// # Errors
    /// The host gives no thread or descriptor.
    pub fn start(self) -> io::Result<Running> {
        let stop = Arc::new(host::event()?);
        let raised = Arc::clone(&stop);
        let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
        let thread = Builder::new().name("api".into()).spawn(move || {
            entry.enter();
            self.run(&stop)
        })?;
        Ok(Running {
            thread,
            stop: raised,
        })
    }

    fn run(mut self, stop: &OwnedFd) -> Self {
        let mut fds = Vec::new();
        let mut flush_at = Instant::now() + METRICS_INTERVAL;
        let mut asked_at = Instant::now();
        loop {
            fds.clear();
            fds.push(host::interest(stop.as_raw_fd(), libc::POLLIN));
            if let Some(server) = &self.server {
                server.add_interests(&mut fds);
            }
            let own = fds.len();
            let timer = self.host.boot_timer.as_ref();
            fds.push(host::interest(
                timer.map_or(-1, |timer| timer.event().as_raw_fd()),
                libc::POLLIN,
            ));
            let wake_at = match self.statistics_interval() {
                Some(interval) => flush_at.min(asked_at + interval),
                None => flush_at,
            };
            let timeout = wake_at.saturating_duration_since(Instant::now());
            if let Err(error) = host::poll(&mut fds, Some(timeout)) {
                let line = format!("the interface cannot wait for requests: {error}");
                self.host.log.write(Level::Error, &line);
                return self;
            }
            if fds[0].revents != 0 {
                return self;
            }
            if fds[own].revents != 0
                && let Some(timer) = self.host.boot_timer.take()
            {
                self.host.log.write(Level::Info, &timer.line());
            }
            self.serve(&fds[1..own]);
            if let Some(interval) = self.statistics_interval()
                && asked_at + interval <= Instant::now()
            {
                asked_at = Instant::now();
                self.host.ask_for_statistics();
            }
            if flush_at <= Instant::now() {
                flush_at = Instant::now() + METRICS_INTERVAL;
                if self.host.metrics_file().is_some()
                    && let Err(why) = self.host.flush_metrics(self.api.counts())
                {
                    self.host.log.write(Level::Error, &why);
                }
            }
        }
    }

    /// How often the guest's driver is asked for the statistics of its balloon.
    fn statistics_interval(&self) -> Option<Duration> {
        let balloon = self.api.resources().balloon.as_ref()?;
        let seconds = balloon.stats_polling_interval_s;
        (seconds != 0 && self.api.state() == InstanceState::Running)
            .then(|| Duration::from_secs(seconds.into()))
    }

    fn serve(&mut self, ready: &[libc::pollfd]) -> Option<Built> {
        let server = self.server.as_mut()?;
        server.serve(ready, &mut self.api, &mut self.host)
    }
}

/// The interface on its thread.
pub struct Running {
    thread: JoinHandle<Front>,
    stop: Arc<OwnedFd>,
}

impl Running {
    /// Ends the thread; `None` if it panicked, which was reported.
    pub fn stop(self) -> Option<Front> {
        host::raise(self.stop.as_fd());
        self.thread.join().ok()
    }
}
