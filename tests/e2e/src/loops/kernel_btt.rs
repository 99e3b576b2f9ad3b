//! The kernel's block translation table as the judge of ours, and ours as that of the kernel's.
//!
//! Invariant: the tables lie in a guest's persistent memory byte for byte as in a volume's file,
//! but for the version in the info block: memory without labels has the one that Linux had first.

use super::guest::{Guest, kernel};
use super::site::Site;
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

pub const CASES: &[(&str, Case)] = &[
    ("a table of ours under the kernel", ours),
    ("a table of the kernel under us", the_kernels),
];

const INIT: &str = include_str!("btt.sh");
const PERSISTENT: &str = "memmap=256M!512M";
const MEMORY: &str = "memory-backend-file,id=memory,size=1G,mem-path=memory,share=on";
/// Where in the guest's memory the table is: behind the first page of what is persistent.
const TABLE_AT: u64 = (512 << 20) + 4096;
const TABLE_LEN: u64 = (256 << 20) - 4096;
const SECTOR: usize = 4096;
const SIZE: usize = 40 << 20;
/// In the guest, before it is killed.
const ROUNDS: usize = 40;

fn site(fixture: &Fixture) -> Result<Site<'_>, Stop> {
    let kernel = kernel()?;
    let tools = ["qemu-system-x86_64", "busybox", "setfattr"];
    let site = Site::new(fixture, "400M", &tools)?;
    let root = fixture.path("root");
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join("init"), INIT)?;
    std::fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755))?;
    site.bash(&format!(
        "cd root; mkdir bin proc sys dev modules
        cp {}/*.ko modules; cp $(command -v busybox) bin/busybox
        find . | busybox cpio -o -H newc >../initrd 2>/dev/null
        truncate -s 1G ../memory",
        kernel.display()
    ))?;
    Ok(site)
}

fn boot(fixture: &Fixture, job: &str) -> Result<Guest, Stop> {
    Guest::start(fixture, (job, PERSISTENT), ("1G", MEMORY), &[])
}

struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// The volume's bytes, as a file.
fn shown(site: &Site<'_>) -> Result<(super::site::Export, PathBuf), Stop> {
    let file = site.fixture.path("shown");
    let export = site.export(&["disk", "--fuse", &file.to_string_lossy()])?;
    Ok((export, file))
}

/// Writes all over the volume: so that few sectors are in the blocks of their numbers.
fn fill(site: &Site<'_>, model: &mut [u8]) -> Result<(), Stop> {
    let (export, path) = shown(site)?;
    let file = File::options().write(true).open(&path)?;
    let mut rng = Rng(41);
    for n in 0..1500_u64 {
        let first = rng.roll((SIZE / SECTOR) as u64) as usize * SECTOR;
        let len = ((1 + rng.roll(20)) as usize * SECTOR).min(SIZE - first);
        let part = &mut model[first..first + len];
        for (at, byte) in part.iter_mut().enumerate() {
            *byte = (n as usize * 31 + at / 512 * 7 + at) as u8;
        }
        if n % 7 == 0 {
            use rustix::fs::FallocateFlags;
            part.fill(0);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&file, hole, first as u64, len as u64);
            punched.map_err(|e| Stop::Wrong(e.to_string()))?;
        } else {
            file.write_all_at(part, first as u64)?;
        }
    }
    file.sync_all()?;
    drop(file);
    export.end(&path)
}

/// Writes an info block anew that says another version.
fn relabel(block: &mut [u8], version: [u8; 4]) {
    block[52..56].copy_from_slice(&version);
    block[4088..].fill(0);
    let (mut low, mut high) = (0_u32, 0_u64);
    for word in block.chunks_exact(4) {
        low = low.wrapping_add(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        high = high.wrapping_add(low.into());
    }
    block[4088..].copy_from_slice(&(high << 32 | u64::from(low)).to_le_bytes());
}

/// The sum of the volume's bytes, as md5sum(1) says it.
fn sum(site: &Site<'_>) -> Result<String, Stop> {
    let (export, path) = shown(site)?;
    let sum = site.bash("md5sum <shown")?.trim().to_owned();
    export.end(&path)?;
    Ok(sum)
}

fn line<'a>(said: &'a [String], word: &str) -> Result<&'a str, Stop> {
    let found = said.iter().find_map(|line| line.strip_prefix(word));
    match found {
        Some(rest) => Ok(rest.trim()),
        None => wrong(format!("the guest does not say {word:?}: {said:?}")),
    }
}

fn ours(fixture: &Fixture) -> Result<(), Stop> {
    let site = site(fixture)?;
    site.bash("$hf volume $pool create disk --size 40M --sector 4096 --atomic")?;
    let mut model = vec![0; SIZE];
    fill(&site, &mut model)?;
    site.bash("$hf run --pool $pool -- cat /hf/disk >raw")?;
    let mut raw = std::fs::read(fixture.path("raw"))?;
    let copy = raw.len() - 4096;
    relabel(&mut raw[..4096], [1, 0, 1, 0]);
    relabel(&mut raw[copy..], [1, 0, 1, 0]);
    let memory = File::options()
        .read(true)
        .write(true)
        .open(fixture.path("memory"))?;
    memory.write_all_at(&raw, TABLE_AT)?;
    std::fs::write(fixture.path("model"), &model)?;
    let wanted = site.bash("md5sum <model")?;
    let said = boot(fixture, "judge")?.to_its_end()?;
    if line(&said, "size")? != format!("{SIZE} {SECTOR}") || line(&said, "found")? != wanted.trim()
    {
        return wrong(format!(
            "the kernel finds something else than {wanted}: {said:?}"
        ));
    }
    // What the kernel has made of it is a table of ours again.
    memory.read_exact_at(&mut raw, TABLE_AT)?;
    std::fs::write(fixture.path("raw"), &raw)?;
    site.bash(
        "$hf run --pool $pool -- dd if=raw of=/hf/disk bs=1M conv=notrunc 2>/dev/null
        $hf volume $pool check disk",
    )?;
    let (found, left) = (sum(&site)?, line(&said, "left")?);
    match found == left && left != wanted.trim() {
        true => Ok(()),
        false => wrong(format!("the kernel left {left}, and we find {found}")),
    }
}

/// The kernel makes the table, and writes sectors of one value each until it is killed.
fn the_kernels(fixture: &Fixture) -> Result<(), Stop> {
    let site = site(fixture)?;
    let mut guest = boot(fixture, "format")?;
    let sizes = guest.await_lines("size", 1)?;
    guest.await_lines("round", ROUNDS)?;
    guest.kill()?;
    let rounds = guest.await_lines("round", ROUNDS)?.len() as u64;
    let [size] = &sizes[..] else {
        return wrong(format!("sizes: {sizes:?}"));
    };
    let size = size.split(' ').next().unwrap_or_default();
    site.bash(&format!(
        "dd if=memory of=table bs=4096 skip={} count={} conv=sparse 2>/dev/null
        $hf run --pool $pool -- sh -c 'cp table /hf/disk
            setfattr -n user.holdfast.volume -v \"sector=4096 btt={size}\" /hf/disk'
        $hf volume $pool check disk",
        TABLE_AT / 4096,
        TABLE_LEN / 4096,
    ))?;
    let (export, path) = shown(&site)?;
    let file = File::options().read(true).write(true).open(&path)?;
    let mut sector = [0; SECTOR];
    for number in 0..1000 {
        file.read_exact_at(&mut sector, number * SECTOR as u64)?;
        if sector.iter().any(|byte| *byte != sector[0]) {
            return wrong(format!("sector {number} is torn"));
        }
        // A later round than what was said may have begun.
        let writers = (1..=rounds).filter(|round| {
            let first = round * 37 % 900;
            (first..first + 100).contains(&number)
        });
        let last = writers.last().map(|round| (round % 255 + 1) as u8);
        let next = [rounds + 1, rounds + 2].map(|round| (round % 255 + 1) as u8);
        let wanted = last.unwrap_or_default();
        if sector[0] != wanted && !next.contains(&sector[0]) {
            return wrong(format!("sector {number} has {}, not {wanted}", sector[0]));
        }
    }
    file.write_all_at(&[9; SECTOR], SECTOR as u64)?;
    drop(file);
    export.end(&path)?;
    site.bash("$hf volume $pool check disk").map(drop)
}
