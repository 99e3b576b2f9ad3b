//! Many users of a mounted pool: each may do there what the files let that user do on tmpfs.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use std::fs;
use std::path::Path;

/// What there is, made by the owner.
const BEGIN: &str = r#"
mkdir -m 755 open; mkdir -m 700 closed; mkdir -m 1777 sticky; mkdir -m 711 search
mkdir -m 777 free; mkdir -m 2775 given; chgrp 4001 given
for d in open closed sticky search free; do echo "$d" >$d/f; chmod 644 $d/f; done
cp /bin/echo open/execute; chmod 711 open/execute
echo g >open/group; chgrp 4001 open/group; chmod 640 open/group
echo n >open/not-group; chgrp 4001 open/not-group; chmod 604 open/not-group
echo a >open/listed; chmod 600 open/listed; setfacl -m u:3003:rw open/listed
mkdir open/inherits; chmod 777 open/inherits; setfacl -d -m u:3003:rwx,o::r open/inherits
for f in set cut grown copied; do echo set >free/$f; chmod 6777 free/$f; done
echo group >free/group; chmod 2767 free/group; ln -s ../closed/f open/link; touch sticky/theirs
"#;

/// What each of them tries.
const TRIES: &str = r#"
try() {
    if "$@" >out.$me 2>err.$me; then echo "$*: done $(cat out.$me)"
    else echo "$*: $(sed 's/.*: //' err.$me)"; fi
}
cd free; me=$(id -u)
for f in open/f closed/f search/f open/group open/not-group open/listed open/link sticky/f; do
    try cat ../$f; try cp /dev/null ../$f.$me; try truncate -s +1 ../$f; try chmod 600 ../$f
    try touch -d @5 ../$f; try touch ../$f
done
try ls ../open; try ls ../closed; try ls ../search; try ../open/execute hello
try cat ../open/execute
try rm -f ../sticky/theirs; try mv ../sticky/f ../sticky/g; try mkdir ../given/$me
try touch ../given/f$me
try touch ../open/inherits/$me; try mkdir ../open/inherits/d$me; try ln f l$me
try ln ../open/group h$me
(umask 027; touch masked.$me; mkdir made.$me); try chown 3002 masked.$me; try chgrp 4001 masked.$me
try sh -c 'echo more >>set'; try truncate -s 1 cut; try fallocate -l 9000 grown
try cp ../open/f copied; try sh -c 'echo more >>group'
try setfattr -n user.a -v b ../open/f; try getfattr -n trusted.b f
try setfacl -m u:3002:r masked.$me; try test -w ../open/f; try test -x ../closed
try readlink ../open/link
rm -f out.* err.*; stat -c '%n %a %u:%g' ../given/* ../open/inherits/* * 2>/dev/null
getfacl -cp ../open/inherits/* masked.* 2>/dev/null
"#;

/// One after the other, on tmpfs and where the pool is mounted.
pub fn mounted(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    if !Path::new("/dev/fuse").exists() {
        return Err(Stop::Skip("there is no /dev/fuse".into()));
    }
    let (tmpfs, mount) = (fixture.path("tmpfs"), fixture.path("mount"));
    for dir in [&tmpfs, &mount] {
        fs::create_dir(dir)?;
        std::os::unix::fs::chown(dir, Some(3001), Some(3001))?;
    }
    let (pool, at) = (shared.pool.to_string_lossy(), mount.to_string_lossy());
    fixture.done(&["mount", "--allow-other", &pool, &at])?;
    let compared = compare(fixture, [&tmpfs, &mount]);
    let unmounted = fixture.done(&["umount", &at]);
    compared?;
    unmounted?;
    shared.end()
}

fn compare(fixture: &Fixture, dirs: [&Path; 2]) -> Result<(), Stop> {
    for (user, text) in [
        ("3001", BEGIN),
        ("3002", TRIES),
        ("3003", TRIES),
        ("3004", TRIES),
        ("0", TRIES),
        ("3001", TRIES),
    ] {
        let [on_tmpfs, mounted] = dirs.map(|dir| {
            let mut command = as_user(user);
            let text = format!("cd {}; {text}", dir.display());
            command.args(["bash", "-c", &text]);
            fixture.end_of(command)
        });
        let (on_tmpfs, mounted) = (on_tmpfs?, mounted?);
        let (expected, said) = (on_tmpfs.out + &on_tmpfs.err, mounted.out + &mounted.err);
        let differ = expected.lines().zip(said.lines()).find(|(a, b)| a != b);
        if let Some((expected, said)) = differ {
            return wrong(format!("user {user}: {said:?}, not {expected:?}"));
        }
        if expected.lines().count() != said.lines().count() {
            return wrong(format!("user {user} was told {said:?}, not {expected:?}"));
        }
        if text == TRIES && !(expected.contains(": done") && expected.lines().count() > 80) {
            return wrong(format!("user {user} got not far on tmpfs: {expected}"));
        }
    }
    Ok(())
}

/// A user who is not root mounts a pool of his own, with the help of fusermount3.
pub fn own(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    if !crate::process::on_path("fusermount3") {
        return Err(Stop::Skip("fusermount3 is not installed".into()));
    }
    let home = fixture.path("home");
    fs::create_dir(&home)?;
    std::os::unix::fs::chown(&home, Some(65534), Some(65534))?;
    // Elsewhere everybody may open the device. Only this script sees it so here, and its mounts.
    let device = r#"
        mkdir dev && mount -t tmpfs tmpfs dev && mknod -m 666 dev/fuse c 10 229 || exit 77
        touch /dev/fuse; mount --bind dev/fuse /dev/fuse || exit 77
        setpriv --reuid=65534 --regid=65534 --clear-groups bash -c '<>/dev/fuse' || exit 77
        cd home; exec setpriv --reuid=65534 --regid=65534 --clear-groups bash -euc "$1""#;
    let mut command = std::process::Command::new("env");
    command.arg(format!("hf={}", fixture.holdfast.display()));
    command.args(["unshare", "-m", "bash", "-c", device, "own", OWN]);
    let ended = fixture.end_of(command)?;
    if ended.code() == Some(77) {
        return Err(Stop::Skip("no device can be made here".into()));
    }
    let said = ended.out.replace(&home.display().to_string(), "~") + &ended.err;
    match said == OWN_SAID {
        true => Ok(()),
        false => wrong(format!("{}: {said:?}, not {OWN_SAID:?}", ended.how())),
    }
}

const OWN: &str = r#"
say() { "$hf" "$@" 2>&1 || echo "status $?"; }
"$hf" pool create p --size 64M >/dev/null; mkdir m; say mount p m
findmnt -no fstype,source,options m | tr -s ' ' | cut -d, -f1-3; echo text >m/f; cat m/f
exec 5<m/f; say umount m | sed "s|$PWD/||g"; exec 5<&-; say umount m; findmnt m || echo away
say mount --allow-other p m; "$hf" run --pool p -- stat -c '%U %s' /hf/f
"#;

const OWN_SAID: &str = "fuse.holdfast ~/p rw,nosuid,nodev\ntext\nholdfast: m is in use.\n\
    Fix: end the programs that fuser -vm m shows, or add --lazy, and it is gone with them\n\
    status 1\naway\nholdfast: only root may let other users in here.\n\
    Fix: put a line user_allow_other into /etc/fuse.conf\nstatus 1\nnobody 5\n";
