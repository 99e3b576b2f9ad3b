//! The state of a pool at one moment, as `pool status`, `top` and metrics show it.
//!
//! Invariant: reading it writes nothing to the pool, and starts no service.

use crate::exports::{self, Before};
use crate::failure::Failure;
use crate::json::Json;
use crate::limited::{self, Limited};
use crate::saved::Saved;
use crate::size::Size;
use crate::start;
use holdfast_client::attach::{self, AttachError};
use holdfast_pmem::Medium;
use holdfast_pool::apply::count::{INDEX, objects};
use holdfast_pool::format::superblock::{Consistency, Superblock};
use holdfast_pool::layout::{SNAPSHOTS, TreeId, VALUES};
use holdfast_pool::protocol::Answer;
use holdfast_pool::segment::tree_share;
use holdfast_service::{Files, PoolLock};
use holdfast_status::Exports;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub fn medium_name(medium: Medium) -> &'static str {
    match medium {
        Medium::Dax => "dax",
        Medium::File => "file",
        Medium::Memory => "memory",
        Medium::DaxTest => "dax-test",
    }
}

fn consistency_name(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Posix => "posix",
        Consistency::Sync => "sync",
        Consistency::Strict => "strict",
    }
}

/// What the file system that the pool is on now promises; `doubted`: its own word is not enough.
pub fn promise(medium: Medium, consistency: Consistency, doubted: bool) -> &'static str {
    match (medium, consistency) {
        (Medium::Memory | Medium::DaxTest, _) => {
            "survives the death of processes, not the loss of power"
        }
        _ if doubted => "survives the death of processes, the loss of power perhaps not",
        (_, Consistency::Posix) => "survives the loss of power, as of the last fsync",
        (_, Consistency::Sync) => "survives the loss of power, as of the last call",
        (_, Consistency::Strict) => {
            "survives the loss of power, as of the last call; \
                                     each write is atomic"
        }
    }
}

