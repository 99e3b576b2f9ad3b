//! The end of those who want to know what the exports of a pool do.
//!
//! Invariants: nothing in the pool's directory is changed; all answers together take a limited
//! time, and each a limited amount of memory.

use crate::report::{REPORT_MAX, Report};
use crate::socket::Directory;
use holdfast_pool::directory::is_export_socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one export may take to answer, and all of them.
const ONE: Duration = Duration::from_millis(200);
const ALL: Duration = Duration::from_secs(1);
/// As many are asked, and at a time.
const EXPORTS_MAX: usize = 1000;
const AT_ONCE: usize = 64;

/// The exports of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports {
    /// What each says, under a name that it alone has had, in the order of their volumes.
    pub reports: Vec<(String, Report)>,
    /// How many run and say nothing: because they are stopped, or busy.
    pub silent: u64,
}

/// Asks all exports that run on the pool in this directory. What cannot be asked is not there.
pub fn running(pool: &Path) -> Exports {
    let mut exports = Exports::default();
    let Ok(directory) = Directory::open(pool) else {
        return exports;
    };
    let begun = Instant::now();
    let entries = std::fs::read_dir(pool).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let sockets = names.filter(|name| is_export_socket(name));
    let sockets: Vec<_> = sockets.take(EXPORTS_MAX).collect();
    for some in sockets.chunks(AT_ONCE) {
        let left = ALL.saturating_sub(begun.elapsed()).min(ONE);
        for (name, answer) in some.iter().zip(ask_all(&directory, some, left)) {
            match answer {
                Ok(Some(report)) => exports.reports.push((name.clone(), report)),
                // It is no export of ours.
                Ok(None) => {}
                Err(Errno::TIMEDOUT | Errno::AGAIN) => exports.silent += 1,
                // It has ended.
                Err(_) => {}
            }
        }
    }
    let order = |(name, report): &(String, Report)| (report.volume.clone(), name.clone());
    exports.reports.sort_by_key(order);
    exports
}

/// What these say within `limit`. None waits for another: some may be stopped.
fn ask_all(
    directory: &Directory,
    names: &[String],
    limit: Duration,
) -> Vec<Result<Option<Report>, Errno>> {
    std::thread::scope(|scope| {
        let ask = |name: &'_ String| {
            let name = name.clone();
            scope.spawn(move || ask(directory, &name, limit))
        };
        let asked: Vec<_> = names.iter().map(ask).collect();
        let answer = asked.into_iter().map(|one| one.join());
        answer.map(|one| one.unwrap_or(Err(Errno::IO))).collect()
    })
}

/// What one says within `limit`.
fn ask(directory: &Directory, name: &str, limit: Duration) -> Result<Option<Report>, Errno> {
    let errno = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let socket = directory.connect(name).map_err(errno)?;
    let json = read_all(&socket, Instant::now() + limit)?;
    Ok(Report::parse(&json))
}

fn read_all(socket: &OwnedFd, end: Instant) -> Result<Vec<u8>, Errno> {
    let (mut bytes, mut room) = (Vec::new(), vec![0; 64 << 10]);
    while bytes.len() <= REPORT_MAX {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let timeout = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        match rustix::io::read(socket, &mut room) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(room.get(..n).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    // More than any export says.
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    struct Pool(PathBuf);

    impl Pool {
        fn new(name: &str) -> Pool {
            let path = format!("holdfast-status-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(path);
            std::fs::create_dir(&path).unwrap();
            Pool(path)
        }

        fn listen(&self, name: &str) -> UnixListener {
            UnixListener::bind(self.0.join(name)).unwrap()
        }
    }

    impl Drop for Pool {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Says `bytes` to the first who asks.
    fn say(listener: UnixListener, bytes: Vec<u8>) {
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&bytes);
        });
    }

    #[test]
    fn who_is_dead_silent_or_hostile_hides_nobody() {
        let pool = Pool::new("hostile");
        let of = |volume: &str| Report {
            volume: volume.into(),
            ..Report::default()
        };
        say(pool.listen("export-1.sock"), of("b").to_json());
        say(pool.listen("export-7.sock"), of("a").to_json());
        // Dead; stopped; talking nonsense; talking without an end; no socket at all.
        drop(pool.listen("export-2.sock"));
        let _stopped: Vec<_> = (10..40)
            .map(|n| pool.listen(&format!("export-{n}.sock")))
            .collect();
        say(pool.listen("export-4.sock"), b"{\"volume\":".to_vec());
        say(pool.listen("export-5.sock"), vec![b' '; 1 << 24]);
        std::fs::write(pool.0.join("export-6.sock"), "").unwrap();
        say(pool.listen("other.sock"), of("c").to_json());
        let begun = Instant::now();
        let exports = running(&pool.0);
        assert!(begun.elapsed() < 2 * ALL);
        let volumes: Vec<_> = exports
            .reports
            .iter()
            .map(|(_, r)| r.volume.as_str())
            .collect();
        assert_eq!((volumes.as_slice(), exports.silent), (&["a", "b"][..], 30));
    }

    #[test]
    fn who_never_answers_is_asked_without_waiting() {
        let pool = Pool::new("stopped");
        let _stopped = pool.listen("export-1.sock");
        let directory = Directory::open(&pool.0).unwrap();
        let mut asked = Vec::new();
        // Until there is no room for those who ask.
        while let Ok(socket) = directory.connect("export-1.sock") {
            asked.push(socket);
            assert!(asked.len() < 100_000);
        }
        assert_eq!(running(&pool.0).silent, 1);
        assert_eq!(running(&PathBuf::from("/nowhere")), Exports::default());
    }
}
