//! The file of `holdfast export --fuse` itself: what programs can do with it, how it ends, and
//! what is refused.

use super::site::Site;
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::time::Duration;

pub const CASES: &[(&str, Case)] = &[
    ("requests of any length", any_length),
    ("a volume that is only read", only_read),
    ("an export that is in use", in_use),
    ("statistics of exports", statistics),
    ("an export that somebody unmounts", unmounted),
    ("exports that are refused", refused),
    ("an export of another user", others),
];

const RANGES: &str = include_str!("ranges.py");
const OTHER_USER: &str = include_str!("other_user.sh");

fn any_length(fixture: &Fixture) -> Result<(), Stop> {
    let site = Site::new(fixture, "64M", &["python3"])?;
    std::fs::write(fixture.path("ranges.py"), RANGES)?;
    for (volume, sector) in [("small", "512"), ("large", "4096")] {
        site.create(volume, "4M", sector)?;
        let exported = site.export(&[volume, "--fuse", "file"])?;
        site.bash("python3 ranges.py file 1")?;
        exported.end(&fixture.path("file"))?;
    }
    site.bash("$hf pool check $pool").map(drop)
}

fn only_read(fixture: &Fixture) -> Result<(), Stop> {
    let site = Site::new(fixture, "64M", &["losetup"])?;
    site.create("disk", "1M", "512")?;
    let exported = site.export(&["disk", "--fuse", "file"])?;
    site.bash("echo old | dd of=file conv=notrunc,fsync")?;
    exported.end(&fixture.path("file"))?;
    site.bash("$hf snapshot $pool create before")?;
    let writer = site.export(&["disk", "--fuse", "file"])?;
    site.bash("echo new | dd of=file conv=notrunc,fsync")?;
    for (words, expected) in [
        (["--read-only"].as_slice(), "new"),
        (&["--snapshot", "before"], "old"),
    ] {
        let words = [&["disk", "--fuse", "again"], words].concat();
        let reader = site.export(&words)?;
        let found = site.bash(
            r#"head -n 1 again; [[ $(stat -c %a again) == 400 ]]
            loop=$(attach again -r); cmp again $loop >&2; losetup -d $loop
            if echo x 1<>again; then exit 1; fi"#,
        )?;
        reader.end(&fixture.path("again"))?;
        if found.trim() != expected {
            return wrong(format!("{words:?}: {found:?}, not {expected:?}"));
        }
    }
    writer.end(&fixture.path("file"))
}

fn in_use(fixture: &Fixture) -> Result<(), Stop> {
    let site = Site::new(fixture, "64M", &["losetup"])?;
    site.create("disk", "1M", "512")?;
    // It waits until the last has closed the file.
    let mut exported = site.export(&["disk", "--fuse", "file"])?;
    site.bash("attach file >device")?;
    exported.signal()?;
    std::thread::sleep(Duration::from_millis(1500));
    site.bash(
        r#"[[ ! -e file ]]; head -c 1M /dev/urandom >bytes; dd if=bytes of=$(<device) conv=fsync
        sync; losetup -d $(<device)"#,
    )?;
    let (code, said) = (exported.ended()?, exported.said()?);
    if code != Some(0) || !said.contains("is still in use.\nFix: ") {
        return wrong(format!("with a file in use: {code:?}, {said:?}"));
    }
    // A second signal cuts it off.
    let mut exported = site.export(&["disk", "--fuse", "file"])?;
    site.bash("cmp file bytes; attach file >device")?;
    exported.signal()?;
    std::thread::sleep(Duration::from_millis(1500));
    exported.signal()?;
    let (code, said) = (exported.ended()?, exported.said()?);
    if code != Some(1) || !said.ends_with("holdfast: the export ended while it was in use.\n") {
        return wrong(format!("after a second signal: {code:?}, {said:?}"));
    }
    site.bash("[[ ! -e file ]]; losetup -d $(<device)")
        .map(drop)
}

