//! A proxy under the requests, notes and words in its channel of a hostile process.
//!
//! What must hold: every request is answered while its connection is open; another process of the
//! same user is served; the pool that is left is one in which the checker finds nothing.

use crate::input::Input;
use holdfast_client::attach::attach;
use holdfast_client::kv::Durability;
use holdfast_client::served::pairs::{Change, Kind};
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Caller, Served};
use holdfast_pmem::atomic::Ordering::*;
use holdfast_pmem::{SharedMem, futex};
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::protocol::{ANSWER_LEN, Request};
use holdfast_service::{CreateOptions, Files, Options, Service, Stopper, check, create};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

const SIZE: u64 = 16 << 20;
/// Requests of one input at most.
const STEPS_MAX: usize = 100;
/// An answer takes no longer, with others at the machine.
const PATIENCE: Duration = Duration::from_secs(15);
const TEXTS: &[&[u8]] = &[
    b"",
    b".",
    b"..",
    b"/",
    b"a",
    b"b",
    b"d",
    b"d/c",
    b"s",
    b"s/c",
    b"n",
    b"d/n",
    b"/hf/d",
    b"/etc",
    b"a\0b",
    b"user.x",
    b"trusted.x",
    b"system.posix_acl_access",
    b"d/../a",
    b"/tmp/.holdfast-0/1",
];
const NONE: SendFlags = SendFlags::empty();

/// A pool with a service and a proxy of ourselves.
struct World {
    dir: PathBuf,
    control: OwnedFd,
    service: Option<(Stopper, JoinHandle<()>)>,
}

/// A process that is served.
struct Process {
    connection: OwnedFd,
    channel: OwnedFd,
    memory: SharedMem,
}

/// Makes requests as the bytes say.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new();
    let process = world.connect();
    let own = process.begin();
    for _ in 0..STEPS_MAX {
        match input.u8() {
            _ if input.is_empty() => break,
            0..200 => process.ask(&mut input, own),
            200..225 => process.leave_word(&mut input),
            225..240 => {
                let line: &Line = process.memory.at(line_at(0)).expect("a line");
                line.answer[input.below(WORDS)].store(input.number(), Relaxed);
                line.proxy_sleeps.store(input.u32(), Relaxed);
                line.caller_sleeps.store(input.u32(), Relaxed);
            }
            240.. => {
                let note: [u8; NOTE_LEN] = std::array::from_fn(|_| input.u8());
                let _ = send(&process.connection, &note, SendFlags::NOSIGNAL);
                break;
            }
        }
    }
    world.connect().begin();
    drop(process);
    world.end();
}

impl World {
    fn new() -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let name = format!("holdfast-fuzz-proxy-{}-{n}", std::process::id());
        let dir = Path::new("/dev/shm").join(name);
        let options = CreateOptions {
            size: Some(SIZE),
            medium: None,
            consistency: Consistency::Posix,
        };
        create(&dir, &options).expect("a pool");
        let service = Service::open(&dir, Options::default()).expect("it opens");
        let stopper = service.stopper();
        let service = std::thread::spawn(move || service.run().expect("it runs"));
        let attachment = attach(dir.as_os_str().as_bytes(), None).expect("a place");
        let (control, theirs) = pair();
        let pool = dir.clone();
        std::thread::spawn(move || {
            holdfast_proxy::serve((&pool, &theirs), attachment, false, || None)
        });
        World {
            dir,
            control,
            service: Some((stopper, service)),
        }
    }

    fn connect(&self) -> Process {
        let (connection, theirs) = pair();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [theirs.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&self.control, &[IoSlice::new(&[0])], &mut control, NONE).expect("a proxy");
        let request = Request::Attach {
            adopt: false,
            known: 0,
        };
        send(&connection, &request.encode(), NONE).expect("a proxy");
        let channel = receive(&connection).expect("a channel");
        let memory = SharedMem::map(channel.as_fd(), CHANNEL_LEN).expect("a mapping");
        Process {
            connection,
            channel,
            memory,
        }
    }

    /// What is left is what the trees say.
    fn end(&mut self) {
        let (stopper, service) = self.service.take().expect("it runs");
        stopper.stop();
        service.join().expect("it ends");
        let files = Files::open(&self.dir).expect("its files");
        let report = check(&files).expect("a pool");
        let damage: Vec<_> = report.damage().collect();
        assert!(damage.is_empty(), "{damage:?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Ok(meta) = std::fs::File::open(self.dir.join("meta.seg")) {
            holdfast_service::remove_lent_files(&meta.into());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets")
}

fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut bytes = [0; ANSWER_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::empty()).ok()?;
    let rights = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => rights.last(),
        _ => None,
    });
    rights
}

fn me() -> Caller<'static> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Caller {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
        groups: &[],
        umask: 0,
        privileged: uid.is_root(),
        ids: None,
    }
}

