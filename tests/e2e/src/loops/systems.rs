//! ext4 and XFS on volumes: what they wrote is there when they are mounted again, and what they
//! made durable is there when the export was killed.

use super::site::{Export, Site};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::time::Duration;

pub const CASES: &[(&str, Case)] = &[
    ("ext4 on a volume", |fixture| mounted_again(fixture, &EXT4)),
    ("XFS on a volume", |fixture| mounted_again(fixture, &XFS)),
    ("a killed export under ext4", |fixture| {
        killed(fixture, &EXT4)
    }),
    ("a killed export under XFS", |fixture| killed(fixture, &XFS)),
    ("sectors of 4096 bytes", large_sectors),
    ("space that is given back", given_back),
];

struct Kind {
    make: &'static str,
    /// On 4096-byte sectors.
    make_large: &'static str,
    check: &'static str,
    tools: [&'static str; 4],
}

const EXT4: Kind = Kind {
    make: "mkfs.ext4 -q -F",
    make_large: "mkfs.ext4 -q -F",
    check: "e2fsck -fn",
    tools: ["mkfs.ext4", "e2fsck", "losetup", "python3"],
};

/// mkfs.xfs makes nothing below 300 MiB.
const XFS: Kind = Kind {
    make: "mkfs.xfs -q -f",
    make_large: "mkfs.xfs -q -f -s size=4096",
    check: "xfs_repair -n",
    tools: ["mkfs.xfs", "xfs_repair", "losetup", "python3"],
};

const FILES: &str = include_str!("files.py");
const SIZE: &str = "400M";
/// Kills of one export after another, each so long after the last.
const KILLS: [u64; 4] = [200, 500, 900, 1400];

fn site<'a>(fixture: &'a Fixture, kind: &Kind, sector: &str) -> Result<Site<'a>, Stop> {
    let site = Site::new(fixture, "1G", &kind.tools)?;
    std::fs::write(fixture.path("files.py"), FILES)?;
    site.create("disk", SIZE, sector)?;
    site.bash("mkdir mnt").map(|_| site)
}

fn export(site: &Site<'_>) -> Result<Export, Stop> {
    site.export(&["disk", "--fuse", "file"])
}

fn end(site: &Site<'_>, export: Export) -> Result<(), Stop> {
    export.end(&site.fixture.path("file"))
}

fn mounted_again(fixture: &Fixture, kind: &Kind) -> Result<(), Stop> {
    let site = site(fixture, kind, "512")?;
    let exported = export(&site)?;
    site.bash(&format!(
        r#"loop=$(attach file); {} $loop; mount $loop mnt
        files write mnt 0 300 >written; cp -r /usr/include mnt/copy
        umount mnt; losetup -d $loop"#,
        kind.make
    ))?;
    end(&site, exported)?;
    let exported = export(&site)?;
    let found = site.bash(&format!(
        r#"loop=$(attach file); mount $loop mnt
        files check mnt 0 0 <written; diff -r --no-dereference /usr/include mnt/copy
        umount mnt; {} $loop >&2; losetup -d $loop"#,
        kind.check
    ))?;
    end(&site, exported)?;
    match found.trim() {
        "300" => Ok(()),
        found => wrong(format!("{found} of 300 files are there")),
    }
}

fn killed(fixture: &Fixture, kind: &Kind) -> Result<(), Stop> {
    let site = site(fixture, kind, "512")?;
    let exported = export(&site)?;
    let make = format!("loop=$(attach file); {} $loop; losetup -d $loop", kind.make);
    site.bash(&make)?;
    end(&site, exported)?;
    let mut first = 0;
    for pause in KILLS {
        first = kill_once(&site, kind, first, pause)?;
    }
    match first {
        0..20 => wrong(format!("only {first} files were written at all")),
        _ => Ok(()),
    }
}

/// Kills an export while files from `first` on are written; the first that was not.
fn kill_once(site: &Site<'_>, kind: &Kind, first: u64, pause: u64) -> Result<u64, Stop> {
    let exported = export(site)?;
    // The writer says its numbers itself: what is behind the last line was never durable.
    site.bash(&format!(
        r#"attach file >device; mount $(<device) mnt
        (files write mnt {first} 1000000 >>written 2>errors) &
        sleep {}; kill -KILL {}; wait"#,
        Duration::from_millis(pause).as_secs_f64(),
        exported.id(),
    ))?;
    exported.kill()?;
    let text = std::fs::read_to_string(site.fixture.path("written"))?;
    let next = text
        .lines()
        .last()
        .and_then(|line| line.parse::<u64>().ok());
    site.bash(
        r#"if head -c 1 file 2>/dev/null; then exit 9; fi
        umount mnt; losetup -d $(<device); umount file; [[ ! -s file ]]"#,
    )?;
    let exported = site.export(&["disk", "--fuse", "file"])?;
    let found = site.bash(&format!(
        r#"loop=$(attach file); mount $loop mnt
        files check mnt 0 0 <written; rm -f mnt/*/$(($(tail -n 1 written) + 1))
        umount mnt; {} $loop >&2; losetup -d $loop"#,
        kind.check
    ))?;
    // The file was there before this export, and stays.
    site.bash("umount file; rm file")?;
    drop(exported);
    match text.lines().count().to_string() == found.trim() {
        true => Ok(next.map_or(first, |next| next + 1)),
        false => wrong(format!(
            "{} of {} files are there",
            found.trim(),
            text.len()
        )),
    }
}

fn large_sectors(fixture: &Fixture) -> Result<(), Stop> {
    let site = site(fixture, &XFS, "4096")?;
    for (kind, options) in [
        (&EXT4, "--sector-size 4096"),
        (&XFS, "--sector-size 4096"),
        // The loop device asks for less than a sector.
        (&EXT4, "--sector-size 512"),
        (&XFS, "--sector-size 512"),
    ] {
        let exported = export(&site)?;
        let make = match options {
            "--sector-size 512" => kind.make,
            _ => kind.make_large,
        };
        let found = site.bash(&format!(
            r#"loop=$(attach file {options}); {make} $loop; mount $loop mnt
            files write mnt 0 60 >written; umount mnt
            mount $loop mnt; files check mnt 0 0 <written; umount mnt
            {} $loop >&2; losetup -d $loop"#,
            kind.check
        ))?;
        end(&site, exported)?;
        if found.trim() != "60" {
            return wrong(format!("{options}: {found} of 60 files"));
        }
    }
    Ok(())
}

fn given_back(fixture: &Fixture) -> Result<(), Stop> {
    let site = site(fixture, &EXT4, "512")?;
    let exported = export(&site)?;
    site.bash(
        r#"loop=$(attach file); mkfs.ext4 -q -F $loop; mount $loop mnt
        head -c 100M /dev/urandom >mnt/large; sync -f mnt; full=$(blocks file)
        rm mnt/large; sync -f mnt; fstrim mnt; less=$(blocks file)
        ((full > 200000 && less < full - 200000)) || { echo $full $less >&2; exit 1; }
        umount mnt; e2fsck -fn $loop >&2
        blkdiscard -f $loop; [[ $(blocks file) == 0 ]]; cmp -n 400M $loop /dev/zero
        head -c 10M /dev/urandom >$loop; sync $loop; [[ $(blocks file) == 20480 ]]
        blkdiscard -f -z -l 20M $loop; cmp -n 400M $loop /dev/zero
        blkdiscard -f $loop; [[ $(blocks file) == 0 ]]; losetup -d $loop"#,
    )?;
    end(&site, exported)
}
