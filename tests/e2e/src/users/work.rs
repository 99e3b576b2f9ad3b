//! What the actors are told to do: calls on few names by several users, at random, so that every
//! call meets every kind of owner, group, mode and path.

/// A generator of numbers: splitmix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

const DIRS: &[&str] = &["a", "b", "a/a", "a/b", "b/a", "a/a/a"];
const NAMES: &[&str] = &["a", "b", "f", "g", "s"];
/// Of directories, and of files.
const MODES: &[&str] = &[
    "777", "755", "700", "750", "711", "770", "1777", "2775", "2755", "733", "744", "070", "007",
    "1770", "500", "300", "000",
];
const FILE_MODES: &[&str] = &[
    "644", "600", "666", "640", "660", "444", "400", "4755", "2755", "6755", "2666", "044", "004",
    "604", "606", "222", "200", "111", "755", "000",
];
/// The third ones are everybody's here.
pub const USERS: &[&str] = &["0", "3001", "3002", "3003"];
const GROUPS: &[&str] = &["0", "3001", "3002", "3003", "4001", "4002"];
const NUMBERS: &[&str] = &["1", "2", "3", "4"];
const FLAGS: &[&str] = &[
    "0", "1", "2", "101", "102", "301", "1001", "1002", "2001", "0100", "200000", "10000000",
    "1000000", "400000",
];

fn directory(r: &mut Random) -> String {
    r.of(DIRS).into()
}

fn path(r: &mut Random) -> String {
    match r.below(8) {
        0 => r.of(NAMES).into(),
        1 => directory(r),
        2 => format!("{}/../{}", directory(r), r.of(NAMES)),
        _ => format!("{}/{}", directory(r), r.of(NAMES)),
    }
}

/// One call of somebody.
pub fn call(r: &mut Random, is_root: bool) -> String {
    if r.below(12) == 0 {
        return access_list(r);
    }
    match r.below(if is_root { 44 } else { 40 }) {
        0..=2 => format!("mkdir {} {}", directory(r), r.of(MODES)),
        3 => format!("rmdir {}", directory(r)),
        4..=7 => {
            let (number, path, bits) = (r.of(NUMBERS), path(r), r.of(FILE_MODES));
            format!("open {number} {path} {} {bits}", r.of(FLAGS))
        }
        8..=9 => format!("unlink {}", path(r)),
        10 => format!("symlink {} {}", path(r), path(r)),
        11..=12 => format!("link {} {}", path(r), path(r)),
        13..=15 => format!("rename {} {}", path(r), path(r)),
        16 => format!("exchange {} {}", path(r), path(r)),
        17 => format!("readlink {}", path(r)),
        18..=19 => format!("list {}", directory(r)),
        20..=21 => format!("stat {}", path(r)),
        22 => format!("lstat {}", path(r)),
        23 => format!("chmod {} {}", directory(r), r.of(MODES)),
        24 => format!("chmod {} {}", path(r), r.of(FILE_MODES)),
        25 => format!("chown {} - {}", path(r), r.of(GROUPS)),
        26 => format!("chown {} {} -", path(r), r.of(USERS)),
        27 => format!(
            "access {} {}",
            path(r),
            r.of(&["0", "1", "2", "4", "6", "7"])
        ),
        28 => format!(
            "faccess {} {}",
            path(r),
            r.of(&["0", "1", "2", "4", "6", "7"])
        ),
        29 => format!("truncate {} 7", path(r)),
        30 => format!("{} {}", r.of(&["touch", "date"]), path(r)),
        31 => attribute(r),
        32 => format!("umask {}", r.of(&["22", "0", "77", "27"])),
        33 => format!("chdir {}", r.of(&[".", "a", "b", "..", "a/a"])),
        34..=39 => on_file(r),
        40..=41 => format!("seteuid {}", r.of(USERS)),
        42 => format!("setegid {}", r.of(GROUPS)),
        _ => format!(
            "groups {}",
            r.of(&["", "4001", "4002", "4001 4002", "3001"])
        )
        .trim()
        .into(),
    }
}

fn attribute(r: &mut Random) -> String {
    let (path, name) = (path(r), r.of(&["user.x", "trusted.x", "security.x"]));
    match r.below(3) {
        0 => format!("setxattr {path} {name} value"),
        1 => format!("getxattr {path} {name}"),
        _ => format!("rmxattr {path} {name}"),
    }
}

/// About access control lists: of files, of directories, and of what is made there.
fn access_list(r: &mut Random) -> String {
    let path = if r.below(2) == 0 {
        directory(r)
    } else {
        path(r)
    };
    let kind = r.of(&["access", "access", "default"]);
    match r.below(8) {
        0..=4 => format!("setacl {path} {kind} {}", entries(r)),
        5..=6 => format!("getacl {path} {kind}"),
        _ => format!("rmacl {path} {kind}"),
    }
}

/// Entries as tag:rights:id. One list in eight is none that the kernel takes.
fn entries(r: &mut Random) -> String {
    let mut list = vec![(0x01, 0), (0x04, 0), (0x20, 0)];
    for _ in 0..r.below(3) {
        list.push((0x02, 3001 + r.below(3)));
    }
    for _ in 0..r.below(3) {
        list.push((0x08, [3001, 3002, 4001, 4002][r.below(4)]));
    }
    if list.len() > 3 || r.below(3) == 0 {
        list.push((0x10, 0));
    }
    list.sort_unstable();
    match r.below(24) {
        0 => drop(list.remove(r.below(list.len()))),
        1 => list.swap(0, 1),
        2 => list.push((0x40, 0)),
        _ => {}
    }
    let rights = |r: &mut Random| match r.below(40) {
        0 => 8,
        _ => [0, 1, 3, 4, 5, 6, 7, 7][r.below(8)],
    };
    let entry = |(tag, id)| format!("{tag}:{}:{id}", rights(r));
    list.into_iter().map(entry).collect::<Vec<_>>().join(",")
}

fn on_file(r: &mut Random) -> String {
    let number = r.of(NUMBERS);
    match r.below(12) {
        0..=1 => format!("read {number}"),
        2..=3 => format!("write {number} text"),
        4 => format!("seek {number}"),
        5 => format!("fstat {number}"),
        6 => format!("fchmod {number} {}", r.of(FILE_MODES)),
        7 => format!("fchown {number} - {}", r.of(GROUPS)),
        8 => format!("close {number}"),
        9 => format!("fchdir {number}"),
        10 => format!("flock {number} {}", r.of(&["shared", "exclusive", "none"])),
        _ => format!("lock {number} {}", r.of(&["shared", "exclusive", "none"])),
    }
}
