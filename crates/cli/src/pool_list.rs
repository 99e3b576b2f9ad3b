//! `holdfast pool list`: the pools that are known here.
//!
//! Nobody registers pools: known are the user's own, and those for which somebody listens.
//!
//! Invariants: no service is started for it, nothing is changed, and what is in a pool's files is
//! read by a process of the pool's owner alone (`owner.rs`); each pool is asked in a process of its
//! own, so one that does not answer costs no other its line.

use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::kv::escape;
use crate::size::Size;
use crate::{default_pool, owner};
use holdfast_pool::segment::{META, SOCKET};
use rustix::process::geteuid;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Sockets of the network namespace.
const SOCKETS: &str = "/proc/net/unix";
/// Of a socket that listens.
const LISTENS: &str = "00010000";
/// Those that keep messages apart, as services do.
const SEQPACKET: &str = "0005";

/// `pool list`.
pub fn list(json: bool) -> Result<u8, Failure> {
    let own = default_pool::path().ok();
    let asked: Vec<_> = known(own.as_deref()).into_iter().map(ask).collect();
    let rows = asked.into_iter().map(|(pool, child)| Row {
        is_own: own.as_ref() == Some(&pool),
        said: child.and_then(|child| answer(&pool, child)),
        pool,
    });
    let rows: Vec<Row> = rows.collect();
    let mut out = std::io::stdout().lock();
    printed(match json {
        true => {
            let rows = rows.iter().map(Row::json).collect();
            writeln!(out, "{}", Json::List(rows).render())
        }
        false => write!(out, "{}", text(&rows)),
    })?;
    Ok(failure::OK)
}

/// The user's own pool if it is there, and those of sockets.
fn known(own: Option<&Path>) -> BTreeSet<PathBuf> {
    let sockets = std::fs::read(SOCKETS).unwrap_or_default();
    let listening = sockets.split(|byte| *byte == b'\n').filter_map(pool_of);
    let served = processes().flat_map(|words| served(&words));
    let own = own.map(PathBuf::from);
    let all = listening.chain(served).chain(own);
    // A directory may have several names.
    let real = all.filter_map(|pool| std::fs::canonicalize(pool).ok());
    real.filter(|pool| pool.join(META).is_file()).collect()
}

/// The pool whose socket a line of `SOCKETS` may be.
fn pool_of(line: &[u8]) -> Option<PathBuf> {
    let at = line.windows(2).position(|pair| pair == b" /")?;
    let (fields, path) = line.split_at(at + 1);
    let fields: Vec<_> = std::str::from_utf8(fields)
        .ok()?
        .split_whitespace()
        .collect();
    let path = Path::new(OsStr::from_bytes(path));
    let listens = fields.get(3..5) == Some(&[LISTENS, SEQPACKET]);
    let is_named = path.file_name() == Some(OsStr::new(SOCKET));
    (listens && is_named).then(|| path.parent().map(PathBuf::from))?
}

/// The words by which each process was started.
fn processes() -> impl Iterator<Item = Vec<PathBuf>> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|process| {
        let words = std::fs::read(process.path().join("cmdline")).ok()?;
        let words = words.split(|byte| *byte == 0).map(OsStr::from_bytes);
        Some(words.map(PathBuf::from).collect())
    })
}

/// The pools of a service: a path that is too long for a socket's address is in its words alone.
fn served(words: &[PathBuf]) -> Vec<PathBuf> {
    let is_service = words.first().and_then(|word| word.file_name()) == Some("holdfast".as_ref())
        && words.get(1).is_some_and(|word| word.as_os_str() == "serve");
    let paths = words.iter().skip(2).filter(|word| word.is_absolute());
    paths.filter(|_| is_service).cloned().collect()
}

/// Has the pool looked at, unless that is not for this user.
fn ask(pool: PathBuf) -> (PathBuf, Option<Child>) {
    let user = geteuid();
    let may = user.is_root() || owner::of(&pool).is_some_and(|(owner, _)| owner == user.as_raw());
    let program = std::env::current_exe().ok().filter(|_| may);
    let child = program.and_then(|program| {
        let mut command = Command::new(program);
        command.args(["pool", "status", "--json", "--unless-idle", "--"]);
        command.arg(&pool).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().ok()
    });
    (pool, child)
}

/// What was said of it; why it could not be said, people are told.
fn answer(pool: &Path, child: Child) -> Option<Value> {
    let ended = child.wait_with_output().ok()?;
    let why = String::from_utf8_lossy(&ended.stderr);
    if let Some(why) = why.strip_prefix("holdfast: ") {
        let pool = escape::shown(pool.as_os_str().as_bytes());
        failure::say(format!("holdfast: {pool}: {}", why.trim_end()));
    }
    serde_json::from_slice(&ended.stdout).ok()
}

/// A pool, and what is known of it.
struct Row {
    pool: PathBuf,
    is_own: bool,
    /// As `pool status` says it.
    said: Option<Value>,
}

