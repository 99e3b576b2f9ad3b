//! What `make install` gives beside programs and libraries: manual pages and completion; and that
//! it can be put somewhere and taken away again.

use super::{expect, repository, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::on_path;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("manual pages", pages),
    ("manual pages are regenerated", regenerated),
    ("completion in bash", bash),
    ("completion of very many names", names_are_quick),
    ("completion in fish and zsh", other_shells),
    ("install and uninstall", uninstall),
    ("programs without symbols", stripped),
    ("the command alone", alone),
    ("an older cargo", older_cargo),
    ("debian package", package),
    ("debian package without faults", lintian),
];

fn need(programs: &[&str]) -> Result<(), Stop> {
    match programs.iter().find(|program| !on_path(program)) {
        Some(missing) => Err(Stop::Skip(format!("needs {missing}"))),
        None => Ok(()),
    }
}

fn prefix(fixture: &Fixture) -> Result<PathBuf, Stop> {
    let prefix = fixture.holdfast.parent().and_then(|bin| bin.parent());
    let prefix = prefix.filter(|prefix| prefix.join("share/man/man1").exists());
    let missing = Stop::Wrong("the command is not installed".into());
    prefix.map(PathBuf::from).ok_or(missing)
}

/// The words of all commands that `--help` lists, from the words above them on.
fn commands(fixture: &Fixture, above: &[String]) -> Result<Vec<Vec<String>>, Stop> {
    let mut words = above.to_vec();
    words.push("--help".into());
    let help = fixture.done(&words)?.out;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let mut all = vec![above.to_vec()];
    for line in listed.take_while(|line| !line.is_empty()) {
        // Deeper lines go on with what is said of a command.
        let Some(name) = line.strip_prefix("  ").filter(|l| !l.starts_with(' ')) else {
            continue;
        };
        let name = name.split_whitespace().next().unwrap_or_default();
        let mut below = above.to_vec();
        if above
            .first()
            .is_some_and(|first| ["kv", "snapshot", "volume"].contains(&&**first))
        {
            below.truncate(1);
            below.push("POOL".into());
            below.extend((above[0] == "kv").then(|| "KEYSPACE".to_string()));
        }
        below.push(name.into());
        all.extend(commands(fixture, &below)?);
    }
    Ok(all)
}

/// Every command has a page with every option that its help has, and no page has a fault.
fn pages(fixture: &Fixture) -> Result<(), Stop> {
    let dir = prefix(fixture)?.join("share/man/man1");
    let mut found = 0;
    for words in commands(fixture, &[])? {
        let named = words
            .iter()
            .filter(|w| !["POOL", "KEYSPACE"].contains(&&***w));
        let name = named.fold("holdfast".to_string(), |name, word| name + "-" + word);
        let Ok(page) = fs::read_to_string(dir.join(format!("{name}.1"))) else {
            return wrong(format!("{name} has no page"));
        };
        let help = fixture
            .done(&[words.clone(), vec!["--help".into()]].concat())?
            .out;
        for option in help
            .split_whitespace()
            .filter(|word| word.starts_with("--"))
        {
            let end = |c: char| !c.is_ascii_lowercase() && c != '-';
            let option = option.split(end).next().unwrap_or_default();
            if option.len() > 2 && !page.contains(&option.replace('-', "\\-")) {
                return wrong(format!("the page {name} lacks {option}"));
            }
        }
        found += 1;
    }
    expect(
        "pages",
        &fs::read_dir(&dir)?.count().to_string(),
        &found.to_string(),
    )?;
    let pages = dir.with_file_name("man");
    need(&["mandoc"])?;
    let lint = format!(
        "mandoc -T lint -W warning {}[15]/*.[15] || true",
        pages.display()
    );
    expect("what mandoc finds", &script(fixture, "", &lint)?, "")?;
    need(&["groff"])?;
    let groff = format!(
        "groff -man -ww -Tutf8 -z {}[15]/*.[15] 2>&1",
        pages.display()
    );
    expect("what groff finds", &script(fixture, "", &groff)?, "")
}

fn regenerated(fixture: &Fixture) -> Result<(), Stop> {
    let generator = repository("holdfast-manual")?;
    if !generator.exists() {
        return Err(Stop::Skip("needs holdfast-manual beside the tests".into()));
    }
    let text = format!(
        "{} again; cd again; find * -type f | sort | tee /dev/stderr | \
        while read -r f; do cmp \"$f\" {}/\"$f\"; done",
        generator.display(),
        prefix(fixture)?.display()
    );
    expect("differences", &script(fixture, "", &text)?, "")
}

