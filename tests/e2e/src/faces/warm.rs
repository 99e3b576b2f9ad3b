//! `holdfast warm` as people use it, on files of the host.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use serde_json::Value;

pub const CASES: &[(&str, Case)] = &[
    ("warm files in memory", in_memory),
    ("warm a file on a disk", on_disk),
    ("warm files are mapped whole", mapped),
    ("warm refusals", refusals),
];

/// Bytes stay, holes stay, and what is huge already is left alone.
fn in_memory(fixture: &Fixture) -> Result<(), Stop> {
    let said = script(
        fixture,
        "none",
        r#"head -c 9000000 /dev/urandom >file; cp file copy
        truncate -s 40M holes; printf x | dd of=holes bs=1M seek=9 conv=notrunc status=none
        "$hf" --json warm file holes
        cmp file copy; "$hf" --json warm file holes
        du --apparent-size -k holes | cut -f1; test $(du -k holes | cut -f1) -le 2048"#,
    )?;
    let lines: Vec<&str> = said.lines().collect();
    let [first, again, "40960"] = lines[..] else {
        return wrong(format!("it said {said}"));
    };
    let (first, again) = (counts(first)?, counts(again)?);
    // The host may have no memory in one piece for some.
    for ((now, before, most), (later, still, _)) in first.into_iter().zip(again) {
        if before != 0 || now == 0 || still != now || later < now || later > most {
            return wrong(format!("it said {said}"));
        }
    }
    let most: Vec<u64> = first_most(&said)?;
    expect("huge pages at most", &format!("{most:?}"), "[4, 1]")
}

fn first_most(said: &str) -> Result<Vec<u64>, Stop> {
    let all = counts(said.lines().next().unwrap_or_default())?;
    Ok(all.into_iter().map(|(_, _, most)| most).collect())
}

/// Of each file: huge pages now, before, and at most.
fn counts(json: &str) -> Result<Vec<(u64, u64, u64)>, Stop> {
    let value: Value = match serde_json::from_str(json) {
        Ok(value) => value,
        Err(error) => return wrong(format!("not JSON ({error}): {json}")),
    };
    let number = |file: &Value, name: &str| file[name].as_u64().unwrap_or(u64::MAX);
    let one = |file: &Value| {
        (
            number(file, "huge_pages"),
            number(file, "huge_pages_before"),
            number(file, "huge_pages_at_most"),
        )
    };
    Ok(value.as_array().into_iter().flatten().map(one).collect())
}

/// On a file system of a disk the cache reads the file again. It may keep no large folios: then
/// that is said, and nothing else happens.
fn on_disk(fixture: &Fixture) -> Result<(), Stop> {
    let said = script(
        fixture,
        "none",
        r#"dir=$(mktemp -d -p /var/tmp); trap 'rm -r "$dir"' EXIT
        head -c 9000000 /dev/urandom >$dir/file; cp $dir/file copy
        "$hf" warm $dir/file 2>&1 | sed 's/^.*file: //;s/^holdfast: .*gave.*$/none/' | head -1
        cmp $dir/file copy"#,
    )?;
    match said.trim() {
        "none" => Ok(()),
        said if said.ends_with("before") && said.contains(" of 4 huge pages, ") => Ok(()),
        said => wrong(format!("it said {said}")),
    }
}

/// On tmpfs the kernel places a mapping without a look at huge pages; `--map` places it so that
/// they are mapped whole.
fn mapped(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"head -c 8388608 /dev/urandom >file
        "$hf" --json warm file | sed 's/.*"huge_pages":\([0-9]*\).*/\1/'
        cat >look.py <<'EOF'
import mmap, sys
with open("file", "rb") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert view[:] == file.read()
    ours, whole = False, 0
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            ours = words[-1].endswith("/file")
        elif ours and words[0] == "ShmemPmdMapped:":
            whole += int(words[1])
    print(whole // 2048)
EOF
        "$hf" run --pool "$pool" --map -- python3 look.py"#,
    )?;
    let lines: Vec<&str> = said.lines().collect();
    match lines[..] {
        [made, whole] if made == whole && made != "0" => Ok(()),
        _ => wrong(format!("huge pages made, and mapped: {lines:?}")),
    }
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let said = script(
        fixture,
        "none",
        r#"head -c 3000000 /dev/zero >good; : >small
        "$hf" warm good missing . small >out 2>err && exit 3
        cut -d: -f2- out | cut -d' ' -f3-6; sed "s|^holdfast: ||" err
        "$hf" warm 2>/dev/null || echo $?"#,
    )?;
    let expected = "of 1 huge pages,\nmissing: No such file or directory.\n. is no regular file.\n\
        small is smaller than a huge page, 2 MiB.\n\
        Fix: leave it as it is: it would gain nothing\n2\n";
    expect("the refusals", &said, expected)
}
