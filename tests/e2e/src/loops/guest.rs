//! Volumes as the disks of virtual machines, which QEMU emulates.
//!
//! Invariant: what a guest said is durable is judged by the host, or by a guest that boots later.

use super::site::Site;
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub const CASES: &[(&str, Case)] = &[
    ("a guest that is killed", killed_guest),
    ("an export that ends under a guest", |fixture| {
        ended(fixture, false)
    }),
    ("an export that is killed under a guest", |fixture| {
        ended(fixture, true)
    }),
    ("an export that begins again under a guest", begun_again),
    ("a guest's view of its disk", view),
    ("sockets that are refused", refused),
];

const INIT: &str = include_str!("init.sh");
/// A machine without virtualization needs some seconds to boot, and a busy one more.
const LIMIT: Duration = Duration::from_secs(60);
/// So many files are durable before something is killed.
pub const ENOUGH: usize = 25;

/// The kernel and its modules, which tests/prepare fetches.
pub fn kernel() -> Result<PathBuf, Stop> {
    let dir = std::env::var_os("HF_GUEST").map(PathBuf::from);
    dir.filter(|dir| dir.join("vmlinuz").exists())
        .ok_or(Stop::Skip("there is no kernel for guests".into()))
}

/// A pool with a volume, and the initial memory disk of a guest.
fn site<'a>(fixture: &'a Fixture, sector: &str) -> Result<Site<'a>, Stop> {
    let kernel = kernel()?;
    let tools = ["qemu-system-x86_64", "busybox", "mke2fs", "ldd", "losetup"];
    let site = Site::new(fixture, "256M", &tools)?;
    site.create("disk", "100M", sector)?;
    let root = fixture.path("root");
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join("init"), INIT)?;
    std::fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755))?;
    site.bash(&format!(
        r#"mkdir mnt; cd root; mkdir bin proc sys dev mnt modules tools
        cp {}/*.ko modules; cp $(command -v busybox) bin/busybox; cp $(command -v mke2fs) tools
        for library in $(ldd tools/mke2fs | grep -o '/[^ ]*'); do
            mkdir -p .$(dirname $library); cp $library .$library
        done
        find . | busybox cpio -o -H newc >../initrd 2>/dev/null"#,
        kernel.display()
    ))?;
    Ok(site)
}

/// A machine that runs.
pub struct Guest {
    qemu: Child,
    serial: PathBuf,
}

impl Guest {
    /// One whose disk is what `socket` serves.
    fn boot(site: &Site<'_>, job: &str, queues: u16) -> Result<Guest, Stop> {
        let memory = "memory-backend-memfd,id=memory,size=192M,share=on";
        let disk = format!("vhost-user-blk-pci,chardev=disk,num-queues={queues}");
        let socket = "socket,id=disk,path=socket,reconnect=1";
        let more = ["-chardev", socket, "-device", &disk];
        Guest::start(site.fixture, (job, ""), ("192M", memory), &more)
    }

    /// One that does `job`, with words for the kernel, and with so much memory of a kind.
    pub fn start(
        fixture: &Fixture,
        (job, kernel_words): (&str, &str),
        (size, memory): (&str, &str),
        more: &[&str],
    ) -> Result<Guest, Stop> {
        let serial = fixture.path(&format!("serial.{job}"));
        let mut command = Command::new("qemu-system-x86_64");
        process::clean(&mut command, &fixture.dir);
        command.current_dir(&fixture.dir);
        command.args(["-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2"]);
        command.args(["-m", size, "-numa", "node,memdev=memory", "-object", memory]);
        command.arg("-kernel").arg(kernel()?.join("vmlinuz"));
        command.args(["-initrd", "initrd", "-append"]);
        command.arg(format!(
            "console=ttyS0 panic=-1 quiet job={job} {kernel_words}"
        ));
        command.args(["-nodefaults", "-nographic", "-no-reboot", "-serial"]);
        command.arg(format!("file:{}", serial.display()));
        command.args(more);
        command.stderr(File::create(fixture.path("qemu"))?);
        let qemu = command.spawn()?;
        Ok(Guest { qemu, serial })
    }

    /// What it said in whole lines.
    fn said(&self) -> Result<Vec<String>, Stop> {
        let text = match std::fs::read(&self.serial) {
            Ok(text) => text,
            Err(_) => return Ok(Vec::new()),
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        Ok(whole.lines().map(|line| line.trim().into()).collect())
    }

    /// Waits until it said so many lines that begin so; the rest of each.
    pub fn await_lines(&mut self, word: &str, count: usize) -> Result<Vec<String>, Stop> {
        let end = Instant::now() + LIMIT;
        loop {
            let ended = self.qemu.try_wait()?;
            let said = self.said()?;
            let found = said.iter().filter_map(|line| line.strip_prefix(word));
            let found: Vec<String> = found.map(|rest| rest.trim().into()).collect();
            if found.len() >= count {
                return Ok(found);
            }
            if ended.is_some() || Instant::now() > end {
                let last = said.len().saturating_sub(5);
                return wrong(format!("a guest {ended:?} says: {:?}", &said[last..]));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it has switched itself off; what it said.
    pub fn to_its_end(mut self) -> Result<Vec<String>, Stop> {
        self.await_lines("over", 1)?;
        match process::wait(&mut self.qemu, LIMIT)?.and_then(|status| status.code()) {
            Some(0) => self.said(),
            code => wrong(format!("QEMU ends with {code:?}")),
        }
    }

    pub fn kill(&mut self) -> Result<(), Stop> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// The host mounts the volume, finds the files, and the file system is clean.
fn host_finds(site: &Site<'_>, numbers: &[String]) -> Result<(), Stop> {
    std::fs::write(site.fixture.path("numbers"), numbers.join("\n") + "\n")?;
    let exported = site.export(&["disk", "--fuse", "file"])?;
    site.bash(
        r#"loop=$(attach file); mount $loop mnt
        while read -r n; do cmp <(seq $n $((n + 3000))) mnt/$n; done <numbers
        umount mnt; e2fsck -fn $loop; losetup -d $loop"#,
    )?;
    exported.end(&site.fixture.path("file"))
}

fn killed_guest(fixture: &Fixture) -> Result<(), Stop> {
    let site = site(fixture, "512")?;
    let exported = site.export(&["disk", "--vhost-user", "socket"])?;
    let mut guest = Guest::boot(&site, "write", 2)?;
    guest.await_lines("durable", ENOUGH)?;
    guest.kill()?;
    let durable = guest.await_lines("durable", ENOUGH)?;
    // The same export serves the next machine.
    let said = Guest::boot(&site, "check", 2)?.to_its_end()?;
    let found: HashSet<&str> = said.iter().map(String::as_str).collect();
    for number in &durable {
        let sum = site.bash(&format!("seq {number} $(({number} + 3000)) | md5sum"))?;
        if !found.contains(format!("file {number} {}", sum.trim()).as_str()) {
            return wrong(format!("the next guest does not find file {number}"));
        }
    }
    exported.end(&fixture.path("socket"))?;
    host_finds(&site, &durable)
}

fn ended(fixture: &Fixture, killed: bool) -> Result<(), Stop> {
    let site = site(fixture, "512")?;
    let exported = site.export(&["disk", "--vhost-user", "socket"])?;
    let mut guest = Guest::boot(&site, "write", 2)?;
    guest.await_lines("durable", ENOUGH)?;
    match killed {
        true => exported.kill()?,
        false => exported.end(&fixture.path("socket"))?,
    }
    std::thread::sleep(Duration::from_millis(200));
    let durable = guest.await_lines("durable", ENOUGH)?;
    guest.kill()?;
    host_finds(&site, &durable)?;
    // The socket that was left behind is in nobody's way.
    let exported = site.export(&["disk", "--vhost-user", "socket"])?;
    exported.end(&fixture.path("socket"))
}

fn begun_again(fixture: &Fixture) -> Result<(), Stop> {
    let site = site(fixture, "512")?;
    let words = ["disk", "--vhost-user", "socket"];
    let mut exported = site.export(&words)?;
    let mut guest = Guest::boot(&site, "write", 2)?;
    let mut count = ENOUGH;
    for _ in 0..2 {
        guest.await_lines("durable", count)?;
        exported.kill()?;
        exported = site.export(&words)?;
        count = guest.await_lines("durable", count)?.len() + ENOUGH;
    }
    let durable = guest.await_lines("durable", count)?;
    guest.kill()?;
    exported.end(&fixture.path("socket"))?;
    host_finds(&site, &durable)
}

fn view(fixture: &Fixture) -> Result<(), Stop> {
    let site = site(fixture, "4096")?;
    let words = ["disk", "--vhost-user", "socket", "--queues", "2"];
    let exported = site.export(&words)?;
    let said = Guest::boot(&site, "look", 2)?.to_its_end()?;
    exported.end(&fixture.path("socket"))?;
    for line in [
        "is disk 204800 4096 0 2",
        "may 2147483648 67108864",
        "cache write back",
        "cache write through",
        "begins well",
        "then 0",
    ] {
        if !said.iter().any(|said| said == line) {
            return wrong(format!("the guest does not say {line:?}: {said:?}"));
        }
    }
    let exported = site.export(&["disk", "--fuse", "file"])?;
    site.bash("[[ $(blocks file) == 0 ]]; cmp -n 100M file /dev/zero")?;
    exported.end(&fixture.path("file"))?;
    // Nobody writes to what is exported for reading.
    let exported = site.export(&[&words[..3], &["--read-only"]].concat())?;
    let said = Guest::boot(&site, "look", 2)?.to_its_end()?;
    exported.end(&fixture.path("socket"))?;
    let ro = "is disk 204800 4096 1 2";
    match said.iter().any(|said| said == ro) && !said.iter().any(|said| said == "begins well") {
        true => Ok(()),
        false => wrong(format!("a guest that may only read: {said:?}")),
    }
}

fn refused(fixture: &Fixture) -> Result<(), Stop> {
    let site = Site::new(fixture, "64M", &["touch"])?;
    site.create("disk", "1M", "512")?;
    site.create("other", "1M", "512")?;
    let refuse = |words: &[&str], code: i32| {
        fixture.refused(&[&["export", &site.pool], words].concat(), &[code])
    };
    site.bash("touch file")?;
    refuse(&["disk", "--vhost-user", "file"], 1)?;
    refuse(&["disk", "--vhost-user", "nowhere/socket"], 1)?;
    refuse(&["disk", "--vhost-user", "socket", "--fuse", "file"], 2)?;
    refuse(&["disk", "--vhost-user", "socket", "--queues", "0"], 2)?;
    refuse(&["disk", "--vhost-user", "socket", "--queues", "65"], 2)?;
    refuse(&["disk", "--fuse", "file", "--queues", "2"], 2)?;
    let exported = site.export(&["disk", "--vhost-user", "socket"])?;
    refuse(&["other", "--vhost-user", "socket"], 1)?;
    site.bash("[[ $(stat -c %a socket) == 600 ]]")?;
    exported.end(&fixture.path("socket"))
}
