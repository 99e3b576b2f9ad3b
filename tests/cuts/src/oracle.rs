//! Judges what a power cut left, by the history of the run alone.
//!
//! Of a file, each byte is that of its newest durable change there, or of a later change, or, where
//! no change is durable, zero or beyond the end. Names are those after some number of changes of
//! names, not fewer than were acknowledged as durable. A file that was renamed over another is
//! whole if it is seen in that place; one that was cut to nothing, rewritten and closed has its old
//! content or a beginning of the new one. Keys are those after some number of commits.

use crate::disk::Position;
use crate::dump::Seen;
use crate::history::{Change, File, History, Rewrite, Snapshot};
use crate::pattern;
use std::collections::BTreeMap;

/// What is promised beyond fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Durable at fsync.
    Posix,
    /// Durable when a call returns.
    Sync,
    /// And each write as a whole or not at all.
    Strict,
}

/// What the judge holds a file system to.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub promise: Promise,
    /// Whether replaced files are old or new as a whole without a sync.
    pub whole: bool,
}

/// The longest list of wrong things that is told of one cut.
const COMPLAINTS_MAX: usize = 6;

/// What is wrong with this tree after a cut; nothing if it is one that may be left.
pub fn judge(history: &History, cut: Position, rules: Rules, seen: &Seen) -> Vec<String> {
    let (files, keys) = split(seen);
    let mut wrong = judge_names(history, cut, rules, &files);
    let commits = &history.commits;
    let least = commits
        .iter()
        .rposition(|commit| commit.durable && commit.span.done_by(cut));
    // In every mode: how durable a commit is, its caller says.
    let least = least.map_or(0, |index| index + 1);
    let most = commits.iter().take_while(|c| c.span.begun_by(cut)).count();
    wrong.extend(judge_keys(history, least, most, &keys));
    wrong
}

/// What is wrong with the tree that a snapshot shows after a cut.
pub fn judge_snapshot(
    history: &History,
    snapshot: &Snapshot,
    rules: Rules,
    seen: &Seen,
) -> Vec<String> {
    let (files, keys) = split(seen);
    // What was acknowledged as durable when it was taken; nothing that was begun later.
    let at = snapshot.span.begun;
    let names = history.names_after(snapshot.events);
    let mut wrong = compare_names(&names, &files, snapshot.events);
    for (name, id) in &names {
        if let (Some(file), Some(bytes)) = (history.files.get(id), files.get(name.as_str())) {
            let before = File {
                ops: file.ops[..file.done(at)].to_vec(),
                ..file.clone()
            };
            wrong.extend(complain(
                name,
                file,
                at,
                judge_file(&before, at, rules, 0, bytes),
            ));
        }
    }
    wrong.truncate(COMPLAINTS_MAX);
    wrong.extend(judge_keys(
        history,
        snapshot.commits,
        snapshot.commits,
        &keys,
    ));
    wrong
        .into_iter()
        .map(|line| format!("in snapshot {}: {line}", snapshot.name))
        .collect()
}

/// What was read, by name.
type Contents<'a> = BTreeMap<&'a str, &'a [u8]>;

/// Files apart from values of keyspaces, which lie in directories `k...`; other directories are
/// made before the first cut.
fn split(seen: &Seen) -> (Contents<'_>, Contents<'_>) {
    let entries = seen.iter().filter(|(name, _)| !name.ends_with('/'));
    entries
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .partition(|(name, _)| !name.starts_with('k'))
}

fn judge_names(history: &History, cut: Position, rules: Rules, seen: &Contents<'_>) -> Vec<String> {
    let synced = history.name_syncs.iter().filter(|(at, _)| *at <= cut);
    let events = &history.events;
    let least = match rules.promise {
        Promise::Posix => synced.map(|(_, count)| *count).max().unwrap_or(0),
        _ => events.iter().take_while(|e| e.span.done_by(cut)).count(),
    };
    let most = events.iter().take_while(|e| e.span.begun_by(cut)).count();
    // The newest state first: most often it is the one.
    let mut best: Option<Vec<String>> = None;
    for count in (least..=most).rev() {
        if !compare_names(&history.names_after(count), seen, count).is_empty() {
            continue;
        }
        let wrong = judge_contents(history, cut, rules, count, seen);
        if wrong.is_empty() {
            return wrong;
        }
        if best.as_ref().is_none_or(|best| wrong.len() < best.len()) {
            best = Some(wrong);
        }
    }
    let mut wrong = best.unwrap_or_else(|| wrong_names(history, cut, rules, (least, most), seen));
    let more = wrong.len().saturating_sub(COMPLAINTS_MAX);
    if more > 0 {
        wrong.truncate(COMPLAINTS_MAX);
        wrong.push(format!("and {more} more files"));
    }
    wrong
}