fn statistics(fixture: &Fixture) -> Result<(), Stop> {
    let site = Site::new(fixture, "64M", &["python3"])?;
    site.create("disk", "1M", "512")?;
    site.create("guest", "1M", "512")?;
    let exported = site.export(&["disk", "--fuse", "file"])?;
    let guest = site.export(&["guest", "--vhost-user", "socket", "--read-only"])?;
    site.bash(
        r#"head -c 1M /dev/urandom | dd of=file bs=64k iflag=fullblock conv=notrunc,fsync
        exec 3<file; dd if=file of=copy bs=64k
        $hf pool status $pool --json >status; exec 3<&-
        python3 - <<'END'
import json
disk, guest = json.load(open('status'))['exports']
if disk['face'] != 'fuse' or not disk['address'].endswith('/file'): raise Exception(disk)
if disk['clients'] != 1: raise Exception(disk)
if disk['writes']['bytes'] != 1 << 20 or disk['writes']['requests'] < 16: raise Exception(disk)
if disk['reads']['bytes'] < 1 << 20 or not disk['flushes']['requests']: raise Exception(disk)
if guest['face'] != 'vhost-user' or guest['address'] != 'socket': raise Exception(guest)
if guest['clients'] or not guest['read_only']: raise Exception(guest)
END"#,
    )?;
    guest.kill()?;
    exported.end(&fixture.path("file"))
}

fn unmounted(fixture: &Fixture) -> Result<(), Stop> {
    let site = Site::new(fixture, "64M", &["umount"])?;
    site.create("disk", "1M", "512")?;
    site.bash("echo mine >file")?;
    let mut exported = site.export(&["disk", "--fuse", "file"])?;
    site.bash("[[ $(stat -c %s file) == 1048576 ]]; umount file; [[ $(<file) == mine ]]")?;
    match exported.ended()? {
        Some(0) => Ok(()),
        code => wrong(format!("{code:?} {}", exported.said()?)),
    }
}

fn refused(fixture: &Fixture) -> Result<(), Stop> {
    let site = Site::new(fixture, "64M", &["truncate"])?;
    site.create("disk", "1M", "512")?;
    site.create("other", "1M", "512")?;
    site.bash("mkdir directory")?;
    let refuse = |volume: &str, words: &[&str], code: i32| {
        let words = [&["export", &site.pool, volume], words].concat();
        fixture.refused(&words, &[code])
    };
    refuse("disk", &[], 2)?;
    refuse("disk", &["--fuse", "directory"], 1)?;
    refuse("disk", &["--fuse", "/dev/null"], 1)?;
    refuse("disk", &["--fuse", "nowhere/file"], 1)?;
    refuse("none", &["--fuse", "file"], 1)?;
    if fixture.path("file").exists() {
        return wrong("a refused export leaves its file behind");
    }
    let exported = site.export(&["disk", "--fuse", "file"])?;
    refuse("disk", &["--fuse", "again"], 1)?;
    refuse("other", &["--fuse", "file"], 1)?;
    site.bash(
        r#"if truncate -s 10 file; then exit 1; fi; if truncate -s 10M file; then exit 2; fi
        touch file; [[ $(stat -c %s file) == 1048576 ]]"#,
    )?;
    exported.kill()?;
    refuse("other", &["--fuse", "file"], 1)?;
    site.bash("umount file").map(drop)
}

fn others(fixture: &Fixture) -> Result<(), Stop> {
    let tools = ["fusermount3", "setpriv", "unshare", "losetup", "mkfs.ext4"];
    let site = Site::new(fixture, "64M", &tools)?;
    std::fs::write(fixture.path("script"), OTHER_USER)?;
    let said = site.bash("chmod 755 .; export hf; unshare -m bash script")?;
    match said.ends_with("done\n") {
        true => Ok(()),
        false => wrong(said),
    }
}
