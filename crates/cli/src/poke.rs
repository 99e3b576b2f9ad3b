//! `holdfast volume poke`: a stray store into a volume, made in a process that may end by it.
//!
//! Invariants: no byte of the volume is another one afterwards, and nobody else writes to the
//! volume meanwhile.

use crate::failure::{self, Failure, printed};
use crate::json::Json;
use holdfast::{Pool, Protection, Volume, Zeroes};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SIGSEGV: i32 = 11;

/// Has a child make the store, and says what came of it; status 0 if it was stopped.
pub fn apart(
    pool: &Path,
    name: &str,
    protect: Option<Protection>,
    json: bool,
) -> Result<u8, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
    let mut child = Command::new(own);
    child.arg("volume").arg(pool).args(["poke", "--here"]);
    if let Some(protect) = protect {
        child.args(["--protect", protect.name()]);
    }
    child.args(["--", name]);
    let ended = child.stdin(Stdio::null()).output();
    let ended = ended.map_err(|e| Failure::io("a stray store", &e))?;
    let (out, said) = (text(&ended.stdout), text(&ended.stderr));
    let Some((mode, block)) = out.trim().split_once(' ') else {
        // It did not come to that, and said why.
        eprint!("{said}");
        return Ok(ended
            .status
            .code()
            .map_or(failure::FAILED, |code| code as u8));
    };
    let report = said
        .lines()
        .find(|line| line.starts_with("holdfast: a stray store"));
    let stopped = ended.status.signal() == Some(SIGSEGV);
    let Some(report) = report.filter(|_| stopped) else {
        let what = format!("a stray store to block {block} of volume {name:?} was not stopped");
        return Err(Failure::new(format!("{what} by {mode}")).fix("choose another --protect"));
    };
    let report = report.trim_start_matches("holdfast: ");
    // What it says beyond is of use where nobody knows whose block it was.
    let report = report.split(';').next().unwrap_or(report);
    let block = place_of(pool, name, report)?;
    let mut out = std::io::stdout().lock();
    printed(match json {
        true => {
            let said = Json::Object(vec![
                ("stopped", Json::Bool(true)),
                ("protect", Json::Text(mode.into())),
                ("volume", Json::Text(name.into())),
                ("block", Json::Number(block)),
                ("report", Json::Text(report.into())),
            ]);
            writeln!(out, "{}", said.render())
        }
        false => writeln!(
            out,
            "{report}: it was block {block} of volume {name}, kept by {mode}"
        ),
    })?;
    Ok(failure::OK)
}

/// The block of the volume at which a stray store was aimed, by what the report says of it.
fn place_of(path: &Path, name: &str, report: &str) -> Result<u64, Failure> {
    let words = report.trim_start_matches("a stray store to block ");
    let number = words.split(' ').next().and_then(|word| word.parse().ok());
    let number =
        number.ok_or_else(|| Failure::new(format!("the report has no block: {report}")))?;
    let pool = Pool::open(path)?;
    match pool.find_block(number)? {
        Some(place) if place.path == name.trim_start_matches('/') => {
            Ok(place.offset / pool.volume_to_read(name)?.sector().bytes())
        }
        place => {
            let whose = place.map_or("nobody".into(), |place| place.path);
            let what = format!("{report}: the block is that of {whose}, not of volume {name:?}");
            Err(Failure::new(what))
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes the store in this process.
pub fn here(path: &Path, name: &str, protect: Option<Protection>) -> Result<u8, Failure> {
    let pool = Pool::open_to_serve(path, name, (protect, None), None)?;
    let Some(protection) = pool.protection()? else {
        return Err(
            Failure::new("a proxy makes your calls, so the volume is not in your memory")
                .fix("as the pool's owner, the same command"),
        );
    };
    let volume = pool.volume(name)?;
    let at = first_data(&volume)?;
    // What ends it is meant.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    let mut out = std::io::stdout().lock();
    let block = at / volume.sector().bytes();
    printed(writeln!(out, "{} {block}", protection.name()).and_then(|()| out.flush()))?;
    volume.stray_store(at)?;
    Ok(failure::OK)
}

/// Where the volume has bytes; zeroes take space at its beginning if it has none.
fn first_data(volume: &Volume) -> holdfast::Result<u64> {
    let extent = volume.extent(0)?;
    match extent.hole {
        false => Ok(0),
        true if extent.end < volume.size() => Ok(extent.end),
        true => {
            volume.write_zeroes(0, volume.sector().bytes(), Zeroes::Blocks)?;
            Ok(0)
        }
    }
}
