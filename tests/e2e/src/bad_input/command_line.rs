//! What is wrong with the words alone, or with what they name. No case needs a damaged pool.

use super::{Case, Fixture, RUN_FAILED, Stop, host_tree, words, wrong};
use std::fs;
use std::os::unix::fs::PermissionsExt;

pub const CASES: &[(&str, Case)] = &[
    ("wrong usage", usage),
    ("missing pool", missing_pool),
    ("not a pool", not_a_pool),
    ("create refuses", create_refuses),
    ("sizes", sizes),
    ("programs that cannot start", programs),
    ("exit status passes through", exit_status),
    ("at", at),
    ("report that cannot be written", report),
    ("destroy what is no pool", destroy_no_pool),
];

fn usage(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.path("pool").to_string_lossy().into_owned();
    let pool = pool.as_str();
    let commands: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["pool"],
        &["pool", "nonsense"],
        &["pool", "create"],
        &["pool", "create", pool, "--nonsense"],
        &["pool", "create", pool, "surplus"],
        &["pool", "create", pool, "--medium", "paper"],
        &["pool", "create", pool, "--consistency", "loose"],
        &["pool", "create", pool, "--size"],
        &["pool", "status", pool, "surplus"],
        &["pool", "destroy"],
        &["serve"],
        &["--nonsense"],
    ];
    for args in commands {
        let ended = fixture.holdfast(args)?;
        // A wrong usage may show the usage, so only the status and the stream are fixed.
        if ended.code() != Some(2) || !ended.out.is_empty() || ended.err.trim().is_empty() {
            let tail = ended.tail().join("; ");
            return wrong(format!("{}: {}, not 2 ({tail})", words(args), ended.how()));
        }
        if fixture.path("pool").exists() {
            return wrong(format!("{} made something", words(args)));
        }
    }
    // `run` speaks like env(1): its own failures are 125.
    for args in [
        &["run"][..],
        &["run", "--nonsense", "--", "true"],
        &["run", "--pool"],
    ] {
        let ended = fixture.holdfast(args)?;
        if !matches!(ended.code(), Some(2 | RUN_FAILED)) || !ended.out.is_empty() {
            return wrong(format!("{}: {}", words(args), ended.how()));
        }
    }
    Ok(())
}

fn missing_pool(fixture: &Fixture) -> Result<(), Stop> {
    for name in ["none", "none/below", "file/below"] {
        fs::write(fixture.path("file"), "mine")?;
        let pool = fixture.path(name).to_string_lossy().into_owned();
        fixture.refused(&["pool", "status", &pool], &[1])?;
        // fsck(8): 8 is an operational error.
        fixture.refused(&["pool", "check", &pool], &[8])?;
        fixture.refused(&["pool", "destroy", &pool], &[1])?;
        fixture.refused(&["serve", &pool], &[1])?;
        fixture.refused(&["run", "--pool", &pool, "--", "true"], &[RUN_FAILED])?;
        if fixture.path("none").exists() {
            return wrong("a command made the missing pool");
        }
    }
    Ok(())
}

fn not_a_pool(fixture: &Fixture) -> Result<(), Stop> {
    fs::create_dir(fixture.path("empty"))?;
    fs::create_dir(fixture.path("full"))?;
    fs::write(fixture.path("full/mine"), "mine")?;
    fs::write(fixture.path("full/meta.seg"), "not a segment")?;
    fs::create_dir(fixture.path("zeros"))?;
    fs::write(fixture.path("zeros/meta.seg"), vec![0; 1 << 20])?;
    fs::write(fixture.path("file"), "mine")?;
    let before = host_tree(&fixture.dir)?;
    for name in ["empty", "full", "zeros", "file"] {
        let pool = fixture.path(name).to_string_lossy().into_owned();
        fixture.refused(&["pool", "status", &pool], &[1])?;
        fixture.refused(&["pool", "check", &pool], &[4, 8])?;
        fixture.refused(&["serve", &pool], &[1])?;
        fixture.refused(&["run", "--pool", &pool, "--", "true"], &[RUN_FAILED])?;
        fixture.refused(&["pool", "destroy", &pool], &[1])?;
    }
    if host_tree(&fixture.dir)? != before {
        return wrong("a command changed what is no pool");
    }
    Ok(())
}

fn create_refuses(fixture: &Fixture) -> Result<(), Stop> {
    fs::create_dir(fixture.path("full"))?;
    fs::write(fixture.path("full/mine"), "mine")?;
    fs::write(fixture.path("file"), "mine")?;
    std::os::unix::fs::symlink("nowhere", fixture.path("dangling"))?;
    let pool = fixture.pool("pool", "64M")?;
    let before = host_tree(&fixture.path("full"))?;
    for name in [
        "full",
        "file",
        "file/below",
        "none/below",
        "dangling",
        "pool",
    ] {
        let path = fixture.path(name).to_string_lossy().into_owned();
        fixture.refused(&["pool", "create", &path, "--size", "64M"], &[1])?;
    }
    if host_tree(&fixture.path("full"))? != before || fs::read(fixture.path("file"))? != b"mine" {
        return wrong("create changed what was there");
    }
    fixture.intact(&pool)
}

