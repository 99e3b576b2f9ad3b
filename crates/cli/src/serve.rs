//! `holdfast serve`.
//!
//! Invariants: in the foreground it tells systemd when it is ready, listens at the socket that
//! systemd passes, if any, and ends at SIGTERM or SIGINT;
//! with `--ending` its standard output carries exactly one line, `ready` or the reason for a
//! failure, to the `holdfast run` that started it.

use crate::args::ServeArgs;
use crate::config::Config;
use crate::confine::confine;
use crate::failure::{self, Failure};
use crate::keeper::{self, Keeper};
use crate::signals::Signals;
use crate::writeback;
use crate::{log, owner, proxy};
use holdfast_pmem::process;
use holdfast_pool::session::{MEDIUM_FILE, session_len};
use holdfast_service::{Options, Service};
use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// `serve`.
pub fn serve(args: &ServeArgs) -> Result<u8, Failure> {
    if args.apart {
        return serve_apart(args.pool.as_deref().unwrap_or(Path::new("")));
    }
    let (config, mut keeper) = match prepare(args) {
        Ok(prepared) => prepared,
        Err(failure) => return not_opened(args, failure),
    };
    // Before any thread is made: all of them inherit the mask.
    let signals = Signals::of_service()?;
    if args.ending {
        // A session of its own: the terminal's signals are for the programs.
        let _ = rustix::process::setsid();
    }
    let pool = std::path::absolute(&config.pool);
    let pool = &pool.map_err(|e| Failure::io(config.pool.display(), &e))?;
    let _ = std::env::set_current_dir("/");
    if args.ending && owner::of(pool).is_some() {
        log::take_over(pool);
    }
    let options = Options {
        ending: args.ending,
        writeback: Some(writeback::command),
        proxy: Some(proxy::command),
    };
    let opened = log::start()
        .and_then(|()| raise_limits(pool))
        .and_then(|()| activated())
        .and_then(|socket| confine().map(|()| socket))
        .and_then(|socket| Ok(Service::open_at(pool, options, socket)?));
    let service = match opened {
        Ok(service) => service,
        Err(failure) => return not_opened(args, failure),
    };
    let recovered = service.recovered();
    if recovered.records + recovered.orphans > 0 {
        let (records, orphans) = (recovered.records, recovered.orphans);
        tracing::info!("recovered {records} changes, freed {orphans} unnamed objects");
    }
    if let Some((seq, why)) = &recovered.rejected {
        tracing::error!("recovery stopped at journal record {seq}: {why}");
    }
    if let Some(damage) = service.damage() {
        failure::warn_of_damage(pool, &damage.to_string());
    }
    tracing::info!("the service of {} begins", pool.display());
    let stopper = service.stopper();
    std::thread::spawn(move || {
        signals.wait_for_end();
        stopper.stop();
    });
    if args.ending {
        tell_parent("ready");
    } else {
        tell_systemd("READY=1");
    }
    if let Some(keeper) = &mut keeper {
        keeper.begin();
    }
    service.run()?;
    keeper.map_or(Ok(()), Keeper::finish)?;
    Ok(failure::OK)
}

/// What is to be served, by the user whose it is, and what saves it.
fn prepare(args: &ServeArgs) -> Result<(Config, Option<Keeper>), Failure> {
    let config = Config::of(args)?;
    config.become_owner()?;
    keeper::prepare(&config)?;
    let keeper = Keeper::start(&config)?;
    Ok((config, keeper))
}

/// There is no service, for this reason.
fn not_opened(args: &ServeArgs, failure: Failure) -> Result<u8, Failure> {
    if !args.ending {
        return Err(failure);
    }
    // Whoever started us says it.
    tell_parent(&format!("{failure}").replace('\n', "\t"));
    Ok(failure.status())
}

/// The first descriptor that systemd passes.
const PASSED: i32 = 3;

/// The listening socket, if whoever started us passed it (sd_listen_fds(3)).
fn activated() -> Result<Option<OwnedFd>, Failure> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    if number("LISTEN_PID") != Some(process::own_pid()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => {
            let socket = process::inherited(PASSED);
            let failed =
                |e: rustix::io::Errno| Failure::io("the socket that was passed", &e.into());
            Ok(Some(socket.map_err(failed)?))
        }
        Some(several) => Err(Failure::new(format!(
            "{several} sockets were passed, and the service listens at one"
        ))
        .fix("name POOL/sock alone in the .socket unit")),
    }
}

/// Starts the service with our standard output and ends, so that it is nobody's child.
fn serve_apart(pool: &Path) -> Result<u8, Failure> {
    let failed = |e| Failure::io("the service cannot be started", &e);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command
        .arg0("holdfast")
        .args(["serve", "--ending", "--"])
        .arg(pool);
    command.spawn().map_err(failed)?;
    Ok(failure::OK)
}

/// Descriptors that a service needs at least.
const FILES_MIN: u64 = 64;
/// And wants, for users' connections.
const FILES: u64 = 4096;

/// The limits of whoever started us are for programs: ours are as high as they may be.
fn raise_limits(pool: &Path) -> Result<(), Failure> {
    for (what, wanted) in [
        (Resource::Nofile, Some(FILES)),
        (Resource::Fsize, None),
        (Resource::As, None),
    ] {
        let now = getrlimit(what);
        let short = |limit: Option<u64>| limit.is_some_and(|l| wanted.is_none_or(|w| l < w));
        if !short(now.current) {
            continue;
        }
        let all = Rlimit {
            current: wanted,
            maximum: wanted,
        };
        if !short(now.maximum) || setrlimit(what, all).is_err() {
            let most = Rlimit {
                current: now.maximum,
                maximum: now.maximum,
            };
            let _ = setrlimit(what, most);
        }
    }
    let segments: u64 = std::fs::read_dir(pool)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .sum();
    let session = session_len(MEDIUM_FILE, segments);
    for (what, needed, flag, unit) in [
        (Resource::Nofile, FILES_MIN, 'n', "open files"),
        (Resource::Fsize, session, 'f', "bytes in a file"),
        (
            Resource::As,
            segments + 2 * session,
            'v',
            "bytes of addresses",
        ),
    ] {
        let limit = getrlimit(what).current.unwrap_or(u64::MAX);
        if limit < needed {
            let what =
                format!("the pool's service needs {needed} {unit}, and the limit is {limit}");
            let fix = format!("raise `ulimit -{flag}`, or start holdfast serve without that limit");
            return Err(Failure::new(what).fix(fix));
        }
    }
    Ok(())
}

/// One line on standard output, which is then closed for good.
fn tell_parent(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
    drop(out);
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// sd_notify(3).
fn tell_systemd(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let Ok(socket) = UnixDatagram::unbound() else {
        return;
    };
    let bytes = path.as_encoded_bytes();
    let sent = match bytes.strip_prefix(b"@") {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            std::os::unix::net::SocketAddr::from_abstract_name(name)
                .and_then(|address| socket.send_to_addr(state.as_bytes(), &address))
        }
        None => socket.send_to(state.as_bytes(), &path),
    };
    if let Err(e) = sent {
        failure::say(Failure::io("systemd cannot be told", &e));
    }
}
