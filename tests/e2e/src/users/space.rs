//! A user who fills the pool keeps its owner from nothing, and from what there is already nobody.

use super::Shared;
use crate::bad_input::{Fixture, Stop};

pub fn space(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 777 /hf", "")?;
    let figures = r#"
import os
s = os.statvfs("/hf")
print(s.f_bavail, 0 < s.f_bfree - s.f_bavail <= s.f_blocks / 20)
"#;
    let python = |script: &str| format!("python3 -c '{script}'");
    let fill = "head -c 1G /dev/zero >/hf/big 2>/dev/null; echo $?";
    let add = "dd if=/dev/zero of=/hf/more bs=64K count=1 status=none 2>/dev/null; echo $?";
    let change = "dd if=/dev/zero of=/hf/big bs=64K count=16 conv=notrunc status=none; echo $?";
    let read = "tail -c 1M /hf/big | wc -c; for i in 1 2 3; do cat /hf/small; done";
    shared.expect("3001", "echo small >/hf/small", "")?;
    for user in ["3002", "3003"] {
        shared.expect(user, fill, "1\n")?;
        shared.expect(user, add, "1\n")?;
        shared.expect(user, &python(figures), "0 True\n")?;
        shared.expect(user, change, "0\n")?;
        shared.expect(user, read, "1048576\nsmall\nsmall\nsmall\n")?;
        // The owner goes on, and may use all that there is.
        let own = "head -c 4M /dev/zero >/hf/own; stat -c %s /hf/own; rm /hf/own";
        shared.expect("3001", own, "4194304\n")?;
        let free = "test $(stat -fc %a /hf) -gt 1000 && stat -fc %a-%f /hf | bc";
        let free = free.replace("| bc", "| python3 -c \"print(eval(input()))\"");
        shared.expect("3001", &free, "0\n")?;
        shared.expect(user, "rm -f /hf/big /hf/more", "")?;
        shared.expect(user, add, "0\n")?;
        shared.expect(user, "rm /hf/more", "")?;
    }
    shared.end()
}

/// The same of the metadata: keys and names.
pub fn metadata(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf; mkdir /hf/own", "")?;
    let (holdfast, pool) = (fixture.holdfast.display(), shared.pool.display());
    // Values that are in the trees, until there is no room; then names.
    let fill = format!(
        "yes $(printf %01500d 0) | awk '{{ print NR \"\\t\" $0 }}' | head -400000 |
         {holdfast} kv {pool} fill load 2>&1 | grep -c 'the pool is full'
         for i in 1 2 3; do touch /hf/name$i 2>/dev/null && echo made; done; exit 0"
    );
    let own = format!(
        "for i in $(seq 300); do echo $i >/hf/own/$i || exit; done; ls /hf/own | wc -l
         head -c 1M /dev/urandom | {holdfast} kv {pool} own put big
         {holdfast} kv {pool} own put small value; {holdfast} kv {pool} own get small
         rm -r /hf/own/*"
    );
    for user in ["3002", "3003"] {
        shared.expect(user, &fill, "1\n")?;
        shared.expect("3001", &own, "300\nvalue")?;
        shared.expect(
            user,
            "rm -r /hf/fill; echo x >/hf/again && rm /hf/again",
            "",
        )?;
    }
    shared.end()
}