/// Types into a bash of its own, behind a terminal, and shows what stands there after a tab.
const TERMINAL: &str = r#"
import os, pty, sys
script, path, *lines = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    env = {"PATH": path + ":/usr/bin:/bin", "HOME": os.getcwd(), "TERM": "dumb", "PS1": "> ",
           "INPUTRC": "/dev/null"}
    os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], env)
os.write(terminal, f". {script}; stty -echo cols 500\n".encode())
for line in lines:
    # What was completed becomes the words of an echo.
    os.write(terminal, (line + "\t.\x01echo '=' \n").encode())
os.write(terminal, b"exit\n")
said = b""
while True:
    try:
        more = os.read(terminal, 65536)
    except OSError:
        break
    if not more:
        break
    said += more
os.waitpid(pid, 0)
for line in said.decode().replace("\r", "\n").split("\n"):
    line = line.removeprefix("> ")
    if line.startswith("= holdfast"):
        print(line[2:])
"#;

/// What there is to complete. Nobody asks a service for it, or leaves one behind.
const NAMES: &str = r#"
for pool in p q; do "$hf" pool create $pool --size 64M >/dev/null; done; "$hf" cp only-file q:
mkdir dir; touch dir/only-one dir/first; "$hf" cp -r dir p:; rm -r dir
"$hf" kv p users put ada 1815; "$hf" snapshot p create monday
"$hf" volume p create dir/disk --size 1M
"#;

