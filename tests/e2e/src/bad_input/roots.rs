//! Root in the pool of another user: it works there as root, the service and what lies in the
//! pool's directory stay that user's, and nothing that stands there leads root anywhere.

use super::{Case, Fixture, Stop, wrong};
use crate::process::{self, Ended};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub const CASES: &[(&str, Case)] = &[
    ("root in someone's pool", root_works),
    ("root and a service that dies", service_dies),
    ("root in a hostile directory", hostile),
    ("a file of root's in someone's pool", moved_in),
];

const NOBODY: u32 = 65534;

struct Theirs<'f> {
    fixture: &'f Fixture,
    top: PathBuf,
    pool: String,
}

impl Theirs<'_> {
    /// A pool of nobody, in a directory of nobody.
    fn new(fixture: &Fixture) -> Result<Theirs<'_>, Stop> {
        fixture.need_root()?;
        let top = fixture.path("theirs");
        fs::create_dir(&top)?;
        std::os::unix::fs::chown(&top, Some(NOBODY), Some(NOBODY))?;
        let pool = top.join("pool").to_string_lossy().into_owned();
        let theirs = Theirs { fixture, top, pool };
        let made = theirs.user(&["pool", "create", &theirs.pool, "--size", "64M"])?;
        match made.code() {
            Some(0) => Ok(theirs),
            // The checkout, or where the tests work, is not for others.
            _ => Err(Stop::Skip(format!(
                "nobody cannot work here: {}",
                made.err.trim()
            ))),
        }
    }

    /// The command by the user who has the pool.
    fn user(&self, args: &[&str]) -> Result<Ended, Stop> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(&self.fixture.holdfast).args(args);
        process::clean(&mut command, &self.top);
        command.current_dir(&self.top);
        Ok(process::run(&mut command, super::LIMIT, &self.fixture.dir)?)
    }

    fn root_says(&self, script: &str, expected: &str) -> Result<(), Stop> {
        let ended = self
            .fixture
            .holdfast(&["run", "--pool", &self.pool, "--", "bash", "-c", script])?;
        self.says("root", &ended, expected)
    }

    fn user_says(&self, script: &str, expected: &str) -> Result<(), Stop> {
        let ended = self.user(&["run", "--pool", &self.pool, "--", "bash", "-c", script])?;
        self.says("the user", &ended, expected)
    }

    fn says(&self, who: &str, ended: &Ended, expected: &str) -> Result<(), Stop> {
        if ended.code() == Some(0) && ended.out == expected {
            return Ok(());
        }
        let (out, err) = (ended.out.trim(), ended.err.trim());
        wrong(format!(
            "{who}: {}, said {out:?} {err:?}, not {expected:?}",
            ended.how()
        ))
    }

    /// Everything in the pool's directory belongs to the user.
    fn belongs(&self) -> Result<(), Stop> {
        for entry in fs::read_dir(&self.pool)? {
            let entry = entry?;
            if fs::symlink_metadata(entry.path())?.uid() != NOBODY {
                return wrong(format!("{} is not the user's", entry.path().display()));
            }
        }
        Ok(())
    }
}

fn root_works(fixture: &Fixture) -> Result<(), Stop> {
    let theirs = Theirs::new(fixture)?;
    theirs.user_says(
        "umask 077; mkdir /hf/private; echo secret >/hf/private/f; echo own >/hf/own",
        "",
    )?;
    theirs.root_says(
        "cat /hf/private/f; echo more >>/hf/own; mkdir -m 700 /hf/roots; echo x >/hf/roots/f
        stat -c '%U %a' /hf/roots /hf/own; chown nobody /hf/roots/f
        mkfifo /hf/pipe; chown nobody /hf/pipe
        cat /hf/pipe 2>/dev/null || echo refused",
        "secret\nroot 700\nnobody 600\nrefused\n",
    )?;
    theirs.user_says(
        "cat /hf/own; cat /hf/roots/f 2>/dev/null || echo refused
        cat /hf/pipe & echo through >/hf/pipe; wait",
        "own\nmore\nrefused\nthrough\n",
    )?;
    // Both at once, in one session.
    let mut command = Command::new(&fixture.holdfast);
    command.args(["run", "--pool", &theirs.pool, "--", "bash", "-c"]);
    command.arg("for n in $(seq 1000); do echo $n >/hf/r$n; done; sleep 0.3; ls /hf | wc -l");
    process::clean(&mut command, &fixture.dir);
    let root = command.stdout(Stdio::piped()).spawn()?;
    theirs.user_says(
        "for n in $(seq 1000); do echo $n >/hf/u$n; done; cat /hf/u1000",
        "1000\n",
    )?;
    if !root.wait_with_output()?.status.success() {
        return wrong("root beside the user failed");
    }
    theirs.belongs()?;

    for args in [
        ["pool", "status", &theirs.pool].as_slice(),
        &["pool", "check", &theirs.pool],
        &["kv", &theirs.pool, "keys", "put", "k", "v"],
        &["snapshot", &theirs.pool, "create", "s"],
        &["snapshot", &theirs.pool, "delete", "s"],
        &["pool", "resize", &theirs.pool, "128M"],
    ] {
        fixture.done(args)?;
        theirs.belongs()?;
    }
    let got = theirs.user(&["kv", &theirs.pool, "keys", "get", "k"])?;
    theirs.says("the user", &got, "v")?;
    fixture.done(&["pool", "destroy", &theirs.pool])?;
    Ok(())
}