/// Names that none of the allowed states has; the contents are judged with an older one that fits.
fn wrong_names(
    history: &History,
    cut: Position,
    rules: Rules,
    (least, most): (usize, usize),
    seen: &Contents<'_>,
) -> Vec<String> {
    let mut wrong = compare_names(&history.names_after(least), seen, least);
    if wrong.is_empty() {
        wrong = compare_names(&history.names_after(most), seen, most);
    }
    let older = (0..least)
        .rev()
        .find(|&count| compare_names(&history.names_after(count), seen, count).is_empty());
    if let Some(older) = older {
        wrong = vec![format!(
            "{}; they are those after change {older}, although {least} were durable",
            wrong.concat()
        )];
        wrong.extend(judge_contents(history, cut, rules, older, seen));
    }
    wrong
}

/// One complaint about names that are not these.
fn compare_names(names: &BTreeMap<String, u32>, seen: &Contents<'_>, count: usize) -> Vec<String> {
    let lost: Vec<&str> = names
        .keys()
        .map(String::as_str)
        .filter(|name| !seen.contains_key(name))
        .collect();
    let extra: Vec<&&str> = seen
        .keys()
        .filter(|name| !names.contains_key(**name))
        .collect();
    if lost.is_empty() && extra.is_empty() {
        return Vec::new();
    }
    let few = |names: &[String]| names[..names.len().min(4)].join(" ");
    let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
    let extra: Vec<String> = extra.iter().map(ToString::to_string).collect();
    vec![format!(
        "NAMES not those after change {count}: {} missing ({}), {} too many ({})",
        lost.len(),
        few(&lost),
        extra.len(),
        few(&extra)
    )]
}

/// What is wrong with the contents, with the names after `count` changes of names.
fn judge_contents(
    history: &History,
    cut: Position,
    rules: Rules,
    count: usize,
    seen: &Contents<'_>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, id) in history.names_after(count) {
        let (Some(file), Some(bytes)) = (history.files.get(&id), seen.get(name.as_str())) else {
            continue;
        };
        let whole = if rules.whole {
            history.whole_since_rename(id, count)
        } else {
            0
        };
        let judged = judge_file(file, cut, rules, whole, bytes);
        wrong.extend(complain(&name, file, cut, judged));
    }
    wrong
}

fn complain(name: &str, file: &File, cut: Position, judged: Option<String>) -> Option<String> {
    judged.map(|why| {
        let (class, why) = why.split_once(' ').unwrap_or(("", &why));
        let begun = &file.ops[..file.begun(cut)];
        let mut passages: Vec<&str> = begun.iter().map(|op| op.passage).collect();
        passages.dedup();
        let passages = passages.join(", then ");
        format!("{class} {name} (file {}, {passages}): {why}", file.id)
    })
}

/// What is wrong with the content of a file; the first `whole` changes count as durable.
fn judge_file(
    file: &File,
    cut: Position,
    rules: Rules,
    whole: usize,
    seen: &[u8],
) -> Option<String> {
    if rules.promise == Promise::Strict {
        return judge_exact(file, cut, seen);
    }
    let most = file.begun(cut).max(whole);
    let durable = Durable::of(file, cut, rules.promise, whole, most);
    let wrong = judge_size(file, &durable, seen).or_else(|| judge_bytes(file, &durable, seen));
    if wrong.is_some() {
        return wrong;
    }
    // One that was rewritten and closed and not touched since.
    let last = file
        .rewrites
        .last()
        .filter(|rewrite| rules.whole && rewrite.op + 2 == most && rewrite.span.done_by(cut))?;
    let new = pattern::fill(
        file.id,
        last.op as u32 + 1,
        0,
        file.size_after(most) as usize,
    );
    let before = File {
        ops: file.ops[..last.op].to_vec(),
        ..file.clone()
    };
    if new.starts_with(seen) || judge_file(&before, cut, rules, whole, seen).is_none() {
        return None;
    }
    let zero = seen.iter().filter(|&&byte| byte == 0).count();
    Some(format!(
        "MIXED after it was rewritten and closed: {} bytes, {zero} of them zero, neither the old \
         content nor a beginning of the new {}",
        seen.len(),
        new.len()
    ))
}

/// What a cut may not take away from a file.
struct Durable {
    /// All changes before this one are durable.
    prefix: usize,
    /// And these; those at `most` and later were not begun.
    alone: Vec<usize>,
    most: usize,
    /// The acknowledgement that says so.
    how: String,
}