impl Row {
    fn number(&self, name: &str) -> Option<u64> {
        self.said.as_ref()?.get(name)?.as_u64()
    }

    /// `None`: the service does not answer either.
    fn processes(&self) -> Option<u64> {
        let said = self.said.as_ref()?;
        said.get("silent")
            .is_none()
            .then(|| self.number("processes"))?
    }

    fn medium(&self) -> Option<&str> {
        self.said.as_ref()?.get("medium")?.as_str()
    }

    /// Whether a service answered, or must not be asked: then somebody listens at least.
    fn runs(&self) -> bool {
        self.said
            .as_ref()
            .is_none_or(|said| said["running"] == Value::Bool(true))
    }

    fn json(&self) -> Json {
        let pool = escape::shown(self.pool.as_os_str().as_bytes());
        let mut fields = vec![
            ("pool", Json::Text(pool)),
            ("own", Json::Bool(self.is_own)),
            ("running", Json::Bool(self.runs())),
        ];
        fields.extend(owner::of(&self.pool).map(|(user, _)| ("owner", Json::Number(user.into()))));
        let medium = self
            .medium()
            .map(|medium| ("medium", Json::Text(medium.into())));
        fields.extend(medium);
        let numbers = [
            ("size", self.number("size")),
            ("used", self.number("used")),
            ("processes", self.processes()),
        ];
        let known = numbers.into_iter();
        fields.extend(known.filter_map(|(name, n)| Some((name, Json::Number(n?)))));
        Json::Object(fields)
    }

    fn cells(&self) -> [String; 6] {
        let size = |name| self.number(name).map(|bytes| Size(bytes).to_string());
        let unknown = |cell: Option<String>| cell.unwrap_or("-".into());
        let service = if self.runs() { "runs" } else { "none" };
        let own = if self.is_own { " (@)" } else { "" };
        [
            unknown(size("size")),
            unknown(size("used")),
            unknown(self.medium().map(String::from)),
            service.into(),
            unknown(self.processes().map(|n| n.to_string())),
            escape::shown(self.pool.as_os_str().as_bytes()) + own,
        ]
    }
}

/// A line for each, with columns as wide as they need; nothing if there is none.
fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = ["SIZE", "USED", "MEDIUM", "SERVICE", "PROCESSES", "POOL"].map(String::from);
    let mut lines = vec![head];
    lines.extend(rows.iter().map(Row::cells));
    let widths: [usize; 5] =
        std::array::from_fn(|n| lines.iter().map(|line| line[n].len()).max().unwrap_or(0));
    let line = |line: &[String; 6]| {
        let cells = line.iter().zip(widths);
        let cells: String = cells
            .map(|(cell, width)| format!("{cell:<width$} "))
            .collect();
        cells + &line[5] + "\n"
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_found_by_their_sockets() {
        let found = |line: &str| pool_of(line.as_bytes());
        let pool = |path: &str| Some(PathBuf::from(path));
        let listens = "0000000071bd1375: 00000002 00000000 00010000 0005 01 21456956";
        assert_eq!(found(&format!("{listens} /a b/p/sock")), pool("/a b/p"));
        assert_eq!(
            found(&listens.replace("21456956", "   56 /p/sock")),
            pool("/p")
        );
        // A connection, another kind of socket, another name, one of no file, none, and garbage.
        for line in [
            "0000000071bd1375: 00000003 00000000 00000000 0005 03 21456956 /p/sock",
            "0000000071bd1375: 00000002 00000000 00010000 0001 01 21456956 /p/sock",
            "0000000071bd1375: 00000002 00000000 00010000 0005 01 21456956 /p/socket",
            "0000000071bd1375: 00000002 00000000 00010000 0005 01 21456956 @/p/sock",
            listens,
            "Num       RefCount Protocol Flags    Type St Inode Path",
            " /sock",
            "",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn pools_are_found_by_their_services() {
        let found = |words: &str| served(&words.split(' ').map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(found("holdfast serve --ending -- /p"), [Path::new("/p")]);
        assert_eq!(
            found("/usr/bin/holdfast serve /p --keep x"),
            [Path::new("/p")]
        );
        for words in [
            "holdfast run /p",
            "cat serve /p",
            "holdfast serve p",
            "holdfast",
            "",
        ] {
            assert!(found(words).is_empty(), "{words}");
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let row = |said: Option<&str>| Row {
            pool: "/p q".into(),
            is_own: said.is_some(),
            said: said.map(|said| serde_json::from_str(said).unwrap()),
        };
        let known =
            r#"{"size":1073741824,"used":4096,"medium":"memory","processes":3,"service":7}"#;
        let lines = text(&[row(None), row(Some(known))]);
        let expected = "SIZE USED MEDIUM SERVICE PROCESSES POOL\n\
            -    -    -      runs    -         /p q\n\
            1G   4K   memory none    3         /p q (@)\n";
        assert_eq!(lines, expected);
        let json = row(None).json().render();
        assert_eq!(json, r#"{"pool":"/p q","own":false,"running":true}"#);
    }
}