/// A property of a pool: its name, and what it is as JSON and as text.
type Row = (&'static str, Json, String);

/// What is in a pool, and what room that takes. Names, attributes, keys and small values are in
/// the trees, which have a share of their own; what they take beyond that is used, too.
fn contents(sb: &Superblock) -> [Row; 7] {
    let size = |name, bytes: u64| number(name, bytes, Size(bytes).to_string());
    let count = |name, count: u64| number(name, count, count.to_string());
    let keys = |tree: TreeId| sb.roots[usize::from(tree)].keys;
    let share = tree_share(sb.data_len, sb.data_len_max) / 4096;
    let beyond = sb.used_pages.saturating_sub(share);
    let used = sb.used_data_blocks.saturating_add(beyond);
    let used = used.saturating_mul(4096).min(sb.data_len);
    [
        size("size", sb.data_len),
        size("used", used),
        size("free", sb.data_len - used),
        size("metadata", sb.used_pages.saturating_mul(4096)),
        count("objects", objects(&sb.counts)),
        // A value that expires is in the index, too.
        count("values", keys(VALUES).saturating_sub(sb.counts[INDEX])),
        count("snapshots", keys(SNAPSHOTS)),
    ]
}

/// What is known of a pool.
pub struct State {
    pool: PathBuf,
    files: Files,
    /// What its service says, if there is one.
    pub live: Option<Answer>,
    /// There is one that says nothing.
    silent: bool,
    /// The exports of its volumes that run.
    pub exports: Exports,
    /// Users and directories that have quotas.
    pub quotas: Vec<Limited>,
    /// When `serve --keep` saved it last, if ever.
    pub saved: Option<Saved>,
    doubt: Option<String>,
}

impl State {
    pub fn of(pool: &Path) -> Result<State, Failure> {
        let state = State::of_any(pool)?;
        match state.silent {
            true => Err(start::silent(pool).0),
            false => Ok(state),
        }
    }

    /// Also of one whose service does not answer.
    pub fn of_any(pool: &Path) -> Result<State, Failure> {
        State::asked(pool, attach::status)
    }

    /// As `of_any`, without connecting where no service has the pool.
    pub fn unless_idle(pool: &Path) -> Result<State, Failure> {
        State::asked(pool, |path| match PoolLock::holder(pool) {
            Some(_) => attach::status(path),
            None => Err(AttachError::NoService),
        })
    }

    fn asked(
        pool: &Path,
        ask: impl FnOnce(&[u8]) -> Result<Answer, AttachError>,
    ) -> Result<State, Failure> {
        let files = Files::open_read_only(pool)?;
        let answer = ask(pool.as_os_str().as_bytes());
        if let Err(e @ AttachError::Version { .. }) = answer {
            return Err(e.into());
        }
        let silent = matches!(answer, Err(AttachError::Silent));
        let live = answer.ok();
        Ok(State {
            pool: pool.into(),
            silent,
            exports: holdfast_status::running(pool),
            quotas: limited::all(&files, live.as_ref()),
            saved: Saved::of(pool),
            doubt: files.doubt(),
            files,
            live,
        })
    }

    pub fn superblock(&self) -> &Superblock {
        &self.files.superblock
    }

    /// Who keeps others waiting, or why nothing can be changed.
    pub fn waiting(&self) -> &str {
        self.live.as_ref().map_or("", Answer::text)
    }

    /// As `rows`, for a JSON object, with the exports.
    pub fn fields(&self, before: Before<'_>) -> Vec<(&'static str, Json)> {
        let mut fields = vec![("pool", Json::Text(self.pool.display().to_string()))];
        fields.extend(
            self.rows()
                .into_iter()
                .map(|(name, value, _)| (name, value)),
        );
        let running = self.live.is_some() || self.silent;
        fields.push(("running", Json::Bool(running)));
        if self.silent {
            fields.push(("silent", Json::Bool(true)));
        }
        fields.push(limited::field(&self.quotas));
        fields.extend(exports::fields(&self.exports, before));
        fields
    }

    /// For people: names and what is said of them, and of `more` that somebody knows.
    pub fn lines(&self, more: &[(&str, String)], before: Before<'_>) -> Vec<(String, String)> {
        let rows = self.rows().into_iter();
        let mut lines: Vec<_> = rows
            .map(|(name, _, said)| (name.to_string(), said))
            .collect();
        lines.extend(
            more.iter()
                .map(|(name, said)| (name.to_string(), said.clone())),
        );
        lines.extend(limited::rows(&self.quotas));
        lines.extend(exports::rows(&self.exports, before));
        lines
    }

    fn rows(&self) -> Vec<Row> {
        let sb = self.superblock();
        let live = self.live.as_ref();
        let (sessions, processes) = live.map_or((0, 0), |a| (a.sessions, a.processes));
        let others = live.map_or(0, |a| a.others);
        let whose = match others {
            0 => "none".into(),
            1 => "1 user beside the owner and root".into(),
            n => format!("{n} users beside the owner and root"),
        };
        let strays = live.map_or(0, |a| a.strays);
        let media_errors = live.map_or(0, |a| a.media_errors);
        let [reused, bytes, ahead, huge] = live.map_or([0; 4], |a| a.mapped);
        let service = live.map_or(0, |a| a.service_pid);
        let promise = promise(self.files.medium, sb.consistency, self.doubt.is_some());
        let mut rows: Vec<Row> = vec![
            number_text("medium", medium_name(self.files.medium)),
            number_text("promise", promise),
            number_text("consistency", consistency_name(sb.consistency)),
        ];
        rows.extend(contents(sb));
        let who = match (live, service) {
            (None, _) if self.silent => "one that does not answer".into(),
            (None, _) => "none".into(),
            (_, 0) => "a process of another PID namespace".into(),
            (_, pid) => format!("process {pid}"),
        };
        let clean = if sb.clean { "yes" } else { "no" };
        rows.extend([
            number("sessions", sessions.into(), sessions.to_string()),
            number("processes", processes.into(), processes.to_string()),
            number("others", others.into(), whose),
            number("strays", strays, stopped(strays)),
            number("media_errors", media_errors, lost(media_errors)),
            number("maps_reused", reused, reuse(reused, bytes)),
            number("pages_ahead", ahead, format!("{ahead} mapped ahead")),
            number("promotions", huge, format!("{huge} huge pages made")),
            number("service", service.into(), who),
            ("clean", Json::Bool(sb.clean), clean.into()),
        ]);
        rows.extend(
            self.doubt
                .as_ref()
                .map(|doubt| number_text("warning", doubt)),
        );
        if let Some(saved) = &self.saved {
            rows.push(number("saved", saved.time, saved.said()));
            let failed = saved.failed.as_deref();
            rows.extend(failed.map(|why| number_text("save_failed", why)));
        }
        if !self.waiting().is_empty() {
            rows.push(number_text("waiting", self.waiting()));
        }
        rows
    }
}

/// Of stray stores into the pool's data.
fn stopped(strays: u64) -> String {
    match strays {
        0 => "none".into(),
        1 => "1 stray store was stopped".into(),
        n => format!("{n} stray stores were stopped"),
    }
}

/// Of mappings that were handed out again.
fn reuse(count: u64, bytes: u64) -> String {
    match count {
        0 => "none".into(),
        n => format!("{n} mappings, {} in all", Size(bytes)),
    }
}

/// Of bytes that the medium has lost.
fn lost(media_errors: u64) -> String {
    match media_errors {
        0 => "none".into(),
        n => format!("{n} copies found bytes lost; the service's log names the blocks"),
    }
}

fn number(name: &'static str, value: u64, text: String) -> Row {
    (name, Json::Number(value), text)
}

fn number_text(name: &'static str, text: &str) -> Row {
    (name, Json::Text(text.into()), text.into())
}
