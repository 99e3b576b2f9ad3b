//! `holdfast pool`: create, status, check, block, resize, destroy.
//!
//! Invariant: status and check write nothing to the pool, unless check is told to accept a loss.

use crate::args::{ConsistencyArg, CreateArgs, MediumArg};
use crate::failure::{self, Failure};
use crate::json::Json;
use crate::kv::{escape, open_pool};
use crate::size::Size;
use crate::state::{State, medium_name, promise};
use holdfast_client::attach::{self, AttachError};
use holdfast_pmem::Medium;
use holdfast_pool::check::{Report, Severity};
use holdfast_pool::directory::ROOT_SQUASH;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::protocol::Request;
use holdfast_service::{Accepted, CreateOptions, Files, PoolLock};
use rustix::process::geteuid;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// `pool create`.
pub fn create(args: &CreateArgs, json: bool) -> Result<u8, Failure> {
    if let Some(device) = &args.device {
        let why = format!("{}: device DAX is not supported yet", device.display());
        return Err(Failure::new(why).fix("use a directory on a DAX file system, and --medium dax"));
    }
    if args.root_squash && geteuid().is_root() {
        let why = "a pool that root owns cannot make nobody of root";
        return Err(Failure::new(why).fix("create it as the user who is to own it"));
    }
    let options = CreateOptions {
        size: args.size.map(|size| size.0),
        medium: medium(args.medium),
        consistency: consistency(args.consistency),
    };
    holdfast_service::create(&args.pool, &options)?;
    if args.root_squash {
        let mark = args.pool.join(ROOT_SQUASH);
        std::fs::File::create_new(&mark).map_err(|e| Failure::io(mark.display(), &e))?;
    }
    let files = Files::open_read_only(&args.pool)?;
    let doubt = files.doubt();
    if let Some(doubt) = &doubt {
        eprintln!("holdfast: {doubt}.");
    }
    if json {
        return status(State::of(&args.pool)?, true);
    }
    let name = medium_name(files.medium);
    let promise = promise(files.medium, options.consistency, doubt.is_some());
    failure::printed(writeln!(std::io::stdout(), "{name}: {promise}"))?;
    Ok(failure::OK)
}

/// How long the programs on a pool may take to start another service.
const PATIENCE: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(20);

/// Has the service of a pool make it larger; false: there is none, or it has yet to be found by the
/// programs.
fn grow_in_use(pool: &Path, size: u64) -> Result<bool, Failure> {
    const EBUSY: i32 = 16;
    const EAGAIN: i32 = 11;
    let done = attach::request(pool.as_os_str().as_bytes(), Request::Grow { size });
    match done {
        Ok(_) => Ok(true),
        Err(AttachError::NoService | AttachError::Refused { errno: EAGAIN, .. }) => Ok(false),
        Err(e @ AttachError::Refused { errno: EBUSY, .. }) => Err(Failure::from(e)
            .fix("wait for the pool's programs to end, or stop them (holdfast lsof shows them)")),
        Err(e) => Err(e.into()),
    }
}

/// `pool resize`.
pub fn resize(pool: &Path, size: Size, json: bool) -> Result<u8, Failure> {
    let begun = Instant::now();
    let grows = size.0 > Files::open(pool)?.superblock.data_len;
    while !(grows && grow_in_use(pool, size.0)?) {
        match holdfast_service::resize(pool, size.0) {
            // Its service died: the programs on it start another one.
            Err(holdfast_service::Error::InUse { .. }) if grows && begun.elapsed() < PATIENCE => {
                std::thread::sleep(NAP);
            }
            done => {
                done?;
                break;
            }
        }
    }
    match json {
        true => status(State::of(pool)?, true),
        false => Ok(failure::OK),
    }
}

/// What a new pool must lie on.
pub fn medium(arg: MediumArg) -> Option<Medium> {
    match arg {
        MediumArg::Auto => None,
        MediumArg::Dax => Some(Medium::Dax),
        MediumArg::File => Some(Medium::File),
        MediumArg::Memory => Some(Medium::Memory),
        MediumArg::DaxTest => Some(Medium::DaxTest),
    }
}

/// What a new pool promises.
pub fn consistency(arg: ConsistencyArg) -> Consistency {
    match arg {
        ConsistencyArg::Posix => Consistency::Posix,
        ConsistencyArg::Sync => Consistency::Sync,
        ConsistencyArg::Strict => Consistency::Strict,
    }
}

/// `pool status`.
pub fn status(state: State, json: bool) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    let done = if json {
        writeln!(out, "{}", Json::Object(state.fields(None)).render())
    } else {
        let mut lines = state.lines(&[], None).into_iter();
        lines.try_for_each(|(name, text)| writeln!(out, "{name:<12} {text}"))
    };
    failure::printed(done)?;
    Ok(failure::OK)
}

