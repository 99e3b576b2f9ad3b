#!/usr/bin/env bash
# A file offset is one for all who share it: duplicates, children, programs that inherit a
# descriptor, and whoever gets it in a message; whichever of them moved it, and however.
set -eu
cd "$1"
python3 - <<'END'
import array, os, random, socket, subprocess, threading

random.seed(5)
sizes = [0, 1, 100, 4096, 9000, 40000]
data = {n: bytearray(random.randbytes(size)) for n, size in enumerate(sizes)}
for n, content in data.items():
    with open(f"f{n}", "wb") as f:
        f.write(content)
# The time of access moves when a file is read the first time, and what is short moves into memory.
for _ in range(3):
    for n, content in data.items():
        assert open(f"f{n}", "rb").read() == content

opened = []  # descriptor, and what it shares: the file, the offset, whether it may write

def check_read(got, what, length):
    n, at, _ = what
    assert got == data[n][at : at + length], (n, at, length, len(got))
    what[1] += len(got)

def in_child(fd, length):
    out, into = os.pipe()
    if os.fork() == 0:
        os.write(into, os.read(fd, length))
        os._exit(0)
    os.close(into)
    got = b""
    while part := os.read(out, 65536):
        got += part
    os.close(out)
    os.wait()
    return got

def in_program(fd, length):
    words = ["dd", f"bs={length}", "count=1", "status=none"]
    return subprocess.run(words, stdin=fd, stdout=subprocess.PIPE, check=True).stdout

def in_thread(fd, length):
    got = []
    thread = threading.Thread(target=lambda: got.append(os.read(fd, length)))
    thread.start()
    thread.join()
    return got[0]

def sent(fd):
    a, b = socket.socketpair()
    with a, b:
        kind = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        a.sendmsg([b"x"], [(*kind, array.array("i", [fd]))])
        _, ancillary, _, _ = b.recvmsg(1, socket.CMSG_SPACE(4))
        return array.array("i", ancillary[0][2])[0]

def step():
    how = random.randrange(20)
    if how < 4 or not opened:
        n, writes = random.choice(list(data)), random.randrange(3) == 0
        fd = os.open(f"f{n}", os.O_RDWR if writes else os.O_RDONLY)
        opened.append((fd, [n, 0, writes]))
        return
    fd, what = random.choice(opened)
    length = random.choice([1, 7, 100, 5000, 70000])
    if how < 9:
        check_read(os.read(fd, length), what, length)
    elif how < 12:
        whence = random.randrange(3)
        base = [0, what[1], len(data[what[0]])][whence]
        by = random.randrange(-base, 10000)
        what[1] = base + by
        assert os.lseek(fd, by, whence) == what[1]
    elif how == 12:
        assert os.lseek(fd, 0, os.SEEK_CUR) == what[1]
        if what[1] > 0:
            try:
                os.lseek(fd, -what[1] - 1, os.SEEK_CUR)
                assert False
            except OSError as e:
                assert e.errno == 22
    elif how == 13:
        opened.append((random.choice([os.dup, sent])(fd), what))
    elif how == 14:
        check_read(in_child(fd, length), what, length)
    elif how == 15:
        check_read(in_program(fd, length), what, length)
    elif how == 16:
        check_read(in_thread(fd, length), what, length)
    elif how == 17 and what[2]:
        n, at, _ = what
        new = random.randbytes(random.choice([1, 50, 3000]))
        data[n].extend(bytes(max(0, at - len(data[n]))))
        data[n][at : at + len(new)] = new
        assert os.write(fd, new) == len(new)
        what[1] += len(new)
    elif how == 18:
        # Whoever opened the file sees what another description writes now.
        n = what[0]
        if data[n]:
            at = random.randrange(len(data[n]))
            data[n][at] ^= 255
            with open(f"f{n}", "r+b", buffering=0) as f:
                f.seek(at)
                f.write(data[n][at : at + 1])
    else:
        os.close(fd)
        opened.remove((fd, what))

for _ in range(1500):
    step()
    if len(opened) > 40:
        fd, what = opened.pop(random.randrange(len(opened)))
        os.close(fd)
for n, content in data.items():
    assert open(f"f{n}", "rb").read() == content
END