fn sizes(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.path("pool").to_string_lossy().into_owned();
    let bad = [
        "0",
        "",
        "-1",
        "+",
        "M",
        "1X",
        "12Q",
        "1.5.2G",
        "0x10",
        "1",
        "512",
        "4K",
        "1e3",
        "18446744073709551616",
        "18446744073709551615",
        "16E",
        "9999999999999G",
        "1000T",
        "64 M",
        "64MM",
    ];
    for size in bad {
        fixture.refused(&["pool", "create", &pool, "--size", size], &[1, 2])?;
        if fixture.path("pool").exists() {
            return wrong(format!("--size {size} left something behind"));
        }
    }
    Ok(())
}

fn programs(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let host = |name: &str| fixture.path(name).to_string_lossy().into_owned();
    fs::write(fixture.path("plain"), "not a program")?;
    fs::create_dir(fixture.path("dir"))?;
    fs::write(fixture.path("garbage"), [0x7f, b'E', b'L', b'F', 9, 9, 9])?;
    fs::set_permissions(fixture.path("garbage"), fs::Permissions::from_mode(0o755))?;
    for (program, codes) in [
        ("no-such-program".into(), &[127][..]),
        (host("none"), &[127]),
        ("/hf/none".into(), &[127]),
        ("/hf/hello/below".into(), &[126, 127]),
        (host("plain"), &[126]),
        (host("dir"), &[126]),
        ("/hf/hello".into(), &[126]),
        (host("garbage"), &[126]),
        (String::new(), &[126, 127]),
    ] {
        let ended = fixture.run(&pool, &[&program])?;
        super::refusal(&ended, codes)
            .map_err(|why| Stop::Wrong(format!("program {program:?}: {why}")))?;
    }
    fixture.intact(&pool)
}

fn exit_status(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
    ] {
        let ended = fixture.run(&pool, &["sh", "-c", script])?;
        // By its own signal or by the shell's number for it.
        let signalled = ended.how() == "killed by signal 9" && code == 137;
        if ended.code() != Some(code) && !signalled {
            return wrong(format!("`{script}`: {}, not {code}", ended.how()));
        }
        if !ended.out.is_empty() {
            return wrong(format!("`{script}` wrote {:?}", ended.out));
        }
    }
    Ok(())
}

fn at(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let pool_word = pool.to_string_lossy().into_owned();
    fs::write(fixture.path("file"), "mine")?;
    fs::create_dir(fixture.path("full"))?;
    fs::write(fixture.path("full/mine"), "mine")?;
    let file = fixture.path("file").to_string_lossy().into_owned();
    for dir in [
        "",
        "/",
        "relative",
        "/proc",
        "/proc/self",
        &file,
        &format!("{file}/below"),
    ] {
        let args = ["run", "--pool", &pool_word, "--at", dir, "--", "true"];
        fixture.refused(&args, &[2, RUN_FAILED])?;
    }
    // A directory in use is refused, or its files are merely out of sight during the run.
    let full = fixture.path("full").to_string_lossy().into_owned();
    let write = format!("echo theirs >{full}/mine");
    let args = [
        "run", "--pool", &pool_word, "--at", &full, "--", "sh", "-c", &write,
    ];
    let ended = fixture.holdfast(&args)?;
    if ended.code() != Some(0) {
        super::refusal(&ended, &[2, RUN_FAILED]).map_err(Stop::Wrong)?;
    }
    if fs::read(fixture.path("full/mine"))? != b"mine" {
        return wrong("a run with --at on a directory in use changed the host's file");
    }
    fixture.intact(&pool)
}

fn report(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let pool = pool.to_string_lossy();
    for path in ["/nonexistent/report", "/proc/report", "/"] {
        let args = ["run", "--pool", &pool, "--report", path, "--", "true"];
        fixture.refused(&args, &[RUN_FAILED])?;
    }
    Ok(())
}

fn destroy_no_pool(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    fs::write(pool.join("mine"), "mine")?;
    let ended = fixture.holdfast(&["pool", "destroy", &word])?;
    if fs::read(pool.join("mine")).ok().as_deref() != Some(b"mine") {
        return wrong("destroy removed a file that is not the pool's");
    }
    if ended.code() == Some(0) {
        return Ok(());
    }
    super::refusal(&ended, &[1]).map_err(Stop::Wrong)?;
    fs::remove_file(pool.join("mine"))?;
    fixture.intact(&pool)?;
    fixture.done(&["pool", "destroy", &word])?;
    if pool.exists() {
        wrong("destroy left the directory")
    } else {
        Ok(())
    }
}
