//! `holdfast volume` as people use it, and volumes as the files that they are.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::on_path;

pub const CASES: &[(&str, Case)] = &[
    ("volume commands", commands),
    ("volume refusals", refusals),
    ("volumes with atomic sectors", atomic),
    ("volumes with checksums", checksums),
    ("volumes are files", files),
    ("volume images", images),
    ("volume poke", poke),
    ("volumes keep how they are written", kept),
    ("stray stores are counted", strays),
    ("blocks and whose they are", blocks),
    ("volumes in deep and passing directories", passing),
    ("volume copies that are killed", killed),
];

fn commands(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"volume() { "$hf" volume "$pool" "$@"; }
        volume list; volume list --json
        volume create disk --size 10M; volume create big --size 16T --sector 4096
        volume list; volume list --json
        volume resize disk --size 20M; volume resize disk --size 10M --shrink
        "$hf" run --pool "$pool" -- bash -c 'mkdir /hf/dir; head -c 3M /dev/zero | tr "\0" x |
            dd of=/hf/disk bs=64k seek=16 conv=notrunc status=none'
        volume copy disk dir/two; volume list
        "$hf" run --pool "$pool" -- cmp /hf/disk /hf/dir/two
        "$hf" snapshot "$pool" create then
        "$hf" run --pool "$pool" -- truncate -s 0 /hf/disk
        volume copy disk 3 --snapshot then; volume rename 3 three
        "$hf" run --pool "$pool" -- cmp /hf/three /hf/dir/two
        volume delete big; volume delete /dir/two; volume delete three; volume list"#,
    )?;
    let expected = "[]\nbig  16T, 0 in use, sectors of 4096\n\
        disk  10M, 0 in use, sectors of 512\n\
        [{\"name\":\"big\",\"size\":17592186044416,\"sector\":4096,\"allocated\":0,\
        \"integrity\":\"plain\"},\
        {\"name\":\"disk\",\"size\":10485760,\"sector\":512,\"allocated\":0,\
        \"integrity\":\"plain\"}]\n\
        big  16T, 0 in use, sectors of 4096\n\
        dir/two  10M, 3M in use, sectors of 512\n\
        disk  10M, 3M in use, sectors of 512\n\
        disk  0, 0 in use, sectors of 512\n";
    expect("the commands", &said, expected)
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#""$hf" volume "$pool" create disk --size 10M
        "$hf" run --pool "$pool" -- bash -c 'echo no disk >/hf/file; mkdir /hf/dir
            ln -s disk /hf/link; mkfifo /hf/pipe
            cp --preserve=xattr /hf/disk /hf/odd
            setfattr -n user.holdfast.volume -v sector=77 /hf/odd'"#;
    script(fixture, &pool, text)?;
    let refused = |words: &[&str], codes: &[i32]| {
        fixture.refused(&[&["volume", pool.as_str()], words].concat(), codes)
    };
    for size in ["0", "1", "1000", "8E", "-1", "much"] {
        refused(&["create", "v", "--size", size], &[1, 2])?;
    }
    for name in ["disk", "file", "dir", "", "/", "none/v", "dir/", "file/v"] {
        refused(&["create", name, "--size", "1M"], &[1])?;
    }
    refused(&["create", "v", "--size", "1M", "--sector", "1024"], &[2])?;
    refused(&["create", "v"], &[2])?;
    for name in ["none", "file", "dir", "odd", "", "dir/none", "link", "pipe"] {
        refused(&["delete", name], &[1])?;
        refused(&["resize", name, "--size", "1M"], &[1])?;
        refused(&["copy", name, "v"], &[1])?;
        refused(&["rename", name, "v"], &[1])?;
    }
    refused(&["copy", "disk", "file"], &[1])?;
    refused(&["rename", "disk", "file"], &[1])?;
    refused(&["copy", "disk", "v", "--snapshot", "none"], &[1])?;
    refused(&["resize", "disk", "--size", "1M"], &[1])?;
    refused(&["resize", "disk", "--size", "1000", "--shrink"], &[1])?;
    refused(&["import", "v", "no-image"], &[1])?;
    refused(&["import", "v", "/etc/passwd", "--format", "qcow2"], &[1])?;
    let said = script(
        fixture,
        &pool,
        r#""$hf" volume "$pool" list
        "$hf" run --pool "$pool" -- cat /hf/file"#,
    )?;
    expect(
        "what is left",
        &said,
        "disk  10M, 0 in use, sectors of 512\nno disk\n",
    )
}

