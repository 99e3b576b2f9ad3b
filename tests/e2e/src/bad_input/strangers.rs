//! Programs that do not see the pool: their user is told, and nothing that they write under the
//! pool's name, or in a working directory in the pool, lands on the host.

use super::{Case, Fixture, Stop, wrong};
use crate::process::{self, Ended};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[("static program", static_one), ("Go program", go)];

const IN_C: &str = r#"
#include <stdio.h>
#include <sys/stat.h>
int main(int count, char **names) {
    for (int n = 1; n < count; n++) {
        char path[4096];
        FILE *file;
        snprintf(path, sizeof path, "%s/made", names[n]);
        printf("%d ", mkdir(names[n], 0777)), printf("%d ", mkdir(path, 0777));
        snprintf(path, sizeof path, "%s/file", names[n]);
        file = fopen(path, "w"), printf("%d\n", file ? 0 : -1);
    }
}"#;

/// With C in it, so that it is dynamically linked.
const IN_GO: &str = r#"package main
// #include <stdio.h>
// static void hello(void) { fflush(stdout); }
import "C"
import ("fmt"; "os")
func result(err error) int { if err == nil { return 0 }; return -1 }
func main() {
    C.hello()
    for _, name := range os.Args[1:] {
        first, second := result(os.Mkdir(name, 0777)), result(os.Mkdir(name + "/made", 0777))
        fmt.Println(first, second, result(os.WriteFile(name + "/file", []byte("x"), 0666)))
    }
}"#;

fn static_one(fixture: &Fixture) -> Result<(), Stop> {
    fs::write(fixture.path("p.c"), IN_C)?;
    let built = build(fixture, "gcc", &["-static", "-w", "-o", "p", "p.c"])?;
    told_and_kept_out(fixture, &built, "is not dynamically linked")
}

fn go(fixture: &Fixture) -> Result<(), Stop> {
    fs::write(fixture.path("p.go"), IN_GO)?;
    // Where Go's own packages install it, or where it is on the path.
    let place = "/usr/local/go/bin/go";
    let go = if Path::new(place).exists() {
        place
    } else {
        "go"
    };
    let built = build(fixture, go, &["build", "-o", "p", "p.go"])?;
    told_and_kept_out(fixture, &built, "is a Go program")
}

fn build(fixture: &Fixture, compiler: &str, args: &[&str]) -> Result<PathBuf, Stop> {
    if !compiler.starts_with('/') && !process::on_path(compiler) {
        return Err(Stop::Skip(format!("{compiler} is not installed")));
    }
    let mut command = Command::new(compiler);
    command.args(args).env("GOCACHE", fixture.path("cache"));
    command.env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1");
    let ended = fixture.end_of(command)?;
    match ended.code() {
        Some(0) => Ok(fixture.path("p")),
        _ => wrong(format!("{compiler}: {} {}", ended.how(), ended.err.trim())),
    }
}

fn told_and_kept_out(fixture: &Fixture, program: &Path, what: &str) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let (at, report) = (fixture.path("at"), fixture.path("report"));
    let texts = [&pool, &at, &report, program].map(|path| path.to_string_lossy().into_owned());
    let [pool_text, at_text, report_text, program_text] = texts;
    let run = |rest: &[&str]| {
        let start = [
            "run",
            "--pool",
            &pool_text,
            "--at",
            &at_text,
            "--report",
            &report_text,
        ];
        fixture.holdfast(&[&start, rest].concat())
    };
    let told = |ended: &Ended, out: &str| {
        let named = fs::read_to_string(&report)?.contains(&format!("\"{program_text}\""));
        let is_told = ended.err.contains(what) && ended.err.lines().count() == 1;
        if ended.code() == Some(0) && ended.out == out && is_told && named {
            return Ok(());
        }
        let (out, err) = (ended.out.trim(), ended.err.trim());
        wrong(format!("{}, named {named}: {out} {err}", ended.how()))
    };

    let inside = format!("{at_text}/new");
    told(
        &run(&["--", &program_text, &at_text, &inside])?,
        "-1 -1 -1\n-1 -1 -1\n",
    )?;
    let shell = r#""$0" "$1" && cd "$2" && ls"#;
    told(
        &run(&["--", "bash", "-c", shell, &program_text, &inside, &at_text])?,
        "-1 -1 -1\nd\nhello\nsoft\n",
    )?;
    let shell = r#"cd "$1" && "$0" . new"#;
    told(
        &run(&["--", "bash", "-c", shell, &program_text, &at_text])?,
        "-1 -1 -1\n-1 -1 -1\n",
    )?;
    // What was not given anything of the pool says nothing, and does its work.
    let shell = r#""$0" made-outside"#;
    let ended = run(&["--", "bash", "-c", shell, &program_text])?;
    if ended.out != "0 0 0\n" || !ended.err.is_empty() {
        return wrong(format!(
            "outside: {} {}",
            ended.out.trim(),
            ended.err.trim()
        ));
    }
    stop_is_taken_away(fixture, &pool_text, &at)?;
    fixture.intact(&pool)
}

fn stop_is_taken_away(fixture: &Fixture, pool: &str, at: &Path) -> Result<(), Stop> {
    let at_text = at.to_string_lossy();
    let run = |program: &[&str]| {
        let start = ["run", "--pool", pool, "--at", &at_text, "--"];
        fixture.holdfast(&[&start, program].concat())
    };
    // A killed run leaves what kept them out, and the next one takes it away.
    let command = format!(
        "exec {:?} run --pool {pool:?} --at {at:?} -- bash -c 'kill -9 $PPID'",
        fixture.holdfast
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &command]);
    fixture.end_of(shell)?;
    let left = fs::symlink_metadata(at).is_ok();
    let ended = run(&["ls", &at_text])?;
    if !left || ended.code() != Some(0) || fs::symlink_metadata(at).is_ok() {
        return wrong(format!(
            "after a kill: {left}, {} {}",
            ended.how(),
            ended.err.trim()
        ));
    }
    // Somebody's directory stays, as it was.
    fs::create_dir(at)?;
    let ended = run(&["ls", &at_text])?;
    if ended.code() != Some(0) || fs::read_dir(at)?.next().is_some() {
        return wrong(format!("an empty directory: {}", ended.how()));
    }
    Ok(())
}
