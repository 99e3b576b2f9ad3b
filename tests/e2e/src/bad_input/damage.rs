//! Pools that were cut, written over or made by another version. Whatever the damage: an answer in
//! time, no signal, and never wrong data; the damaged pool is only ever a copy.

use super::{Case, Fixture, RUN_FAILED, Stop, refusal, wrong};
use crate::process::Ended;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub const CASES: &[(&str, Case)] = &[
    ("another version", another_version),
    ("cut segments", cut),
    ("cut segments, and the loss accepted", cut_and_accepted),
    ("segments that are cut under programs", cut_in_use),
    ("missing segments", missing_segments),
    ("damaged bytes", damaged_bytes),
    ("damaged pages", damaged_pages),
];

/// Damages tried by each of the last two cases.
const TRIES: u64 = 60;

fn segments(pool: &Path) -> Result<Vec<PathBuf>, Stop> {
    let mut found = Vec::new();
    for entry in fs::read_dir(pool)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "seg") {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() {
        wrong("a pool without segments")
    } else {
        Ok(found)
    }
}

/// A copy of the pool, holes kept.
fn copy(fixture: &Fixture, pool: &Path) -> Result<PathBuf, Stop> {
    let to = fixture.path("copy");
    let _ = fs::remove_dir_all(&to);
    let mut command = std::process::Command::new("cp");
    command.args(["-a", "--sparse=always"]).arg(pool).arg(&to);
    match fixture.end_of(command)?.code() {
        Some(0) => Ok(to),
        _ => wrong("cp of the pool failed"),
    }
}

fn open(path: &Path) -> Result<File, Stop> {
    Ok(OpenOptions::new().read(true).write(true).open(path)?)
}

fn another_version(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let copy = copy(fixture, &pool)?;
    let meta = open(&copy.join("meta.seg"))?;
    // docs/spec: two superblocks, in pages 0 and 1; version at 8, checksum at 12.
    for page in 0..2 {
        let mut block = [0; 1024];
        meta.read_exact_at(&mut block, page * 4096)?;
        if &block[..8] != b"HOLDFAST" {
            continue;
        }
        block[8..12].copy_from_slice(&99_u32.to_le_bytes());
        let sum = crc32c(&[&block[..12], &block[16..]].concat());
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        meta.write_all_at(&block, page * 4096)?;
    }
    let word = copy.to_string_lossy().into_owned();
    for (args, codes) in [
        (vec!["pool", "status", &word], &[1][..]),
        (vec!["pool", "check", &word], &[4, 8]),
        (vec!["serve", &word], &[1]),
        (vec!["run", "--pool", &word, "--", "true"], &[RUN_FAILED]),
    ] {
        let ended = fixture.holdfast(&args)?;
        refusal(&ended, codes).map_err(Stop::Wrong)?;
        if !ended.err.contains("version") || !ended.err.contains("99") {
            return wrong(format!("the version is not named: {}", ended.err.trim()));
        }
    }
    fixture.intact(&pool)
}

/// CRC-32C, bit by bit: it shares no code with what it tests.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

/// What the pool's commands make of a damaged copy; `good` is the listing of the sound pool.
fn judge(fixture: &Fixture, copy: &Path, good: &Ended, what: &str) -> Result<(), Stop> {
    let word = copy.to_string_lossy().into_owned();
    let check = fixture.holdfast(&["pool", "check", &word])?;
    if !matches!(check.code(), Some(0 | 1 | 4 | 8)) {
        return wrong(format!(
            "{what}: pool check: {} {}",
            check.how(),
            check.err.trim()
        ));
    }
    let listed = fixture.listing(copy)?;
    match listed.code() {
        Some(0) if listed.out == good.out => Ok(()),
        Some(0) => wrong(format!("{what}: wrong data, and no error")),
        // The program saw an error, or the run refused the pool; and check must have seen it too.
        Some(1 | RUN_FAILED) if check.code() != Some(0) => Ok(()),
        Some(1 | RUN_FAILED) => wrong(format!(
            "{what}: unreadable ({}), yet pool check is clean",
            listed.err.trim()
        )),
        _ => wrong(format!(
            "{what}: reading: {} {}",
            listed.how(),
            listed.err.trim()
        )),
    }
}

fn cut(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let good = fixture.listing(&pool)?;
    for segment in segments(&pool)? {
        let name = segment
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let len = segment.metadata()?.len();
        for cut in [0, 1, 4096, 3 * 4096, len / 2, len - 4096, len - 1] {
            let copy = copy(fixture, &pool)?;
            open(&copy.join(&name))?.set_len(cut)?;
            judge(
                fixture,
                &copy,
                &good,
                &format!("{name} cut to {cut} of {len} bytes"),
            )?;
        }
    }
    fixture.intact(&pool)
}