/// They are made, found, copied, imported and written out like others; a damaged table is named.
fn atomic(fixture: &Fixture) -> Result<(), Stop> {
    if !on_path("qemu-img") {
        return Err(Stop::Skip("needs qemu-img".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"volume() { "$hf" volume "$pool" "$@"; }
        seq 1 100000 >raw; truncate -s 20M raw
        volume create small --size 512 --checksum
        volume import disk raw --format raw --atomic --sector 4096
        volume copy disk two; volume rename two three
        volume list | sed 's/, .* in use//'
        volume list --json | grep -o '"integrity":"[a-z]*"'
        volume check disk; volume check small --json
        volume image three image.raw --format raw; cmp raw image.raw
        volume resize three --size 30M; volume image three image.raw --format raw
        truncate -s 30M raw; cmp raw image.raw
        ! volume resize three --size 10M --shrink 2>&1
        ! volume poke disk --protect none >/dev/null; volume poke disk | cut -c 1-22
        "$hf" run --pool "$pool" -- getfattr --only-values -n user.holdfast.volume \
            --absolute-names /hf/three; echo
        "$hf" run --pool "$pool" -- bash -c 'head -c 65536 /dev/urandom |
            dd of=/hf/disk bs=1 seek=$(($(stat -c %s /hf/disk) - 65536)) conv=notrunc status=none'
        ! volume check disk 2>&1 >/dev/null | sed 's/at byte .*//'
        "$hf" run --pool "$pool" -- truncate -s 1M /hf/three
        ! volume image three image.raw 2>&1 | sed 's/at byte .*//'
        volume rename three four
        for name in four disk small; do volume delete $name; done; volume list
        "$hf" run --pool "$pool" -- ls /hf"#,
    )?;
    let expected = "disk  20M, atomic sectors of 4096\n\
        small  512, atomic sectors with checksums of 512\n\
        three  20M, atomic sectors of 4096\n\"integrity\":\"atomic\"\n\
        \"integrity\":\"checked\"\n\"integrity\":\"atomic\"\n\
        5120 sectors, 144 of them written, 0 unreadable, 0 changed\n\
        {\"sectors\":1,\"written\":0,\"unreadable\":0,\"changed\":[]}\n\
        holdfast: volume \"three\" has atomic sectors and cannot become smaller.\n\
        Fix: make a smaller one, and copy what it is to have\n\
        a stray store to block\nsector=4096 btt=31457280\n\
        holdfast: the volume cannot be used: the log \n\
        holdfast: the volume cannot be used: the geometry in an info block \n";
    expect("the commands", &said, expected)
}

/// What changes by itself is named by the check, is an error of a read, and harms nothing else.
fn checksums(fixture: &Fixture) -> Result<(), Stop> {
    if !on_path("qemu-img") {
        return Err(Stop::Skip("needs qemu-img".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"volume() { "$hf" volume "$pool" "$@"; }
        seq 1 100000 >raw; truncate -s 20M raw
        volume import disk raw --format raw --checksum; volume check disk
        "$hf" run --pool "$pool" -- bash -c 'at=$(grep -abo 77777 /hf/disk | cut -d : -f 1)
            printf x | dd of=/hf/disk bs=1 seek=$at conv=notrunc status=none'
        ! volume check disk; ! volume check disk --json
        ! volume copy disk two 2>&1; volume list
        sector=$(($(grep -abo 77777 raw | cut -d : -f 1) / 512)); echo "it was $sector""#,
    )?;
    let sector = said
        .rsplit_once("it was ")
        .map_or("", |(_, sector)| sector.trim());
    let expected = format!(
        "40960 sectors, 1152 of them written, 0 unreadable, 0 changed\n\
        sector {sector} has other bytes than were written to it\n\
        40960 sectors, 1152 of them written, 0 unreadable, 1 changed\n\
        {{\"sectors\":40960,\"written\":1152,\"unreadable\":0,\"changed\":[{sector}]}}\n\
        holdfast: the volume cannot be used: sector {sector} has other bytes than were written to \
        it.\ndisk  20M, 752K in use, atomic sectors with checksums of 512\nit was {sector}\n"
    );
    expect("the commands", &said, &expected)
}

fn files(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#""$hf" volume "$pool" create disk --size 1M
        "$hf" run --pool "$pool" -- bash -c 'cd /hf; stat -c "%a %s %b" disk
            getfattr -d disk 2>/dev/null | grep volume; printf abc | dd of=disk conv=notrunc \
            status=none; mv disk moved; chmod 644 moved'
        "$hf" volume "$pool" list; "$hf" volume "$pool" copy moved again
        "$hf" run --pool "$pool" -- head -c 3 /hf/again; echo"#,
    )?;
    let expected = "600 1048576 0\nuser.holdfast.volume=\"sector=512\"\n\
        moved  1M, 4K in use, sectors of 512\nabc\n";
    expect("the commands", &said, expected)
}

fn images(fixture: &Fixture) -> Result<(), Stop> {
    if !on_path("qemu-img") {
        return Err(Stop::Skip("needs qemu-img".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"volume() { "$hf" volume "$pool" "$@"; }
        seq 1 1000000 >raw; truncate -s 20M raw
        for format in qcow2 vmdk vdi; do
            qemu-img convert -f raw -O $format raw image.$format
            volume import $format image.$format
            volume image $format again.$format --format $format
            qemu-img compare -f raw -F $format raw again.$format
        done
        qemu-img create -q -f qcow2 -b raw -F raw back.qcow2
        ! volume import back back.qcow2 2>/dev/null
        cp raw a:b; volume import colon a:b --format raw; volume image colon c:d --format raw
        cmp raw c:d; volume delete colon
        volume import raw raw --format raw --sector 4096; volume image raw again.qcow2
        qemu-img compare -f raw -F qcow2 raw again.qcow2
        truncate -s 1000 odd; volume import odd odd --format raw
        volume list | cut -d , -f 1"#,
    )?;
    let same = "Images are identical.\n";
    let expected = [
        same,
        same,
        same,
        same,
        "odd  1K\nqcow2  20M\nraw  20M\nvdi  20M\n",
        "vmdk  20M\n",
    ];
    expect("the commands", &said, &expected.concat())
}

/// For as long as the service lives, and longer while a program uses the pool.
fn strays(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
        volume() { "$hf" volume "$pool" "$@"; }
        status() { "$hf" pool status "$pool" --json; }
        strays() { status | grep -o '"strays":[0-9]*'; }
        volume create disk --size 1M
        "$hf" serve "$pool" 2>log & service=$!
        until status | grep -q "\"service\":$service,"; do sleep 0.01; done
        strays; for n in 1 2 3; do volume poke disk --protect pt >/dev/null; done; strays
        ! volume poke disk --protect none 2>/dev/null; strays
        "$hf" top "$pool" --metrics | grep '^holdfast_stray_stores_total{.*} 3$' >/dev/null
        logged() { awk '/WARN stray stores .* were stopped: /{n += $NF} END {print n}' log; }
        until [[ $(logged) == 3 ]]; do sleep 0.01; done
        until status | grep -q '"sessions":0'; do sleep 0.01; done
        "$hf" run --pool "$pool" -- bash -c 'touch up; exec sleep 60' & user=$!
        until [[ -e up ]]; do sleep 0.01; done
        volume poke disk --protect pmap >/dev/null; strays
        kill -KILL $service; wait $service || true
        until volume poke disk --protect fd >/dev/null 2>&1; do sleep 0.1; done; strays
        kill $user; wait $user || true"#;
    let said = script(fixture, &pool, text)?;
    // The service that takes over knows of what its session has counted.
    let expected = [0, 3, 3, 4, 2].map(|n| format!("\"strays\":{n}\n"));
    expect("the counts", &said, &expected.concat())
}

/// Of files and volumes, also of what nobody has flushed; and of blocks that are nobody's.
fn blocks(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.path("pool").to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &pool, "--size", "16M"])?;
    let text = r#"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
        "$hf" volume "$pool" create disk --size 10M --sector 4096
        "$hf" run --pool "$pool" -- bash -c 'mkdir -p /hf/a/b; head -c 100k /dev/zero | tr "\0" x |
            tee /hf/a/b/file >/dev/null; >/hf/behind; fallocate -n -l 64k /hf/behind
            exec 3>/hf/open; head -c 8192 /dev/zero | tr "\0" y >&3; touch up; sleep 60' & user=$!
        until [[ -e up ]]; do sleep 0.01; done
        "$hf" run --pool "$pool" -- bash -c 'seq 100000 | dd of=/hf/disk bs=4k seek=100 \
            conv=notrunc status=none'
        # All blocks of the pool; most of them are free.
        seq 0 4095 | xargs -n 1 -P 4 "$hf" pool block "$pool" --json >found 2>/dev/null || true
        kill $user; wait $user || true
        sed 's/.*"path"://; s/,"offset.*//' found | sort | uniq -c | sed 's/^ *//'
        grep '"disk"' found | sed 's/.*offset"://; s/}//' | sort -n | sed -n '1p;$p'"#;
    let said = script(fixture, &pool, text)?;
    let expected = "25 \"a/b/file\",\"volume\":false\n16 \"behind\",\"volume\":false\n\
        144 \"disk\",\"volume\":true\n2 \"open\",\"volume\":false\n409600\n995328\n";
    expect("whose the blocks are", &said, expected)?;
    for number in ["1000000000", "-1", "x", ""] {
        fixture.refused(&["pool", "block", &pool, number], &[1, 2])?;
    }
    fixture.refused(&["pool", "block", "/nowhere", "0"], &[1])
}

/// What was chosen is kept, listed, changed, copied, and used by who serves the volume.
fn kept(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"volume() { "$hf" volume "$pool" "$@"; }
        volume create plain --size 1M; volume create auto --size 1M --protect auto --persist auto
        volume create disk --size 1M --sector 4096 --protect pmap --persist nt
        volume list
        "$hf" run --pool "$pool" -- bash -c 'cd /hf; for name in plain auto disk; do
            getfattr --only-values -n user.holdfast.volume $name; echo; done'
        volume poke disk | sed 's/.*kept by //'; volume poke disk --protect pt | sed 's/.*by //'
        volume set disk --protect pt; volume poke disk | sed 's/.*kept by //'
        volume set disk --persist auto; volume list --json | sed 's/.*"disk"/"disk"/'
        volume copy disk copy; volume resize copy --size 2M; volume rename copy moved
        volume set disk --protect auto; volume list"#;
    let said = script(fixture, &pool, text)?;
    let expected = "auto  1M, 0 in use, sectors of 512\n\
        disk  1M, 0 in use, sectors of 4096, protect pmap, persist nt\n\
        plain  1M, 0 in use, sectors of 512\n\
        sector=512\nsector=512\nsector=4096 protect=pmap persist=nt\n\
        pmap\npt\npt\n\
        \"disk\",\"size\":1048576,\"sector\":4096,\"allocated\":4096,\
        \"integrity\":\"plain\",\"protect\":\"pt\"},\
        {\"name\":\"plain\",\"size\":1048576,\"sector\":512,\"allocated\":0,\
        \"integrity\":\"plain\"}]\n\
        auto  1M, 0 in use, sectors of 512\ndisk  1M, 4K in use, sectors of 4096\n\
        moved  2M, 4K in use, sectors of 4096, protect pt\n\
        plain  1M, 0 in use, sectors of 512\n";
    expect("what is kept", &said, expected)?;
    let refused = |words: &[&str], codes: &[i32]| {
        fixture.refused(&[&["volume", pool.as_str()], words].concat(), codes)
    };
    refused(&["create", "v", "--size", "1M", "--protect", "much"], &[2])?;
    let never = ["--protect", "pt", "--persist", "fd"];
    refused(
        &[&["create", "v", "--size", "1M"], &never[..]].concat(),
        &[1],
    )?;
    refused(&[&["set", "disk"], &never[..]].concat(), &[1])?;
    refused(&["set", "disk"], &[1])?;
    refused(&["set", "none", "--protect", "pt"], &[1])?;
    let said = script(
        fixture,
        &pool,
        r#""$hf" volume "$pool" list | cut -d , -f 1"#,
    )?;
    expect(
        "what is left",
        &said,
        "auto  1M\ndisk  1M\nmoved  2M\nplain  1M\n",
    )
}

/// Each protection stops a stray store and says where it was aimed, and changes nothing; without
/// one it goes through, which the command does not hide.
fn poke(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#""$hf" volume "$pool" create empty --size 1M
        "$hf" volume "$pool" create disk --size 10M --sector 4096
        "$hf" run --pool "$pool" -- bash -c 'seq 100000 | dd of=/hf/disk bs=64K seek=2 \
            conv=notrunc status=none; sha256sum </hf/disk' >before
        "$hf" volume "$pool" poke empty >/dev/null; "$hf" volume "$pool" poke empty --json"#;
    let said = script(fixture, &pool, text)?;
    if !said.starts_with("{\"stopped\":true,") || !said.contains("\"block\":0,") {
        return wrong(format!("of a stray store was said {said:?}"));
    }
    let poke = |mode| ["volume", &pool, "poke", "disk", "--protect", mode].map(String::from);
    for mode in ["auto", "pt", "pt-batch", "pmap", "pmap-cache", "fd", "pkey"] {
        let ended = fixture.holdfast(&poke(mode))?;
        let none = mode == "pkey" && ended.err.contains("no protection keys");
        let stopped = ended.code() == Some(0)
            && ended.out.starts_with("a stray store to block ")
            && ended.out.contains(" was stopped (address 0x")
            && ended
                .out
                .contains(": it was block 32 of volume disk, kept by ");
        if !none && !stopped {
            return wrong(format!(
                "{mode}: {} {} {}",
                ended.how(),
                ended.out,
                ended.err
            ));
        }
    }
    fixture.refused(&poke("none"), &[1])?;
    // A service would not start under the limit.
    let limited = r#""$hf" run --pool "$pool" -- bash -c 'touch up; sleep 60' & running=$!
        until [[ -e up ]]; do sleep 0.01; done
        (ulimit -f 100; "$hf" volume "$pool" poke disk | sed 's/.*kept by //'
        "$hf" volume "$pool" poke disk --protect fd 2>&1 | head -n 1 || true)
        kill $running; wait $running || true"#;
    let said = script(fixture, &pool, limited)?;
    if !["pmap\nholdfast: fd ", "pkey\nholdfast: fd "]
        .iter()
        .any(|way| said.starts_with(way))
    {
        return wrong(format!("where files are limited: {said:?}"));
    }
    fixture.refused(&poke("strong"), &[2])?;
    fixture.refused(&["volume", &pool, "poke", "nothing"], &[1])?;
    let after = script(
        fixture,
        &pool,
        r#""$hf" run --pool "$pool" -- sha256sum /hf/disk |
        cut -d ' ' -f 1 | diff - <(cut -d ' ' -f 1 before)"#,
    )?;
    expect("what changed", &after, "")
}

/// What others make of their directories is no reason not to list.
fn passing(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#""$hf" volume "$pool" create disk --size 1M
        "$hf" run --pool "$pool" -- bash -c 'cd /hf; name=$(printf "%0200d" 1)
            for i in $(seq 30); do mkdir $name; cd -P $name; done'
        "$hf" run --pool "$pool" -- bash -c 'touch up; while [[ -e up ]]; do
            mkdir /hf/passing; : >/hf/passing/file; rm -r /hf/passing; done' & running=$!
        until [[ -e up ]]; do sleep 0.01; done
        for i in $(seq 100); do "$hf" volume "$pool" list; done | sort -u
        rm up; wait $running"#;
    let said = script(fixture, &pool, text)?;
    expect("the list", &said, "disk  1M, 0 in use, sectors of 512\n")
}

/// A copy has its name when it is whole; what is left of one that was killed says so.
fn killed(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#""$hf" volume "$pool" create disk --size 20M
        "$hf" run --pool "$pool" -- dd if=/dev/urandom of=/hf/disk bs=1M count=20 conv=notrunc \
            status=none
        for i in 1 2 3 4 5 6 7 8; do
            "$hf" volume "$pool" copy disk copy & copy=$!
            sleep 0.0$((i * i)); kill -9 $copy 2>/dev/null || true; wait $copy || true
            "$hf" run --pool "$pool" -- bash -c '[[ ! -e /hf/copy ]] || cmp /hf/disk /hf/copy'
            "$hf" volume "$pool" list | grep -v '^disk \|^copy \|^copy.part-[0-9]* ' || true
            "$hf" run --pool "$pool" -- bash -c 'rm -f /hf/copy*'
        done"#;
    expect("other volumes", &script(fixture, &pool, text)?, "")
}
