//! `holdfast.h` from C and C++, against an installed tree that was moved after it was installed.

use super::{new_pool, repository};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::{Ended, on_path};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("c interface", interface),
    ("c threads and processes", threads),
    ("c snapshots", snapshots),
    ("c quotas", quotas),
    ("c volumes", volumes),
    ("c++ interface", plusplus),
];

const STRICT: &[&str] = &["-O1", "-Wall", "-Wextra", "-pedantic", "-Werror"];

fn interface(fixture: &Fixture) -> Result<(), Stop> {
    let tree = Tree::new(fixture)?;
    for standard in ["c99", "c11"] {
        tree.run(fixture, "gcc", standard, "interface.c", &[])?;
    }
    Ok(())
}

fn threads(fixture: &Fixture) -> Result<(), Stop> {
    let more = ["-D_POSIX_C_SOURCE=200809L", "-pthread"];
    Tree::new(fixture)?.run(fixture, "gcc", "c99", "threads.c", &more)
}

fn snapshots(fixture: &Fixture) -> Result<(), Stop> {
    Tree::new(fixture)?.run(fixture, "gcc", "c99", "snapshots.c", &[])
}

fn quotas(fixture: &Fixture) -> Result<(), Stop> {
    Tree::new(fixture)?.run(fixture, "gcc", "c99", "quotas.c", &[])
}

fn volumes(fixture: &Fixture) -> Result<(), Stop> {
    let more = ["-D_POSIX_C_SOURCE=200809L"];
    Tree::new(fixture)?.run(fixture, "gcc", "c99", "volumes.c", &more)
}

fn plusplus(fixture: &Fixture) -> Result<(), Stop> {
    let tree = Tree::new(fixture)?;
    for standard in ["c++11", "c++20"] {
        tree.run(fixture, "g++", standard, "plusplus.cpp", &[])?;
    }
    Ok(())
}

/// The installed tree at another place.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new(fixture: &Fixture) -> Result<Tree, Stop> {
        for program in ["gcc", "g++", "pkg-config"] {
            if !on_path(program) {
                return Err(Stop::Skip(format!("needs {program}")));
            }
        }
        let from = fixture.holdfast.parent().and_then(|bin| bin.parent());
        let from = from.ok_or(Stop::Wrong("HOLDFAST is not in a tree".into()))?;
        let root = fixture.path("moved");
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(from).arg(&root);
        ended(fixture, copy)?;
        Ok(Tree { root })
    }

    /// What pkg-config says of the moved tree.
    fn flags(&self, fixture: &Fixture) -> Result<Vec<String>, Stop> {
        let mut command = Command::new("env");
        let path = self.root.join("lib/pkgconfig");
        command.arg(format!("PKG_CONFIG_PATH={}", path.display()));
        command.args(["pkg-config", "--cflags", "--libs", "holdfast"]);
        let said = ended(fixture, command)?.out;
        Ok(said.split_whitespace().map(String::from).collect())
    }

    /// Builds a program of tests/c and runs it on a new pool, which must please it.
    fn run(
        &self,
        fixture: &Fixture,
        compiler: &str,
        standard: &str,
        name: &str,
        more: &[&str],
    ) -> Result<(), Stop> {
        let source = repository("tests/c")?.join(name);
        match self
            .build_and_run(fixture, [compiler, standard], &source, more)?
            .as_str()
        {
            "all as it should be\n" => Ok(()),
            said => wrong(format!("{name} said {said:?}")),
        }
    }

    /// Builds a program.
    fn build(
        &self,
        fixture: &Fixture,
        [compiler, standard]: [&str; 2],
        source: &Path,
        more: &[&str],
    ) -> Result<PathBuf, Stop> {
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let program = fixture.path(&format!("{name}.{standard}"));
        let library = self.root.join("lib");
        let mut build = Command::new(compiler);
        build
            .arg(format!("-std={standard}"))
            .args(STRICT)
            .args(more);
        build.arg(source).arg("-o").arg(&program);
        build.args(self.flags(fixture)?);
        build.arg(format!("-Wl,-rpath,{}", library.display()));
        ended(fixture, build)?;
        Ok(program)
    }

    /// Builds a program and gives what it says when it runs on a new pool.
    fn build_and_run(
        &self,
        fixture: &Fixture,
        how: [&str; 2],
        source: &Path,
        more: &[&str],
    ) -> Result<String, Stop> {
        let program = self.build(fixture, how, source, more)?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        // Neither HOLDFAST nor the PATH names the command: the library finds it.
        let pool = new_pool(fixture, &format!("pool.{name}"))?;
        let mut run = Command::new(&program);
        run.arg(&pool);
        let said = ended(fixture, run)?.out;
        fixture.done(&["pool", "check", &pool])?;
        Ok(said)
    }
}

/// Builds a program of tests/c, which any user may run.
pub fn build(fixture: &Fixture, name: &str, more: &[&str]) -> Result<PathBuf, Stop> {
    let source = repository("tests/c")?.join(name);
    Tree::new(fixture)?.build(fixture, ["gcc", "c99"], &source, more)
}

/// As everybody builds: what a C program says on a new pool.
pub fn build_and_run(fixture: &Fixture, source: &Path) -> Result<String, Stop> {
    Tree::new(fixture)?.build_and_run(fixture, ["gcc", "c99"], source, &[])
}

/// The end of a command that must not fail.
fn ended(fixture: &Fixture, command: Command) -> Result<Ended, Stop> {
    let shown = format!("{command:?}");
    let ended = fixture.end_of(command)?;
    match ended.code() {
        Some(0) => Ok(ended),
        _ => wrong(format!(
            "{shown}: {}: {}",
            ended.how(),
            ended.tail().join("; ")
        )),
    }
}
