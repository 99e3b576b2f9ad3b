//! Power cuts while a pool is restored: the same restore goes on after each, and what it makes in
//! the end is what was saved.
//!
//! The stream has snapshots, each with files, holes, reserved blocks and values of its own. A cut
//! leaves what `disk.rs` says; the next restore runs under another boot id, and some are cut, too.
//! Held: it ends well; the check finds nothing; every state has every byte; and once the disk has
//! taken enough, a restore does not begin anew.

use crate::campaign::Place;
use crate::device::{Kind, Mount};
use crate::disk::{Cut, Disk, Image, Log, Position, Rest};
use crate::dump::Seen;
use crate::export::{SharedDisk, lock};
use crate::oracle::Promise;
use crate::random::Random;
use crate::subject::{Subject, run};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const STATES: usize = 6;
/// What is new in each state; there are more states than names of large files.
const CHANGE: &str = "cd /hf; mkdir d$0; for i in $(seq 300); do echo $0 $i >d$0/f$i; done
    head -c 18000000 /dev/urandom >large$(($0 % 4)); truncate -s 900000 hole$0
    fallocate -l 300000 reserved$0; head -c 70000 /dev/urandom >>grows; rm -rf d$(($0 - 2))";
/// Behind this part of what the disk takes there is something to go on with.
const SURE: f64 = 0.6;

/// What is restored.
pub struct Saved {
    stream: PathBuf,
    states: Vec<(String, Seen)>,
}

/// What a restore said and left.
struct Ended {
    /// It went on where another one was interrupted.
    went_on: bool,
    log: Log,
    end: Position,
}

impl Saved {
    /// A pool is made, filled and saved.
    pub fn new(place: &Place) -> Result<Saved, String> {
        let scratch = &place.programs.scratch;
        let subject = subject(place, &scratch.join("source"));
        let pool = subject.dir.clone();
        let done = |words: &[&str], more: &[&str]| {
            let mut command = subject.holdfast(words).ok_or("no command to test")?;
            run(command.arg(&pool).args(more), scratch)
        };
        done(&["pool", "create", "--size", "160M"], &[])?;
        let mut states = Vec::new();
        for n in 0..STATES {
            let mut change = subject.program(&[], &["sh", "-ec", CHANGE, &n.to_string()]);
            run(&mut change, scratch)?;
            let (key, value) = (format!("key-{n}"), "value ".repeat(15_000 * (n % 2) + 3));
            done(&["kv"], &["values", "put", &key, &value])?;
            let name = format!("s{n}");
            done(&["snapshot"], &["create", &name])?;
            states.push((name.clone(), place.dump(&subject, &["--snapshot", &name])?));
        }
        let stream = scratch.join("stream");
        done(&["save"], &[&stream.display().to_string()])?;
        done(&["pool", "destroy"], &[])?;
        Ok(Saved { stream, states })
    }

    /// Restores on this file system, cuts that, and goes on after each cut: how many went well.
    pub fn cuts(&self, place: &Place, kind: Kind, count: usize, seed: u64) -> (usize, usize) {
        let empty = place.empty.iter().find(|(there, _)| *there == kind);
        let first = empty.ok_or_else(|| "no empty file system".to_string());
        let first = first.and_then(|(_, image)| self.restored(place, kind, image.clone()));
        let first = match first {
            Ok(first) => first,
            Err(e) => {
                println!("FAILED restores on {}: {e}", kind.name());
                return (0, count);
            }
        };
        let mut random = Random::of(seed, kind as u64);
        let (mut passed, mut went_on) = (0, 0);
        for number in 0..count {
            let cut = choose(&first, &mut random);
            let judged = self.judge(place, kind, &first, cut, &mut random);
            match judged {
                Ok(gone_on) => (passed, went_on) = (passed + 1, went_on + usize::from(gone_on)),
                Err(e) => println!("  {} restore {number} at {cut:?}: {e}", kind.name()),
            }
        }
        let word = if passed == count { "ok" } else { "FAILED" };
        println!(
            "{word} restores on {}: {count} cuts, {} failed; {went_on} went on, {} entries",
            kind.name(),
            count - passed,
            first.end
        );
        (passed, count - passed)
    }

    /// What comes after this cut, and perhaps after another one; whether it went on.
    fn judge(
        &self,
        place: &Place,
        kind: Kind,
        first: &Ended,
        cut: Cut,
        random: &mut Random,
    ) -> Result<bool, String> {
        let next = self.restored(place, kind, first.log.image(cut))?;
        if !next.went_on && cut.at as f64 > first.end as f64 * SURE {
            return Err("it began anew".into());
        }
        if next.end > 0 && random.chance(40) {
            let again = choose(&next, random);
            let last = self.restored(place, kind, next.log.image(again));
            last.map_err(|e| format!("after a cut at {again:?} of what went on: {e}"))?;
        }
        Ok(next.went_on)
    }

    /// Restores, or finds that this was done, and compares all that there is.
    fn restored(&self, place: &Place, kind: Kind, image: Image) -> Result<Ended, String> {
        let disk: SharedDisk = Arc::new(Mutex::new(Disk::new(image, true)));
        let dir = place.programs.scratch.join("restored");
        let options = match kind {
            Kind::Ext4 => "noinit_itable",
            Kind::Xfs => "nouuid",
        };
        let mount = Mount::new(&place.export, disk.clone(), kind, options, &dir);
        let mount = mount.map_err(|e| format!("MOUNT {e}"))?;
        let subject = subject(place, &mount.dir.join("pool"));
        let is_done = subject.dir.join("meta.seg").exists();
        let mut went_on = is_done;
        if !is_done {
            let said = self.restore(place, &subject)?;
            went_on = said.contains("\"kept_entries\"");
        }
        let (end, log) = {
            let mut disk = lock(&disk);
            (disk.position(), disk.take_log())
        };
        place.check(&subject, "of what was restored")?;
        for (name, wanted) in &self.states {
            let seen = place.dump(&subject, &["--snapshot", name])?;
            let differs = wanted
                .iter()
                .find(|(file, bytes)| seen.get(*file) != Some(bytes));
            if let Some((file, _)) = differs {
                return Err(format!("{file} of {name} is not what was saved"));
            }
            if seen.len() != wanted.len() {
                return Err(format!("{name} has {} names", seen.len()));
            }
        }
        Ok(Ended { went_on, log, end })
    }

    fn restore(&self, place: &Place, subject: &Subject) -> Result<String, String> {
        let command = subject.holdfast(&["restore", "--json"]);
        let mut command = command.ok_or("no command to test")?;
        command.arg(&self.stream).arg(&subject.dir);
        let said = run(&mut place.later(command), &place.programs.scratch);
        let said = said.map_err(|e| format!("RESTORE {e}"))?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}

fn subject(place: &Place, pool: &Path) -> Subject {
    Subject {
        programs: place.programs.clone(),
        promise: Promise::Posix,
        kind: Kind::Ext4,
        dir: pool.into(),
    }
}

/// Around flushes, and anywhere.
fn choose(of: &Ended, random: &mut Random) -> Cut {
    let flushes = of.log.flush_boundaries(0);
    let anywhere = random.below(of.end as u64 + 1) as usize;
    let at = match random.chance(50) {
        true => random.pick(&flushes).copied().unwrap_or(anywhere),
        false => anywhere,
    };
    let rest = match random.below(5) {
        0 => Rest::None,
        1 => Rest::All,
        2 => Rest::Prefix,
        3 => Rest::Subset,
        _ => Rest::Torn,
    };
    Cut {
        at,
        rest,
        seed: random.next(),
    }
}