/// Also of a directory of very many names, of what is no pool, and of pools of others.
fn names_are_quick(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
asked() { _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$1 HOLDFAST_COMPLETE=bash "$hf" -- "${@:2}" 2>&1; }
"$hf" pool create p --size 256M >/dev/null; "$hf" kv p users put ada 1815
"$hf" run --pool p --at "$PWD/hf" -- python3 -c "import os
os.mkdir('$PWD/hf/many')
for n in range(100000): open(f'$PWD/hf/many/{n}', 'w').close()"
stat -c '%n %Y %s' p/* | grep -v service.log >before
begun=$EPOCHREALTIME
asked 3 holdfast kv p u; echo; asked 2 holdfast cp p:many/4 | wc -w; asked 2 holdfast cp p:none/
awk "BEGIN { print ($EPOCHREALTIME - $begun < 1) }"
stat -c '%n %Y %s' p/* | grep -v service.log | cmp - before
export HOME=$PWD; asked 3 holdfast kv '~/p' u; echo; cp -r p bad
truncate -s 100 bad/meta.seg; asked 3 holdfast kv bad u; echo
head -c $(stat -c %s p/meta.seg) /dev/zero >bad/meta.seg; asked 3 holdfast kv bad u; echo
size=$(stat -c %s p/meta.seg)
head -c $size /dev/urandom >bad/meta.seg; asked 2 holdfast cp bad:; echo
chmod 0 p/meta.seg; asked 3 holdfast kv p zz; echo; chmod 600 p/meta.seg
"#;
    let said = script(fixture, "", text)?;
    let mut lines = said.lines();
    expect("a keyspace", lines.next().unwrap_or_default(), "users")?;
    let many: u32 = lines.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    expect("many names", if many > 10 { "many" } else { &said }, "many")?;
    expect(
        "the rest",
        &lines.collect::<Vec<_>>().join("|"),
        "1|users||||",
    )
}

/// What is typed before a tab, and what the line is then; a dot is typed behind it.
const TYPED: [(&str, &str); 22] = [
    ("holdfast sna", "holdfast snapshot ."),
    ("holdfast pool resi", "holdfast pool resize ."),
    (
        "holdfast pool create x --roo",
        "holdfast pool create x --root-squash .",
    ),
    (
        "holdfast pool create x --medium me",
        "holdfast pool create x --medium memory .",
    ),
    (
        "holdfast pool status my-pools/da",
        "holdfast pool status my-pools/daily/.",
    ),
    ("holdfast run --pool my-p", "holdfast run --pool my-pools/."),
    ("holdfast run --rep", "holdfast run --report ."),
    (
        "holdfast run -- cat only-",
        "holdfast run -- cat only-file .",
    ),
    ("holdfast kv p users sc", "holdfast kv p users scan ."),
    (
        "holdfast export p v --vhost",
        "holdfast export p v --vhost-user .",
    ),
    (
        "holdfast pool status only-f",
        "holdfast pool status only-f.",
    ),
    ("holdfast kv p us", "holdfast kv p users ."),
    (
        "holdfast snapshot p delete mo",
        "holdfast snapshot p delete monday .",
    ),
    (
        "holdfast du p --snapshot mo",
        "holdfast du p --snapshot monday .",
    ),
    (
        "holdfast volume p delete di",
        "holdfast volume p delete dir/.",
    ),
    (
        "holdfast volume p resize dir/",
        "holdfast volume p resize dir/disk .",
    ),
    ("holdfast export p dir/d", "holdfast export p dir/disk ."),
    ("holdfast cp p:di", "holdfast cp p:dir/."),
    ("holdfast cp p:dir/o", "holdfast cp p:dir/only-one ."),
    ("holdfast cp q:", "holdfast cp q:only-file ."),
    (
        "holdfast cp q:only-file p:/us",
        "holdfast cp q:only-file p:/users/.",
    ),
    ("holdfast cp p:users/a", "holdfast cp p:users/ada ."),
];

fn bash(fixture: &Fixture) -> Result<(), Stop> {
    need(&["python3"])?;
    let prefix = prefix(fixture)?;
    fs::create_dir_all(fixture.path("my-pools/daily"))?;
    fs::write(fixture.path("only-file"), "")?;
    fs::write(fixture.path("terminal.py"), TERMINAL)?;
    script(fixture, "", NAMES)?;
    let script_file = prefix.join("share/bash-completion/completions/holdfast");
    let words = TYPED.map(|(word, _)| format!("'{word}'")).join(" ");
    let bin = prefix.join("bin");
    let text = format!(
        "python3 terminal.py {} {} {words}",
        script_file.display(),
        bin.display()
    );
    let said = script(fixture, "", &text)?;
    for ((typed, expected), line) in TYPED.iter().zip(said.lines()) {
        expect(typed, line, expected)?;
    }
    expect(
        "lines",
        &said.lines().count().to_string(),
        &TYPED.len().to_string(),
    )
}

/// fish says itself what it would offer; zsh reads its script and asks in the same way.
fn other_shells(fixture: &Fixture) -> Result<(), Stop> {
    need(&["fish", "zsh"])?;
    let prefix = prefix(fixture)?;
    let text = format!(
        r#"export PATH={0}/bin:$PATH
        fish -c 'source {0}/share/fish/vendor_completions.d/holdfast.fish
            complete -C "holdfast pool re"; complete -C "holdfast run --rep"' | cut -f1
        zsh -n {0}/share/zsh/site-functions/_holdfast
        _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=2 HOLDFAST_COMPLETE=zsh \
            holdfast -- holdfast pool re | cut -d: -f1"#,
        prefix.display()
    );
    expect(
        "offered",
        &script(fixture, "", &text)?,
        "resize\n--report\nresize\n",
    )
}

/// Where the sources are, or what of them was copied for tests of an installed tree.
fn source() -> Result<PathBuf, Stop> {
    let copied = repository("source")?;
    match copied.exists() {
        true => Ok(copied),
        false => repository(""),
    }
}

/// Among files of others; twice, the second time one file less; and everything is as before.
fn uninstall(fixture: &Fixture) -> Result<(), Stop> {
    let packaging = source()?.join("packaging");
    if !packaging.exists() {
        return Err(Stop::Skip("needs packaging beside the tests".into()));
    }
    let text = format!(
        r#"cp -a {prefix} stage; rm -rf stage/share/holdfast
        shot() {{ (cd "$1" && find . -printf '%p %y %l\n' | sort); }}
        mkdir -p root/bin root/share/man/man1; touch root/bin/own root/share/man/man1/own.1
        shot root >before
        {packaging}/install stage root
        diff <(cd stage && find . ! -type d | sort) \
            <(cd root && find . ! -type d ! -name own ! -name own.1 ! -name installed | sort)
        mv root moved; moved/bin/holdfast pool create pool --size 64M >/dev/null
        moved/bin/holdfast run --pool pool -- sh -c 'echo it runs >/hf/f; cat /hf/f'
        mv moved root
        rm stage/include/holdfast.h; {packaging}/install stage root
        [ ! -e root/include/holdfast.h ]
        echo others >root/lib/systemd/user/other.service
        {packaging}/uninstall root
        shot root | diff before - | grep '^[<>]' || true
        rm -r root/lib; shot root | cmp before -
        {packaging}/uninstall root 2>&1 | grep Fix || true
        {packaging}/install stage new/deep; {packaging}/uninstall new/deep; ls new"#,
        prefix = prefix(fixture)?.display(),
        packaging = packaging.display()
    );
    let expected = "it runs\n> ./lib d \n> ./lib/systemd d \n> ./lib/systemd/user d \n\
        > ./lib/systemd/user/other.service f \n\
        Fix: make uninstall PREFIX=DIR (and DESTDIR=DIR), as for make install\n";
    expect("what is left", &script(fixture, "", &text)?, expected)
}

fn stripped(fixture: &Fixture) -> Result<(), Stop> {
    need(&["readelf"])?;
    let text = format!(
        "cd {}; for f in bin/* libexec/holdfast/* lib/*.so lib/holdfast/*.so; do \
        if readelf -SW $f | grep -qE '[.](symtab|debug_info)'; then echo $f; fi; done
        readelf -d lib/libholdfast.so | grep -o 'soname: .*'
        readlink lib/libholdfast.so",
        prefix(fixture)?.display()
    );
    let expected = "soname: [libholdfast.so.0]\nlibholdfast.so.0\n";
    expect("with symbols", &script(fixture, "", &text)?, expected)
}

/// As cargo install brings it: what needs more says what to do.
fn alone(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"mkdir -p alone/bin; cp {0} alone/bin; export PATH=$PWD/alone/bin:$PATH
        holdfast pool create pool --size 64M >/dev/null
        holdfast kv pool users put ada 1815; holdfast kv pool users get ada
        holdfast snapshot pool create monday; holdfast volume pool create disk --size 1M
        holdfast save pool pool.hfs >/dev/null; holdfast restore pool.hfs copy >/dev/null
        holdfast kv copy users get ada
        for words in 'run --pool pool --' 'map explain --' 'export pool disk --nbd' 'bench'; do
            holdfast $words x 2>&1 | grep -o '^Fix: in the source tree: make install' || true
        done"#,
        fixture.holdfast.display()
    );
    let fix = "Fix: in the source tree: make install\n".repeat(4);
    expect(
        "what is said",
        &script(fixture, "", &text)?,
        &format!("18151815{fix}"),
    )
}

fn package_file() -> Result<PathBuf, Stop> {
    let package = repository("holdfast.deb")?;
    match package.exists() {
        true => Ok(package),
        false => Err(Stop::Skip(
            "needs holdfast.deb beside the tests (make deb)".into(),
        )),
    }
}

/// On a copy of the root file system, where nothing of it is left at the end.
fn package(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let (package, script) = (package_file()?, repository("tests/packaging/deb.sh")?);
    fs::create_dir(fixture.path("scratch"))?;
    let mut command = Command::new("bash");
    command
        .arg(script)
        .arg(package)
        .arg(fixture.path("scratch"));
    let ended = fixture.end_of(command)?;
    let expected = "installed\nmemory: survives the death of processes, not the loss of power\n\
        by a program\n1815\nclean\nlibholdfast.so.0 (libc6,x86-64)\nnothing to configure\n\
        meta.seg\nleft: \n";
    match ended.code() {
        Some(77) => Err(Stop::Skip(format!(
            "needs an overlay: {}",
            ended.err.trim()
        ))),
        Some(0) => expect("the package", &ended.out, expected),
        _ => wrong(format!("{}: {}", ended.how(), ended.tail().join("; "))),
    }
}

/// Whoever publishes it says by DEBEMAIL who answers for it.
fn lintian(fixture: &Fixture) -> Result<(), Stop> {
    need(&["lintian"])?;
    let text = format!(
        "lintian --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog {} 2>&1 |
            grep '^[EW]:' || true",
        package_file()?.display()
    );
    expect("what lintian finds", &script(fixture, "", &text)?, "")
}

/// A build says what it needs, and not cargo what it does not understand.
fn older_cargo(fixture: &Fixture) -> Result<(), Stop> {
    let need_rust = source()?.join("packaging/need-rust");
    if !need_rust.exists() {
        return Err(Stop::Skip("needs packaging beside the tests".into()));
    }
    let text = format!(
        r#"mkdir bin; needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' {root}/Cargo.toml)
        for version in 1.63.0 "$needed.0" 1.999.1 2.0.0 ''; do
            printf '#!/bin/sh\necho "cargo %s (0 2026-01-01)"\n' "$version" >bin/cargo
            chmod +x bin/cargo
            PATH=$PWD/bin:$PATH {need_rust} 2>&1 | sed "s/$needed/NEEDED/" || true
        done"#,
        root = source()?.display(),
        need_rust = need_rust.display()
    );
    let fix = "Fix: rustup update, or get it from https://rustup.rs\n";
    let is =
        |found| format!("make: Rust NEEDED or later is needed, and cargo here is {found}.\n{fix}");
    let expected = is("1.63.0") + &is("missing");
    expect("refusals", &script(fixture, "", &text)?, &expected)
}
