//! Devices that refuse writes for a while: what fsync says then, and what a cut leaves afterwards.
//!
//! A flush that fails leaves the kernel with pages that it takes for clean although they are not
//! on the device, and it says so once. Held here, for flushes of clients and of the service: every
//! description that was open then gives EIO from one fsync, one that is opened later from none;
//! the first fsync that succeeds again makes everything durable that was written before it; and
//! what was acknowledged before is never lost. And an fsync covers what another program is about
//! to make durable at the same time, or was when it was killed.

use crate::campaign::Place;
use crate::device::{self, Kind, Mount};
use crate::disk::{Cut, Disk, Log, Position, Rest};
use crate::export::{SharedDisk, lock};
use crate::oracle::Promise;
use crate::pattern;
use crate::subject::{Subject, Worker, run};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const BIG_LEN: usize = 512 << 10;
const SMALL_LEN: usize = 8 << 10;
/// More than goes to the journal: it is written in its place.
const MUCH: usize = 300 << 10;
/// So much that another program calls fsync while it is written.
const VERY_MUCH: usize = 12 << 20;
/// How often that is tried.
const TOGETHER: u32 = 4;
/// Until a program is in the middle of it, and until one is dead that kills itself there.
const BEGUN: Duration = Duration::from_millis(3);
const DEAD: Duration = Duration::from_millis(20);
/// Before the service begins to flush by itself.
const SOON: Duration = Duration::from_secs(4);
/// Until the service has flushed by itself, and once more after it failed.
const LATER: Duration = Duration::from_secs(8);
/// Until clients know what the service has noticed.
const NOTICED: Duration = Duration::from_millis(300);
const TRIES: usize = 4;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// A client's flush of the journal.
    Journal,
    /// A client's flush of data in its place, by fsync.
    Data,
    /// The same by syncfs.
    SyncOfAll,
    /// The service's flush of data.
    Checkpoint,
    /// The service's flush of nodes.
    Nodes,
    /// Nothing, but two programs call fsync for the same file at the same time.
    Nothing,
}

impl Fails {
    fn segment(self) -> &'static str {
        match self {
            Fails::Journal => "journal-0.seg",
            Fails::Data | Fails::SyncOfAll | Fails::Checkpoint | Fails::Nothing => "data-0.seg",
            Fails::Nodes => "meta.seg",
        }
    }

    fn by_client(self) -> bool {
        !matches!(self, Fails::Checkpoint | Fails::Nodes)
    }

    /// The file with a change that is not acknowledged when it fails.
    fn file(self) -> usize {
        match self {
            Fails::Journal => SMALL,
            _ => BIG,
        }
    }
}

/// A failure and who calls fsync first after it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub kind: Kind,
    pub fails: Fails,
    /// Who found it, rather than somebody who opens the file then. Where nothing fails: one of the
    /// two is killed.
    pub same: bool,
}

impl Case {
    pub fn all(kind: Kind) -> Vec<Case> {
        let of = |(fails, same)| Case { kind, fails, same };
        [
            (Fails::Journal, false),
            (Fails::Journal, true),
            (Fails::Data, false),
            (Fails::Data, true),
            (Fails::SyncOfAll, false),
            (Fails::Checkpoint, false),
            (Fails::Nodes, false),
            (Fails::Nothing, false),
            (Fails::Nothing, true),
        ]
        .map(of)
        .into()
    }

    fn title(self) -> String {
        let first = match (self.fails, self.same) {
            (Fails::Nothing, false) => "two programs sync a file",
            (Fails::Nothing, true) => "two programs sync a file, of which one is killed",
            (_, true) => "the same description goes on",
            (_, false) => "a new description goes on",
        };
        format!("{} {:?} fails, {first}", self.kind.name(), self.fails)
    }

    /// What is wrong; in words that name the case.
    pub fn judge(self, place: &Place, number: usize) -> Vec<String> {
        let dir = place.programs.scratch.join(format!("errors{number}"));
        let mut wrong = vec!["the machine was too slow each time".to_string()];
        for _ in 0..TRIES {
            match Fixture::new(place, self, &dir).and_then(|fixture| fixture.play()) {
                Ok(None) => continue,
                Ok(Some(played)) => wrong = played.judge(place, &dir),
                Err(e) => wrong = vec![e],
            }
            break;
        }
        let title = self.title();
        match wrong.is_empty() {
            true => println!("ok {title}"),
            false => println!("FAILED {title}"),
        }
        wrong.iter().for_each(|line| println!("  {line}"));
        wrong
    }
}

const BIG: usize = 0;
const SMALL: usize = 1;
const NAMES: [&str; 2] = ["big", "small"];
/// The descriptions that are open from the beginning: program, place, file.
const HELD: [(usize, usize, usize); 5] = [
    (0, 0, BIG),
    (0, 1, BIG),
    (0, 2, SMALL),
    (1, 0, BIG),
    (1, 1, SMALL),
];
/// Where the second program opens the file that it looks at later.
const HEIR: usize = 5;