/// The loss is refused by name until it is accepted, and then the rest is there: all of it, where a
/// closed pool loses its journal.
fn cut_and_accepted(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    let accept = ["pool", "check", "--accept-loss", &word];
    let run = ["run", "--pool", &word, "--", "true"];
    for (name, len) in [("journal-0.seg", 4096), ("data-0.seg", 0)] {
        open(&pool.join(name))?.set_len(len)?;
        for (args, code) in [(run.as_slice(), RUN_FAILED), (&["pool", "check", &word], 4)] {
            let ended = fixture.holdfast(args)?;
            refusal(&ended, &[code]).map_err(Stop::Wrong)?;
            if !ended.err.contains(name) || !ended.err.contains("check --accept-loss") {
                return wrong(format!("{args:?}: {}", ended.err.trim()));
            }
        }
        let accepted = fixture.holdfast(&accept)?;
        let said = accepted
            .err
            .contains(&format!("{name} was cut to {len} of "));
        if accepted.code() != Some(1) || !said {
            return wrong(format!("{}: {}", accepted.how(), accepted.err.trim()));
        }
        fixture.done(&accept)?;
        if name == "journal-0.seg" {
            fixture.intact(&pool)?;
        }
    }
    // Names and what is in the trees are there, file data reads as zeroes.
    let look = "ls /hf/d/e | wc -l; cat /hf/hello; tr -d '\\0' </hf/d/f | wc -c; echo new >/hf/new";
    let ended = fixture.run(&pool, &["bash", "-c", look])?;
    if ended.out != "100\nhello\n0\n" {
        return wrong(format!(
            "afterwards: {} {}",
            ended.out.trim(),
            ended.err.trim()
        ));
    }
    fixture.done(&["pool", "check", &word])?;
    Ok(())
}

/// Programs go on, all but those who needed what is gone, and the service says what happened.
fn cut_in_use(fixture: &Fixture) -> Result<(), Stop> {
    for name in ["data-0.seg", "journal-0.seg"] {
        let pool = fixture.pool(name, "64M")?;
        let segment = pool.join(name).to_string_lossy().into_owned();
        let script =
            "cd /hf; echo before >before; sync; sleep 0.5; len=$(stat -c %s $0); truncate -s 0 $0
            for n in $(seq 100); do [ $(stat -c %s $0) = $len ] && break; sleep 0.1; done
            for n in $(seq 500); do echo $n >new$n || exit 3; done
            cat new1 new500; rm new?; ls | wc -l";
        let ended = fixture.run(&pool, &["bash", "-c", script, &segment])?;
        if ended.code() != Some(0) || ended.out != "1\n500\n495\n" {
            let (out, err) = (ended.out.trim(), ended.err.trim());
            return wrong(format!("{name}: {} {out} {err}", ended.how()));
        }
        let log = fs::read_to_string(pool.join("service.log"))?;
        if !log.contains(&format!("ERROR {name} was cut to 0 of ")) {
            return wrong(format!("{name}: the log says nothing: {log}"));
        }
        fixture.done(&["pool", "check", &pool.to_string_lossy()])?;
        let ended = fixture.run(&pool, &["bash", "-c", "cat /hf/new500; ls /hf | wc -l"])?;
        if ended.out != "500\n495\n" {
            return wrong(format!(
                "{name}, later: {} {}",
                ended.out.trim(),
                ended.err.trim()
            ));
        }
    }
    Ok(())
}

fn missing_segments(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let good = fixture.listing(&pool)?;
    for segment in segments(&pool)? {
        let name = segment
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let copy = copy(fixture, &pool)?;
        fs::remove_file(copy.join(&name))?;
        judge(fixture, &copy, &good, &format!("{name} removed"))?;
        let copy = self::copy(fixture, &pool)?;
        fs::remove_file(copy.join(&name))?;
        fs::create_dir(copy.join(&name))?;
        judge(fixture, &copy, &good, &format!("{name} a directory"))?;
    }
    fixture.intact(&pool)
}

/// Offsets of pages that hold something; file data has no checksums and is left alone.
fn used_pages(pool: &Path) -> Result<Vec<(String, u64)>, Stop> {
    let mut pages = Vec::new();
    for segment in segments(pool)? {
        let name = segment
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("data") {
            continue;
        }
        let file = File::open(&segment)?;
        let mut page = [0; 4096];
        for at in (0..file.metadata()?.len().min(64 << 20)).step_by(4096) {
            let len = file.read_at(&mut page, at)?;
            if page[..len].iter().any(|byte| *byte != 0) {
                pages.push((name.clone(), at));
            }
        }
    }
    if pages.is_empty() {
        wrong("a pool without contents")
    } else {
        Ok(pages)
    }
}

fn damage(fixture: &Fixture, change: fn(&mut [u8; 4096], u64)) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let good = fixture.listing(&pool)?;
    let pages = used_pages(&pool)?;
    for number in 0..TRIES {
        // The first pages, superblocks and all, then a spread over the others.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let index = if number < 8 { number } else { spread };
        let (name, at) = &pages[(index % pages.len() as u64) as usize];
        let copy = copy(fixture, &pool)?;
        let file = open(&copy.join(name))?;
        let mut page = [0; 4096];
        let len = file.read_at(&mut page, *at)?;
        change(&mut page, spread);
        file.write_all_at(&page[..len], *at)?;
        judge(
            fixture,
            &copy,
            &good,
            &format!("{name}, page at {at}, damage {number}"),
        )?;
    }
    fixture.intact(&pool)
}

fn damaged_bytes(fixture: &Fixture) -> Result<(), Stop> {
    damage(fixture, |page, random| {
        // A byte that is in use, so that the damage is real.
        let used: Vec<usize> = (0..page.len()).filter(|&i| page[i] != 0).collect();
        let at = used
            .get((random % used.len().max(1) as u64) as usize)
            .copied()
            .unwrap_or(0);
        page[at] ^= 1 << (random % 8);
    })
}

fn damaged_pages(fixture: &Fixture) -> Result<(), Stop> {
    damage(fixture, |page, random| match random % 3 {
        0 => page.fill(0),
        1 => page.fill(0xff),
        _ => page.reverse(),
    })
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn crc_has_its_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
