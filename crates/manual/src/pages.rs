//! Manual pages: one for each command, and for each command below it; and one for a file.
//!
//! Invariant: a page's synopsis is the usage that `--help` prints.

use clap::Command;
use clap_mangen::Man;
use holdfast_cli::whole::whole;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// The day of the newest change to the text.
const DATE: &str = "2026-11-28";

/// What clap does not know: sections in roff, by the page's name.
const SECTIONS: &[(&str, &str)] = &[
    ("holdfast", include_str!("../sections/holdfast.roff")),
    ("holdfast-run", include_str!("../sections/run.roff")),
    ("holdfast-serve", include_str!("../sections/serve.roff")),
    (
        "holdfast-pool-check",
        include_str!("../sections/check.roff"),
    ),
];

/// The page of what `holdfast serve --config` reads, but for its title.
const CONFIGURATION: &str = include_str!("../sections/holdfast.toml.roff");

/// Writes the pages of file formats into a directory, which is made.
pub fn write_formats(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let version = env!("CARGO_PKG_VERSION");
    let title = format!(".TH HOLDFAST.TOML 5 {DATE} \"Holdfast {version}\" Holdfast\n");
    fs::write(dir.join("holdfast.toml.5"), title + CONFIGURATION)
}

/// Writes the pages of all commands into a directory, which is made.
pub fn write_all(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut all = whole();
    all.build();
    for command in visible(&all) {
        let name = name_of(command);
        fs::write(dir.join(format!("{name}.1")), page(command, &all)?)?;
    }
    Ok(())
}

/// A command and all below it that are not hidden.
fn visible(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    std::iter::once(command)
        .chain(below.flat_map(visible))
        .collect()
}

/// Such as `holdfast-pool-create`.
fn name_of(command: &Command) -> String {
    let words = command.get_bin_name().unwrap_or(command.get_name());
    words.replace(' ', "-")
}

fn page(command: &Command, all: &Command) -> io::Result<Vec<u8>> {
    let name = name_of(command);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_string();
    let shown = command.clone().display_name(&name).override_usage(usage);
    let has_options = shown.get_arguments().any(|arg| !arg.is_hide_set());
    let man = Man::new(shown)
        .title(name.to_uppercase())
        .date(DATE)
        .source(concat!("Holdfast ", env!("CARGO_PKG_VERSION")))
        .manual("Holdfast");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if has_options {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    for (_, sections) in SECTIONS.iter().filter(|(of, _)| *of == name) {
        text.write_all(sections.as_bytes())?;
    }
    see_also(&mut text, &name, all)?;
    Ok(without_repetition(&String::from_utf8_lossy(&text)).into_bytes())
}

/// Each section begins with the same definitions of which one is enough, and some paragraphs break
/// a line where one has just ended, which mandoc(1) warns about.
fn without_repetition(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for line in text.lines() {
        let line = if line.is_empty() { ".sp" } else { line };
        let defines = line.contains(".ds Aq ");
        let breaks = |line: &str| [".br", ".sp"].contains(&line);
        let twice = kept.last().is_some_and(|last| breaks(last) && breaks(line));
        match (defines && kept.contains(&line), twice) {
            (true, _) => {}
            // Of the two, the one that leaves a line free.
            (false, true) if line == ".br" => {}
            (false, true) => *kept.last_mut().unwrap_or(&mut "") = line,
            (false, false) => kept.push(line),
        }
    }
    kept.join("\n") + "\n"
}

/// The page above, or for the first page nothing: it lists what is below.
fn see_also(text: &mut Vec<u8>, name: &str, all: &Command) -> io::Result<()> {
    let names: Vec<String> = visible(all).into_iter().map(name_of).collect();
    let above = name.rsplit_once('-').map(|(above, _)| above.to_string());
    let Some(above) = above.filter(|above| names.contains(above)) else {
        return Ok(());
    };
    let beside = names.iter().filter(|other| {
        let same = other
            .rsplit_once('-')
            .is_some_and(|(a, _)| a == above && above != "holdfast");
        same && *other != name
    });
    let others: Vec<&String> = std::iter::once(&above).chain(beside).collect();
    writeln!(text, ".SH \"SEE ALSO\"")?;
    for (n, other) in others.iter().enumerate() {
        let comma = if n + 1 < others.len() { " ," } else { "" };
        writeln!(text, ".BR {} (1){comma}", other.replace('-', "\\-"))?;
    }
    Ok(())
}