/// `pool check`: the bits of fsck(8).
pub fn check(pool: &Path, accept_loss: bool, json: bool) -> Result<u8, Failure> {
    let fail = |e: holdfast_service::Error| Failure::from(e).code(failure::CHECK_FAILED);
    let fail_or_damaged = |e: holdfast_service::Error| match e.errno() {
        EUCLEAN => Failure::from(e).code(failure::CHECK_DAMAGED),
        _ => fail(e),
    };
    if !accept_loss {
        Files::open_read_only(pool).map_err(fail_or_damaged)?;
    }
    wait_for_service(pool).map_err(fail)?;
    let accepted = match accept_loss {
        true => holdfast_service::accept_loss(pool).map_err(fail_or_damaged)?,
        false => None,
    };
    if let Some(accepted) = &accepted {
        say_what_was_lost(pool, accepted);
    }
    // What was read while the service was ending may be old.
    let files = Files::open_read_only(pool).map_err(fail)?;
    let report = holdfast_service::check(&files).map_err(fail)?;
    let mut out = std::io::stdout().lock();
    let done = if json {
        writeln!(out, "{}", report_json(pool, &report).render())
    } else {
        write_report(&mut out, pool, &report)
    };
    failure::printed(done).map_err(|e| e.code(failure::CHECK_FAILED))?;
    Ok(match (report.is_clean(), accepted) {
        (true, None) => failure::OK,
        (true, Some(_)) => failure::CHECK_MENDED,
        (false, None) => failure::CHECK_DAMAGED,
        (false, Some(_)) => failure::CHECK_MENDED | failure::CHECK_DAMAGED,
    })
}

fn say_what_was_lost(pool: &Path, accepted: &Accepted) {
    let pool = pool.display();
    for cut in &accepted.cuts {
        eprintln!("holdfast: {pool}: {cut}");
    }
    for loss in &accepted.losses {
        eprintln!("holdfast: {pool}: the journal was damaged: {loss}");
    }
    let (records, skipped) = (accepted.recovered.records, accepted.recovered.skipped);
    eprintln!(
        "holdfast: {pool}: applied {records} changes, gave up {skipped} that depend on lost ones"
    );
    if let Some((seq, why)) = &accepted.recovered.rejected {
        eprintln!("holdfast: {pool}: stopped at journal record {seq}: {why}");
    }
}

fn write_report(out: &mut impl Write, pool: &Path, report: &Report) -> std::io::Result<()> {
    for finding in &report.findings {
        writeln!(out, "{}: {finding}", pool.display())?;
    }
    if report.more > 0 {
        writeln!(out, "{}: and {} more findings", pool.display(), report.more)?;
    }
    let verdict = if report.is_clean() {
        "clean"
    } else {
        "DAMAGED"
    };
    let s = &report.summary;
    writeln!(
        out,
        "{}: {verdict}: {} objects, {} names, {} data blocks, {} tree pages",
        pool.display(),
        s.objects,
        s.names,
        s.data_blocks,
        s.tree_pages
    )
}

fn report_json(pool: &Path, report: &Report) -> Json {
    let findings = report.findings.iter().map(|finding| {
        let mut fields = vec![
            (
                "severity",
                Json::Text(match finding.severity {
                    Severity::Note => "note".into(),
                    Severity::Damage => "damage".into(),
                }),
            ),
            ("what", Json::Text(finding.what.clone())),
        ];
        if let Some(path) = &finding.path {
            fields.push((
                "path",
                Json::Text(String::from_utf8_lossy(path).into_owned()),
            ));
        }
        fields.extend(finding.ino.map(|ino| ("object", Json::Number(ino))));
        fields.extend(finding.page.map(|page| ("page", Json::Number(page))));
        Json::Object(fields)
    });
    Json::Object(vec![
        ("pool", Json::Text(pool.display().to_string())),
        ("clean", Json::Bool(report.is_clean())),
        ("objects", Json::Number(report.summary.objects)),
        ("names", Json::Number(report.summary.names)),
        ("orphans", Json::Number(report.summary.orphans)),
        ("data_blocks", Json::Number(report.summary.data_blocks)),
        (
            "records_waiting",
            Json::Number(report.summary.records_waiting),
        ),
        ("findings", Json::List(findings.collect())),
        ("more", Json::Number(report.more)),
    ])
}

/// `pool block`.
pub fn block(path: &Path, number: u64, json: bool) -> Result<u8, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    let pool = open_pool(path, None)?;
    let Some(place) = pool.find_block(number)? else {
        let why = "it is free, or in snapshots alone, or in a file that has no name any more";
        let what = format!("block {number} is in no file that you can find: {why}");
        return Err(Failure::new(what));
    };
    let mut out = std::io::stdout().lock();
    let done = if json {
        let fields = vec![
            ("block", Json::Number(number)),
            ("path", Json::Text(place.path)),
            ("volume", Json::Bool(place.is_volume)),
            ("offset", Json::Number(place.offset)),
        ];
        writeln!(out, "{}", Json::Object(fields).render())
    } else {
        let kind = if place.is_volume { "volume" } else { "file" };
        let offset = place.offset;
        write!(out, "block {number} is at byte {offset} of {kind} ")
            .and_then(|()| escape::write(&mut out, place.path.as_bytes()))
            .and_then(|()| writeln!(out))
    };
    failure::printed(done)?;
    Ok(failure::OK)
}

const EUCLEAN: i32 = 117;
/// A service takes no longer to write down what its last session left.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// Nor longer to notice that a process has ended.
const LEAVING_MAX: Duration = Duration::from_secs(2);

/// A service without users is about to end.
fn wait_for_service(pool: &Path) -> holdfast_service::Result<()> {
    let begun = Instant::now();
    while let Some(pid) = PoolLock::holder(pool) {
        let users = holdfast_client::attach::status(pool.as_os_str().as_bytes())
            .map_or(0, |answer| answer.users);
        // A user that has just ended counts until the service has seen its end.
        let used = users > 0 && begun.elapsed() > LEAVING_MAX;
        if used || begun.elapsed() > ENDING_MAX {
            return Err(holdfast_service::Error::InUse {
                path: pool.into(),
                pid,
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// `pool destroy`.
pub fn destroy(pool: &Path) -> Result<u8, Failure> {
    wait_for_service(pool)?;
    holdfast_service::destroy(pool)?;
    Ok(failure::OK)
}
