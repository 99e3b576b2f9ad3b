//! What docs/kv.md, docs/volumes.md and docs/copying.md show is so: commands and what they print,
//! the C program, the Rust program.

use super::{interface, new_pool, repository, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::fs;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("guide commands", commands),
    ("volume guide commands", volume_commands),
    ("copying guide commands", copying_commands),
    ("guide c", c),
    ("guide rust", rust),
];

const KV: &str = "docs/kv.md";
const VOLUMES: &str = "docs/volumes.md";
const COPYING: &str = "docs/copying.md";

/// The blocks of a guide in a language.
fn blocks(guide: &str, language: &str) -> Result<Vec<String>, Stop> {
    let text = fs::read_to_string(repository(guide)?)?;
    let found = of_language(&text, language);
    match found.is_empty() {
        true => wrong(format!("the guide shows nothing in {language}")),
        false => Ok(found),
    }
}

fn of_language(text: &str, language: &str) -> Vec<String> {
    let (start, mut found) = (format!("```{language}"), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let block: Vec<&str> = lines
                .by_ref()
                .take_while(|l| !l.starts_with("```"))
                .collect();
            if line == start {
                found.push(block.join("\n") + "\n");
            }
        }
    }
    found
}

fn commands(fixture: &Fixture) -> Result<(), Stop> {
    commands_of(fixture, KV)
}

fn volume_commands(fixture: &Fixture) -> Result<(), Stop> {
    commands_of(fixture, VOLUMES)
}

fn copying_commands(fixture: &Fixture) -> Result<(), Stop> {
    commands_of(fixture, COPYING)
}

/// All commands, one after the other in one home, each with what it says on either stream.
fn commands_of(fixture: &Fixture, guide: &str) -> Result<(), Stop> {
    let shown = blocks(guide, "console")?.concat();
    let mut text = String::from("export PATH=$(dirname \"$hf\"):$PATH; set +e\n");
    for command in shown.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let quoted = command.replace('\'', "'\\''");
        text += &format!("printf '%s\\n' '$ {quoted}'\n{command}\n");
    }
    let said = script(fixture, "", &format!("{{ {text} }} 2>&1"))?;
    // The guides show the home of somebody else.
    let said = said.replace(&*fixture.dir.to_string_lossy(), "/srv/ada");
    let (said, shown) = (without_promises(&said), without_promises(&shown));
    for (line, expected) in said.lines().zip(shown.lines()) {
        super::expect("a line", line, expected)?;
    }
    super::expect("all lines", &said, &shown)
}

/// What `pool create` promises depends on where the test runs.
fn without_promises(text: &str) -> String {
    let is_promise = |line: &&str| line.split(": survives the ").count() > 1;
    let lines = text.lines().filter(|line| !is_promise(line));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Built by the commands that the guide shows after it, and again as everybody builds.
fn c(fixture: &Fixture) -> Result<(), Stop> {
    let examples = blocks(KV, "c")?;
    for (n, block) in examples.iter().enumerate() {
        let source = fixture.path(&format!("example{n}.c"));
        fs::write(&source, block)?;
        let said = interface::build_and_run(fixture, &source)?;
        super::expect("the C example", &said, "ada 1815\n")?;
    }
    let shown = blocks(KV, "sh")?;
    let Some(build) = shown.iter().find(|block| block.contains("cc users.c")) else {
        return wrong("the guide does not say how the C example is built");
    };
    fs::write(fixture.path("users.c"), examples.concat())?;
    let text = format!("PREFIX=$(dirname \"$hf\")/..\n{build}");
    let said = script(fixture, "", &text)?;
    super::expect("the C example as it is shown", &said, "ada 1815\n")
}

/// The program was built from a file that holds the same text, as a test of this crate says.
fn rust(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let mut command = Command::new("env");
    command.arg(format!("HOLDFAST={}", fixture.holdfast.display()));
    command.arg(repository("examples/addresses")?).arg(&pool);
    let ended = fixture.end_of(command)?;
    if ended.code() != Some(0) {
        return wrong(format!("{}: {}", ended.how(), ended.tail().join("; ")));
    }
    super::expect("the Rust example", &ended.out, "grace 4\nalan 4\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rust_example_is_the_one_that_is_built() {
        let guide = include_str!("../../../../docs/kv.md");
        let built = include_str!("../../../../crates/holdfast/examples/addresses.rs");
        let code: String = built
            .lines()
            .skip_while(|line| line.starts_with("//!") || line.is_empty())
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(of_language(guide, "rust"), [code]);
    }
}
