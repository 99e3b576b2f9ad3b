#!/usr/bin/env bash
# RLIMIT_FSIZE: what would let a file grow beyond it ends early, or with SIGXFSZ and EFBIG.
# needs: python3
set -eu
cd "$1"
cat >t.py <<'END'
import os,resource,signal,sys,errno
def t(what,f):
    try: print(what, f())
    except OSError as e: print(what, errno.errorcode[e.errno])
hits=[]
signal.signal(signal.SIGXFSZ, lambda *a: hits.append(1))
fd=os.open('lim',os.O_CREAT|os.O_RDWR|os.O_TRUNC)
resource.setrlimit(resource.RLIMIT_FSIZE,(10000,resource.RLIM_INFINITY))
t('w',lambda: os.write(fd,b'x'*8000))
t('w2',lambda: os.write(fd,b'x'*8000)); 
t('w3',lambda: os.write(fd,b'x')); print(len(hits))
t('pw',lambda: os.pwrite(fd,b'xxx',9999))
t('pw2',lambda: os.pwrite(fd,b'xxx',10000))
print(len(hits))
t('pwin',lambda: os.pwrite(fd,b'xxx',0))
t('pw0',lambda: os.pwrite(fd,b'',20000)); print(len(hits))
t('trunc',lambda: os.ftruncate(fd,10001)); print(len(hits))
t('trunc',lambda: os.ftruncate(fd,10000)); print(len(hits))
t('trunc p',lambda: os.truncate('lim',20000)); print(len(hits))
t('falloc',lambda: os.posix_fallocate(fd,0,20000)); print(len(hits))
t('falloc in',lambda: os.posix_fallocate(fd,0,5000)); print(len(hits))
src=os.open('src',os.O_CREAT|os.O_RDWR); os.write(src,b'y'*10000)
t('cfr', lambda: os.copy_file_range(src,fd,10000,0,9000)); print(len(hits))
t('cfr2', lambda: os.copy_file_range(src,fd,10000,0,10000)); print(len(hits))
os.lseek(fd,9000,0); os.lseek(src,0,0)
t('sendfile', lambda: os.sendfile(fd,src,0,5000)); print(len(hits))
t('sendfile2', lambda: os.sendfile(fd,src,0,5000)); print(len(hits))
a=os.open('lim',os.O_WRONLY|os.O_APPEND)
t('append', lambda: os.write(a,b'zz')); print(len(hits))
t('wv', lambda: os.pwritev(fd,[b'a'*100,b'b'*100],9900)); print(len(hits))
r,w=os.pipe(); os.write(w,b"q"*3000); os.set_blocking(r,False)
t('splice', lambda: os.splice(r,fd,3000,offset_dst=9000)); print(len(hits))
t('splice2', lambda: os.splice(r,fd,2000,offset_dst=10000)); print(len(hits))
resource.setrlimit(resource.RLIMIT_FSIZE,(resource.RLIM_INFINITY,resource.RLIM_INFINITY))
big=os.open('big',os.O_CREAT|os.O_RDWR); os.ftruncate(big,50000)
resource.setrlimit(resource.RLIMIT_FSIZE,(10000,resource.RLIM_INFINITY))
t('bigw', lambda: os.pwrite(big,b'x'*10,30000))
t('bigt', lambda: os.ftruncate(big,40000))
t('bigt', lambda: os.ftruncate(big,50000))
t('bigt', lambda: os.ftruncate(big,60000))
t('bigf', lambda: os.posix_fallocate(big,0,50000))
print(len(hits))
sys.stdout.flush()
pid=os.fork()
if pid==0:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE,(0,0))
    os.pwrite(fd,b'x',20000)
    os._exit(0)
print(os.waitpid(pid,0)[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
t('ign', lambda: os.pwrite(fd,b'x',20000))
END
python3 -u t.py
# As a shell sets it for its children; 1 KiB units.
(ulimit -f 8; trap '' XFSZ; head -c 100000 /dev/zero >out || echo "head: $?") 2>/dev/null
stat -c %s out