/// What the files hold.
type Contents = [Vec<u8>; 2];

/// What a cut has to leave.
struct Expected {
    at: Position,
    when: &'static str,
    /// Of each file: what is acknowledged, and what may have come after it.
    from: Contents,
    to: Contents,
}

struct Played {
    case: Case,
    log: Log,
    expected: Vec<Expected>,
    wrong: Vec<String>,
}

struct Fixture<'a> {
    case: Case,
    disk: SharedDisk,
    subject: Subject,
    holders: Vec<Worker>,
    now: Contents,
    acknowledged: Contents,
    expected: Vec<Expected>,
    wrong: Vec<String>,
    // Goes last.
    mount: Mount<'a>,
}

fn subject(place: &Place, kind: Kind, mount: &Path) -> Subject {
    Subject {
        programs: place.programs.clone(),
        promise: Promise::Posix,
        kind,
        dir: mount.join("pool"),
    }
}

fn options(kind: Kind) -> &'static str {
    match kind {
        // Its own journal is written when a call needs it.
        Kind::Ext4 => "noinit_itable,commit=300",
        Kind::Xfs => "nouuid",
    }
}

impl<'a> Fixture<'a> {
    /// A pool with two programs on it.
    fn new(place: &'a Place, case: Case, dir: &Path) -> Result<Fixture<'a>, String> {
        let empty = place.empty.iter().find(|(kind, _)| *kind == case.kind);
        let (_, empty) = empty.ok_or("no empty file system of this kind")?;
        let disk: SharedDisk = Arc::new(Mutex::new(Disk::new(empty.clone(), true)));
        let options = options(case.kind);
        let mount = Mount::new(&place.export, disk.clone(), case.kind, options, dir)?;
        let subject = subject(place, case.kind, &mount.dir);
        let scratch = &place.programs.scratch;
        let create = subject.holdfast(&["pool", "create", "--size", "64M"]);
        run(create.ok_or("no pool")?.arg(&subject.dir), scratch)?;
        // Each block has its place on the device from now on.
        let mut fallocate = Command::new("fallocate");
        fallocate.args(["--length", "64M"]);
        device::tool(fallocate.arg(subject.dir.join(Fails::Data.segment())))?;
        let mut holders = Vec::new();
        for _ in 0..2 {
            let files = subject.files().display().to_string();
            let own = place.programs.own.display().to_string();
            let command = subject.program(&[], &[&own, "holder", &files]);
            holders.push(Worker::start(command, &disk)?);
        }
        Ok(Fixture {
            case,
            disk,
            subject,
            holders,
            now: Contents::default(),
            acknowledged: Contents::default(),
            expected: Vec::new(),
            wrong: Vec::new(),
            mount,
        })
    }

    fn ask(&mut self, holder: usize, line: &str) -> Result<(String, Position), String> {
        let holder = &mut self.holders[holder];
        holder.tell(line)?;
        holder.any_answer()
    }

    fn must(&mut self, holder: usize, line: &str) -> Result<(), String> {
        match self.ask(holder, line)?.0.as_str() {
            "ok" => Ok(()),
            said => Err(format!("`{line}` said: {said}")),
        }
    }

    /// Notes it if the answer is another one.
    fn expect(&mut self, holder: usize, line: &str, want: &str, when: &str) -> Result<(), String> {
        let (said, _) = self.ask(holder, line)?;
        if said != want {
            let program = holder + 1;
            let line = format!("`{line}` of program {program} {when}: {said}, expected {want}");
            self.wrong.push(line);
        }
        Ok(())
    }

    fn write(&mut self, file: usize, version: u32, at: usize, len: usize) -> Result<(), String> {
        let place = HELD.iter().find(|held| held.2 == file);
        let (holder, place, _) = *place.ok_or("nobody has the file")?;
        self.must(
            holder,
            &format!("write {place} {file} {version} {at} {len}"),
        )?;
        let content = &mut self.now[file];
        content.resize(content.len().max(at + len), 0);
        let bytes = pattern::fill(file as u32, version, at as u64, len);
        content[at..at + len].copy_from_slice(&bytes);
        Ok(())
    }

    /// A cut at `at` leaves what is acknowledged, and any part of what came after it.
    fn cut(&mut self, at: Position, when: &'static str) {
        self.expected.push(Expected {
            at,
            when,
            from: self.acknowledged.clone(),
            to: self.now.clone(),
        });
    }

    fn position(&self) -> Position {
        lock(&self.disk).position()
    }

    /// All of it; `None`: the service may have flushed at the wrong time.
    fn play(mut self) -> Result<Option<Played>, String> {
        if self.case.fails == Fails::Nothing {
            self.together()?;
            return self.end().map(Some);
        }
        let begun = Instant::now();
        self.prepare()?;
        let found = self.fail()?;
        if self.case.fails.by_client() && begun.elapsed() > SOON {
            return Ok(None);
        }
        self.go_on(found)?;
        std::thread::sleep(LATER);
        for (holder, place, _) in HELD {
            self.expect(holder, &format!("fsync {place}"), "ok", "much later")?;
        }
        let at = self.position();
        self.cut(at, "after a checkpoint");
        self.end().map(Some)
    }

    /// One program has begun to make much durable when another one calls fsync, too.
    fn together(&mut self) -> Result<(), String> {
        for (holder, place, file) in HELD {
            self.must(holder, &format!("open {place} {}", NAMES[file]))?;
        }
        let kills = self.case.same;
        for version in 1..=if kills { 1 } else { TOGETHER } {
            self.write(BIG, version, 0, VERY_MUCH)?;
            self.holders[0].tell(if kills { "die 0" } else { "fsync 0" })?;
            std::thread::sleep(if kills { DEAD } else { BEGUN });
            let (said, at) = self.ask(1, "fsync 0")?;
            if said != "ok" {
                self.wrong.push(format!("the second fsync says {said}"));
            }
            self.acknowledged = self.now.clone();
            self.cut(at, "after the second fsync");
            if kills {
                self.holders.remove(0);
            } else {
                self.holders[0].answer()?;
            }
        }
        Ok(())
    }

    /// Whether the first write of a block may be the one that fails. If it is reserved for ext4
    /// then, it stays so, whatever is written to it later (`docs/spec/media.md`).
    fn reserved_may_fail(&self) -> bool {
        self.case.kind == Kind::Xfs
    }

    /// Two files, and changes that are not acknowledged.
    fn prepare(&mut self) -> Result<(), String> {
        for (holder, place, file) in HELD {
            self.must(holder, &format!("open {place} {}", NAMES[file]))?;
        }
        self.write(BIG, 1, 0, BIG_LEN)?;
        self.write(SMALL, 1, 0, SMALL_LEN)?;
        if !self.reserved_may_fail() {
            // All of it in its place.
            self.must(0, "syncfs 0")?;
        }
        self.must(0, "fsync 0")?;
        self.must(0, "fsync 2")?;
        if !self.case.fails.by_client() {
            // In the journal, and after a checkpoint nowhere but in its place.
            self.write(SMALL, 2, 1000, 5000)?;
            self.must(0, "fsync 2")?;
        }
        self.acknowledged = self.now.clone();
        match self.case.fails.file() {
            SMALL => self.write(SMALL, 2, 1000, 5000),
            _ => {
                self.write(BIG, 2, 64 << 10, MUCH)?;
                match self.reserved_may_fail() {
                    true => self.write(BIG, 2, BIG_LEN, MUCH),
                    false => Ok(()),
                }
            }
        }
    }

    /// Makes a flush fail; says whose description found it.
    fn fail(&mut self) -> Result<Option<(usize, usize)>, String> {
        let bad = extents(&self.subject.dir.join(self.case.fails.segment()))?;
        lock(&self.disk).fail_at(bad);
        let found = match self.case.fails {
            Fails::Journal => Some((0, 2)),
            Fails::Data => Some((0, 0)),
            _ => None,
        };
        let failing = "while the device fails";
        if let Some((holder, place)) = found {
            self.expect(holder, &format!("fsync {place}"), "errno 5", failing)?;
        } else if self.case.fails.by_client() {
            self.expect(0, "syncfs 0", "errno 5", failing)?;
        } else {
            let end = Instant::now() + LATER * 2;
            while lock(&self.disk).refused() == 0 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let (refused, at) = {
            let mut disk = lock(&self.disk);
            (disk.mend(), disk.position())
        };
        if refused == 0 {
            return Err("nobody wrote where the device fails".into());
        }
        self.cut(at, "while the device failed");
        Ok(found)
    }

    /// Until the service has noticed that its flush failed, which it logs, and told its clients.
    fn wait_for_service(&self) {
        let log = self.subject.dir.join("service.log");
        let end = Instant::now() + LATER;
        let noticed = || {
            let text = std::fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(&text).contains("is tried again")
        };
        while !noticed() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(NOTICED);
    }

    /// The device is well again.
    fn go_on(&mut self, found: Option<(usize, usize)>) -> Result<(), String> {
        if !self.case.fails.by_client() {
            self.wait_for_service();
        }
        let file = self.case.fails.file();
        let (holder, place) = match found.filter(|_| self.case.same) {
            Some(found) => found,
            None => {
                self.must(1, &format!("open {HEIR} {}", NAMES[file]))?;
                (1, HEIR)
            }
        };
        let (said, at) = self.ask(holder, &format!("fsync {place}"))?;
        match said.as_str() {
            "ok" => self.acknowledged[file] = self.now[file].clone(),
            _ => self.wrong.push(format!("the first fsync says {said}")),
        }
        self.cut(at, "after the first fsync that succeeds");
        for (holder, place, _) in HELD {
            let line = format!("fsync {place}");
            if found != Some((holder, place)) {
                self.expect(holder, &line, "errno 5", "when it hears of the failure")?;
            }
            self.expect(holder, &line, "ok", "after it said so once")?;
        }
        self.acknowledged = self.now.clone();
        let at = self.position();
        self.cut(at, "after an fsync of each description");
        Ok(())
    }

    /// Ends the session and takes the device away.
    fn end(mut self) -> Result<Played, String> {
        self.holders.drain(..).try_for_each(Worker::end)?;
        // Waits for the service.
        drop(self.mount);
        let (log, at) = {
            let mut disk = lock(&self.disk);
            let at = disk.position();
            (disk.take_log(), at)
        };
        let (from, to) = (self.acknowledged, self.now);
        let when = "after the session";
        self.expected.push(Expected { at, when, from, to });
        Ok(Played {
            case: self.case,
            log,
            expected: self.expected,
            wrong: self.wrong,
        })
    }
}

/// Where a file lies on its device, in bytes.
fn extents(path: &Path) -> Result<Vec<Range<u64>>, String> {
    let mut command = Command::new("filefrag");
    let said = device::tool(command.args(["-v", "-b4096"]).arg(path))?;
    let mut ranges = Vec::new();
    for line in said.lines() {
        // " 0:  0..  4095:  34816..  38911:  4096:  last,eof"
        let parts: Vec<&str> = line.split(':').map(str::trim).collect();
        let [number, _, place, ..] = parts.as_slice() else {
            continue;
        };
        let Some((first, last)) = place.split_once("..") else {
            continue;
        };
        if number.parse::<u64>().is_ok()
            && let (Ok(first), Ok(last)) = (first.trim().parse::<u64>(), last.trim().parse::<u64>())
        {
            ranges.push(first * BLOCK..(last + 1) * BLOCK);
        }
    }
    match ranges.is_empty() {
        true => Err(format!("filefrag says nothing of use: {said}")),
        false => Ok(ranges),
    }
}

impl Played {
    fn judge(mut self, place: &Place, dir: &Path) -> Vec<String> {
        for expected in &self.expected {
            if let Err(e) = self.look(place, dir, expected) {
                self.wrong.push(format!("a cut {}: {e}", expected.when));
            }
        }
        self.wrong
    }

    fn look(&self, place: &Place, dir: &Path, expected: &Expected) -> Result<(), String> {
        let cut = Cut {
            at: expected.at,
            rest: Rest::None,
            seed: 0,
        };
        let disk = Arc::new(Mutex::new(Disk::new(self.log.image(cut), false)));
        let kind = self.case.kind;
        let mount = Mount::new(&place.export, disk, kind, options(kind), dir)?;
        let subject = subject(place, kind, &mount.dir);
        place.check(&subject, "before recovery")?;
        let seen = place.dump(&subject, &[])?;
        for (file, name) in NAMES.iter().enumerate() {
            let bytes = seen.get(*name).ok_or(format!("{name} is not there"))?;
            compare(bytes, &expected.from[file], &expected.to[file])
                .map_err(|e| format!("{name}: {e}"))?;
        }
        place.check(&subject, "after recovery")
    }
}

/// Whether each byte is that of `from`, or of `to`, which came after it.
fn compare(seen: &[u8], from: &[u8], to: &[u8]) -> Result<(), String> {
    if seen.len() < from.len() || seen.len() > to.len() {
        let (least, most) = (from.len(), to.len());
        return Err(format!("{} bytes, expected {least} to {most}", seen.len()));
    }
    let wrong = |at: &usize| {
        // Behind the end of what was there a hole may be.
        let old = from.get(*at).copied().unwrap_or(0);
        seen[*at] != old && seen[*at] != to[*at]
    };
    match (0..seen.len()).find(wrong) {
        None => Ok(()),
        Some(at) => {
            let found = pattern::origin(seen, at);
            Err(format!("byte {at} is of {found:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn what_is_acknowledged_is_there_and_what_came_later_may_be() {
        assert_eq!(compare(b"aab", b"aaa", b"abb"), Ok(()));
        assert_eq!(compare(b"aab\0c", b"aaa", b"abbcc"), Ok(()));
        assert!(compare(b"aa", b"aaa", b"aaa").is_err());
        assert!(compare(b"aaaa", b"aaa", b"aaa").is_err());
        assert!(compare(b"aba", b"aaa", b"aac").is_err());
        assert!(compare(b"aab", b"abb", b"abb").is_err());
    }
}