impl Durable {
    fn of(file: &File, cut: Position, promise: Promise, whole: usize, most: usize) -> Durable {
        let sync = file
            .syncs
            .iter()
            .filter(|sync| sync.at <= cut)
            .max_by_key(|sync| sync.covers);
        let mut prefix = sync.map_or(0, |sync| sync.covers);
        let mut how = sync.map_or(String::new(), |sync| sync.how.clone());
        if promise == Promise::Sync && file.done(cut) >= prefix {
            prefix = file.done(cut);
            how = "the return of the call".into();
        }
        if whole > prefix {
            prefix = whole;
            how = "the rename, which shows it whole".into();
        }
        let alone =
            (prefix..most).filter(|&op| file.ops[op].alone && file.ops[op].span.done_by(cut));
        Durable {
            prefix: prefix.min(most),
            alone: alone.collect(),
            most,
            how,
        }
    }

    fn has(&self, op: usize) -> bool {
        op < self.prefix || self.alone.contains(&op)
    }
}

fn judge_size(file: &File, durable: &Durable, seen: &[u8]) -> Option<String> {
    let mut least = file.size_after(durable.prefix);
    let mut most = least;
    for op in durable.prefix..durable.most {
        match file.ops[op].change {
            Change::Truncate { len } => least = least.min(len),
            Change::Write { at, len } if durable.has(op) => least = least.max(at + len),
            Change::Write { .. } => {}
        }
        most = most.max(file.size_after(op + 1));
    }
    let len = seen.len() as u64;
    if len < least {
        return Some(format!(
            "LOST the end: {len} bytes, not {least}; durable by {}",
            durable.how
        ));
    }
    (len > most).then(|| format!("FOREIGN size: {len} bytes, never more than {most}"))
}

/// Where a byte may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Version(u32),
    Zero,
}

/// Where bytes of [from, to) may come from, the newest first. No change begins or ends within.
fn sources(file: &File, durable: &Durable, from: u64, to: u64) -> Vec<Source> {
    let mut sources = Vec::new();
    for op in (0..durable.most).rev() {
        let covers = match file.ops[op].change {
            Change::Write { at, len } => {
                (at <= from && to <= at + len).then_some(Source::Version(op as u32))
            }
            Change::Truncate { len } => (len <= from).then_some(Source::Zero),
        };
        if let Some(source) = covers {
            sources.push(source);
            if durable.has(op) {
                return sources;
            }
        }
    }
    sources.push(Source::Zero);
    sources
}

/// Where changes begin and end, up to `len`.
fn bounds(file: &File, len: u64) -> Vec<u64> {
    let mut bounds = vec![0, len];
    for op in &file.ops {
        match op.change {
            Change::Write { at, len } => bounds.extend([at, at + len]),
            Change::Truncate { len } => bounds.push(len),
        }
    }
    bounds.retain(|&bound| bound <= len);
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}

fn judge_bytes(file: &File, durable: &Durable, seen: &[u8]) -> Option<String> {
    let mut first: Option<(usize, Vec<Source>)> = None;
    let mut bad = 0;
    let mut zero = 0;
    for pair in bounds(file, seen.len() as u64).windows(2) {
        let (from, to) = (pair[0] as usize, pair[1] as usize);
        let sources = sources(file, durable, pair[0], pair[1]);
        let contents: Vec<Vec<u8>> = sources
            .iter()
            .map(|source| match source {
                Source::Version(v) => pattern::fill(file.id, *v, pair[0], to - from),
                Source::Zero => vec![0; to - from],
            })
            .collect();
        if contents.iter().any(|content| content[..] == seen[from..to]) {
            continue;
        }
        for at in from..to {
            if contents
                .iter()
                .all(|content| content[at - from] != seen[at])
            {
                bad += 1;
                zero += usize::from(seen[at] == 0);
                first.get_or_insert((at, sources.clone()));
            }
        }
    }
    let (at, sources) = first?;
    Some(tell(file, durable, seen, (at, &sources), bad, zero))
}

fn tell(
    file: &File,
    durable: &Durable,
    seen: &[u8],
    (at, sources): (usize, &[Source]),
    bad: usize,
    zero: usize,
) -> String {
    // The first wrong byte may lie within a word that is right in part.
    let word = at / 8 * 8;
    let here = pattern::origin(seen, word).map(|origin| (origin, word));
    let found = here.or_else(|| Some((pattern::origin(seen, word + 8)?, word + 8)));
    let origin = found.map(|(origin, _)| origin);
    let class = match found {
        _ if seen[at] == 0 => "LOST",
        Some((origin, at)) if origin.file == file.id && origin.offset == at as u64 => "LOST",
        _ => "FOREIGN",
    };
    let is = match origin {
        _ if seen[at] == 0 => "zero".to_string(),
        Some(o) => format!("version {} of file {} at {}", o.version, o.file, o.offset),
        None => format!("{:#04x}", seen[at]),
    };
    format!(
        "{class} {bad} of {} bytes ({zero} of them zero), the first at {at}: {is}, expected \
         {sources:?}; durable by {}",
        seen.len(),
        if durable.how.is_empty() {
            "nothing"
        } else {
            &durable.how
        },
    )
}