/// Changes of keys and values, and what follows them.
fn changes(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..input.below(5) {
        let kinds = [
            Kind::Put,
            Kind::Erase,
            Kind::EraseRange,
            Kind::Part,
            Kind::Until,
        ];
        let value = vec![b'v'; input.below(3) * input.below(3000)];
        // Also what is a time.
        let value = match input.below(2) {
            0 => value,
            _ => 5i64.to_le_bytes().to_vec(),
        };
        let change = Change {
            kind: kinds[input.below(kinds.len())],
            keyspace: input.below(4) as u32,
            key: input.string(),
            value: &value,
        };
        bytes.extend_from_slice(&change.head());
        bytes.extend_from_slice(change.key);
        bytes.extend_from_slice(change.value);
    }
    bytes.extend_from_slice(input.string());
    bytes
}

impl Process {
    /// Files, directories and descriptors for the rest to meet; how the proxy names us.
    fn begin(&self) -> u32 {
        let (channel, connection) = (self.channel.as_fd(), self.connection.as_fd());
        let served = Served::enter(channel, connection, b"/hf").expect("a place");
        let c = me();
        // What is there already is as good.
        let _ = served.mkdir(&c, Base::Root, b"d", 0o700);
        let _ = served.symlink(&c, b"d", Base::Root, b"s");
        for (fd, name, flags) in [(0, &b"."[..], 0), (1, b"a", 0o102), (2, b"d/c", 0o2102)] {
            let _ = served.open_as((fd, &c), Base::Root, name, flags, 0o600, 0);
        }
        for name in [&b"k"[..], b"l"] {
            if let Ok(keyspace) = served.keyspace(&c, name, true) {
                let pair = (&b"a"[..], &[1; 5000][..]);
                let _ = served.kv_put(&c, keyspace, pair, Durability::Ordered);
                let _ = served.view(Some(keyspace));
            }
        }
        served.id()
    }

    fn ask(&self, input: &mut Input<'_>, own: u32) {
        let texts = [(); 2].map(|()| match input.below(TEXTS.len() + 1) {
            at if at < TEXTS.len() => TEXTS[at],
            _ => input.string(),
        });
        let (op, c) = (u32::from(input.u8()), me());
        let data = match op == Op::KvChange as u32 {
            true => changes(input),
            false => vec![b'x'; input.below(3) * input.below(3000)],
        };
        let text = [texts[0], texts[1], &data].concat();
        let head = Head {
            op,
            member: [0, own, 0, 77][input.below(4)],
            uid: [c.uid, 0, 12345, c.uid][input.below(4)],
            gid: [c.gid, 0, 12345, c.gid][input.below(4)],
            privileged: c.privileged == (input.below(4) > 0),
            lens: [texts[0].len(), texts[1].len(), data.len()].map(|len| len as u32),
        };
        let mut words = [0; WORDS];
        words[..HEAD].copy_from_slice(&head.encode());
        words[HEAD..].fill_with(|| input.number());
        if input.below(16) == 0 {
            words[input.below(HEAD)] = input.u64();
        }
        let to = self.memory.target(buffer_at(0), BUFFER);
        to.expect("a buffer").write(&text).expect("room");
        self.post(&words);
        // What came with it is thrown away.
        while recv(&self.connection, &mut [0; 64][..], RecvFlags::DONTWAIT).is_ok() {}
    }

    fn post(&self, words: &[u64; WORDS]) {
        let line: &Line = self.memory.at(line_at(0)).expect("a line");
        for (to, word) in line.request.iter().zip(words) {
            to.store(*word, Relaxed);
        }
        // Of pipes nobody opens the other side: a signal ends the wait.
        let waits = words[0] as u32 == Op::OpenPipe as u32;
        line.cancel.store(waits.into(), SeqCst);
        line.turn.store(ASKED, SeqCst);
        futex::wake(&line.turn, 1);
        let begun = Instant::now();
        while line.turn.load(SeqCst) != ANSWERED {
            assert!(begun.elapsed() < PATIENCE, "no answer to {words:x?}");
            yield_now();
        }
    }

    /// Descriptors that were closed or sought in, or garbage in their place.
    fn leave_word(&self, input: &mut Input<'_>) {
        let untold: &Untold = self.memory.at(UNTOLD_AT).expect("words");
        let item = |fd, what| Item { fd, what }.encode();
        let word = match input.below(3) {
            0 => item(input.u8().into(), Done::Closed),
            1 => item(input.u8().into(), Done::At(input.u64() % OFFSET_END)),
            _ => Some(input.u64()),
        };
        untold.entries[input.below(UNTOLD)].store(word.expect("in range"), SeqCst);
        untold.count.store(input.u8().into(), SeqCst);
    }
}
