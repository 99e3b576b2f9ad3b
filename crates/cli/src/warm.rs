//! `holdfast warm`: huge pages under files of the host.
//!
//! Invariants: no byte of a file changes; what other programs have not written back yet is written
//! first, since the cache gives up clean pages alone; what is reported is what the kernel says of a
//! mapping afterwards (proc_pid_smaps(5)).

use crate::args::WarmArgs;
use crate::failure::{self, Failure, printed, say};
use crate::json::Json;
use holdfast_pmem::{Access, MapOptions, Medium, Region, Reservation};
use rustix::fs::{Advice, SeekFrom, fadvise, fdatasync, fstatfs, seek};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

const HUGE: u64 = 2 << 20;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// What became of a file.
struct Warmed {
    bytes: u64,
    /// How many huge pages it can have: where it has data.
    most: u64,
    /// Its huge pages before, and now.
    before: u64,
    now: u64,
}

/// `warm`. A file that cannot be warmed does not keep the others from it.
pub fn warm(args: &WarmArgs, json: bool) -> Result<u8, Failure> {
    let (mut status, mut list) = (failure::OK, Vec::new());
    for path in &args.files {
        match warm_file(path) {
            Ok(warmed) if json => list.push(as_json(path, &warmed)),
            Ok(warmed) => print(path, &warmed)?,
            Err(failure) => {
                say(&failure);
                status = failure.status();
            }
        }
    }
    if json {
        let text = Json::List(list).render();
        printed(writeln!(std::io::stdout(), "{text}"))?;
    }
    Ok(status)
}

fn print(path: &Path, warmed: &Warmed) -> Result<(), Failure> {
    let (
        path,
        Warmed {
            most, before, now, ..
        },
    ) = (path.display(), warmed);
    let line = format!("{path}: {now} of {most} huge pages, {before} before");
    printed(writeln!(std::io::stdout(), "{line}"))
}

fn as_json(path: &Path, warmed: &Warmed) -> Json {
    Json::Object(vec![
        ("file", Json::Text(path.to_string_lossy().into_owned())),
        ("bytes", Json::Number(warmed.bytes)),
        ("huge_pages", Json::Number(warmed.now)),
        ("huge_pages_before", Json::Number(warmed.before)),
        ("huge_pages_at_most", Json::Number(warmed.most)),
    ])
}

fn warm_file(path: &Path) -> Result<Warmed, Failure> {
    let io = |e| Failure::io(path.display(), &e);
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    let name = path.display();
    if !meta.is_file() {
        return Err(Failure::new(format!("{name} is no regular file")));
    }
    if meta.len() < HUGE {
        let what = format!("{name} is smaller than a huge page, 2 MiB");
        return Err(Failure::new(what).fix("leave it as it is: it would gain nothing"));
    }
    let file = Huge::of(file, meta.len()).map_err(io)?;
    let before = file.huge_pages().map_err(io)?;
    let most = file.places.len() as u64;
    if before < most {
        file.join_pages().map_err(io)?;
    }
    let now = file.huge_pages().map_err(io)?;
    if now == 0 && most > 0 {
        let what = format!("the host gave {name} no huge page");
        let fix = "free some memory, or move it to a file system with large folios, as tmpfs, ext4 \
                   and XFS of today";
        return Err(Failure::new(what).fix(fix));
    }
    let bytes = meta.len();
    Ok(Warmed {
        bytes,
        most,
        before,
        now,
    })
}

/// A file mapped where huge pages can be mapped whole.
struct Huge {
    file: File,
    map: Region,
    /// Where those huge pages begin that would hold data: holes take no memory.
    places: Vec<u64>,
}

impl Huge {
    fn of(file: File, len: u64) -> io::Result<Huge> {
        let whole = len / HUGE * HUGE;
        let place = Reservation::new(whole as usize).map_err(io::Error::other)?;
        let options = MapOptions::new(Access::ReadOnly, Medium::Memory).place(&place, 0);
        let map = Region::map_with(file.as_fd(), 0, whole as usize, &options);
        Ok(Huge {
            places: places(&file, whole)?,
            map: map.map_err(io::Error::other)?,
            file,
        })
    }

    fn join_pages(&self) -> io::Result<()> {
        match fstatfs(&self.file)?.f_type as u64 == TMPFS_MAGIC {
            true => self.collapse(),
            false => self.read_again(),
        }
    }

    /// Pages that are in memory are joined where they are.
    fn collapse(&self) -> io::Result<()> {
        for at in &self.places {
            // The host may have memory for some only.
            let made = self.map.make_huge(*at, HUGE as usize);
            made.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The cache forgets the file, as far as nobody has it mapped, and reads it again.
    fn read_again(&self) -> io::Result<()> {
        fdatasync(&self.file)?;
        self.map.forget().map_err(io::Error::other)?;
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        self.map.expect_huge().map_err(io::Error::other)
    }

    /// How many there are: each is looked at, so that it is mapped.
    fn huge_pages(&self) -> io::Result<u64> {
        for at in &self.places {
            self.map.read(*at, &mut [0]).map_err(io::Error::other)?;
        }
        let smaps = std::fs::read_to_string("/proc/self/smaps")?;
        Ok(mapped_huge(&smaps, self.map.addr() as u64) / HUGE)
    }
}

/// The huge pages in the first `len` bytes of a file of which a part is data.
fn places(file: &File, len: u64) -> io::Result<Vec<u64>> {
    let (mut list, mut at) = (Vec::new(), 0);
    while at < len {
        let data = match seek(file, SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => break,
            found => found?,
        };
        at = data / HUGE * HUGE;
        if at < len {
            list.push(at);
        }
        at += HUGE;
    }
    Ok(list)
}

/// Bytes in huge pages of the mapping at `addr`, as smaps tells them.
fn mapped_huge(smaps: &str, addr: u64) -> u64 {
    let begins = |line: &&str| line.starts_with(&format!("{addr:x}-"));
    let ours = smaps.lines().skip_while(|line| !begins(line)).skip(1);
    let fields = ours.take_while(|line| {
        let first = line.split_ascii_whitespace().next();
        first.is_some_and(|word| word.ends_with(':'))
    });
    let kib = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let is_huge = matches!(name, "ShmemPmdMapped" | "FilePmdMapped");
        is_huge.then(|| value.trim().trim_end_matches(" kB").parse::<u64>().ok())?
    };
    fields.filter_map(kib).sum::<u64>() << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "7f0000000000-7f0000400000 r--s 00000000 00:1a 5 /x
Size:               4096 kB
FilePmdMapped:      2048 kB
ShmemPmdMapped:        0 kB
VmFlags: rd sh mr
7f0000400000-7f0000600000 r--s 00000000 00:1a 5 /x
FilePmdMapped:         0 kB
ShmemPmdMapped:     4096 kB
";

    #[test]
    fn huge_pages_of_one_mapping_are_counted() {
        assert_eq!(mapped_huge(SMAPS, 0x7f00_0000_0000), HUGE);
        assert_eq!(mapped_huge(SMAPS, 0x7f00_0040_0000), 2 * HUGE);
        assert_eq!(mapped_huge(SMAPS, 0x7f00_0060_0000), 0);
    }
}