/// The content after the first `count` changes.
pub fn content_after(file: &File, count: usize) -> Vec<u8> {
    let mut content = Vec::new();
    for (version, op) in file.ops[..count].iter().enumerate() {
        match op.change {
            Change::Truncate { len } => content.resize(len as usize, 0),
            Change::Write { at, len } => {
                let (at, len) = (at as usize, len as usize);
                content.resize(content.len().max(at + len), 0);
                let bytes = pattern::fill(file.id, version as u32, at as u64, len);
                content[at..at + len].copy_from_slice(&bytes);
            }
        }
    }
    content
}

/// Strict: the content is that after all acknowledged changes, or one more that was under way.
fn judge_exact(file: &File, cut: Position, seen: &[u8]) -> Option<String> {
    let (least, most) = (file.done(cut), file.begun(cut));
    let states = (least..=most).map(|count| content_after(file, count));
    if states.into_iter().any(|content| content == seen) {
        return None;
    }
    if file
        .rewrites
        .iter()
        .any(|r| is_beginning(file, r, (least, most), seen))
    {
        return None;
    }
    let older = (0..least).rev().find(|&n| content_after(file, n) == seen);
    if let Some(older) = older {
        return Some(format!(
            "LOST changes {older} to {least}, which had returned"
        ));
    }
    let expected = content_after(file, least);
    let differs = (0..seen.len().min(expected.len())).filter(|&i| seen[i] != expected[i]);
    let zero = seen.iter().filter(|&&byte| byte == 0).count();
    Some(format!(
        "TORN {} bytes, {zero} of them zero, {} unlike those after change {least} ({} bytes); \
         {} changes under way",
        seen.len(),
        differs.count(),
        expected.len(),
        most - least
    ))
}

/// Whether the file is being written anew, and has some of the pieces, each of which is atomic.
fn is_beginning(
    file: &File,
    rewrite: &Rewrite,
    (least, most): (usize, usize),
    seen: &[u8],
) -> bool {
    let end = rewrite.op + 2;
    let under_way = least < end && end <= most;
    under_way
        && (seen.len() as u64).is_multiple_of(rewrite.chunk)
        && content_after(file, end).starts_with(seen)
}

/// Keyspaces hold what they held after `least` to `most` commits, in all of them together.
fn judge_keys(history: &History, least: usize, most: usize, seen: &Contents<'_>) -> Vec<String> {
    let mut why = None;
    for count in (least..=most).rev() {
        let expected = keys_after(history, count);
        match differing_key(&expected, seen) {
            None => return Vec::new(),
            Some(key) => {
                why.get_or_insert(key);
            }
        }
    }
    let why = why.unwrap_or_default();
    vec![format!(
        "KEYS not those after commits {least} to {most}: {why}"
    )]
}

/// Paths of values and what they hold after the first `count` commits.
fn keys_after(history: &History, count: usize) -> BTreeMap<String, Vec<u8>> {
    let mut keys = BTreeMap::new();
    for commit in &history.commits[..count] {
        for (keyspace, key, value) in &commit.changes {
            let path = format!("{keyspace}/{key}");
            match value {
                Some((version, len)) => {
                    keys.insert(path, pattern::fill(*key, *version, 0, *len));
                }
                None => {
                    keys.remove(&path);
                }
            }
        }
    }
    keys
}

fn differing_key(expected: &BTreeMap<String, Vec<u8>>, seen: &Contents<'_>) -> Option<String> {
    for (path, value) in expected {
        match seen.get(path.as_str()) {
            None => return Some(format!("{path} is missing")),
            Some(bytes) if bytes != value => {
                let zero = bytes.iter().filter(|&&byte| byte == 0).count();
                return Some(format!(
                    "{path} has {} bytes, {zero} of them zero, expected {}; {:?}",
                    bytes.len(),
                    value.len(),
                    pattern::origin(bytes, 0)
                ));
            }
            Some(_) => {}
        }
    }
    let extra = seen.keys().find(|path| !expected.contains_key(**path));
    extra.map(|path| format!("{path} should not be there"))
}