fn service_dies(fixture: &Fixture) -> Result<(), Stop> {
    let theirs = Theirs::new(fixture)?;
    let script = "for n in $(seq 5); do
            echo $n >/hf/f$n; sync /hf/f$n
            kill -9 $(cat \"$0\"/lock | tr -cd '0-9 ' | cut -d' ' -f1); sleep 0.2
        done; cat /hf/f?";
    let args = [
        "run",
        "--pool",
        &theirs.pool,
        "--",
        "bash",
        "-c",
        script,
        &theirs.pool,
    ];
    let ended = fixture.holdfast(&args)?;
    theirs.says("root", &ended, "1\n2\n3\n4\n5\n")?;
    theirs.belongs()?;
    theirs.user_says("cat /hf/f?", "1\n2\n3\n4\n5\n")
}

/// The user puts links in the place of what root might open or make.
fn hostile(fixture: &Fixture) -> Result<(), Stop> {
    let theirs = Theirs::new(fixture)?;
    let target = fixture.path("target");
    fs::create_dir(&target)?;
    fs::write(target.join("file"), "untouched")?;
    let place = |name: &str| Path::new(&theirs.pool).join(name);
    for (name, to) in [
        ("service.log", "file"),
        ("sock", "file"),
        ("lock", "file"),
        ("base", "file"),
        ("grants-0", "file"),
        ("empty", ""),
        ("special", ""),
        ("meta.seg", "file"),
    ] {
        let aside = fixture.path("aside");
        let was_there = fs::rename(place(name), &aside).is_ok();
        symlink(target.join(to), place(name))?;
        for args in [
            [
                "run",
                "--pool",
                &theirs.pool,
                "--",
                "bash",
                "-c",
                "echo x >/hf/x; mkfifo /hf/p; cat /hf/p",
            ]
            .as_slice(),
            &["pool", "status", &theirs.pool],
            &["pool", "check", &theirs.pool],
            &["kv", &theirs.pool, "keys", "put", "k", "v"],
        ] {
            // Refused or not: nothing waits, and nothing happens elsewhere.
            if fixture.holdfast(args)?.code().is_none() {
                return wrong(format!("{name}: {args:?} did not end"));
            }
        }
        let left: Vec<_> = fs::read_dir(&target)?
            .filter_map(|e| Some(e.ok()?.file_name()))
            .collect();
        let meta = fs::metadata(target.join("file"))?;
        if left != ["file"] || fs::read(target.join("file"))? != b"untouched" || meta.uid() != 0 {
            return wrong(format!("{name} led root to {left:?}"));
        }
        let _ = fs::remove_file(place(name));
        if was_there {
            let _ = fs::remove_dir_all(place(name));
            fs::rename(&aside, place(name))?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    theirs.user_says("rm -f /hf/x /hf/p; ls /hf", "keys\n")
}

/// A file of root in the place of the user's own does not make root its service.
fn moved_in(fixture: &Fixture) -> Result<(), Stop> {
    let theirs = Theirs::new(fixture)?;
    let place = |name: &str| Path::new(&theirs.pool).join(name);
    theirs.user_says("echo x >/hf/x", "")?;
    let aside = fixture.path("aside");
    fs::rename(place("meta.seg"), &aside)?;
    fs::copy(&aside, place("meta.seg"))?;
    for args in [
        ["pool", "status", &theirs.pool].as_slice(),
        &["pool", "check", &theirs.pool],
        &["serve", &theirs.pool],
        &["run", "--pool", &theirs.pool, "--", "true"],
        &["kv", &theirs.pool, "keys", "get", "k"],
    ] {
        let ended = fixture.holdfast(args)?;
        if matches!(ended.code(), None | Some(0)) || !ended.err.contains("its directory") {
            return wrong(format!("{args:?}: {} {}", ended.how(), ended.err.trim()));
        }
    }
    fs::rename(&aside, place("meta.seg"))?;
    theirs.user_says("ls /hf", "x\n")
}
